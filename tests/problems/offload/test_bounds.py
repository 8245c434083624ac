"""The bound against all decisions of tiny programs."""

from __future__ import annotations

from itertools import product

import numpy as np

from loadmaster.problems.offload.problem import LEADS, Offload
from loadmaster.simulate import simulate
from offload_stack import problems


def test_no_decision_is_below_the_bound_or_moves_fewer_bytes() -> None:
    tight = tried = 0
    for problem in problems(120, first=5_000):
        if problem.gaps > 7:
            continue
        best = min(_values(problem))
        assert best >= problem.bound().value
        tight += int(best <= 1.05 * problem.bound().value)
        tried += 1
    assert tried > 15 and tight > 3


def _values(problem: Offload) -> list[int]:
    coming, leaving = problem.traffic_bound()
    values = []
    for bits in product([False, True], repeat=problem.gaps):
        for lead in (0, len(LEADS) - 1):
            plan = problem.plan(problem.vector(np.array(bits, dtype=bool), lead))
            line = simulate(problem.program, problem.machine, plan)
            assert line.link_bytes[0] >= coming and line.link_bytes[1] >= leaving
            values.append(line.total_ps)
    return values
