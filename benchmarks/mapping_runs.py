"""Run jobs of the mapping suite side by side, and go on where it was left.

    python benchmarks/mapping_runs.py --part main strict --jobs 2 --out rows.jsonl

A job is one (case, solver, seed). A line is appended for each that ends; what the file has already is
not run again, so the same command goes on after a crash or when its seconds were over, and files of
several computers are merged by `record.py mapping --rows …`. Part 'white' has the exact solver (up to five
minutes a cell), and 'paper' needs JAX (a minute or so a job): all others, which are run if none is named,
take a quarter of an hour together on two cores.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import lru_cache
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.mapping_cells import CELLS, PARTS
from benchmarks.suites.mapping_solvers import ONCE, PAPER
from loadmaster.host import host, versions

Job = tuple[str, str, int]
"""Case, solver, seed."""


def jobs_of(
    parts: Sequence[str],
    cells: Sequence[str] = ("*",),
    solvers: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> list[Job]:
    """All jobs of parts in cells ('*' for any characters); `seeds`: in place of the parts' own."""
    for pattern in cells:
        if not fnmatch.filter(CELLS, pattern):
            sys.exit(f"error: there is no cell '{pattern}': use {', '.join(CELLS)}")
    found: dict[Job, None] = {}
    for part in parts:
        cases, chosen, count = PARTS[part]
        numbers = range(count) if seeds is None else seeds
        for case in cases:
            if not any(fnmatch.fnmatchcase(case, pattern) for pattern in cells):
                continue
            for solver in chosen or CELLS[case].solvers:
                once = solver in ONCE and not CELLS[case].wrong
                if not solvers or solver in solvers:
                    found |= {(case, solver, seed): None for seed in (numbers[:1] if once else numbers)}
    return list(found)


def done_in(path: Path) -> set[Job]:
    """The jobs that a file has; a torn last line does not count."""
    found: set[Job] = set()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            case, solver, seed = json.loads(line)["job"]
        except (ValueError, KeyError):
            continue
        found.add((case, solver, seed))
    return found


def run_job(job: Job, budget: int | None = None, exact_seconds: float | None = None) -> dict[str, Any]:
    """One job, here: its row and what it was made with."""
    from benchmarks.suites.mapping_run import run_cell

    case, solver, seed = job
    row = run_cell(CELLS[case], solver, seed, budget=budget, seconds=exact_seconds)
    return {"job": list(job), "made": _made(), "rows": [row.as_dict()]}


@lru_cache(maxsize=1)
def _made() -> dict[str, Any]:
    return {"versions": versions(), "host": host()}


def _take_cores(cores: Queue[list[int]]) -> None:
    """A worker's own cores: one must not spread over those of the others."""
    own = cores.get()
    if own and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, own)
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(own)))
    # What is imported and read once is no part of the first job's seconds.
    from benchmarks.suites.mapping_run import run_cell

    run_cell(CELLS["resnet50/nnp-i"], "egrl", 0, budget=20)


def run_all(jobs: Sequence[Job], arguments: argparse.Namespace) -> list[Job]:
    """Side by side, a line for each that ends; those that failed. What is left when the seconds are over is
    for the next time."""
    context = get_context("spawn")
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    count = max(1, min(arguments.jobs, len(jobs)))
    each = max(1, len(available) // count)
    cores: Queue[list[int]] = context.Queue()
    for slot in range(count):
        first = slot * each % max(1, len(available))
        cores.put(available[first : first + each])
    started, failed, waiting = time.monotonic(), [], list(reversed(jobs))
    running: dict[Future[dict[str, Any]], Job] = {}
    with ProcessPoolExecutor(count, context, initializer=_take_cores, initargs=(cores,)) as pool:
        while waiting or running:
            over = arguments.seconds is not None and time.monotonic() - started > arguments.seconds
            while waiting and not over and len(running) < 2 * count:
                job = waiting.pop()
                running[pool.submit(run_job, job, arguments.budget, arguments.exact_seconds)] = job
            if not running:
                break
            for task in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(task)
                if (error := task.exception()) is not None:
                    failed.append(job)
                    print(f"failed: {job}: {error}", file=sys.stderr, flush=True)  # the others go on
                else:
                    _finished(job, task.result(), arguments.out)
    print(
        f"{len(jobs) - len(waiting)} jobs in {time.monotonic() - started:.0f} s, {len(waiting)} left",
        flush=True,
    )
    return failed


def _finished(job: Job, result: dict[str, Any], out: Path) -> None:
    (row,) = result["rows"]
    name = f"{job[0]} {job[1]} seed {job[2]}"
    if row["status"] == "skipped":
        print(f"{name}: skipped, {row['extra']['reason']}", flush=True)
        return
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    outcome = "no map fits" if row["gap"] is None else f"gap {row['gap']:.2%}"
    print(f"{name}: {outcome}, {row['seconds']:.1f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    quick = [part for part in PARTS if part not in ("white", "paper")]
    parser.add_argument(
        "--part", nargs="+", choices=tuple(PARTS), default=quick, help="all but white and paper"
    )
    parser.add_argument("--cells", nargs="+", default=["*"], help="names, * for any characters")
    parser.add_argument("--solvers", nargs="*", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of each part's own")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--seconds", type=float, help="start no job after so many")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--budget", type=int, help="evaluations instead of each cell's own")
    parser.add_argument("--exact-seconds", type=float, help="limit of the exact solver")
    parser.add_argument("--platform", default="cpu", help=f"of JAX, for {', '.join(PAPER)}: cpu or cuda")
    parser.add_argument("--list", action="store_true", help="print the jobs that are left")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = arguments.platform
    done = done_in(arguments.out)
    chosen = jobs_of(arguments.part, arguments.cells, arguments.solvers, arguments.seeds)
    left = [job for job in chosen if job not in done]
    print(f"{len(left)} jobs to run, {len(done)} in {arguments.out}", flush=True)
    if arguments.list or not left:
        print("\n".join(f"{case} {solver} {seed}" for case, solver, seed in left), end="\n" if left else "")
        return 0
    if arguments.out.exists() and not arguments.out.read_bytes().endswith(b"\n"):
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write("\n")  # what was cut off stays by itself
    return 1 if run_all(left, arguments) else 0


if __name__ == "__main__":
    sys.exit(main())
