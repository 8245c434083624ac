"""Run cells of the graph suite side by side, one process each, and go on where it was left.

    python benchmarks/graph_runs.py --cells 'joint/*' --seeds 0 1 2 --jobs 2 --out rows.jsonl

A job is one (case, solver, seed), solver '*' where a case has no choice of solvers. A line is appended
for each that ends; what the file has already is not run again. `python benchmarks/record.py graph
--rows rows.jsonl` puts the lines into the recorded results. Solvers without chance run with the first
seed alone.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_runs import done_in
from benchmarks.suites import Options
from benchmarks.suites.graph import CASES
from benchmarks.suites.graph_cells import CELLS, ONCE
from benchmarks.suites.order import SEARCHES, cells
from loadmaster.host import host, versions

Job = tuple[str, str, int]
"""Case, solver, seed."""
ORDERS = {cell.case: cell.solvers for cell in cells()}


def jobs_of(patterns: Sequence[str], solvers: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All jobs of the cases ('*' for any characters) in the suite's order."""
    found: list[Job] = []
    for case in CASES:
        if not any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns):
            continue
        if case in CELLS:
            own, chancy = CELLS[case].solvers, [name for name in CELLS[case].solvers if name not in ONCE]
        else:
            own, chancy = ORDERS.get(case, ("*",)), list(SEARCHES if case in ORDERS else ())
        for solver in own:
            if not solvers or solver in solvers or solver == "*":
                found += [(case, solver, seed) for seed in (seeds if solver in chancy else seeds[:1])]
    return found


def run(job: Job, data: Path | None, core: int | None) -> dict[str, Any]:
    """One job; on one core if one is given."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    case, solver, seed = job
    options = Options(solvers=() if solver == "*" else (solver,), data=data)
    rows = [row.as_dict() for row in CASES[case](options, seed) if row.status != "skipped"]
    return {"job": list(job), "made": {"versions": versions(), "host": host()}, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", nargs="+", default=["*"], help="names, * for any characters")
    parser.add_argument("--solvers", nargs="*", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--data", type=Path, default=None, help="other projects' graphs")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    arguments = parser.parse_args()
    jobs = jobs_of(arguments.cells, arguments.solvers, arguments.seeds)
    if not jobs:
        sys.exit(f"error: no cell is named so: use {', '.join(CASES)}")
    done = done_in(arguments.out)
    left = [job for job in jobs if job not in done]
    print(f"{len(left)} jobs to run, {len(done)} in {arguments.out}", flush=True)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    speeds = [job for job in left if job[0].startswith("speed/")]
    others = [job for job in left if job not in speeds]
    # What is timed has the computer to itself.
    run_all(speeds, 1, [], arguments.data, arguments.out)
    run_all(others, arguments.jobs, cores if arguments.jobs > 1 else [], arguments.data, arguments.out)
    return 0


def run_all(jobs: Sequence[Job], at_once: int, cores: Sequence[int], data: Path | None, out: Path) -> None:
    """Side by side, each on a core of its own if any are given; a line for each that ends."""
    started = time.monotonic()
    # Spawned, one task a process: a problem's memory never piles up, and a core is chosen anew.
    with ProcessPoolExecutor(at_once, get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = {
            pool.submit(run, job, data, cores[number % len(cores)] if cores else None): job
            for number, job in enumerate(jobs)
        }
        for number, task in enumerate(as_completed(tasks), 1):
            try:
                line = json.dumps(task.result())
            except Exception as error:
                print(f"failed: {tasks[task]}: {error}", flush=True)  # the others go on
                continue
            with out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(f"{number} of {len(jobs)}: {tasks[task]}, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
