"""Golden values of the nine cells: three networks on three machines, in picoseconds."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate

ALL_SLOWEST = {"resnet50": 815_267_107, "resnet101": 1_311_958_589, "bert": 2_979_760_897}
ALL_FASTEST = {
    "resnet50": (0.634551, 112_041_521),
    "resnet101": (0.695312, 436_312_749),
    "bert": (0.662584, 1_435_253_087),
}
"""On nnp-i, everything in the fastest memory: epsilon, and the time once rectified."""
WHITE_BOX = {
    ("resnet50", "nnp-i"): (139_559_588, 112_041_521, 109_325_638),
    ("resnet101", "nnp-i"): (457_014_137, 436_312_749, 367_710_728),
    ("bert", "nnp-i"): (1_188_712_817, 1_152_910_328, 1_151_034_045),
    ("resnet50", "nnp-i-half"): (287_647_771, 287_647_771, 245_647_590),
    ("resnet101", "nnp-i-half"): (592_860_049, 589_477_237, 541_252_787),
    ("bert", "nnp-i-half"): (1_339_048_352, 1_324_695_541, 1_322_994_789),
    ("resnet50", "nnp-i-12"): (139_559_588, 103_201_699, 103_201_699),
    ("resnet101", "nnp-i-12"): (457_014_137, 194_091_196, 194_091_196),
    ("bert", "nnp-i-12"): (1_188_712_817, 594_599_703, 621_602_447),
}
"""Role-split, compiler, density."""
LIVE = {"resnet50": (57, 111), "resnet101": (108, 213), "bert": (376, 548)}
"""Nodes, and entries that decide something."""


@pytest.mark.parametrize("cell", WHITE_BOX, ids="/".join)
def test_white_box_solvers(cell: tuple[str, str]) -> None:
    problem = Mapping(load_model(cell[0]), load_machine(cell[1]))
    wanted = dict(zip(("role-split", "compiler", "density"), WHITE_BOX[cell], strict=True))
    for name, time in {"all-slowest": ALL_SLOWEST[cell[0]], **wanted}.items():
        solution = solve(make_labelled("mapping", name), problem, Budget())
        assert (name, solution.value) == (name, time)
        assert solution.evaluations == 1
        plan = problem.plan(solution.decision)  # type: ignore[arg-type]
        timeline = simulate(problem.program, problem.machine, plan)
        assert timeline.total_ps == time
        assert check(problem.program, problem.machine, plan, timeline) == []
        assert np.array_equal(problem.decision(plan), solution.decision)  # type: ignore[arg-type]
    assert problem.compiler_ps == wanted["compiler"] and min(wanted.values()) >= problem.bound().value


@pytest.mark.parametrize("model", ALL_FASTEST)
def test_everything_in_the_fastest_memory(model: str) -> None:
    problem = Mapping(load_model(model), load_machine("nnp-i"))
    assert (problem.nodes, int(problem.live.sum())) == LIVE[model]
    time, epsilon, rectified = problem.rectify(np.zeros((1, 2 * problem.nodes), dtype=np.int8))
    assert (round(epsilon[0], 6), time[0]) == ALL_FASTEST[model]
    assert (rectified[0][~problem.live] == problem.slowest).all()
    assert problem.score(np.zeros_like(rectified)).reward[0] == -epsilon[0]
