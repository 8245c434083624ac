"""The native simulator and the slow reference give the same integers, whatever the case.

A case is named by its seed: `disagreement(random_case(np.random.default_rng(seed)))`.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from generate import random_case
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Device, Link, Machine, Memory
from loadmaster.plan.plan import NO_OFFSET, Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.simulate import simulate
from loadmaster.simulate.simulator import Timeline
from reference.simulate import simulate_reference

BLOCKS = 40
CASES_PER_BLOCK = 75
FOREVER = 2**62 - 1
MAX_OPS = (4, 8, 14, 14, 30)
"""Small cases fail in ways that can be read, large ones meet more coincidences."""


def case_of(seed: int) -> tuple[Program, Machine, Plan]:
    rng = np.random.default_rng(seed)
    return random_case(rng, max_ops=MAX_OPS[seed % len(MAX_OPS)])


def outcome(run: object, case: tuple[Program, Machine, Plan]) -> Timeline | str:
    """The Timeline, or the refusal as text."""
    assert callable(run)
    try:
        timeline = run(*case)
    except BadPlan as error:
        return f"BadPlan: {error}"
    assert isinstance(timeline, Timeline)
    return timeline


def disagreement(case: tuple[Program, Machine, Plan]) -> str | None:
    """The first field in which the two differ, with both values, or None."""
    native, reference = outcome(simulate, case), outcome(simulate_reference, case)
    if isinstance(native, str) and isinstance(reference, str):
        return None
    if isinstance(native, str) or isinstance(reference, str):
        shown = [x if isinstance(x, str) else f"{x.total_ps} ps" for x in (native, reference)]
        return f"native {shown[0]}, reference {shown[1]}"
    for field in fields(Timeline):
        ours, theirs = getattr(native, field.name), getattr(reference, field.name)
        if np.shape(ours) != np.shape(theirs) or not np.array_equal(ours, theirs):
            return f"{field.name}: native {np.array(ours).tolist()}, reference {np.array(theirs).tolist()}"
    return None


@pytest.mark.parametrize("block", range(BLOCKS))
def test_native_equals_reference(block: int) -> None:
    for seed in range(block * CASES_PER_BLOCK, (block + 1) * CASES_PER_BLOCK):
        difference = disagreement(case_of(seed))
        assert difference is None, f"seed {seed}: {difference}"


def slowed(case: tuple[Program, Machine, Plan], rng: np.random.Generator) -> tuple[Program, Machine, Plan]:
    """The same case on a machine so slow, and with loops so long, that some times can't be told."""
    program, machine, plan = case
    rate = 10 ** int(rng.integers(0, 4))
    latency = int(rng.choice([0, 2**40, 2**61, 2**62 - 1]))
    slow = replace(
        machine,
        memories=tuple(replace(m, read=rate, write=rate) for m in machine.memories),
        links=tuple(replace(link, bandwidth=rate, latency=latency) for link in machine.links),
    )
    trips = np.minimum(program.loop_trips * int(rng.choice([1, 10**6, 10**15])), 10**15)
    return replace(program, loop_trips=trips), slow, plan


@pytest.mark.parametrize("block", range(8))
def test_times_that_can_not_be_told_stick_to_one_value(block: int) -> None:
    """Where the total is FOREVER, that is all there is to say; otherwise everything is equal."""
    late = 0
    for seed in range(block * 40, (block + 1) * 40):
        rng = np.random.default_rng([seed, 1])
        case = slowed(case_of(seed), rng)
        if float(np.prod(case[0].loop_trips.astype(float))) > 2**62:
            continue  # no such program is let in
        native, reference = outcome(simulate, case), outcome(simulate_reference, case)
        if isinstance(native, Timeline) and native.total_ps == FOREVER:
            assert isinstance(reference, Timeline) and reference.total_ps == FOREVER, f"seed {seed}"
            late += 1
        else:
            difference = disagreement(case)
            assert difference is None, f"seed {seed}: {difference}"
    assert late > 2


def test_a_residency_that_is_over_before_it_begins_holds_nothing() -> None:
    """Its last step runs early on one device, its first late on another: time decides."""
    build = Builder("late")
    x = build.tensor("x", bytes=50, kind="input")
    z = build.tensor("z", bytes=30, kind="input")
    build.op("before", "work", matrix=50)  # 0-50 on dev0
    build.op("middle", "work", matrix=50)  # 50-100 on dev0, z is in fast
    build.op("first", "work", matrix=1)  # 100-101 on dev0
    build.op("last", "work", matrix=1)  # 0-1 on dev1
    rates = {"matrix": {"*": 10**12}, "vector": {"*": 10**12}}
    machine = Machine(
        "two",
        devices=tuple(Device(f"dev{i}", ("fast", "home"), rates) for i in range(2)),
        memories=tuple(Memory(name, 100, 10**12, 10**12) for name in ("fast", "home")),
    )
    plan = Plan.of(
        device=[0, 0, 0, 1], residencies=[Residency(x, 0, NO_OFFSET, 2, 3), Residency(z, 0, NO_OFFSET, 1, 1)]
    )
    case = (build.build(), machine, plan)
    assert disagreement(case) is None, disagreement(case)
    assert simulate_reference(*case).memory_peak.tolist() == [30, 0]


def test_held_back_transfers_are_booked_once() -> None:
    """Both engines of a link let the next transfer of the list go; it goes once."""
    build = Builder("held back")
    first, second = build.tensor("first", bytes=4), build.tensor("second", bytes=2)
    build.op("make", "work", writes=[first, second])
    build.op("use", "work", reads=[first, second])
    rates = {"matrix": {"*": 10**12}, "vector": {"*": 10**12}}
    machine = Machine(
        "two",
        devices=tuple(Device(f"dev{i}", (f"mem{i}",), rates) for i in range(2)),
        memories=tuple(Memory(f"mem{i}", 100, 10**12, 10**12) for i in range(2)),
        links=(Link("mem0", "mem1", 10**12, engines=("out", "in")),),
    )
    plan = Plan.of(device=[0, 1], transfers=[(second, 1), (first, 1)])
    case = (build.build(), machine, plan)
    assert disagreement(case) is None, disagreement(case)
    booked = simulate_reference(*case).transfers.tolist()  # make takes 6
    assert booked == [[second, 1, 6, 8], [first, 1, 8, 12]]


def test_the_cases_are_worth_comparing() -> None:
    """Every feature occurs often: a generator that only makes errors would prove nothing."""
    seen = {"timed": 0, "refused": 0, "transfers": 0, "copies": 0, "stalls": 0, "over": 0, "idle": 0}
    for seed in range(400):
        program, machine, plan = case_of(seed)
        result = outcome(simulate_reference, (program, machine, plan))
        if isinstance(result, str):
            seen["refused"] += 1
            continue
        seen["timed"] += 1
        seen["transfers"] += len(result.transfers) > 1
        seen["copies"] += len(result.copy_start) > 0
        seen["stalls"] += bool(result.op_stall.any())
        seen["over"] += bool(result.memory_over.any())
        seen["idle"] += machine.rules.copies == "idle"
    assert seen["timed"] > 250, seen
    assert all(count >= 20 for count in seen.values()), seen
