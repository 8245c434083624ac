"""The solvers `msa` and `msa-order`: they keep the rules of solvers, and evolution pays."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program import Builder, Program
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from search.conformance import conforms


def crowded(seed: int = 3, ops: int = 40) -> Program:
    """Tensors of many sizes that are read again some ops later: too many for the fast memory."""
    rng = np.random.default_rng(seed)
    build = Builder("crowded")
    tensors = [build.tensor("x", bytes=32, kind="input")]
    for i in range(ops):
        weight = build.tensor(f"w{i}", bytes=int(rng.integers(2, 9)) * 8, kind="weight")
        kind = "output" if i == ops - 1 else "activation"
        tensors.append(build.tensor(f"t{i}", bytes=int(rng.integers(1, 9)) * 8, kind=kind))
        late = tensors[int(rng.integers(max(0, i - 9), i + 1))]
        build.op(
            f"op{i}",
            "add",
            reads=sorted({tensors[i], late, weight}),
            writes=[tensors[-1]],
            vector=int(rng.integers(1, 900)),
        )
    return build.build()


def game(seed: int = 3) -> MallocGame:
    return MallocGame(crowded(seed), load_machine("xla-unit:fast=256"))


@pytest.mark.parametrize("name", ["msa", "msa-order"])
@pytest.mark.parametrize("style", ["2023", "production", "refined"])
def test_solvers_conform(name: str, style: str) -> None:
    conforms(
        lambda: make_labelled("malloc-game", name, {"style": style}),
        game(),
        evaluations=(1, 70, 200),
        seeds=(0,),
    )


def test_evolution_begins_with_its_own_order_and_improves_on_it() -> None:
    for seed in range(4):
        problem = game(seed)
        for style, passes in (("2023", 1), ("refined", 5)):
            options = {"style": style}
            own = solve(make_labelled("malloc-game", "msa", options), problem, Budget(evaluations=passes))
            order = make_labelled("malloc-game", "msa-order", options)
            first = solve(order, problem, Budget(evaluations=passes))
            found = solve(order, problem, Budget(evaluations=600))
            assert own.evaluations == passes
            assert own.value is not None and found.value is not None
            assert first.value == own.value
            assert found.value < own.value


def test_refinement_takes_stalls_away() -> None:
    better = 0
    for seed in range(6):
        problem = game(seed)
        plain = solve(make_labelled("malloc-game", "msa"), problem, Budget()).value
        refined = solve(make_labelled("malloc-game", "msa", {"style": "refined"}), problem, Budget()).value
        assert plain is not None and refined is not None
        assert refined <= plain
        better += refined < plain
    assert better >= 4


def test_threads_do_not_change_the_answer() -> None:
    problem = game()
    answers = []
    for threads in (1, 3):
        solver = make_labelled("malloc-game", "msa-order", {"threads": threads})
        answers.append(solve(solver, problem, Budget(evaluations=300), seed=7))
    assert answers[0].value == answers[1].value
    assert np.array_equal(answers[0].decision, answers[1].decision)
    other = solve(make_labelled("malloc-game", "msa-order"), problem, Budget(evaluations=300), seed=8)
    assert other.evaluations == answers[0].evaluations == 300
