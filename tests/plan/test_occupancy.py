"""What lies where and when: drawn cases, slow versions, and the checker's own view of random plans."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from generate import random_case
from loadmaster.errors import BadMachine, BadPlan, BadProgram, LoadmasterError
from loadmaster.machine.machine import Device, Link, Machine, Memory
from loadmaster.plan import BEFORE, NO_OFFSET, Copy, Occupancy, Plan, Residency
from loadmaster.plan.occupancy import FOREVER, join_touching
from loadmaster.plan.steps import match_equal
from loadmaster.program import Program, TieKind
from loadmaster.program.build import Builder
from loadmaster.simulate import Timeline, simulate
from reference.check.facts import Facts, Report
from reference.check.memory import FOR_EVER, Clock, PositionClock, collect_holds, sweep
from reference.check.timeline import Times

FAST, SLOW = 0, 1


def two_memories() -> Machine:
    return Machine(
        "two",
        (Device("core", ("fast", "slow"), {"vector": {"*": 10**12}}),),
        (Memory("fast", 1_000, 10**12, 10**12, alignment=16), Memory("slow", 10_000, 10**11, 10**11)),
        (Link("slow", "fast", 10**11, engines=("dma",)), Link("fast", "slow", 10**11, engines=("dma",))),
    )


def chain() -> Program:
    """x -a-> y -b(w)-> z -c-> out: tensors x 0, w 1, y 2, z 3, out 4."""
    build = Builder("chain")
    x = build.tensor("x", bytes=100, kind="input")
    w = build.tensor("w", bytes=200, kind="weight")
    y, z = build.tensor("y", bytes=40), build.tensor("z", bytes=50)
    out = build.tensor("out", bytes=60, kind="output")
    build.op("a", "add", reads=[x], writes=[y], vector=10)
    build.op("b", "add", reads=[y, w], writes=[z], vector=10)
    build.op("c", "add", reads=[z], writes=[out], vector=10)
    return build.build()


def test_nothing_decided_lies_at_home() -> None:
    """op     a    b    c
    x 100  ####
    w 200  ##############    y 40 is read by b, z 50 by c; out 60 stays
    """
    occupancy = Occupancy(chain(), two_memories(), Plan())
    assert [{row.tensor for row in occupancy.at("slow", op)} for op in range(3)] == [
        {0, 1, 2},
        {1, 2, 3},
        {1, 3, 4},
    ]
    assert occupancy.at("fast", 1) == [] and occupancy.peak("fast") == (0, BEFORE)
    assert occupancy.peak("slow") == (340, 0)  # x, w and y, when a starts
    assert Residency(1, SLOW, NO_OFFSET, BEFORE, 2) in occupancy.at("slow", 0)
    assert Residency(2, SLOW, NO_OFFSET, 0, 1) in occupancy.at("slow", 1)
    assert Residency(4, SLOW, NO_OFFSET, 2, 2) in occupancy.at("slow", 2)
    assert occupancy.copies() == []


def test_a_prefetched_weight_is_in_both_memories() -> None:
    plan = Plan.of(
        residencies=[Residency(1, FAST, 0, 0, 1), Residency(2, FAST, 208, 0, 1)],
        copies=[Copy(1, SLOW, FAST, BEFORE, 1)],
    )
    occupancy = Occupancy(chain(), two_memories(), plan)
    assert occupancy.at(FAST, 0) == plan.residency_rows == occupancy.at(FAST, 1)
    assert occupancy.at(FAST, 2) == []
    assert occupancy.peak("fast") == (208 + 48, 0)  # 200 and 40, each a multiple of 16
    assert {row.tensor for row in occupancy.at("slow", 0)} == {0, 1}  # its home keeps a weight
    assert occupancy.copies(source="slow", target="fast") == plan.copy_rows
    assert occupancy.copies(source="fast") == []
    assert occupancy.profile("fast").bytes.tolist() == [256, 0]


def test_a_result_comes_home_with_its_copy() -> None:
    """z is made in fast memory and copied home while c runs; c reads it there, nobody after it."""
    plan = Plan.of(residencies=[Residency(3, FAST, 0, 1, 2)], copies=[Copy(3, FAST, SLOW, 1, 3)])
    program, machine = chain(), two_memories()
    by_order = Occupancy(program, machine, plan)
    assert {row.tensor for row in by_order.at("slow", 1)} == {1, 2}
    assert Residency(3, SLOW, NO_OFFSET, 1, 2) in by_order.at("slow", 2)
    timed = Occupancy(program, machine, plan, simulate(program, machine, plan))
    assert timed.at("fast", 2) == plan.residency_rows and timed.peak("slow") == (340, 0)


def test_tensors_that_share_a_place_count_once() -> None:
    build = Builder("update")
    w, g = build.tensor("w", bytes=64, kind="state"), build.tensor("g", bytes=64, kind="input")
    new = build.tensor("new", bytes=64)
    op = build.op("update", "add", reads=[w, g], writes=[new], vector=64)
    build.tie(TieKind.INPLACE, w, new, op)
    occupancy = Occupancy(build.build(), two_memories(), Plan())
    assert sorted(row.tensor for row in occupancy.at("slow", 0)) == [w, g, new]
    assert occupancy.peak("slow").bytes == 128


def test_what_names_nothing_is_refused() -> None:
    program, machine = chain(), two_memories()
    for plan in (
        Plan.of(order=[0, 0, 1]),
        Plan.of(device=[0, 1, 0]),
        Plan.of(residencies=[Residency(9, FAST, 0, 0, 1)]),
        Plan.of(residencies=[Residency(1, FAST, 0, 0, 3)]),
        Plan.of(copies=[Copy(1, SLOW, 2, BEFORE, 1)]),
    ):
        with pytest.raises(BadPlan, match="names what is not there"):
            Occupancy(program, machine, plan)
    with pytest.raises(BadMachine, match="no memory 'cmem'"):
        Occupancy(program, machine, Plan()).peak("cmem")


def test_an_empty_program_holds_nothing() -> None:
    occupancy = Occupancy(Builder("empty").build(), two_memories(), Plan())
    assert len(occupancy.held) == 0 and occupancy.peak("fast") == (0, BEFORE) and occupancy.copies() == []
    with pytest.raises(BadProgram, match="has no op 0"):
        occupancy.at("fast", 0)


def test_stretches_that_touch_are_joined() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(0, 12))
        group, begin = rng.integers(0, 3, count), rng.integers(0, 20, count)
        end = begin + rng.integers(0, 6, count)
        joined = join_touching(group, begin, end)
        slow = list(range(count))  # one label each, spread until nothing changes
        for _ in range(count):
            for i in range(count):
                for j in range(count):
                    if group[i] == group[j] and begin[i] <= end[j] and begin[j] <= end[i]:
                        slow[i] = slow[j] = min(slow[i], slow[j])
        assert (
            len(set(zip(joined.tolist(), slow, strict=True))) == len(set(slow)) == len(set(joined.tolist()))
        )
        order = np.argsort(joined, kind="stable")
        assert (np.diff(group[order]) >= 0).all()


def test_pairs_of_equal_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.plan.steps._MOST_PAIRS", 7)  # several portions
    rng = np.random.default_rng(1)
    left, right = rng.integers(0, 6, 40), rng.integers(0, 8, 30)
    found = [
        pair for rows in match_equal(left, right) for pair in zip(*(r.tolist() for r in rows), strict=True)
    ]
    assert found == [(i, j) for i in range(40) for j in range(30) if left[i] == right[j]]


Case = tuple[Facts, Clock, Occupancy]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Plans as the checker sees them and as `Occupancy` does, by positions and by times."""
    found: list[Case] = []
    for seed in range(500):
        program, machine, plan = random_case(np.random.default_rng(seed), valid_only=True)
        facts = Facts(program, machine, plan)
        if facts.in_order and len(facts.devices_used) < 2 and not facts.transfers:
            found.append((facts, PositionClock(facts), Occupancy(program, machine, plan)))
        try:
            timeline = simulate(program, machine, plan)
        except LoadmasterError:
            continue
        found.append((facts, _times(facts, timeline), Occupancy(program, machine, plan, timeline)))
    assert sum(isinstance(clock, PositionClock) for _, clock, _ in found) > 100 and len(found) > 400
    return found


