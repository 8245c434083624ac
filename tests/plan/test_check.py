"""The checker: valid plans pass, each rule is broken alone, and nothing makes it raise."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster.plan
from generate import random_case
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.plan.check import MOST_PER_RULE, RULES, Violation, check
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Copy, Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.program.program import CANNOT_RUN, Program, TieKind
from loadmaster.simulate.simulator import Timeline
from reference.check.facts import Facts
from reference.simulate import simulate_reference

RATES = {"matrix": {"*": 10**12}, "vector": {"*": 10**12}}
SRAM, DRAM = 0, 1


def one_device(copies: str = "free", sram: int = 256, dram: int = 10_000) -> Machine:
    memories = (Memory("sram", sram, 10**12, 10**12, alignment=16), Memory("dram", dram, 10**12, 10**12))
    links = (Link("dram", "sram", 10**12, 0, ("in",)), Link("sram", "dram", 10**12, 0, ("out",)))
    return Machine("one", (Device("core", ("sram", "dram"), RATES),), memories, links, Rules(copies=copies))


def two_devices(capacity: int = 10_000) -> Machine:
    """hbm0 - gpu0, gpu1 - hbm1, a link each way."""
    memories = (Memory("hbm0", capacity, 10**12, 10**12), Memory("hbm1", capacity, 10**12, 10**12))
    devices = (Device("gpu0", ("hbm0",), RATES), Device("gpu1", ("hbm1",), RATES))
    links = (Link("hbm0", "hbm1", 10**12, 0, ("bus",)), Link("hbm1", "hbm0", 10**12, 0, ("bus",)))
    return Machine("two", devices, memories, links)


X, W, A, B, C, Y = range(6)


def chain(**changes: Any) -> Program:
    """x -> op0 -> a -> op1 -> b -> op2 (and the weight w) -> c -> op3 (and a) -> y."""
    build = Builder("chain")
    build.tensor("x", bytes=64, kind="input")
    build.tensor("w", bytes=48, kind="weight")
    for name in "abc":
        build.tensor(name, bytes=64)
    build.tensor("y", bytes=32, kind="output")
    build.op("op0", "add", reads=[X], writes=[A], vector=10)
    build.op("op1", "add", reads=[A], writes=[B], vector=10)
    build.op("op2", "add", reads=[B, W], writes=[C], vector=10)
    build.op("op3", "add", reads=[C, A], writes=[Y], vector=10)
    return replace(build.build(), **changes)


def only(violations: list[Violation], rule: str) -> Violation:
    """The one violation there is."""
    assert [v.rule for v in violations] == [rule], [str(v) for v in violations]
    return violations[0]


def where(violation: Violation) -> tuple[int | None, int | None, int | None]:
    return violation.tensor, violation.op, violation.number


# --- valid plans -----------------------------------------------------------------------------

STATIC = [
    Residency(W, SRAM, 0, BEFORE, 3),
    Residency(A, SRAM, 48, 0, 3),
    Residency(B, SRAM, 112, 1, 2),
    Residency(C, SRAM, 176, 2, 3),
    Residency(Y, DRAM, 128, 3, 3),
]
GAME = [Residency(X, SRAM, 0, 0, 0), Residency(A, SRAM, 64, 0, 1), Residency(W, SRAM, 128, 1, 2)]
GAME += [Residency(A, SRAM, 64, 3, 3)]
GAME_COPIES = [
    Copy(A, SRAM, DRAM, 0, 2),  # written back while op1 reads it
    Copy(W, DRAM, SRAM, 0, 2, 0, 16),
    Copy(W, DRAM, SRAM, 0, 2, 16, 48),
    Copy(A, DRAM, SRAM, 2, 3),
    Copy(X, DRAM, SRAM, BEFORE, 0),
]


def static(rows: list[Residency] = STATIC, **decisions: Any) -> Plan:
    return Plan.of(residencies=rows, **decisions)


def game(rows: list[Residency] = GAME, copies: list[Copy] = GAME_COPIES) -> Plan:
    return Plan.of(residencies=rows, copies=copies)


def changed(rows: list[Any], row: int, **fields: int) -> list[Any]:
    return [*rows[:row], rows[row]._replace(**fields), *rows[row + 1 :]]


@pytest.mark.parametrize("copies", ["free", "idle"])
def test_valid_plans_of_one_device(copies: str) -> None:
    machine = one_device(copies)
    for plan in (Plan(), static(), game(), Plan.of(order=[0, 1, 2, 3])):
        assert check(chain(), machine, plan) == []
        timeline = simulate_reference(chain(), machine, plan)
        assert check(chain(), machine, plan, timeline) == []


def test_valid_plans_of_two_devices() -> None:
    machine, devices = two_devices(), [0, 1, 0, 0]
    listed = Plan.of(device=devices, transfers=[(A, 1), (B, 0)])
    for plan in (Plan.of(device=devices), listed, Plan.of(device=devices, queue="fifo")):
        assert check(chain(), machine, plan) == []
        assert check(chain(), machine, plan, simulate_reference(chain(), machine, plan)) == []


def test_an_arena_with_a_given_tensor_in_its_home() -> None:
    rows = [Residency(X, DRAM, 0, 0, 0), Residency(W, DRAM, 64, BEFORE, 3), Residency(A, DRAM, 112, 0, 3)]
    assert check(chain(), one_device(), static(rows)) == []
    late = only(check(chain(), one_device(), static([Residency(W, DRAM, 0, 1, 3)])), "data")
    assert where(late) == (W, 2, 48)


# --- shape and order -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "op", "number"),
    [
        ({"device": np.array([0, 0, 0, 1], np.int32)}, 3, 1),
        ({"device": np.zeros(3, np.int32)}, None, 3),
        ({"device": np.zeros((2, 2), np.int32)}, None, 4),
        ({"device": np.zeros(4)}, None, 4),
        ({"order": np.array([0, 1, 2, 4], np.int32)}, 3, 4),
        ({"fusion": np.array([-1, -2, -1, -1], np.int32)}, 1, -2),
        ({"queue": "lifo"}, None, None),
        ({"queue": ["order"]}, None, None),
        ({"tie": "random"}, None, None),
        ({"priority": np.array([0, np.nan, 0, 0])}, 1, None),
        ({"priority": np.zeros(5)}, None, 5),
        ({"queue": "priority"}, None, None),
        ({"residencies": np.array([[6, 0, 0, 0, 0]])}, None, 6),
        ({"residencies": np.array([[0, 2, 0, 0, 0]])}, None, 2),
        ({"residencies": np.array([[0, 0, -2, 0, 0]])}, None, -2),
        ({"residencies": np.array([[0, 0, 0, 0, 4]])}, None, 4),
        ({"residencies": np.array([0, 0, 0, 0, 0])}, None, 5),
        ({"copies": np.array([[0, 1, 0, 4, 4, -1, -1]])}, None, 4),
        ({"copies": np.array([[0, 1, 0, 0, 5, -1, -1]])}, None, 5),
        ({"transfers": np.array([[0, 1]])}, None, 1),
        ({"queue": "ready", "residencies": np.array([STATIC[1]])}, None, 1),
        ({"queue": "fifo", "copies": np.array([GAME_COPIES[4]])}, None, 1),
        ({"queue": "fifo", "transfers": np.zeros((0, 2), np.int64)}, None, 0),
    ],
)
def test_shape(changes: dict[str, Any], op: int | None, number: int | None) -> None:
    assert where(only(check(chain(), one_device(), Plan().changed(**changes)), "shape")) == (None, op, number)


def test_idle_copies_need_the_order_and_no_transfers() -> None:
    for plan in (Plan(queue="fifo"), Plan.of(transfers=[(A, 0)])):
        only(check(chain(), one_device("idle"), plan), "shape")
    assert check(chain(), one_device("free"), Plan(queue="fifo")) == []


def test_order_is_a_permutation() -> None:
    twice, missing = check(chain(), one_device(), Plan.of(order=[0, 1, 1, 3]))
    assert twice.rule == missing.rule == "order"
    assert (where(twice), where(missing)) == ((None, 1, 2), (None, 2, 4))


def test_swapped_ops() -> None:
    plan = Plan.of(order=[1, 0, 2, 3])
    violation = only(check(chain(), one_device(), plan), "order")
    assert where(violation) == (A, 1, 1)
    assert "op 1 'op1' reads tensor 'a'" in violation.message and "swap" in violation.message
    # A queue that is no order waits by itself: there the order is only a preference.
    assert check(chain(), one_device(), plan.changed(queue="ready")) == []


def with_view() -> Program:
    """x -> op0 -> a -> view -> v -> op2 -> y."""
    build = Builder("view")
    x, a = build.tensor("x", bytes=8, kind="input"), build.tensor("a", bytes=8)
    v, y = build.tensor("v", bytes=8, alias=a), build.tensor("y", bytes=8, kind="output")
    build.op("op0", "add", reads=[x], writes=[a])
    build.op("view", "reshape", reads=[a], writes=[v], view=True)
    build.op("op2", "add", reads=[v], writes=[y])
    return build.build()


def test_views_have_a_place_in_the_order() -> None:
    assert check(with_view(), one_device(), Plan()) == []
    late = check(with_view(), one_device(), Plan.of(order=[0, 2, 1]))
    assert where(only(late, "order")) == (2, 2, 2)
    through = check(with_view(), one_device(), Plan.of(order=[2, 0, 1]))
    assert {v.rule for v in through} == {"order"}


def diamond() -> Program:
    """x -> op0 -> a; a -> op1 -> b; a, b -> op2 -> y."""
    build = Builder("diamond")
    x, a = build.tensor("x", bytes=8, kind="input"), build.tensor("a", bytes=8)
    b, y = build.tensor("b", bytes=8), build.tensor("y", bytes=8, kind="output")
    build.op("op0", "add", reads=[x], writes=[a])
    build.op("op1", "add", reads=[a], writes=[b])
    build.op("op2", "add", reads=[a, b], writes=[y])
    return build.build()


def test_a_fused_step_runs_at_its_smallest_position() -> None:
    assert check(diamond(), one_device(), Plan.of(fusion=[0, 0, -1])) == []
    fused = check(diamond(), one_device(), Plan.of(fusion=[0, -1, 0]))
    late, circle = fused
    assert [v.rule for v in fused] == ["order", "order"]
    assert where(late) == (2, 2, 1) and where(circle) == (None, 0, 2)
    for queue in ("ready", "fifo"):
        circle = only(check(diamond(), one_device(), Plan.of(fusion=[0, -1, 0], queue=queue)), "order")
        assert where(circle) == (None, 0, 2) and "waits for itself" in circle.message


def test_a_fused_step_that_starts_too_early_without_a_circle() -> None:
    build = Builder("early")
    x, a = build.tensor("x", bytes=8, kind="input"), build.tensor("a", bytes=8)
    b, c = build.tensor("b", bytes=8), build.tensor("c", bytes=8, kind="output")
    build.op("op0", "add", reads=[x], writes=[a])
    build.op("op1", "add", reads=[x], writes=[b])
    build.op("op2", "add", reads=[b], writes=[c])
    program = build.build()
    plan = Plan.of(fusion=[0, -1, 0])
    assert where(only(check(program, one_device(), plan), "order")) == (b, 2, 1)
    assert check(program, one_device(), plan.changed(queue="fifo")) == []


# --- device, colocation, fusion --------------------------------------------------------------


def test_an_op_that_cannot_run_on_its_device() -> None:
    costs = np.full((4, 2), 5, dtype=np.int64)
    costs[2, 1] = CANNOT_RUN
    program = chain(costs=costs)
    assert check(program, two_devices(), Plan.of(device=[0, 1, 0, 0])) == []
    violation = only(check(program, two_devices(), Plan.of(device=[0, 0, 1, 0])), "device")
    assert where(violation) == (None, 2, 1) and "gpu0" in violation.message
    columns = only(check(program, one_device(), Plan()), "device")
    assert columns.number == 2


def test_a_link_for_every_transfer() -> None:
    machine = replace(two_devices(), links=two_devices().links[:1])
    assert check(chain(), machine, Plan.of(device=[0, 0, 0, 0])) == []
    violation = only(check(chain(), machine, Plan.of(device=[0, 1, 0, 0])), "device")
    assert where(violation) == (B, 2, 0)
    assert "no link from memory 'hbm1' to memory 'hbm0'" in violation.message


@pytest.mark.parametrize(
    ("transfers", "expected"),
    [
        ([(A, 1)], (B, 2, 0)),
        ([(A, 1), (B, 0), (X, 1)], (X, None, 1)),
        ([(A, 1), (B, 0), (A, 1)], (A, None, 1)),
    ],
)
def test_listed_transfers_are_those_needed(transfers: list[tuple[int, int]], expected: Any) -> None:
    plan = Plan.of(device=[0, 1, 0, 0], transfers=transfers)
    assert where(only(check(chain(), two_devices(), plan), "device")) == expected


def test_listed_transfers_that_wait_in_a_circle() -> None:
    plan = Plan.of(device=[0, 1, 0, 0], transfers=[(B, 0), (A, 1)])  # b is made of a, one bus
    violation = only(check(chain(), two_devices(), plan), "order")
    assert violation.op == 1 and "transfers" in violation.message
    with pytest.raises(BadPlan):
        simulate_reference(chain(), two_devices(), plan)


def test_colocation_of_groups() -> None:
    program = chain(op_group=np.array([0, -1, 0, -1], np.int32))
    assert check(program, two_devices(), Plan.of(device=[1, 0, 1, 0])) == []
    violation = only(check(program, two_devices(), Plan.of(device=[1, 0, 0, 0])), "colocation")
    assert where(violation) == (None, 2, 0)
    tensors = np.full(6, -1, np.int32)
    tensors[B] = 0
    violation = only(
        check(replace(program, tensor_group=tensors), two_devices(), Plan.of(device=[1, 0, 1, 0])),
        "colocation",
    )
    assert where(violation) == (B, 1, 0)


def in_place() -> Program:
    """x -> op0 -> s; op1 writes t over s; op2 reads t; y."""
    build = Builder("in place")
    x, s = build.tensor("x", bytes=64, kind="input"), build.tensor("s", bytes=64)
    t, y = build.tensor("t", bytes=64), build.tensor("y", bytes=64, kind="output")
    build.op("op0", "add", reads=[x], writes=[s])
    op = build.op("op1", "update", reads=[s], writes=[t])
    build.op("op2", "add", reads=[t], writes=[y])
    build.op("op3", "add", reads=[x])
    build.tie(TieKind.INPLACE, s, t, op)
    return build.build()


def test_colocation_of_an_in_place_op() -> None:
    assert check(in_place(), two_devices(), Plan.of(device=[1, 1, 0, 0])) == []
    broken = check(in_place(), two_devices(), Plan.of(device=[0, 1, 1, 0]))
    assert {v.rule for v in broken} == {"colocation"}
    assert where(broken[0]) == (1, 1, 1)


def test_members_of_a_fused_step() -> None:
    plan = Plan.of(fusion=[0, 0, -1, -1])
    assert check(chain(), two_devices(), plan) == []
    violation = only(check(chain(), two_devices(), plan.changed(device=np.array([0, 1, 1, 1]))), "fusion")
    assert where(violation) == (None, 1, 1)
    looped = chain(
        op_loop=np.array([-1, 0, -1, -1], np.int32),
        loop_parent=np.array([-1], np.int32),
        loop_trips=np.array([3]),
    )
    assert where(only(check(looped, two_devices(), plan), "fusion")) == (None, 1, 0)
    grouped = chain(op_group=np.array([0, 5, -1, -1], np.int32))
    assert where(only(check(grouped, two_devices(), plan), "fusion")) == (None, 1, 5)
    assert check(chain(op_group=np.array([-1, 0, -1, -1], np.int32)), two_devices(), plan) == []


# --- residency and overlap -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "fields", "expected"),
    [
        (1, {"offset": 50}, (A, 0, 50)),
        (3, {"offset": 208}, (C, 2, 16)),
        (0, {"last": 2}, (W, 2, 2)),
        (2, {"first": BEFORE, "last": 3}, (B, 3, BEFORE)),
    ],
)
def test_residency(row: int, fields: dict[str, int], expected: Any) -> None:
    found = check(chain(), one_device(), static(changed(STATIC, row, **fields)))
    assert [where(v) for v in found if v.rule == "residency"] == [expected]
    # A wrong offset may meet a neighbour as well, and one weight too early takes room from others.
    assert {v.rule for v in found} <= {"residency", "overlap", "capacity"}


def test_a_reversed_window() -> None:
    found = check(chain(), one_device(), static([Residency(B, SRAM, 0, 2, 1)]))
    assert where(only(found, "residency")) == (B, 2, 2)


def test_a_view_has_no_residency() -> None:
    assert check(with_view(), one_device(), static([Residency(1, SRAM, 0, 0, 2)])) == []
    assert where(
        only(check(with_view(), one_device(), static([Residency(2, SRAM, 0, 0, 2)])), "residency")
    ) == (2, 0, 0)


def test_a_memory_that_nobody_reaches() -> None:
    machine = one_device()
    machine = replace(machine, memories=(*machine.memories, Memory("far", 100, 1, 1)))
    assert where(only(check(chain(), machine, static([Residency(A, 2, 0, 0, 3)])), "residency")) == (A, 0, 2)


def test_a_tensor_that_must_not_be_fast() -> None:
    program = chain(tensor_fast=np.array([True, True, False, True, True, True]))
    assert check(program, one_device(), static([Residency(A, DRAM, 0, 0, 3)])) == []
    assert where(only(check(program, one_device(), static([Residency(A, SRAM, 0, 0, 3)])), "residency")) == (
        A,
        0,
        SRAM,
    )


def test_a_capacity_that_an_offset_exceeds() -> None:
    violation = only(check(chain(), one_device(), static([Residency(A, SRAM, 208, 0, 3)])), "residency")
    assert violation.message == (
        "memory 'sram' needs 272 bytes for tensor 'a' at offset 208 from op 0 'op0' on and has 256: "
        "use a lower offset or another memory"
    )


def test_shifted_offsets_overlap() -> None:
    violation = only(check(chain(), one_device(), static(changed(STATIC, 2, offset=96))), "overlap")
    assert where(violation) == (B, 1, 2)
    assert "tensor 'a' (64 bytes at 48, residency 1)" in violation.message
    # b's last op is c's first: their windows share op2.
    violation = only(check(chain(), one_device(), static(changed(STATIC, 3, offset=112))), "overlap")
    assert where(violation) == (C, 2, 3)
    # x and b never meet: one address is enough.
    apart = [Residency(A, SRAM, 0, 0, 3), Residency(B, SRAM, 64, 1, 2), Residency(Y, SRAM, 64, 3, 3)]
    assert check(chain(), one_device(), static(apart)) == []


def test_every_overlap_is_found() -> None:
    rng = np.random.default_rng(5)
    build = Builder("many")
    x = build.tensor("x", bytes=1, kind="input")
    ys = [build.tensor(f"y{i}", bytes=int(rng.integers(1, 40))) for i in range(40)]
    for i, y in enumerate(ys):
        build.op(f"op{i}", "add", reads=[x], writes=[y])
    program = build.build()
    machine = one_device(sram=10_000)
    for _ in range(30):
        rows = []
        for i, y in enumerate(ys):
            last = min(39, i + int(rng.integers(0, 12)))
            rows.append(Residency(y, SRAM, 16 * int(rng.integers(0, 30)), i, last))
        size = program.storage_bytes
        expected = {
            (max(i, j))
            for i, one in enumerate(rows)
            for j, two in enumerate(rows[:i])
            if one.first <= two.last
            and two.first <= one.last
            and one.offset < two.offset + size[two.tensor]
            and two.offset < one.offset + size[one.tensor]
        }
        found = check(program, machine, static(rows))
        assert {v.number for v in found if v.rule == "overlap"} == expected
        assert {v.rule for v in found} <= {"overlap"}


def test_one_tensor_in_two_spots_at_once() -> None:
    rows = [Residency(A, SRAM, 0, 0, 2), Residency(A, SRAM, 64, 2, 3)]
    found = check(chain(), one_device(), static(rows))
    assert where(next(v for v in found if v.rule == "overlap")) == (A, 2, 1)


# --- copies and data -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "fields", "expected"),
    [
        (4, {"source": SRAM}, (X, 0, 4)),  # stays where it is
        (1, {"high": 49}, (W, 2, 1)),
        (1, {"low": 16}, (W, 2, 1)),
        (1, {"low": -1}, (W, 2, 1)),
        (3, {"issued_after": 3}, (A, 3, 3)),  # too late
        (3, {"issued_after": 1}, (A, 3, 3)),  # before it was written back
        (0, {"needed_by": 4}, (A, 3, 0)),  # it leaves sram after op1
        (0, {"issued_after": BEFORE}, (A, 2, 0)),  # before it was made
        (1, {"issued_after": BEFORE}, (W, 2, 1)),  # before there is room
    ],
)
@pytest.mark.parametrize("rule", ["free", "idle"])
def test_copy(rule: str, row: int, fields: dict[str, int], expected: Any) -> None:
    copies = changed(GAME_COPIES, row, **fields)
    found = [v for v in check(chain(), one_device(rule), game(copies=copies)) if v.rule == "copy"]
    assert where(found[0]) == expected, [str(v) for v in found]


def test_a_copy_issued_too_late_breaks_one_rule() -> None:
    late = changed(GAME_COPIES, 3, issued_after=3)
    violation = only(check(chain(), one_device(), game(copies=late)), "copy")
    assert "issued after op 3 'op3' and needed by op 3 'op3'" in violation.message


def test_a_copy_without_a_link() -> None:
    machine = replace(one_device(), links=one_device().links[:1])
    assert where(only(check(chain(), machine, game()), "copy")) == (A, 2, 0)


def test_idle_copies_have_one_end_at_home() -> None:
    base = one_device("idle")
    machine = replace(
        base,
        memories=(*base.memories, Memory("llc", 256, 10**12, 10**12)),
        devices=(replace(base.devices[0], memories=("sram", "llc", "dram")),),
        links=(*base.links, Link("sram", "llc", 10**12)),
    )
    rows = [Residency(A, SRAM, 0, 0, 2), Residency(A, 2, 0, 1, 3)]
    copies = [Copy(A, SRAM, 2, 0, 3)]
    assert check(chain(), replace(machine, rules=Rules()), game(rows, copies)) == []
    assert where(only(check(chain(), machine, game(rows, copies)), "copy")) == (A, 3, 0)


def test_a_copy_of_a_view() -> None:
    violation = only(check(with_view(), one_device(), Plan.of(copies=[Copy(2, DRAM, SRAM, 0, 2)])), "copy")
    assert where(violation) == (2, None, 0)


@pytest.mark.parametrize(
    ("dropped", "expected"),
    [
        (4, (X, 0, 64)),  # op0 reads sram, where x is not
        (1, (W, 2, 16)),  # one slice of two
        (3, (A, 3, 64)),
    ],
)
def test_a_dropped_copy(dropped: int, expected: Any) -> None:
    copies = [copy for row, copy in enumerate(GAME_COPIES) if row != dropped]
    assert where(only(check(chain(), one_device(), game(copies=copies)), "data")) == expected


def test_a_dropped_write_back() -> None:
    violation = only(check(chain(), one_device(), game(copies=GAME_COPIES[1:])), "copy")
    assert where(violation) == (A, 3, 2) and "64 of its bytes are not" in violation.message


def test_a_shortened_residency() -> None:
    # a ends after op1: op3 reads it from dram, where nobody wrote it.
    assert where(only(check(chain(), one_device(), static(changed(STATIC, 1, last=2))), "data")) == (A, 3, 64)
    # w comes in later than its copy: no room.
    found = check(chain(), one_device(), game(changed(GAME, 2, first=2)))
    assert {(v.rule, *where(v)) for v in found} == {("copy", W, 2, 1), ("copy", W, 2, 2)}
    # a begins after the op that writes it: both of its readers find nothing.
    found = check(chain(), one_device(), static(changed(STATIC, 1, first=1)))
    assert [(v.rule, *where(v)) for v in found] == [("data", A, 1, 64), ("data", A, 3, 64)]


def test_a_residency_continues_another_at_its_offset() -> None:
    two = [Residency(A, SRAM, 0, 0, 1), Residency(A, SRAM, 0, 2, 3)]
    assert check(chain(), one_device(), static(two)) == []
    moved = [Residency(A, SRAM, 0, 0, 1), Residency(A, SRAM, 64, 2, 3)]
    assert where(only(check(chain(), one_device(), static(moved)), "data")) == (A, 3, 64)
    gap = [Residency(A, SRAM, 0, 0, 1), Residency(A, SRAM, 0, 3, 3)]
    assert where(only(check(chain(), one_device(), static(gap)), "data")) == (A, 3, 64)


def test_a_read_beside_a_copy_on_its_way_is_served_by_the_home() -> None:
    """The residency is being filled until op 3: op 1 reads where the bytes still are."""
    filled = game([Residency(A, SRAM, 0, 1, 3)], [Copy(A, DRAM, SRAM, 0, 3)])
    assert check(chain(), one_device(), filled) == []
    late = game([Residency(A, SRAM, 0, 2, 3)], [Copy(A, DRAM, SRAM, 1, 3)])
    assert check(chain(), one_device(), late) == []
    facts = Facts(chain(), one_device(), filled)
    assert [facts.serves(rank, A)[0] for rank in (1, 3)] == [DRAM, SRAM]


def test_an_output_is_somewhere_at_the_end() -> None:
    build = Builder("output")
    x, y = build.tensor("x", bytes=16, kind="input"), build.tensor("y", bytes=16, kind="output")
    build.op("op0", "add", reads=[x], writes=[y])
    build.op("op1", "add", reads=[x])
    program = build.build()
    assert check(program, one_device(), static([Residency(y, SRAM, 0, 0, 1)])) == []
    assert where(only(check(program, one_device(), static([Residency(y, SRAM, 0, 0, 0)])), "data")) == (
        y,
        1,
        16,
    )
    rows, copies = [Residency(y, SRAM, 0, 0, 0)], [Copy(y, SRAM, DRAM, 0, 1)]
    assert check(program, one_device(), game(rows, copies)) == []


def test_a_transfer_takes_what_is_at_home() -> None:
    base = two_devices()
    machine = replace(
        base,
        memories=(*base.memories, Memory("sram0", 256, 10**12, 10**12)),
        devices=(replace(base.devices[0], memories=("sram0", "hbm0")), base.devices[1]),
        links=(*base.links, Link("sram0", "hbm0", 10**12)),
    )
    devices = [0, 1, 1, 1]
    assert check(chain(), machine, Plan.of(device=devices)) == []
    in_fast = Plan.of(device=devices, residencies=[Residency(A, 2, 0, 0, 0)])
    violation = only(check(chain(), machine, in_fast), "data")
    assert where(violation) == (A, 1, 64) and "hbm0" in violation.message


def test_a_transfer_of_what_a_residency_holds_as_well() -> None:
    machine = two_devices()
    machine = replace(
        machine, devices=(machine.devices[0], replace(machine.devices[1], memories=("hbm0", "hbm1")))
    )
    # a is sent to hbm1 for op1; from there it is copied to a residency that serves op3.
    plan = Plan.of(device=[0, 1, 1, 1], residencies=[Residency(A, 0, 0, 2, 3)], copies=[Copy(A, 1, 0, 1, 3)])
    assert check(chain(), machine, plan) == []
    early = plan.changed(copies=np.array([[A, 1, 0, 0, 3, -1, -1]]))
    violation = check(chain(), machine, early)
    assert {v.rule for v in violation} == {"copy"}


def test_a_fused_step_is_not_kept_to_its_last_member() -> None:
    """{op0, op2} runs at position 0: a residency that ends with op2 ends before op1 runs."""
    build = Builder("fused")
    x, a = build.tensor("x", bytes=16, kind="input"), build.tensor("a", bytes=16)
    b, c = build.tensor("b", bytes=16, kind="output"), build.tensor("c", bytes=16, kind="output")
    build.op("op0", "add", reads=[x], writes=[a])
    build.op("op1", "add", reads=[a], writes=[b])
    build.op("op2", "add", reads=[x], writes=[c])
    program, fusion = build.build(), [0, -1, 0]
    assert (
        check(program, one_device(), Plan.of(fusion=fusion, residencies=[Residency(a, SRAM, 0, 0, 1)])) == []
    )
    plan = Plan.of(fusion=fusion, residencies=[Residency(a, SRAM, 0, 0, 2)])
    assert where(only(check(program, one_device(), plan), "data")) == (a, 1, 16)


# --- ties ------------------------------------------------------------------------------------

IN_PLACE = [Residency(1, SRAM, 0, 0, 1), Residency(2, SRAM, 0, 1, 2)]


def test_an_in_place_op_in_one_spot() -> None:
    machine = one_device(sram=128)
    assert check(in_place(), machine, Plan()) == []
    assert check(in_place(), machine, static(IN_PLACE)) == []
    moved = only(check(in_place(), machine, static(changed(IN_PLACE, 1, offset=64))), "tie")
    assert where(moved) == (2, 1, 64)
    slow = only(check(in_place(), machine, static(IN_PLACE[:1])), "tie")
    assert where(slow) == (2, 1, NO_OFFSET) and "memory 'dram'" in slow.message
    # Without the tie, the same offsets overlap at op1.
    untied = replace(
        in_place(),
        **{f"tie_{c}": getattr(in_place(), f"tie_{c}")[:0] for c in ("kind", "source", "target", "at")},
    )
    assert where(only(check(untied, machine, static(IN_PLACE)), "overlap")) == (2, 1, 1)


def test_the_source_of_an_in_place_op_is_not_read_later() -> None:
    build = Builder("late reader")
    x, s = build.tensor("x", bytes=8, kind="input"), build.tensor("s", bytes=8)
    t, y = build.tensor("t", bytes=8), build.tensor("y", bytes=8, kind="output")
    build.op("op0", "add", reads=[x], writes=[s])
    build.op("op1", "add", reads=[s], writes=[y])
    build.tie(TieKind.INPLACE, s, t, build.op("op2", "update", reads=[s], writes=[t]))
    program = build.build()
    assert check(program, one_device(), Plan()) == []
    assert where(only(check(program, one_device(), Plan.of(order=[0, 2, 1])), "tie")) == (s, 1, 2)


def test_a_copy_of_what_an_in_place_op_overwrites() -> None:
    rows = [IN_PLACE[0], Residency(2, SRAM, 0, 1, 2)]
    on_time = game(rows, [Copy(1, SRAM, DRAM, 0, 1)])
    assert check(in_place(), one_device(), on_time) == []
    violation = check(
        in_place(), one_device(), game([changed(rows, 0, last=2)[0], rows[1]], [Copy(1, SRAM, DRAM, 0, 3)])
    )
    assert where(only(violation, "tie")) == (1, 1, 0)


def test_a_weight_that_the_first_op_updates_in_place() -> None:
    build = Builder("update")
    w, new = (build.tensor("w", bytes=16, kind="weight"), build.tensor("new", bytes=16, kind="output"))
    build.tie(TieKind.INPLACE, w, new, build.op("op0", "update", reads=[w], writes=[new]))
    build.op("op1", "add", reads=[new])
    program = build.build()
    rows = [Residency(w, SRAM, 0, BEFORE, 1), Residency(new, SRAM, 0, 0, 1)]
    assert check(program, one_device(), static(rows)) == []
    assert where(only(check(program, one_device(), static(rows[:1])), "tie")) == (new, 0, NO_OFFSET)


def test_an_input_that_is_updated_in_place_is_on_every_device() -> None:
    build = Builder("update")
    x, new = build.tensor("x", bytes=16, kind="input"), build.tensor("new", bytes=16, kind="output")
    build.op("op0", "add", reads=[x])
    build.tie(TieKind.INPLACE, x, new, build.op("op1", "update", reads=[x], writes=[new]))
    assert check(build.build(), two_devices(), Plan.of(device=[0, 1])) == []


def carried() -> Program:
    """s enters a loop of op1, op2, op3; t is left for the next iteration; op4 reads t."""
    build = Builder("loop")
    x, s = build.tensor("x", bytes=64, kind="input"), build.tensor("s", bytes=64)
    m, t = build.tensor("m", bytes=64), build.tensor("t", bytes=64)
    y = build.tensor("y", bytes=64, kind="output")
    build.op("op0", "add", reads=[x], writes=[s])
    loop = build.loop(5)
    build.op("op1", "add", reads=[s], writes=[m], loop=loop)
    build.op("op2", "add", reads=[m], loop=loop)
    build.op("op3", "add", reads=[m], writes=[t], loop=loop)
    build.op("op4", "add", reads=[t], writes=[y])
    build.tie(TieKind.CARRIED, s, t, loop)
    return build.build()


def test_a_value_that_a_loop_carries() -> None:
    s, t = 1, 3
    rows = [Residency(s, SRAM, 0, 0, 3), Residency(t, SRAM, 0, 3, 4)]
    assert check(carried(), one_device(), Plan()) == []
    assert check(carried(), one_device(), static(rows)) == []
    assert where(only(check(carried(), one_device(), static(changed(rows, 1, offset=64))), "tie")) == (
        t,
        3,
        64,
    )
    assert where(only(check(carried(), one_device(), static(rows[:1])), "tie")) == (t, 3, NO_OFFSET)
    short = only(check(carried(), one_device(), static(changed(rows, 0, last=1))), "tie")
    assert where(short) == (s, 2, 2) and "whole loop" in short.message


# --- capacity --------------------------------------------------------------------------------


def test_capacity_of_the_home() -> None:
    # At op2 or op3: w (48), a (64), b or c: 48 + 64 + 64 + 64 at op2.
    assert check(chain(), one_device(dram=240), Plan()) == []
    violation = only(check(chain(), one_device(dram=239), Plan()), "capacity")
    assert where(violation) == (A, 2, 1)
    assert "memory 'dram' needs 240 bytes and has 239, 1 too few" in violation.message
    # First over at op1 by less than at the worst.
    violation = only(check(chain(), one_device(dram=175), Plan()), "capacity")
    assert where(violation) == (X, 0, 65)
    weights = only(check(chain(), one_device(dram=100), Plan()), "capacity")
    assert where(weights) == (X, None, 140) and "before the program starts" in weights.message


def test_capacity_without_offsets() -> None:
    rows = [row._replace(offset=NO_OFFSET) for row in STATIC[:4]]
    assert check(chain(), one_device(sram=240), static(rows)) == []  # 48 + 64 + 64 + 64
    violation = only(check(chain(), one_device(sram=239), static(rows)), "capacity")
    assert where(violation) == (A, 2, 1)


def test_tied_tensors_count_once_and_fused_ones_not_at_all() -> None:
    assert check(in_place(), one_device(dram=192), Plan()) == []
    only(check(in_place(), one_device(dram=191), Plan()), "capacity")
    fused = Plan.of(fusion=[-1, 0, 0, -1])  # b is internal
    assert check(chain(), one_device(dram=208), fused) == []
    assert where(only(check(chain(), one_device(dram=207), fused), "capacity"))[2] == 1


def test_a_written_back_tensor_takes_room_at_home() -> None:
    # x 64 (its copy ends at op0), w 48; a from its copy on; b, c and y as they come.
    assert check(chain(), one_device(dram=48 + 64 + 64 + 64), game()) == []
    violation = only(check(chain(), one_device(dram=48 + 64 + 64 + 63), game()), "capacity")
    assert violation.number == 1


def test_capacity_of_several_devices() -> None:
    devices = [0, 1, 0, 0]
    small = two_devices(capacity=175)
    # At hbm0 for sure: w, x and a (176) at op0, and w, c, a and y (208) at op3.
    violation = only(check(chain(), small, Plan.of(device=devices)), "capacity")
    assert where(violation) == (X, 0, 33)
    # A timeline knows that a is there too.
    machine = two_devices(capacity=239)
    plan = Plan.of(device=devices)
    assert check(chain(), machine, plan) == []
    violation = only(check(chain(), machine, plan, simulate_reference(chain(), machine, plan)), "capacity")
    assert where(violation) == (A, 2, 1)
    assert check(chain(), machine.with_capacity("hbm0", 240), plan) == []


def write_backs() -> tuple[Program, Plan]:
    """op0 makes p and h, op1 makes q; p and q are made in sram and written back to dram."""
    build = Builder("write backs")
    p, h = build.tensor("p", bytes=64), build.tensor("h", bytes=64)
    q, r = build.tensor("q", bytes=64), build.tensor("r", bytes=64)
    build.op("op0", "add", writes=[p, h])
    build.op("op1", "add", writes=[q])
    build.op("op2", "add", writes=[r])
    rows = [Residency(p, SRAM, 0, 0, 1), Residency(q, SRAM, 64, 1, 1)]
    return build.build(), game(rows, [Copy(p, SRAM, DRAM, 0, 2), Copy(q, SRAM, DRAM, 1, 2)])


def test_a_copy_takes_room_at_home_from_its_issue_to_its_need() -> None:
    program, plan = write_backs()
    # In idle time p is awaited before q is pushed, and both before op2 writes r.
    assert check(program, one_device("idle", dram=64), plan) == []
    assert check(program, one_device("idle", dram=63), plan) != []
    # Free copies may run at once.
    assert check(program, one_device("free", dram=128), plan) == []
    violation = only(check(program, one_device("free", dram=64), plan), "capacity")
    assert where(violation) == (0, 1, 64)
    # The timeline knows whether they do.
    for rule in ("free", "idle"):
        machine = one_device(rule, dram=64)
        timeline = simulate_reference(program, machine, plan)
        assert [v.rule for v in check(program, machine, plan, timeline)] in ([], ["capacity"])


def test_capacity_of_two_devices_without_transfers() -> None:
    build = Builder("apart")
    x, w = build.tensor("x", bytes=8, kind="input"), build.tensor("w", bytes=20, kind="weight")
    small, large = build.tensor("small", bytes=10), build.tensor("large", bytes=30)
    build.op("op0", "add", reads=[x, w], writes=[small, large])
    build.op("op1", "add", reads=[x])
    program, plan = build.build(), Plan.of(device=[0, 1])
    assert check(program, two_devices(68), plan) == []
    violation = only(check(program, two_devices(67), plan), "capacity")
    assert where(violation) == (large, 0, 1)
    # A weight in its place counts there too, and no longer at home.
    base = two_devices(48)
    machine = replace(
        base,
        memories=(*base.memories, Memory("sram0", 20, 10**12, 10**12)),
        devices=(replace(base.devices[0], memories=("sram0", "hbm0")), base.devices[1]),
    )
    placed = plan.changed(residencies=np.array([Residency(w, 2, NO_OFFSET, BEFORE, 1)]))
    assert check(program, machine, placed) == []
    violation = only(check(program, machine.with_capacity("sram0", 19), placed), "capacity")
    assert where(violation) == (w, None, 1)


# --- timelines -------------------------------------------------------------------------------


def shifted(timeline: Timeline, name: str, index: Any, by: int) -> Timeline:
    column = getattr(timeline, name).copy()
    column[index] += by
    return replace(timeline, **{name: column})


def test_a_timeline_of_one_device() -> None:
    machine, plan = one_device(), game()
    timeline = simulate_reference(chain(), machine, plan)

    def broken(name: str, index: Any, by: int) -> list[Violation]:
        found = check(chain(), machine, plan, shifted(timeline, name, index, by))
        assert {v.rule for v in found} <= {"timeline"}
        return found

    start = broken("op_start", 2, -1)
    assert (A, 2) in {(v.tensor, v.op) for v in start} or (B, 2) in {(v.tensor, v.op) for v in start}
    assert broken("op_end", 3, 1)[0].number == timeline.op_end[3] + 1  # not the total
    assert broken("op_end", 1, 1)  # runs into op2
    assert broken("copy_start", 3, -1)  # before it is issued
    assert broken("copy_end", 3, 10**6)  # after it is needed
    assert broken("memory_peak", SRAM, 1)[0].number == timeline.memory_peak[SRAM]
    assert broken("memory_top", SRAM, 1)
    assert broken("memory_over", DRAM, 1)
    assert broken("memory_first_over", DRAM, 1)
    total = only(check(chain(), machine, plan, replace(timeline, total_ps=timeline.total_ps + 1)), "timeline")
    assert total.number == timeline.total_ps
    short = replace(timeline, op_start=timeline.op_start[:-1])
    assert only(check(chain(), machine, plan, short), "timeline").number == 4


def test_a_timeline_by_hand() -> None:
    """x -> op0 -> a -> view -> op2 -> y, 8 bytes each, with times that nobody computed."""
    timeline = Timeline(
        total_ps=9,
        op_start=np.array([0, 4, 5]),
        op_end=np.array([4, 4, 9]),
        op_stall=np.zeros(3, np.int64),
        copy_start=np.zeros(0, np.int64),
        copy_end=np.zeros(0, np.int64),
        transfers=np.zeros((0, 4), np.int64),
        link_bytes=np.zeros(2, np.int64),
        device_busy=np.array([8]),
        memory_peak=np.array([0, 16]),
        memory_top=np.zeros(2, np.int64),
        memory_over=np.zeros(2, np.int64),
        memory_first_over=np.full(2, -1),
    )
    assert check(with_view(), one_device(), Plan(), timeline) == []
    early = check(with_view(), one_device(), Plan(), shifted(timeline, "op_start", 2, -2))
    assert ("timeline", 1, 2, 4) in {(v.rule, *where(v)) for v in early}
    view = check(with_view(), one_device(), Plan(), shifted(timeline, "op_start", 1, -1))
    assert where(only(view, "timeline")) == (None, 1, 3)


def test_a_timeline_of_two_devices() -> None:
    machine, plan = two_devices(), Plan.of(device=[0, 1, 0, 0], transfers=[(A, 1), (B, 0)])
    timeline = simulate_reference(chain(), machine, plan)
    missing = replace(timeline, transfers=timeline.transfers[:1])
    assert where(only(check(chain(), machine, plan, missing), "timeline")) == (B, 2, 0)
    twice = replace(timeline, transfers=timeline.transfers[[0, 1, 1]])
    assert "twice" in only(check(chain(), machine, plan, twice), "timeline").message
    early = check(chain(), machine, plan, shifted(timeline, "transfers", (0, 2), -1))
    assert "timeline" in {v.rule for v in early}
    late = check(chain(), machine, plan, shifted(timeline, "transfers", (1, 3), 1))
    assert (B, 2, int(timeline.transfers[1, 3]) + 1) in {where(v) for v in late}
    busy = timeline.transfers.copy()
    busy[1, 2] = busy[0, 3] - 1  # both on the bus
    shared = check(chain(), machine, plan, replace(timeline, transfers=busy))
    assert any("engine 'bus'" in v.message for v in shared)


def test_a_device_in_another_order() -> None:
    build = Builder("two ops")
    x = build.tensor("x", bytes=8, kind="input")
    for name in ("op0", "op1"):
        build.op(name, "add", reads=[x], vector=10)
    program, machine = build.build(), one_device()
    timeline = simulate_reference(program, machine, Plan.of(order=[1, 0]))
    assert check(program, machine, Plan.of(order=[1, 0]), timeline) == []
    assert where(only(check(program, machine, Plan(), timeline), "timeline"))[:2] == (None, 1)
    assert check(program, machine, Plan(queue="fifo"), timeline) == []


def test_residencies_of_two_devices_that_meet_in_time() -> None:
    """By position y0 is gone before y1 comes, but the devices run at the same time."""
    memories = (Memory("shared", 64, 10**12, 10**12), Memory("home", 999, 10**12, 10**12))
    devices = tuple(Device(f"d{i}", ("shared", "home"), RATES) for i in range(2))
    machine = Machine("shared", devices, memories)
    build = Builder("pair")
    x = build.tensor("x", bytes=8, kind="input")
    for i in range(2):
        build.op(f"op{i}", "add", reads=[x], writes=[build.tensor(f"y{i}", bytes=8)], vector=10)
    program = build.build()
    plan = Plan.of(device=[0, 1], residencies=[Residency(1, 0, 0, 0, 0), Residency(2, 0, 0, 1, 1)])
    assert check(program, machine, plan) == []
    timeline = simulate_reference(program, machine, plan)
    assert where(only(check(program, machine, plan, timeline), "overlap")) == (2, 1, 1)


def shared_machine() -> Machine:
    """Two devices over one fast memory and one home."""
    memories = (Memory("shared", 64, 10**12, 10**12), Memory("home", 999, 10**12, 10**12))
    devices = tuple(Device(f"d{i}", ("shared", "home"), RATES) for i in range(2))
    return Machine("shared", devices, memories, (Link("home", "shared", 10**9, 0, ("in",)),))


def test_residencies_of_two_devices_that_touch_in_time() -> None:
    build = Builder("touch")
    x, a = build.tensor("x", bytes=8, kind="input"), build.tensor("a", bytes=8)
    scratch, y = build.tensor("scratch", bytes=8), build.tensor("y", bytes=8)
    build.op("op0", "add", reads=[x], writes=[a, scratch], vector=10)
    build.op("op1", "add", reads=[a], writes=[y], vector=10)
    program = build.build()
    rows = [Residency(scratch, 0, 0, 0, 0), Residency(y, 0, 0, 1, 1)]
    plan = Plan.of(device=[0, 1], residencies=rows)
    timeline = simulate_reference(program, shared_machine(), plan)
    assert timeline.op_end[0] == timeline.op_start[1]
    assert check(program, shared_machine(), plan, timeline) == []


def test_a_copy_that_only_another_device_waits_for() -> None:
    """op1 on d0 needs the copy; op2 on d1 reads what it brings and waits for nothing."""
    build = Builder("race")
    x = build.tensor("x", bytes=8, kind="input")
    for i in range(3):
        build.op(f"op{i}", "add", reads=[x], vector=10)
    program = build.build()
    plan = Plan.of(device=[0, 0, 1], residencies=[Residency(x, 0, 0, 1, 2)], copies=[Copy(x, 1, 0, 0, 1)])
    timeline = simulate_reference(program, shared_machine(), plan)
    assert check(program, shared_machine(), plan) == []  # by position all is well
    violation = only(check(program, shared_machine(), plan, timeline), "timeline")
    assert where(violation) == (x, 2, int(timeline.copy_end[0]))
    alone = plan.changed(device=np.zeros(3, np.int32))
    assert check(program, shared_machine(), alone, simulate_reference(program, shared_machine(), alone)) == []


def test_devices_with_one_home_need_no_transfer() -> None:
    plan = Plan.of(device=[0, 1, 0, 1])
    assert check(chain(), shared_machine(), plan) == []
    assert check(chain(), shared_machine(), plan, simulate_reference(chain(), shared_machine(), plan)) == []


# --- all of it -------------------------------------------------------------------------------


def test_many_violations_are_counted() -> None:
    build = Builder("many")
    x = build.tensor("x", bytes=1, kind="input")
    for i in range(1_500):
        build.op(f"op{i}", "add", reads=[x])
    program = build.build()
    found = check(program, one_device(), Plan(device=np.full(1_500, 7, np.int32)))
    assert len(found) == MOST_PER_RULE + 1
    assert found[-1] == Violation("shape", "and 500 more", number=500)


def test_random_plans_and_the_reference() -> None:
    """What can't be simulated is refused, and what is simulated has a timeline that holds."""
    accepted = refused = 0
    for seed in range(300):
        program, machine, plan = random_case(np.random.default_rng(seed))
        try:
            timeline = simulate_reference(program, machine, plan)
        except BadPlan:
            assert check(program, machine, plan), seed
            refused += 1
            continue
        found = check(program, machine, plan, timeline)
        assert {v.rule for v in found} <= set(RULES)
        moved = [row.tensor for row in (*plan.residency_rows, *plan.copy_rows)]
        of_roots = all(program.tensor_alias[tensor] == tensor for tensor in moved)
        if of_roots and not {v.rule for v in found} & {"shape", "order"}:
            assert [str(v) for v in found if v.rule == "timeline"] == [], seed
        accepted += not found
    assert accepted > 20 and refused > 20


