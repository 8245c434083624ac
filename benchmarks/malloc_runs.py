"""Run cells of the malloc suite side by side, one process each, and go on where it was left.

    python benchmarks/malloc_runs.py --cells '*/tpu-v4i' --seeds 0 1 2 3 4 --jobs 2 --out rows.jsonl

A line is appended for each (cell, seed) that ends; what the file has already is not run again.
`python benchmarks/record.py malloc --rows rows.jsonl` puts the lines into the recorded results.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_runs import done_in
from benchmarks.suites import Options
from benchmarks.suites.malloc import CASES
from benchmarks.suites.malloc_cells import GAMES
from loadmaster.host import host, versions

Job = tuple[str, int]
"""Case, seed."""


def run(job: Job, solvers: tuple[str, ...], core: int | None) -> dict[str, Any]:
    """All solvers of one cell with one seed, on one core."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    case, seed = job
    rows = [row.as_dict() for row in CASES[case](Options(solvers=solvers), seed)]
    return {"job": [case, "*", seed], "made": {"versions": versions(), "host": host()}, "rows": rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", nargs="+", default=["*"], help="names, * for any characters")
    parser.add_argument("--solvers", nargs="*", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    arguments = parser.parse_args()
    known = [*GAMES, *(case for case in CASES if case.startswith("speed/"))]
    cases = [case for case in known if any(fnmatch.fnmatchcase(case, each) for each in arguments.cells)]
    if not cases:
        sys.exit(f"error: no cell is named so: use {', '.join(known)}")
    done = {(case, seed) for case, _, seed in done_in(arguments.out)}
    left = [(case, seed) for seed in arguments.seeds for case in cases if (case, seed) not in done]
    print(f"{len(left)} jobs to run, {len(done)} in {arguments.out}", flush=True)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    started = time.monotonic()
    # Spawned, one task a process: a game's memory never piles up, and a core is chosen anew.
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        tasks = {
            pool.submit(
                run, job, tuple(arguments.solvers), cores[number % len(cores)] if cores else None
            ): job
            for number, job in enumerate(left)
        }
        for number, task in enumerate(as_completed(tasks), 1):
            line = json.dumps(task.result())
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(f"{number} of {len(left)}: {tasks[task]}, {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