def _times(facts: Facts, timeline: Timeline) -> Times:
    times = Times(facts, timeline, Report())
    for tensor, device, start, end in timeline.transfers.tolist():
        times.transfer_times[tensor, device] = (start, end)
    for missing in facts.transfers.keys() - times.transfer_times.keys():
        times.transfer_times[missing] = (timeline.total_ps, timeline.total_ps)
    return times


def test_holds_what_the_checker_says(cases: list[Case]) -> None:
    seen = 0
    for facts, clock, occupancy in cases:
        expected = Counter(
            (h.tensor, h.memory, h.begin, min(h.end, FOREVER)) for h in collect_holds(facts, clock)
        )
        held = occupancy.held
        columns = (held.tensor, held.memory, held.begin, held.end)
        assert Counter(zip(*(column.tolist() for column in columns), strict=True)) == expected
        seen += len(held)
    assert seen > 3_000 and FOREVER < FOR_EVER


def test_peaks_are_the_checkers(cases: list[Case]) -> None:
    for facts, clock, occupancy in cases:
        usages = sweep(facts, collect_holds(facts, clock))
        assert [occupancy.peak(m).bytes for m in range(len(usages))] == [usage.peak for usage in usages]


def test_residents_of_every_op_are_the_checkers(cases: list[Case]) -> None:
    for facts, clock, occupancy in cases:
        held = collect_holds(facts, clock)
        for rank, step in enumerate(facts.steps):
            now = clock.step(rank)[0]
            for memory in range(len(facts.machine.memories)):
                there = sorted(h.tensor for h in held if h.memory == memory and h.begin <= now < h.end)
                assert sorted(row.tensor for row in occupancy.at(memory, step.number)) == there