def test_hostile_plans_never_raise() -> None:
    rng = np.random.default_rng(11)
    machines = [one_device(), one_device("idle"), two_devices()]
    programs = [chain(), with_view(), in_place(), carried(), diamond()]
    wild = np.array([-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 6, 2**31, 2**62, 2**63 - 1])

    def table(width: int, low: int, high: int) -> Any:
        rows = rng.integers(low, high, (int(rng.integers(0, 5)), width))
        rows[rng.random(rows.shape) < 0.05] = rng.choice(wild)
        return rows if rng.random() < 0.95 else rows[:, :-1]

    for _ in range(400):
        program = programs[rng.integers(len(programs))]
        machine = machines[rng.integers(len(machines))]
        n = program.n_ops + (int(rng.integers(-1, 2)) if rng.random() < 0.05 else 0)
        fields: dict[str, Any] = {
            "device": rng.integers(0, len(machine.devices), n),
            "order": rng.permutation(n) if rng.random() < 0.8 else rng.integers(-1, n + 1, n),
            "fusion": rng.integers(-1, 2, n),
            "residencies": table(5, -1, 5),
            "copies": table(7, -1, 5),
            "transfers": table(2, 0, 3),
            "priority": rng.choice([0.0, 1.0, np.nan, np.inf], n),
            "queue": rng.choice(["order", "order", "order", "fifo", "priority", "no"]).item(),
            "tie": rng.choice(["fifo", "critical_path", "no"]).item(),
        }
        kept = {name: value for name, value in fields.items() if rng.random() < 0.6}
        plan = Plan().changed(**kept)
        times = rng.integers(-5, 50, (2, program.n_ops))
        copies = 0 if plan.copies is None else len(plan.copies)
        wide = rng.integers(-5, 50, (2, copies))
        few = rng.integers(0, 4, (4, len(machine.memories)))
        rows = rng.integers(-1, 4, (int(rng.integers(0, 4)), 4))
        unused = np.zeros(0, np.int64)
        timeline = Timeline(int(rng.integers(0, 50)), *times, unused, *wide, rows, unused, unused, *few)
        for violation in check(program, machine, plan) + check(program, machine, plan, timeline):
            assert violation.rule in RULES and violation.message


def test_an_empty_program() -> None:
    assert check(Builder("empty").build(), one_device(), Plan()) == []


def test_the_checker_shares_no_code() -> None:
    """It imports the data, and its own files: no simulator, no solver, no native core."""
    allowed = (
        "loadmaster.program",
        "loadmaster.machine",
        "loadmaster.plan.plan",
        "loadmaster.plan.check",
        "loadmaster.errors",
        "loadmaster.units",
    )
    folder = Path(loadmaster.plan.__file__).parent / "check"
    files = sorted(folder.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            assert not isinstance(node, ast.Import) or all("loadmaster" not in n.name for n in node.names)
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("loadmaster"):
                assert node.module.startswith(allowed), (file.name, node.module)
