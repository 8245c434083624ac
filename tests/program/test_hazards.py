"""Who writes over whom: refused programs, and waits that validation, simulators and checker share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from generate import random_program
from loadmaster.errors import BadPlan, BadProgram
from loadmaster.graph import GraphOptimization
from loadmaster.graph.exact import find_units
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.plan.check import check
from loadmaster.plan.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.hazards import overwrite_waits, overwriters
from loadmaster.program.program import Program, TieKind
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate
from reference.simulate import simulate_reference

RATE = 10**12


def update_and_reader(late: bool = False) -> Program:
    """`update` writes new over w; `look` reads w too. Late: it stands behind the update."""
    build = Builder("update")
    w = build.tensor("w", bytes=10, kind="weight")
    new, seen = (build.tensor(name, bytes=10, kind="output") for name in ("new", "seen"))
    ops = [("look", seen), ("update", new)]
    for name, result in reversed(ops) if late else ops:
        op = build.op(name, "add", reads=[w], writes=[result])
        if result == new:
            build.tie(TieKind.INPLACE, w, new, op)
    return build.build()


def two_devices() -> Machine:
    """Two devices with a memory of their own at 1 byte per picosecond, and links as fast."""
    memories = tuple(Memory(f"m{d}", 1000, RATE, RATE) for d in range(2))
    rates = {"matrix": {"*": RATE}, "vector": {"*": RATE}}
    devices = tuple(Device(f"d{d}", (f"m{d}",), rates) for d in range(2))
    links = tuple(Link(f"m{a}", f"m{b}", RATE, engines=(f"e{a}",)) for a, b in ((0, 1), (1, 0)))
    return Machine("two", devices, memories, links, Rules())


def test_a_read_behind_the_update_is_refused() -> None:
    with pytest.raises(BadProgram, match="'look' reads 'w' after op 'update' has written over it"):
        update_and_reader(late=True)


def test_an_output_that_is_written_over_is_refused() -> None:
    build = Builder("lost")
    x, y = build.tensor("x", bytes=4, kind="input"), build.tensor("y", bytes=4, kind="output")
    z = build.tensor("z", bytes=4, kind="output")
    build.op("make", "add", reads=[x], writes=[y])
    build.tie(TieKind.INPLACE, y, z, build.op("again", "add", reads=[y], writes=[z]))
    with pytest.raises(BadProgram, match="output 'y' is not there at the end: op 'again'"):
        build.build()


def test_a_view_of_what_is_gone_is_a_read_of_it() -> None:
    build = Builder("view")
    x, y = build.tensor("x", bytes=4, kind="state"), build.tensor("y", bytes=4, kind="output")
    shown, z = build.tensor("shown", bytes=4, alias=x), build.tensor("z", bytes=4, kind="output")
    build.op("show", "reshape", reads=[(x, 0)], writes=[(shown, 0)], view=True)
    build.tie(TieKind.INPLACE, x, y, build.op("over", "add", reads=[x], writes=[y]))
    build.op("late", "add", reads=[shown], writes=[z])
    with pytest.raises(BadProgram, match="'late' reads 'x' after op 'over'"):
        build.build()


def test_two_given_tensors_have_two_places() -> None:
    build = Builder("two")
    a, b = (build.tensor(name, bytes=4, kind="state") for name in "ab")
    y = build.tensor("y", bytes=4, kind="output")
    op = build.op("over", "add", reads=[a, b], writes=[y])
    build.tie(TieKind.INPLACE, a, y, op)
    build.tie(TieKind.INPLACE, b, y, op)
    with pytest.raises(BadProgram, match="the program is given 'a' and 'b', which ties put into one"):
        build.build()


def test_a_chain_is_written_over_link_by_link() -> None:
    build = Builder("chain")
    a = build.tensor("a", bytes=4, kind="state")
    b, c = build.tensor("b", bytes=4), build.tensor("c", bytes=4, kind="output")
    first = build.op("first", "add", reads=[a], writes=[b])
    second = build.op("second", "add", reads=[b], writes=[c])
    build.tie(TieKind.INPLACE, a, b, first)
    build.tie(TieKind.INPLACE, b, c, second)
    program = build.build()
    assert overwriters(program).tolist() == [first, second, -1]
    assert overwrite_waits(program).T.tolist() == [[first, second]]


def test_an_update_waits_for_readers_on_other_devices() -> None:
    """look on device 1: the transfer takes 10 ps, it runs 20 (10 read, 10 written); then the update."""
    program, machine = update_and_reader(), two_devices()
    # The weight is at home with its first reader by number: 'look'. So the update is sent along too.
    plan = Plan.of(device=[1, 1], order=[0, 1])
    assert simulate(program, machine, plan).op_start.tolist() == [0, 20]
    build = Builder("elsewhere")
    w = build.tensor("w", bytes=10, kind="weight", group=0)
    seen, new = (build.tensor(name, bytes=10, kind="output") for name in ("seen", "new"))
    build.op("look", "add", reads=[w], writes=[seen])
    op = build.op("update", "add", reads=[w], writes=[new], group=0)
    build.tie(TieKind.INPLACE, w, new, op)
    program = build.build()
    for queue in ("order", "ready", "fifo"):
        plan = Plan.of(device=[1, 0], queue=queue)
        timeline = simulate(program, machine, plan)
        assert timeline.op_start.tolist() == [10, 30] and timeline.total_ps == 50
        assert simulate_reference(program, machine, plan).op_start.tolist() == [10, 30]
        assert not check(program, machine, plan, timeline)
    early = replace(timeline, op_start=np.array([10, 0]), op_end=np.array([30, 20]))
    assert "uses until 30 ps" in " ".join(map(str, check(program, machine, plan, early)))


def test_an_order_in_which_the_update_comes_first_can_never_run() -> None:
    program, machine = update_and_reader(), two_devices()
    plan = Plan.of(order=[1, 0])
    assert {"tie"} <= {violation.rule for violation in check(program, machine, plan)}
    for run in (simulate, simulate_reference):
        with pytest.raises(BadPlan):
            run(program, machine, plan)


def test_a_cluster_around_a_reader_makes_a_circle() -> None:
    """make and over fused into one step, whose result another step reads before it is written over."""
    build = Builder("circle")
    x = build.tensor("x", bytes=4, kind="input")
    y, seen = build.tensor("y", bytes=4), build.tensor("seen", bytes=4, kind="output")
    z = build.tensor("z", bytes=4, kind="output")
    build.op("make", "add", reads=[x], writes=[y])
    build.op("look", "add", reads=[y], writes=[seen])
    build.tie(TieKind.INPLACE, y, z, build.op("over", "add", reads=[y], writes=[z]))
    program, plan = build.build(), Plan.of(fusion=[0, -1, 0], queue="ready")
    assert "order" in {violation.rule for violation in check(program, two_devices(), plan)}
    with pytest.raises(BadPlan):
        simulate(program, two_devices(), plan)


@pytest.mark.parametrize("seed", range(40))
def test_waits_are_those_of_a_plain_walk(seed: int) -> None:
    """Ops in program order: what lies in each place, and who has used it since it was written."""
    program = random_program(np.random.default_rng(seed), max_ops=20)
    root, place = program.tensor_alias.tolist(), {t: t for t in range(program.n_tensors)}
    for kind, source, target in zip(program.tie_kind, program.tie_source, program.tie_target, strict=True):
        if kind != TieKind.DONATED:
            one, other = place[root[source]], place[root[target]]
            place = {t: one if p == other else p for t, p in place.items()}
    users: dict[int, set[int]] = {}
    waits = set()
    for op in np.flatnonzero(~program.op_view).tolist():
        reads = {place[root[t]] for t in program.reads(op).tolist()}
        for spot in {place[root[t]] for t in program.writes(op).tolist()}:
            waits |= {(user, op) for user in users.pop(spot, set()) if user != op}
            reads.add(spot)
        for spot in reads:
            users.setdefault(spot, set()).add(op)
    assert sorted(waits) == [tuple(pair) for pair in overwrite_waits(program).T.tolist()]


def test_cp_sat_knows_the_waits() -> None:
    """Two devices, an update that could run beside a long reader if it did not have to wait."""
    pytest.importorskip("ortools")
    program, machine = update_and_reader(), two_devices()
    problem = GraphOptimization(program, machine, tasks=("placement", "schedule"), groups="op")
    exact = solve(make_labelled("graph", "cp-sat"), problem, Budget(50))
    assert exact.value == 40
    assert problem.bound().value == 40  # the critical path goes through the wait
    assert find_units(problem).waits == [(0, 1)]
