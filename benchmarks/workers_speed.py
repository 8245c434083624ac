"""How much faster two workers measure than one, with a command that waits 100 ms.

    python benchmarks/workers_speed.py [--maps 200] [--rounds 3] [--workers local:1 local:2 ray:1 ray:2]
                                       [--out FILE]

One search of as many random maps for each, in turns, and the median of the rounds; the best value must
be the same for all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from loadmaster.host import host, load, versions
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.planner import solve_checked
from loadmaster.program.models import load_model
from loadmaster.runs.workers import distribute
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", nargs="+", default=["local:1", "local:2", "ray:1", "ray:2"])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "wait.sh"
        script.write_text(WAIT, encoding="utf-8")
        rows = [
            measured(f"sh {script}", workers, args.maps)
            for _ in range(args.rounds)
            for workers in args.workers
        ]
    assert len({row["value"] for row in rows}) == 1, "workers changed a result"
    rates = {
        workers: statistics.median(row["per_second"] for row in rows if row["workers"] == workers)
        for workers in args.workers
    }
    for workers, rate in rates.items():
        one = rates.get(f"{workers.partition(':')[0]}:1", rate)
        print(f"{workers:8} {rate:5.2f} measurements a second, {rate / one:.2f} x")
    if args.out is not None:
        about = {"host": host(), "load": load(), "versions": versions(), "rows": rows}
        args.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
