"""Memory space assignment decides what stays: its plan's residencies, read as gaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_training import random_training
from loadmaster.errors import BadMachine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.offload.model import BEFORE_USE
from loadmaster.offload.problem import Offload
from loadmaster.offload.residencies import gaps_of_plan
from loadmaster.plan.plan import Plan
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, solve
from offload_stack import gpu


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_gaps_of_a_plan_are_those_that_one_residency_covers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_training(rng)
    needed = Offload(program, gpu(2**40)).model.needed
    try:
        problem = Offload(program, gpu(int(needed * rng.uniform(0.4, 1.0))))
    except BadMachine:  # one op needs more
        return
    game = MallocGame(program, problem.machine.with_reach("all"))
    found = solve(make_solver("malloc-game", "msa"), game, Budget())
    assert found.decision is not None
    plan = game.plan(found.decision)
    assert gaps_of_plan(problem.model, plan).tolist() == slow_gaps(problem, plan)


def slow_gaps(problem: Offload, plan: Plan) -> list[bool]:
    """Use by use: a gap is kept if one residency covers the ops at both of its ends."""
    model = problem.model
    kept = []
    for gap in range(model.gaps):
        after = int(model.step_op[min(int(model.gap_to[gap]), model.steps - 1)])
        before = -1 if model.gap_kind[gap] == BEFORE_USE else int(model.step_op[model.gap_from[gap]])
        kept.append(
            any(
                (row.tensor, row.memory) == (model.root[model.gap_item[gap]], model.fast)
                and row.first <= before
                and after <= row.last
                for row in plan.residency_rows
            )
        )
    return kept
