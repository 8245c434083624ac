"""Plans for the GPU suite: under a share of what a model needs, kernels included; ops that run again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.suites.gpu_plans import (
    COPIES,
    RESIDENT,
    SOLVERS,
    VARIANTS,
    Planned,
    budget,
    kernels_of,
    needed_bytes,
    ordered,
    plan_model,
    plans_to_make,
    roomy,
)
from loadmaster.machine import Machine, load_machine
from loadmaster.offload.model import Kernels
from loadmaster.offload.problem import Offload
from loadmaster.plan import load_planned, save_plan
from loadmaster.program.build import Builder
from loadmaster.program.program import Program

MIB = 2**20


def folded(depth: int = 6, seconds: float = 1e-3, backward: bool = False) -> Program:
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
        build.op(f"op{number}", "matmul", reads=reads, writes=[value], backward=backward and number >= depth)
        made.append(value)
    return build.build(costs=np.full((2 * depth, 1), seconds))


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("h200")


def kernels(program: Program, kept: int = 3 * MIB, spare: int = 0) -> Kernels:
    return Kernels(np.full(program.n_ops, 2 * MIB, dtype=np.int64), kept, spare)


def test_the_budget_is_a_share_of_what_the_model_needs_with_its_kernels(machine: Machine) -> None:
    program = folded()
    need = needed_bytes(program, machine)
    everything = Offload(program, roomy(machine, need))
    assert everything.admits(everything.vector(np.ones(everything.gaps, dtype=bool)))
    assert budget(1_100, 50) == 550 and budget(1_001, 30) == 300 and budget(1_000, 100) > 1_000
    assert plan_model(program, machine, 50, "spread", None).capacity == need // 2
    own = kernels(program)
    assert plan_model(program, machine, 75, "spread", own).capacity == (need + 5 * MIB) * 75 // 100
    given = plan_model(program, machine, 50, "spread", None, need=need + 10 * MIB)
    assert given.capacity == (need + 10 * MIB) // 2


def test_plans_leave_room_for_kernels(machine: Machine) -> None:
    program = folded()
    own, fitting = kernels(program), 0
    for solver in ("prefetch", "layerwise", "msa", "spread"):
        for percent in (60, 75, 90):
            found = plan_model(program, machine, percent, solver, own)
            if found.plan is None:
                assert found.status in ("no plan", "refused")
                continue
            assert found.peak + own.kept <= found.capacity
            assert found.simulated_ps >= found.bound_ps >= found.limit_ps > 0
            assert found.repeats == () and found.program is program
            fitting += 1
    assert fitting >= 9


def test_the_bound_is_that_of_the_budget(machine: Machine) -> None:
    program = folded(seconds=1e-6)  # copies bind
    own = kernels(program)
    found = [
        plan_model(program, machine, 60, name, own) for name in ("prefetch", "layerwise", "spread", "msa")
    ]
    whole = Offload(program, roomy(machine, found[0].capacity), reserve=own.kept)
    assert {each.bound_ps for each in found if each.plan is not None} == {whole.bound().value}
    assert whole.bound().value > whole.limit_ps
    # Half of what it needs over a link of about 51 GiB/s.
    need = needed_bytes(program, machine) + 5 * MIB
    assert found[0].half_ps == pytest.approx(need / 2 / machine.links[0].bandwidth * 1e12, rel=1e-6)


def test_ops_run_again_where_that_is_faster_than_copies(machine: Machine, tmp_path: Path) -> None:
    program = folded(seconds=1e-6, backward=True)
    own = kernels(program)
    again, copies = (plan_model(program, machine, 60, name, own, evaluations=60) for name in ("auto", COPIES))
    assert again.repeats and not copies.repeats and again.simulated_ps < copies.simulated_ps
    assert again.bound_ps == again.limit_ps == copies.limit_ps < copies.bound_ps
    assert again.plan is not None and again.program is not None and again.program.n_ops > program.n_ops
    small = roomy(machine, again.capacity)
    save_plan(again.plan, again.program, small, tmp_path / "plan.json")
    found, plan = load_planned(tmp_path / "plan.json", program, small)
    assert found.hash == again.program.hash and plan.hash == again.plan.hash
    assert found.repeats is not None and found.repeats.ops == again.repeats
    assert again.as_dict().keys().isdisjoint({"plan", "program"})


def test_without_a_backward_pass_nothing_runs_again(machine: Machine) -> None:
    assert plan_model(folded(), machine, 60, COPIES, None).status == "skipped"
    found = plan_model(folded(seconds=1e-6), machine, 60, "auto", None, evaluations=20)
    assert found.repeats == () and found.bound_ps > found.limit_ps


def test_what_can_not_be_is_refused_with_its_reason(machine: Machine) -> None:
    program = folded()
    small = plan_model(program, machine, 5, "spread", None)
    assert (small.status, small.plan) == ("refused", None) and "reads and writes" in small.note
    unknown = plan_model(program, machine, 50, "guess", None)
    assert unknown.status == "skipped" and "'guess'" in unknown.note
    greedy = kernels(program, spare=2**33)  # more than there is: no plan can fit
    assert plan_model(program, machine, 75, "spread", greedy).plan is None
    assert plan_model(program, machine, 50, "all-resident", None).status == "no plan"


def test_variants_have_few_plans() -> None:
    assert plans_to_make("llama", (50, 30), ("auto", "msa")) == [
        (50, "auto"),
        (50, "msa"),
        (30, "auto"),
        (30, "msa"),
        RESIDENT,
    ]
    assert plans_to_make(VARIANTS[0], (50, 30), SOLVERS) == [(50, "auto"), (50, "prefetch"), (50, "msa")]


def test_half_of_the_memory_and_ours_come_first() -> None:
    plans = [
        Planned("m", percent, solver, 0, "ok") for percent in (30, 100, 50) for solver in ("msa", "auto")
    ]
    found = [(each.percent, each.solver) for each in ordered(plans, ("auto",))]
    assert found[:3] == [(50, "auto"), (50, "msa"), (30, "auto")]


def test_what_a_cost_file_says_of_kernels() -> None:
    found = kernels_of({"op_workspace": [0, 7], "kept_bytes": 2**30})
    assert found is not None and found.workspace.tolist() == [0, 7] and found.kept == 2**30
    assert kernels_of({"op_workspace": [0, 0], "kept_bytes": 0}) is None
