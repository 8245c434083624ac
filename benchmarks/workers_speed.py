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


PAGE = """# Workers

Made by `python benchmarks/workers_speed.py --page` of what its runs wrote. One round each, on a 2-core virtual machine that did a
dozen other jobs: more than two workers can only gain where they wait. All runs of a table found the same.
"""
TABLES = {
    "workers-ray": "Measurements by a command that waits 100 ms; starting workers is not counted "
    "(`--maps 160 --workers ray:1 ray:2 ray:4 ray:8`)",
    "islands": "Eight islands of 8,000 evaluations by annealing, bert on nnp-i, a core each while they run; starting workers is "
    "counted (`--islands 8 --maps 8000`; `none`: one after the other, without workers)",
    "islands-ray": "The same with 24,000 evaluations (`--islands 8 --maps 24000`), some nine CPU seconds in all: a "
    "cluster took as long to start, on cores that were busy, so that no gain is to be seen",
    "islands-16-cores": "Sixteen islands of 6,000 evaluations on eight cores of another computer, whose other eight were busy "
    "(`--islands 16 --maps 6000 --rounds 1 --workers local:1 local:2 local:4 local:8`); starting the workers is counted",
    "islands-2-cores": "The same on two cores (`--workers local:1 local:2`), where every island found the same as there",
}
"""Recorded file -> what it shows."""


def write_page() -> None:
    """benchmarks/results/workers.md, of the files that are there."""
    folder = Path(__file__).parent / "results"
    lines = [PAGE]
    for name, about in TABLES.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        load = f", load {found['load']:.1f}" if found.get("load") is not None else ""
        lines += [
            f"{about}{load}:",
            "",
            "| workers | seconds | a second | over one |",
            "| --- | --: | --: | --: |",
        ]
        one: dict[str, float] = {}
        for row in found["rows"]:
            kind = row["workers"].partition(":")[0]
            over = row["per_second"] / one.setdefault(kind, row["per_second"])
            lines.append(
                f"| `{row['workers']}` | {row['seconds']:.1f} | {row['per_second']:.2f} | {over:.2f} × |"
            )
        lines.append("")
    (folder / "workers.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--maps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", nargs="+", default=["local:1", "local:2", "ray:1", "ray:2"])
    parser.add_argument("--islands", type=int, help="searches, shared out whole")
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--page", action="store_true", help="the page of the recorded files, and nothing else"
    )
    args = parser.parse_args()
    if args.page:
        write_page()
        return
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
