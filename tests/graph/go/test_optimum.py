"""GO `one` comes near to optima that CP-SAT proves."""

from __future__ import annotations

import numpy as np
import pytest

from graph.go.small import SMALL, problem_of
from loadmaster.graph.go.agent import Go
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Status, solve

jax = pytest.importorskip("jax")

pytestmark = pytest.mark.usefixtures("quickly_compiled")
for package in ("equinox", "optax", "ortools"):
    pytest.importorskip(package)


def narrow(seed: int, ops: int) -> Program:
    """Each op reads two of the last five results; a transfer takes about as long as an op."""
    rng, build = np.random.default_rng(seed), Builder(f"narrow{seed}")
    made = [build.tensor("in", shape=(4,), bytes=2**16, dtype="f32", kind="input")]
    for number in range(ops):
        size, kind = int(rng.integers(2**12, 2**20)), "output" if number >= ops - 3 else "activation"
        result = build.tensor(f"t{number}", shape=(4,), bytes=size, dtype="f32", kind=kind)
        reads = {int(row) for row in rng.integers(max(0, len(made) - 5), len(made), size=2)}
        build.op(
            f"op{number}",
            "matmul",
            reads=[made[row] for row in sorted(reads)],
            writes=[result],
            matrix=int(rng.integers(10**7, 3 * 10**8)),
        )
        made.append(result)
    return build.build()


def test_one_comes_within_five_percent_of_the_optimum() -> None:
    options = SMALL | {"mode": "one", "warm_steps": 50, "rate": 3e-3, "rate_end": 1e-3}
    for graph in range(2):
        case = problem_of(narrow(graph, 14), tasks=("placement", "schedule"), groups="op")
        best = solve(make_labelled("graph", "cp-sat", {"work": 60.0}), case, Budget())
        assert best.status == Status.OPTIMAL and best.value is not None
        assert case.evaluate(case.vector()) > 1.05 * best.value, "the base plan is not enough"  # type: ignore[operator]
        for seed in range(2):
            found = solve(Go(**options), case, Budget(evaluations=400), seed)
            assert found.value is not None and found.value <= 1.05 * best.value
