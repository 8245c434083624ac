"""Plans for the GPU suite: under a share of what a model needs, with holes where an allocator leaves some."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.bench import gpu_plans
from loadmaster.bench.gpu_plans import budget, kernels_of, needed_bytes, plan_model, roomy
from loadmaster.machine import Machine, load_machine
from loadmaster.problems.offload.heap import Kernels
from loadmaster.problems.offload.problem import Offload
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.solvers.offload.holes import HOLES, SPARE
from reference_heap import MIB, slow_held


def folded(depth: int = 6, seconds: float = 1e-3) -> Program:
    """Results of odd sizes that are read again in the opposite order."""
    build = Builder("folded")
    value = build.tensor("x", bytes=MIB, kind="input")
    made = []
    for number in range(2 * depth):
        reads = [value, build.tensor(f"w{number}", bytes=(5 + number % 3) * MIB, kind="weight")]
        if number > depth:
            reads.append(made[2 * depth - 1 - number])
        kind = "output" if number == 2 * depth - 1 else "activation"
        value = build.tensor(f"t{number}", bytes=(9 + 7 * number % 5) * MIB + 512, kind=kind)
        build.op(f"op{number}", "matmul", reads=reads, writes=[value])
        made.append(value)
    return build.build(costs=np.full((2 * depth, 1), seconds))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("h200")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each problem left free."""
    reserves: list[int] = []

    class Noted(Offload):
        def __init__(self, *args: object, **options: object) -> None:
            reserves.append(int(options.get("reserve", 0)))  # type: ignore[call-overload]
            super().__init__(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu_plans, "Offload", Noted)
    return reserves


def kernels(program: Program, kept: int = 3 * MIB, spare: int = 0) -> Kernels:
    return Kernels(np.full(program.n_ops, 2 * MIB, dtype=np.int64), kept, spare)


def test_the_budget_is_a_share_of_what_the_model_needs_with_its_kernels(machine: Machine) -> None:
    program = folded()
    need = needed_bytes(program, machine)
    everything = Offload(program, roomy(machine, need))
    assert everything.admits(everything.vector(np.ones(everything.gaps, dtype=bool)))
    assert budget(1_000, 50, 100) == 550 and budget(1_001, 30, 0) == 300
    assert plan_model(program, machine, 50, "spread", None).capacity == need // 2
    own = kernels(program)
    assert plan_model(program, machine, 75, "spread", own).capacity == (need + 5 * MIB) * 75 // 100
    given = plan_model(program, machine, 50, "spread", None, need=need + 10 * MIB)
    assert given.capacity == (need + 10 * MIB) // 2


def test_plans_fit_what_an_allocator_holds(machine: Machine) -> None:
    program = folded()
    own, alignment, fitting = kernels(program), machine.memories[0].alignment, 0
    for solver in ("prefetch", "layerwise", "msa", "spread"):
        for percent in (60, 75, 90):
            found = plan_model(program, machine, percent, solver, own)
            if found.plan is None:
                assert found.status == "no plan"  # not even with all the holes
                continue
            held = slow_held(program, found.plan, alignment, own.workspace.tolist())
            assert found.peak < held + own.kept <= found.capacity
            assert found.simulated_ps >= found.bound_ps >= found.limit_ps > 0
            fitting += 1
    assert fitting >= 9


def test_more_is_left_to_holes_until_a_rule_fits(machine: Machine, tried: list[int]) -> None:
    program = folded()
    own = kernels(program)
    found = plan_model(program, machine, 60, "prefetch", own)
    *shares, bound = tried
    assert found.plan is not None and bound == own.kept
    assert shares == [5 * MIB + int(share * found.capacity) for share in HOLES[: len(shares)]]
    assert len(shares) > 1
    tried.clear()
    assert plan_model(program, machine, 60, "prefetch", None).plan is not None
    assert tried == [0, 0]  # no allocator, no holes


def test_the_bound_is_that_of_the_budget_whatever_is_left_to_holes(machine: Machine) -> None:
    program = folded(seconds=1e-6)  # copies bind
    own = kernels(program)
    names = ("prefetch", "layerwise", "spread", "msa")
    found = [plan_model(program, machine, 60, name, own) for name in names]
    whole = Offload(program, roomy(machine, found[0].capacity), reserve=own.kept)
    assert {each.bound_ps for each in found if each.plan is not None} == {whole.bound().value}
    less = Offload(program, whole.machine, reserve=own.kept + found[0].capacity // 20)
    assert less.bound().value > whole.bound().value > whole.limit_ps


def test_what_can_not_be_is_refused_with_its_reason(machine: Machine) -> None:
    program = folded()
    small = plan_model(program, machine, 5, "spread", None)
    assert (small.status, small.plan) == ("refused", None) and "reads and writes" in small.note
    unknown = plan_model(program, machine, 50, "guess", None)
    assert unknown.status == "skipped" and "'guess'" in unknown.note
    greedy = kernels(program, spare=2**33)  # more than there is: no plan can fit
    assert plan_model(program, machine, 75, "spread", greedy).plan is None
    assert plan_model(program, machine, 50, "all-resident", None).status == "no plan"


def test_what_a_cost_file_says_of_kernels() -> None:
    found = kernels_of({"op_workspace": [0, 7], "kept_bytes": 5})
    assert found is not None and found.workspace.tolist() == [0, 7]
    assert (found.kept, found.spare) == (5, SPARE)
    assert kernels_of({"op_workspace": [0, 0], "kept_bytes": 0}) is None
