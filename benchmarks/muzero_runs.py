"""Play cells of the malloc suite with the published agent and a trained network, all of them together in one batch.

    python benchmarks/muzero_runs.py --cells '*/tpu-v4i' --label paper --budget 1000 --out rows.jsonl
    python benchmarks/muzero_runs.py --cells '*/tpu-v4i' --label paper-32 --budget 16 --zero-shot --set eval_simulations=32

With `--zero-shot` nothing is learned, so that a program's games are those that it would have alone; without,
the network learns from the games of all cells: give held-out programs one at a time. For each row of `paper`
there is one of `paper-prod`, the better of it and the baseline. `benchmarks/record.py malloc --rows rows.jsonl`
puts the lines into the recorded results.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites import Row
from benchmarks.suites.malloc_cells import GAMES
from benchmarks.suites.malloc_run import loaded, row_of
from benchmarks.suites.mapping_run import Improvements
from benchmarks.suites.problems import make_as
from loadmaster.cli.plan import parse_settings
from loadmaster.host import host, versions
from loadmaster.malloc_game.muzero.paper import PaperMuZero, start_of
from loadmaster.malloc_game.muzero.paper.session import Session
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.planner import CheckedSolution
from loadmaster.search.solver import Budget, Meter

GAMES_EACH = 16
"""Whole games of each program in a zero-shot run: one without noise."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", nargs="+", required=True, help="names, * for any characters")
    parser.add_argument("--but", nargs="*", default=[], help="names to leave out")
    parser.add_argument("--label", default="paper", help="the solver's name in the rows")
    parser.add_argument("--budget", type=int, default=1_000, help="games of each program")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--zero-shot", action="store_true", help="learn nothing")
    parser.add_argument("--init", default="auto", help="the trained network")
    parser.add_argument("--set", nargs="*", default=[], dest="options", metavar="NAME=VALUE")
    parser.add_argument(
        "--game", nargs="*", default=[], metavar="NAME=VALUE", help="rules, such as backup=none"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("rows.jsonl"))
    args = parser.parse_args()

    def named(case: str, names: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(case, name) for name in names)

    cells = [cell for case, cell in GAMES.items() if named(case, args.cells) and not named(case, args.but)]
    if not cells:
        sys.exit("error: no cell is named so")
    options = parse_settings(args.options)
    if args.zero_shot:
        options = {"updates": 0, "eval_games": GAMES_EACH * len(cells), **options}
    solver = PaperMuZero(init=args.init, **options)
    rules: dict[str, Any] = parse_settings(args.game)
    problems = [loaded(cell.case)[0] for cell in cells]
    if rules:
        problems = [make_as(MallocGame, each.program, each.machine, options=rules) for each in problems]
    observers = [Improvements() for _ in cells]
    budget = Budget(args.budget, args.seconds)
    meters = [Meter(problem, budget, observer) for problem, observer in zip(problems, observers, strict=True)]
    started = time.perf_counter()
    session = Session(meters, args.seed, solver.settings, start_of(solver.init, solver.settings), None)
    session.run()
    took = time.perf_counter() - started
    rows: list[Row] = []
    for cell, meter, observer in zip(cells, meters, observers, strict=True):
        cell = replace(cell, budget=args.budget)
        found = meter.solution()
        if rules and found.decision is not None:  # the row's own game has other rules: give it the plan
            found.decision = meter.problem.decision(meter.problem.plan(found.decision))
        checked = CheckedSolution(loaded(cell.case)[0], found, took / len(cells))
        row = row_of(cell, args.label, args.seed, checked, observer)
        row.extra.update(
            together=len(cells), options=options, init=args.init, zero_shot=args.zero_shot, rules=rules
        )
        rows.append(row)
        if args.label == "paper":
            rows.append(_better(row))
    for row in rows:
        print(
            f"{row.case:34} {row.solver:14} {row.value / 1e9:9.4f} ms  baseline / it {row.baseline / row.value:.4f}"  # type: ignore[operator]
            f"  {row.evaluations} games",
            flush=True,
        )
    made = {"versions": versions(), "host": host()}
    with args.out.open("a", encoding="utf-8") as file:
        for row in rows:
            line = {"job": [row.case, row.solver, row.seed], "made": made, "rows": [row.as_dict()]}
            file.write(json.dumps(line) + "\n")
    print(f"{took:.0f} s: { ({part: round(seconds) for part, seconds in session.seconds.items()}) }")
    return 0


def _better(row: Row) -> Row:
    """The row of `paper-prod`: the baseline costs one evaluation more."""
    assert row.baseline is not None and row.bound is not None
    value = min(row.value, row.baseline)
    return replace(
        row, solver="paper-prod", value=value, gap=value / row.bound - 1, evaluations=row.evaluations + 1
    )


if __name__ == "__main__":
    sys.exit(main())
