"""Play the plans of memory space assignment as games: `python benchmarks/replay_plans.py --out replayed.json`.

Every plan of `msa --set style=refined` and of `msa-order` becomes moves, and the game that plays them at the plan's
offsets must take the plan's own time, to the picosecond. The exit status is 1 if one does not. Beside it: the same
moves if the game finds the offsets itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.malloc_cells import PROGRAMS
from loadmaster.host import versions
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

MACHINES = ("tpu-v4i", "tpu-v4i-16m")


def replay(program: str, machine: str, solver: str, evaluations: int, seed: int) -> dict[str, object]:
    """One plan, and the game that plays its moves."""
    problem = MallocGame(load_model(program), load_machine(machine))
    options = {"style": "refined"} if solver == "msa" else {}
    found = solve(make_labelled("malloc-game", solver, options), problem, Budget(evaluations), seed)
    assert found.decision is not None
    plan = problem.plan(found.decision)
    moves = problem.moves_of(plan)
    played, alone = problem.replay(plan), problem.play(moves[None])
    return {
        "cell": f"{program}/{machine}",
        "solver": solver,
        "seed": seed,
        "evaluations": found.evaluations,
        "plan_picoseconds": found.value,
        "game_picoseconds": int(played.total[0]),
        "moves_alone_picoseconds": int(alone.total[0]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS))
    parser.add_argument("--machines", nargs="+", default=list(MACHINES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--budget", type=int, default=150, help="evaluations of msa-order")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for program in args.programs:
        for machine in args.machines:
            rows.append(replay(program, machine, "msa", args.budget, 0))
            rows += [replay(program, machine, "msa-order", args.budget, seed) for seed in args.seeds]
    differ = [row for row in rows if row["plan_picoseconds"] != row["game_picoseconds"]]
    for row in differ:
        print(row)
    alone = sum(row["plan_picoseconds"] == row["moves_alone_picoseconds"] for row in rows)
    print(
        f"{len(rows) - len(differ)} of {len(rows)} plans take their own time as games, {alone} without their offsets"
    )
    if args.out is not None:
        command = ["python", "benchmarks/replay_plans.py", *sys.argv[1:]]
        about = {"command": " ".join(command), "versions": versions(), "rows": rows}
        args.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
