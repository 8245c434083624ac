"""What each part of mallocMuZero is worth: small networks from scratch on small games, one switch changed at
a time, equal games.

    python benchmarks/muzero_ablation.py --seeds 0 1 --budget 480 --out ablation.jsonl
    python benchmarks/record.py malloc --rows ablation.jsonl

Rows are named `ablation/CASE`, their solver `paper:SWITCH`. The networks are small and the games few, so that
it runs on two cores: differences of a few tenths of a percent between single seeds mean nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_runs import done_in
from benchmarks.suites.malloc_cells import GAMES
from benchmarks.suites.malloc_run import loaded, row_of
from benchmarks.suites.mapping_run import Improvements
from benchmarks.suites.problems import make_as
from loadmaster.host import host, versions
from loadmaster.malloc_game.muzero.paper import PaperMuZero
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.planner import CheckedSolution, solve_checked
from loadmaster.search.solver import Budget

CASES = ("alexnet-train/tpu-v4i-16m", "resnet50-inf/tpu-v4i-16m", "synthetic-33")
SMALL: dict[str, Any] = {
    "width": 64,
    "channels": 16,
    "grid_blocks": 1,
    "dynamics_blocks": 2,
    "prediction_blocks": 1,
    "games": 48,
    "batch": 48,
    "updates": 16,
    "value_scale": 0.1,
}
"""Of every variant: a policy that begins with nothing needs search to tell it more than 0.01 does."""
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "simulations=0": ({"simulations": 0}, {}),
    "simulations=32": ({"simulations": 32}, {}),
    "simulations=64": ({"simulations": 64}, {}),
    "reanalyse=false": ({"reanalyse": False}, {}),
    "imitated=0": ({"imitated": 0.0}, {}),
    "best=0": ({"best": 0.0}, {}),
    "policy=muzero": ({"policy": "muzero"}, {}),
    "value_scale=0.01": ({"value_scale": 0.01}, {}),
    "discount=1": ({"discount": 1.0}, {}),
    "window=0": ({"window": 0}, {}),
    "backup=none": ({}, {"backup": "none"}),
    "reward=static": ({}, {"reward": "static"}),
    "repack=0": ({}, {"repack": 0}),
}
"""Settings of the agent, and switches of the game."""
RIVALS = ("es-moves", "anneal-moves", "random-best")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS, *RIVALS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, default=480, help="games")
    parser.add_argument("--out", type=Path, default=Path("ablation.jsonl"))
    args = parser.parse_args()
    done = set(map(tuple, done_in(args.out)))
    for seed in args.seeds:
        for name in args.variants:
            for case in args.cases:
                label = name if name in RIVALS else f"paper:{name}"
                job = (f"ablation/{case}", label, seed)
                if job not in done:
                    _run(job, case, name, args.budget, args.out)
    return 0


def _run(job: tuple[str, str, int], case: str, name: str, budget: int, out: Path) -> None:
    settings, switches = VARIANTS.get(name, ({}, {}))
    plain = loaded(case)[0]
    problem = make_as(MallocGame, plain.program, plain.machine, options=switches) if switches else plain
    solver = name if name in RIVALS else PaperMuZero("scratch", **(SMALL | settings))
    observer = Improvements()
    found = solve_checked(problem, solver, Budget(budget), job[2], observer=observer)
    assert found.plan is not None
    # The same plan, whatever the rules it was found by: judged by the same simulator.
    same = replace(found.solution, decision=plain.decision(found.plan))
    found = CheckedSolution(plain, same, found.seconds)
    row = row_of(replace(GAMES[case], budget=budget), job[1], job[2], found, observer)
    row = replace(row, case=job[0])
    print(f"{job[0]:38} {job[1]:26} seed {job[2]} {row.value / 1e9:9.5f} ms {row.seconds:5.0f} s", flush=True)
    line = {"job": list(job), "made": {"versions": versions(), "host": host()}, "rows": [row.as_dict()]}
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
