"""Run jobs of the mapping suite side by side, one process each, and go on where it was left.

    python benchmarks/mapping_runs.py --cells 'resnet*/nnp-i' --solvers egrl ea --seeds 0 1 2 3 4 \
        --jobs 8 --out rows.jsonl

A job is one (case, solver, seed). A line is appended for each that ends; what the file has
already is not run again, so the same command goes on after a crash, and files of several
computers are merged by `record.py mapping --rows …`. Needs NumPy, and JAX for the agents.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.mapping_cells import CELLS, WHITE
from benchmarks.suites.mapping_transfer import TRANSFERS
from loadmaster.host import host, versions

Job = tuple[str, str, int]
"""Case, solver, seed."""


def jobs_of(cells: Sequence[str], solvers: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All jobs of cells ('*' for any characters), the longest cases first."""
    found: list[Job] = []
    known = {**{case: cell.solvers for case, cell in CELLS.items()}, **dict.fromkeys(TRANSFERS, ("egrl",))}
    for pattern in cells:
        if not fnmatch.filter(known, pattern):
            sys.exit(f"error: there is no cell '{pattern}': use {', '.join(known)}")
    for case, own in known.items():
        if any(fnmatch.fnmatchcase(case, pattern) for pattern in cells):
            found += [
                (case, solver, seed)
                for solver in own
                if not solvers or solver in solvers
                for seed in (seeds[:1] if solver in WHITE else seeds)
            ]
    return sorted(found, key=lambda job: "bert" not in job[0])


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


def run_job(job: Job, budget: int | None, exact_seconds: float | None) -> dict[str, Any]:
    """One job, here: its rows and what they were made with."""
    from benchmarks.suites.mapping_run import run_cell
    from benchmarks.suites.mapping_transfer import run_transfer

    case, solver, seed = job
    if case in TRANSFERS:
        rows = list(run_transfer(case, seed, **({} if budget is None else {"budget": budget})))
    else:
        rows = [run_cell(CELLS[case], solver, seed, budget=budget, seconds=exact_seconds)]
    return {
        "job": list(job),
        "made": {"versions": versions(), "host": host()},
        "rows": [row.as_dict() for row in rows],
    }


class Workers:
    """So many jobs at once, each in a process of its own on cores of its own."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.queue: SimpleQueue[Job] = SimpleQueue()
        self.lock = threading.Lock()
        self.failed: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self.queue.put(job)
        available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        threads = []
        for slot in range(min(self.arguments.jobs, len(jobs))):
            each = max(1, len(available) // self.arguments.jobs)
            first = slot * each % max(1, len(available))
            thread = threading.Thread(target=self._work, args=(available[first : first + each],))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def _work(self, cores: list[int]) -> None:
        # One job must not spread over the cores of the others: they would slow each other down.
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(max(1, len(cores))),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_PLATFORMS": self.arguments.platform,
        }
        if len(cores) <= 1:
            environment["XLA_FLAGS"] = (
                os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
            ).strip()
        while True:
            try:
                job = self.queue.get_nowait()
            except Empty:
                return
            command = [
                sys.executable,
                __file__,
                "--job",
                json.dumps(job),
                "--cores",
                ",".join(map(str, cores)),
            ]
            for name in ("budget", "exact_seconds"):
                if getattr(self.arguments, name) is not None:
                    command += [f"--{name.replace('_', '-')}", str(getattr(self.arguments, name))]
            started = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            self._finished(job, done, time.monotonic() - started)

    def _finished(self, job: Job, done: subprocess.CompletedProcess[str], took: float) -> None:
        with self.lock:
            name = f"{job[0]} {job[1]} seed {job[2]}"
            if done.returncode:
                self.failed.append(job)
                print(f"failed: {name}\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
                return
            line = done.stdout.splitlines()[-1]
            rows = [row for row in json.loads(line)["rows"] if row["status"] != "skipped"]
            if rows:
                with self.arguments.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            gap = rows[-1]["gap"] if rows else None
            outcome = "skipped" if not rows else "no map fits" if gap is None else f"gap {gap:.2%}"
            print(f"{name}: {outcome}, {took:.0f} s, {self.queue.qsize()} waiting", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", nargs="+", default=["*"], help="names, * for any characters")
    parser.add_argument("--solvers", nargs="*", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    parser.add_argument("--budget", type=int, help="instead of each cell's own")
    parser.add_argument("--exact-seconds", type=float, help="limit of the exact solver")
    parser.add_argument("--platform", default="cpu", help="of JAX: cpu or cuda")
    parser.add_argument("--list", action="store_true", help="print the jobs that are left")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        if arguments.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, set(map(int, arguments.cores.split(","))))
        case, solver, seed = json.loads(arguments.job)
        print(json.dumps(run_job((case, solver, seed), arguments.budget, arguments.exact_seconds)))
        return 0
    done = done_in(arguments.out)
    left = [job for job in jobs_of(arguments.cells, arguments.solvers, arguments.seeds) if job not in done]
    print(f"{len(left)} jobs to run, {len(done)} in {arguments.out}", flush=True)
    if arguments.list:
        print("\n".join(f"{case} {solver} {seed}" for case, solver, seed in left))
        return 0
    if arguments.out.exists() and not arguments.out.read_bytes().endswith(b"\n"):
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write("\n")  # what was cut off stays by itself
    workers = Workers(arguments)
    workers.run(left)
    return 1 if workers.failed else 0


if __name__ == "__main__":
    sys.exit(main())
