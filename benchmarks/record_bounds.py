"""Prove bounds and keep them: `python benchmarks/record_bounds.py [--suite malloc]`.

With MODEL MACHINE pairs it does those, else all cells of the suite: the nine of the EGRL
comparison, or the MallocGames of `loadmaster bench malloc`. Writes
`src/loadmaster/search/recorded_bounds.json`, from which `bound()` of these problems reads. A
better bound on record stays; cells proven optimal are left alone unless `--again` is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.malloc_cells import GAMES, GameCell
from benchmarks.suites.problems import make_as
from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.host import command_line
from loadmaster.machine import load_machine
from loadmaster.malloc_game.bounds import game_bound
from loadmaster.malloc_game.exact import CpSat
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.exact import Exact
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.search.problem import Bound, bound_key
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter

FILE = Path(__file__).parents[1] / "src" / "loadmaster" / "search" / "recorded_bounds.json"
CELLS = [
    (model, machine)
    for machine in ("nnp-i", "nnp-i-half", "nnp-i-12")
    for model in ("resnet50", "resnet101", "bert")
]
PLANS = ("all-slow", "greedy-order", "msa", "production")
"""Solvers of the MallocGame that make one plan: no bound is above it."""
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="MODEL MACHINE")
    parser.add_argument("--suite", choices=("mapping", "malloc"), default="mapping")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each cell")
    parser.add_argument("--again", action="store_true", help="proven cells too")
    given = parser.parse_args()
    if len(given.cells) % 2:
        parser.error("give pairs: MODEL MACHINE")
    cells = list(zip(given.cells[::2], given.cells[1::2], strict=True))
    suite = ["--suite malloc"] if given.suite == "malloc" else []
    for model, machine in cells or _cells(given.suite):
        problem = _problem(given.suite, model, machine)
        key = bound_key(problem.program, problem.machine, problem.kind)
        known = _table().get(key)
        if known is not None and known["proven"] and not given.again:
            print(f"{model} on {machine}: proven already, {known['bound']:,} ps")
            continue
        command = ["python", "benchmarks/record_bounds.py", *suite, *command_line([model, machine])]
        proof = (
            prove(problem, given.seconds)
            if isinstance(problem, Mapping)
            else prove_game(problem, given.seconds)
        )
        row = {**proof, "command": " ".join([*command, f"--seconds {given.seconds:g}"])}
        row = row if known is None else better(known, row)
        _write({**_table(), key: row})
        print(
            f"{model} on {machine}: bound {row['bound']:,} ps, best {row['best']:,} ps, "
            f"{'proven' if row['proven'] else 'open'}, {row['seconds']:.1f} s",
            flush=True,
        )


def _cells(suite: str) -> list[tuple[str, str]]:
    if suite == "mapping":
        return CELLS
    return [(cell.model, cell.machine) for cell in GAMES.values() if not cell.problem]


def _problem(suite: str, model: str, machine: str) -> Mapping | MallocGame:
    if suite == "mapping":
        return make_as(Mapping, load_model(model), load_machine(machine).with_reach("all"))
    return GameCell("", model, machine).load()


def prove(problem: Mapping, seconds: float) -> Row:
    """A row of the table, from nothing: what is on record does not count."""
    meter = Meter(problem, Budget(seconds=seconds))
    meter.bound = Bound(0, "none")
    solution = Exact().run(meter, 0, None)
    if solution.value is None:
        raise SystemExit(f"no map of {problem.program.name} on {problem.machine.name} could be packed")
    return _row(problem, solution.bound, solution.value, solution.seconds)


def prove_game(problem: MallocGame, seconds: float) -> Row:
    """The same for a game: the linear bound, then that of whole tensors; CP-SAT if it is small."""
    meter = Meter(problem, Budget(seconds=seconds))
    meter.bound = Bound(0, "none")
    for name in PLANS:
        try:
            make_labelled("malloc-game", name).run(meter, 0, None)
        except LoadmasterError:  # no production placement is known
            continue
    small = problem.moves <= CpSat().most_moves
    bound = game_bound(problem, seconds / 2 if small else seconds, whole=True)
    meter.raise_bound(bound.value, bound.method)
    if small:
        CpSat().run(meter, 0, None)
    assert meter.best_value is not None  # all-slow is a plan
    return _row(problem, meter.bound, meter.best_value, meter.seconds)


def _row(problem: Mapping | MallocGame, bound: Bound, best: int, seconds: float) -> Row:
    return {
        "program": problem.program.name,
        "machine": problem.machine.name,
        "bound": bound.value,
        "best": best,
        "proven": best <= bound.value,
        "method": bound.method,
        "seconds": round(seconds, 1),
    }


def better(old: Row, new: Row) -> Row:
    """The row with the higher bound, and the smaller of the two times."""
    row = dict(new if new["bound"] >= old["bound"] else old)
    row["best"] = min(old["best"], new["best"])
    row["proven"] = row["best"] <= row["bound"]
    if row["bound"] > row["best"]:
        raise SystemExit(
            f"bound {row['bound']} of {row['program']} on {row['machine']} is above the time "
            f"{row['best']} of a plan: one of the two is wrong"
        )
    return row


def _table() -> dict[str, Row]:
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.is_file() else {}


def _write(table: dict[str, Row]) -> None:
    ordered = dict(sorted(table.items(), key=lambda item: (item[1]["machine"], item[1]["program"], item[0])))
    with replacing(FILE) as temporary:
        temporary.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
