"""What an attack found, as cases that a reader can draw."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadmaster.errors import BadProgram
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.offload.problem import Offload
from loadmaster.plan.check import check
from loadmaster.plan.plan import BEFORE, Copy, Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TieKind
from loadmaster.program.zoo import load_workload
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate.simulator import simulate

GIGA = 10**9
FAST, SLOW = 0, 1


def contrast(**rules: str) -> Machine:
    """A fast memory of 4 KiB at 1,000 GB/s over a slow one; memory and links at 1 GB/s."""
    device = Device("core", ("fast", "slow"), {"vector": {"*": 10**12}})
    memories = (Memory("fast", 4096, 1000 * GIGA, 1000 * GIGA), Memory("slow", 2**30, GIGA, GIGA))
    links = (Link("slow", "fast", GIGA, 0, ("in",)), Link("fast", "slow", GIGA, 0, ("out",)))
    return Machine("contrast", (device,), memories, links, Rules(**rules))


def one_op(read: int, made: int) -> Program:
    build = Builder("one")
    x, y = build.tensor("x", bytes=read, kind="input"), build.tensor("y", bytes=made, kind="output")
    build.op("f", "add", reads=[x], writes=[y])
    return build.build()


@pytest.mark.parametrize("copies", ["free", "idle"])
def test_an_output_that_stays_in_fast_memory_beats_no_bound(copies: str) -> None:
    problem = MallocGame(one_op(8, 1024), contrast(copies=copies))
    plan = Plan.of(residencies=[Residency(1, FAST, 0, 0, 0)])
    assert not check(problem.program, problem.machine, plan)
    value = simulate(problem.program, problem.machine, plan).total_ps
    assert value == 9_024
    judged = problem.evaluate(problem.decision(plan))
    if problem.violations(plan):
        assert judged is None  # the game may want its outputs in slow memory, and then says so
    else:
        assert judged == value
        assert problem.bound().value <= value


def test_no_optimum_of_cp_sat_loses_to_an_output_that_stays() -> None:
    pytest.importorskip("ortools")
    problem = MallocGame(one_op(8, 1024), contrast())
    plan = Plan.of(residencies=[Residency(1, FAST, 0, 0, 0)])
    solution = solve(make_labelled("malloc-game", "cp-sat"), problem, Budget())
    if not problem.violations(plan):
        assert solution.bound.value <= 9_024


def test_pieces_of_a_copy_that_take_no_turns_beat_no_optimum() -> None:
    """Over a link without an engine, the two halves of x come at the same time."""
    pytest.importorskip("ortools")
    machine = contrast()
    links = tuple(replace(link, bandwidth=100 * GIGA, engines=()) for link in machine.links)
    problem = MallocGame(one_op(1024, 8), replace(machine, links=links))
    halves = [Copy(0, SLOW, FAST, BEFORE, 0, 0, 512), Copy(0, SLOW, FAST, BEFORE, 0, 512, 1024)]
    rows = [Residency(0, FAST, 0, 0, 0), Residency(1, FAST, 1024, 0, 0)]
    plan = Plan.of(residencies=rows, copies=[*halves, Copy(1, FAST, SLOW, 0, 1)])
    assert not check(problem.program, problem.machine, plan)
    solution = solve(make_labelled("malloc-game", "cp-sat"), problem, Budget())
    if not problem.violations(plan):
        value = simulate(problem.program, problem.machine, plan).total_ps
        assert solution.bound.value <= value


def test_check_knows_devices_that_work_in_their_first_memory_alone() -> None:
    machine = contrast(reach="first")
    program = one_op(8, 1024)
    assert check(program, machine, Plan())
    there = [Residency(0, FAST, 0, 0, 0), Residency(1, FAST, 8, 0, 0)]
    brought = Plan.of(residencies=there, copies=[Copy(0, SLOW, FAST, BEFORE, 0)])
    assert not check(program, machine, brought)
    assert check(program, machine, Plan.of(residencies=there[1:]))  # x is not there


def test_an_empty_plan_of_resnet50_is_no_plan_of_an_h200() -> None:
    assert check(load_workload("resnet50"), load_machine("h200"), Plan())


def test_a_read_of_an_empty_tensor_does_not_raise_the_bound_of_offload() -> None:
    """Such a program is refused, or what no memory holds costs the same wherever it is said to be."""
    build = Builder("empty")
    nothing = build.tensor("nothing", bytes=0, kind="input")
    y = build.tensor("y", bytes=8, kind="output")
    build.op("f", "add", reads=[(nothing, 60)], writes=[y])
    try:
        program = build.build()
    except BadProgram:
        return
    problem = Offload(program, contrast(reach="first"))
    rows = [Residency(1, FAST, 0, 0, 0)]
    for plan in (Plan.of(residencies=rows), Plan.of(residencies=[Residency(0, FAST, 16, 0, 0), *rows])):
        if not problem.violations(plan):
            assert problem.bound().value <= simulate(program, problem.machine, plan).total_ps


def late_reader() -> Program:
    """`g` reads x after `f` has written y over it."""
    build = Builder("late")
    x = build.tensor("x", bytes=8, kind="input")
    y = build.tensor("y", bytes=8, kind="activation")
    z = build.tensor("z", bytes=8, kind="output")
    build.op("f", "add", reads=[x], writes=[y])
    build.op("g", "add", reads=[x, y], writes=[z])
    build.tie(TieKind.INPLACE, x, y, 0)
    return build.build()


def test_a_read_after_an_update_in_place_is_no_program() -> None:
    with pytest.raises(BadProgram):
        late_reader()


def updated_weight() -> Program:
    """`read` and `update` both read w; `update` writes over it."""
    build = Builder("update")
    w = build.tensor("w", bytes=1000, kind="weight")
    a = build.tensor("a", bytes=8, kind="output")
    new = build.tensor("new", bytes=1000, kind="output")
    build.op("read", "add", reads=[w], writes=[a], vector=100)
    build.op("update", "add", reads=[w], writes=[new], vector=1)
    build.tie(TieKind.INPLACE, w, new, 1)
    return build.build()


def test_an_update_waits_for_other_readers_of_its_weight() -> None:
    """On one device in another order, and on two devices that share their home."""
    machine = contrast()
    program = updated_weight()
    assert check(program, machine, Plan.of(order=[1, 0]))
    two = replace(machine, devices=(machine.devices[0], replace(machine.devices[0], name="other")))
    plan = Plan.of(device=[0, 1])
    timeline = simulate(program, two, plan)
    found = check(program, two, plan, timeline)
    assert found or timeline.op_start[1] >= timeline.op_end[0]