def test_profiles_add_up_what_is_held(cases: list[Case]) -> None:
    for facts, _, occupancy in cases:
        held = occupancy.held
        for memory in range(len(facts.machine.memories)):
            for moment, count in zip(*(column.tolist() for column in occupancy.profile(memory)), strict=True):
                there = (held.memory == memory) & (held.begin <= moment) & (moment < held.end)
                places = {facts.place[tensor] for tensor in held.tensor[there].tolist()}
                size = {p: max(facts.size[t] for t in facts.roots if facts.place[t] == p) for p in places}
                assert count == sum(facts.align(each, memory) for each in size.values())


def test_steps_and_what_serves_them_are_the_checkers(cases: list[Case]) -> None:
    for facts, _, occupancy in cases:
        steps = occupancy.steps
        assert steps.op.tolist() == [step.number for step in facts.steps]
        assert steps.of_op.tolist() == facts.step_of and steps.writer.tolist() == facts.writer
        for kind, (memory, row) in (("read", occupancy.reads), ("write", occupancy.writes)):
            rank, tensor = getattr(steps, f"{kind}_step"), getattr(steps, f"{kind}_tensor")
            accesses = list(zip(rank.tolist(), tensor.tolist(), strict=True))
            assert accesses == [
                (number, each)
                for number, step in enumerate(facts.steps)
                for each in dict.fromkeys(getattr(step, f"{kind}s"))
            ]
            served = list(zip(memory.tolist(), row.tolist(), strict=True))
            assert served == [facts.serves(*access) for access in accesses]


def test_copies_and_transfers_are_the_checkers(cases: list[Case]) -> None:
    sent = 0
    for facts, _, occupancy in cases:
        assert occupancy.home_device.tolist() == facts.home_device
        rows = len(facts.copies)
        issued, needed = occupancy.copy_ranks
        assert list(zip(issued.tolist(), needed.tolist(), strict=True)) == [
            (facts.issued(row), facts.needed(row)) for row in range(rows)
        ]
        found = occupancy.copies()
        assert found[:rows] == facts.copies
        home = facts.machine.home
        assert [(copy.tensor, copy.target, copy.needed_by) for copy in found[rows:]] == [
            (tensor, home[device], min(facts.steps[rank].number for rank in ranks))
            for (tensor, device), ranks in facts.transfers.items()
        ]
        sent += len(found) - rows
    assert sent > 100


def test_residencies_name_the_ops_between_which_they_are_there(cases: list[Case]) -> None:
    """By the order of steps: a home copy is there up to its last op, and from its first, or, where a copy
    brings it, from the step after the op that issues that."""
    seen = 0
    for facts, clock, occupancy in cases:
        held = occupancy.held if isinstance(clock, PositionClock) else occupancy.held.take(np.array([], int))
        columns = (held.first, held.last, held.begin, held.end, held.row)
        for first, last, begin, end, row in zip(*(column.tolist() for column in columns), strict=True):
            there = [r for r in range(len(facts.steps)) if begin <= clock.step(r)[0] < end]
            if row < 0 and there:
                assert facts.step_of[last] == there[-1]
                assert first == BEFORE or facts.step_of[first] in (there[0], there[0] - 1)
                assert first != BEFORE or there[0] == 0
                seen += 1
    assert seen > 300
