"""Every registered solver is put through `conforms`; solvers that cheat are caught by it."""

from __future__ import annotations

import numpy as np
import pytest

import toy
from loadmaster.errors import MissingPackage
from loadmaster.problems.allocation import Allocation
from loadmaster.problems.buffers_csv import parse_buffers
from loadmaster.solvers.registry import make_solver, solver_names
from solvers.conformance import conforms


@pytest.mark.parametrize("solver", [toy.Climb, toy.Plain])
def test_honest_solvers_conform(solver: type) -> None:
    conforms(solver, toy.Toy())


@pytest.mark.parametrize(
    ("solver", "rule"),
    [
        (toy.Greedy, "budget: "),
        (toy.SelfScorer, "budget: "),
        (toy.Liar, "value: "),
        (toy.Overlapper, "checker: "),
        (toy.Moody, "seed: "),
        (toy.Forgetful, "resume: "),
        (toy.Deaf, "budget: .* s of "),
    ],
)
def test_cheats_are_caught(solver: type, rule: str) -> None:
    with pytest.raises(AssertionError, match=f"^{rule}"):
        conforms(solver, toy.Toy())


def test_asking_the_problem_is_caught_within_the_budget_too() -> None:
    with pytest.raises(AssertionError, match=r"^score: "):
        conforms(toy.SelfScorer, toy.Toy(), evaluations=(1000,))


COMPLETE = {"auto", "exact", "large", "cp-sat", "omnimalloc"}
"""They end when they have a proof, not when evaluations are spent."""
CASES = [(name, kind) for name in solver_names("allocation")
         for kind in ("least", "fit", "too small", "aligned")
         if kind != "aligned" or name not in COMPLETE]  # fmt: skip


def _allocation(kind: str) -> Allocation:
    """24 buffers; with alignments the bound is out of reach, so that a search goes on."""
    rng = np.random.default_rng(5)
    rows = ["id,lower,upper,size,alignment"]
    for i in range(24):
        start = int(rng.integers(0, 20))
        end, size = start + int(rng.integers(1, 9)), int(rng.integers(1, 40))
        rows.append(f"b{i},{start},{end},{size},{(1, 8, 32)[i % 3] if kind == 'aligned' else 1}")
    buffers = parse_buffers("\n".join([*rows, ""]), "test.csv")
    capacity = {"fit": 2 * buffers.max_live, "too small": buffers.max_live - 1}.get(kind)
    return Allocation(buffers, capacity, "test")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_allocation_solvers_conform(name: str, kind: str) -> None:
    try:
        conforms(lambda: make_solver("allocation", name), _allocation(kind), evaluations=(1, 30),
                 seeds=(0,))  # fmt: skip
    except MissingPackage as missing:
        pytest.skip(missing.message)
