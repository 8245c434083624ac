"""How much faster two workers measure than one, with a command that waits 100 ms.

    python benchmarks/workers_speed.py [--maps 200] [--rounds 3] [--workers local:1 local:2 ray:1 ray:2]
                                       [--islands 8] [--out FILE]

One search of as many random maps for each, in turns, and the median of the rounds; the best value must
be the same for all of them. With `--islands`, so many searches of as many maps instead, which keep a core each busy:
seconds include starting the workers, and every island must find the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from loadmaster.host import host, load, versions
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.planner import solve_checked
from loadmaster.program.models import load_model
from loadmaster.runs.workers import distribute, search_islands
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.solver import Budget

WAIT = "sleep 0.1\nwc -c\n"
"""Waits, and takes the length of the plan for a time: the same for the same plan."""


def measured(command: str, workers: str, maps: int) -> dict[str, Any]:
    """One search; workers are started before the clock is."""
    problem = MeasuredMapping(
        load_model("bert:layers=1"),
        load_machine("nnp-i"),
        CommandEvaluator(command),
        repeats=1,
        warmups=0,
        baseline_every=10**6,
    )
    with distribute(problem, workers) as work:
        assert problem.compiler_ps > 0  # the baseline
        found = solve_checked(problem, "random", Budget(maps), seed=1)
        seconds = found.seconds
        count = problem.measurements - work.pool.size
        return {
            "workers": workers,
            "value": found.solution.value,
            "measurements": count,
            "seconds": seconds,
            "per_second": count / seconds,
            "by_worker": work.pool.answered,
        }


def searched(workers: str, islands: int, maps: int) -> dict[str, Any]:
    """So many searches by annealing; workers are started within the time."""
    problem = Mapping(load_model("bert"), load_machine("nnp-i"))
    started, own = time.perf_counter(), time.process_time()
    found = search_islands(
        problem, "annealing", maps, islands=islands, seed=1, workers=None if workers == "none" else workers
    )
    seconds = time.perf_counter() - started
    return {
        "workers": workers,
        "value": [island.value for island in found],
        "measurements": islands,
        "seconds": seconds,
        "own_cpu_seconds": time.process_time() - own,
        "per_second": islands / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", nargs="+", default=["local:1", "local:2", "ray:1", "ray:2"])
    parser.add_argument("--islands", type=int, help="searches, shared out whole")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "wait.sh"
        script.write_text(WAIT, encoding="utf-8")
        rows = [
            searched(workers, args.islands, args.maps)
            if args.islands
            else measured(f"sh {script}", workers, args.maps)
            for _ in range(args.rounds)
            for workers in args.workers
        ]
    assert len({str(row["value"]) for row in rows}) == 1, "workers changed a result"
    rates = {
        workers: statistics.median(row["per_second"] for row in rows if row["workers"] == workers)
        for workers in args.workers
    }
    for workers, rate in rates.items():
        one = rates.get(f"{workers.partition(':')[0]}:1", rate)
        what = "islands" if args.islands else "measurements"
        print(f"{workers:8} {rate:5.2f} {what} a second, {rate / one:.2f} x")
    if args.out is not None:
        about = {"host": host(), "load": load(), "versions": versions(), "rows": rows}
        args.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
