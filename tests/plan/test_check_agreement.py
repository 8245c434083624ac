"""The checker against its slow reference: the same plans accepted, the same violations in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate import random_case
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.offload.heuristics import Layerwise
from loadmaster.plan.check import Violation, check, check_offsets
from loadmaster.plan.check.data import _is_fetched_and_found
from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.overlap import do_any_meet
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.simulate.simulator import Timeline
from offload_stack import problems
from reference import check as reference
from reference.simulate import simulate_reference

Rng = np.random.Generator
SEEDS = st.integers(0, 2**32 - 1)
TABLES = ("residencies", "copies", "transfers")


def mutated(rng: Rng, program: Program, machine: Machine, plan: Plan) -> Plan:
    """The plan with some of its numbers changed to others that may be meant."""
    changes: dict[str, Any] = {}
    ends = max(1, program.n_ops), max(1, program.n_tensors), len(machine.memories), 70
    for name in (*TABLES, "device", "order", "fusion"):
        column = getattr(plan, name)
        if column is None or not column.size or rng.random() < 0.5:
            continue
        column = column.copy()
        if name in TABLES and rng.random() < 0.5:  # twice, once more, or shifted
            column = np.concatenate([column, column[rng.integers(len(column), size=2)]])
        if name == "order" and rng.random() < 0.8:
            i, j = rng.integers(len(column), size=2)
            column[[i, j]] = column[[j, i]]
        else:
            for _ in range(int(rng.integers(1, 4))):
                cell = tuple(int(rng.integers(size)) for size in column.shape)
                column[cell] = rng.choice(
                    [-1, column[cell] + 1, column[cell] - 1, rng.integers(rng.choice(ends))]
                )
        changes[name] = column
    return plan.changed(**changes)


def shaken(rng: Rng, timeline: Timeline) -> Timeline:
    """The timeline with some times changed."""
    columns = {name: value.copy() for name, value in vars(timeline).items() if isinstance(value, np.ndarray)}
    for column in columns.values():
        if column.size and column.dtype.kind in "iu" and rng.random() < 0.4:
            flat = column.reshape(-1)
            at = rng.integers(len(flat), size=int(rng.integers(1, 3)))
            flat[at] = np.maximum(-1, flat[at] + rng.integers(-200, 200, len(at)))
    total = timeline.total_ps + int(rng.integers(-1, 2)) * int(rng.random() < 0.2)
    return Timeline(**{**vars(timeline), **columns, "total_ps": total})


def agree(
    program: Program, machine: Machine, plan: Plan, timeline: Timeline | None = None
) -> list[Violation]:
    ours = check(program, machine, plan, timeline)
    assert ours == reference.check(program, machine, plan, timeline)
    numbers = [n for each in ours for n in (each.tensor, each.op, each.number) if n is not None]
    assert all(type(number) is int for number in numbers)
    return ours


def judge(seed: int) -> list[Violation]:
    """One random case, as it is and mutated, without a timeline, with its own and with a shaken one."""
    rng = np.random.default_rng(seed)
    program, machine, plan = random_case(rng, max_ops=int(rng.choice([6, 14, 40])))
    found = agree(program, machine, plan)
    for each in (plan, mutated(rng, program, machine, plan)):
        found += agree(program, machine, each)
        try:
            timeline = simulate_reference(program, machine, each)
        except BadPlan:
            continue
        found += agree(program, machine, each, timeline)
        found += agree(program, machine, each, shaken(rng, timeline))
    return found


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_the_same_violations_as_the_reference(seed: int) -> None:
    judge(seed)


def test_every_rule_is_among_them() -> None:
    """The cases above are worth something: they break every rule but those of rare machines."""
    seen = {each.rule for seed in range(150) for each in judge(seed)}
    assert set(reference.RULES) - seen <= {"reach"}


@pytest.mark.parametrize("tight", [0.3, 0.7, 1.0])
def test_capacity_in_the_same_words(tight: float) -> None:
    """Memories that are a little too small: who is first to blame, and by how much."""
    for seed in range(60):
        program, machine, plan = random_case(np.random.default_rng(seed), valid_only=True)
        try:
            peak = simulate_reference(program, machine, plan).memory_peak
        except BadPlan:
            continue
        for memory, need in zip(machine.memories, peak.tolist(), strict=True):
            small = machine.with_capacity(memory.name, max(1, int(need * tight) - 1))
            agree(program, small, plan)
            try:
                agree(program, small, plan, simulate_reference(program, small, plan))
            except BadPlan:
                continue


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_boxes_meet_as_they_do_two_by_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, wide = int(rng.integers(0, 60)), int(rng.choice([4, 40, 400]))
    begin, low = rng.integers(0, wide, count), rng.integers(0, 30 * wide, count)
    end, high = begin + rng.integers(1, wide, count), low + rng.integers(1, rng.choice([3, wide]), count)
    meet = (begin[:, None] < end) & (begin < end[:, None]) & (low[:, None] < high) & (low < high[:, None])
    slow = bool(meet[~np.eye(count, dtype=bool)].any())
    assert do_any_meet(begin, end, low, high) == slow
    if slow:  # and of those that are left when all that meet are gone
        kept: list[int] = []
        for box in range(count):
            if not meet[box, kept].any():
                kept.append(box)
        assert not do_any_meet(begin[kept], end[kept], low[kept], high[kept])


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_offsets_in_the_same_words(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 40))
    lower = rng.integers(0, 30, count)
    alignment = rng.choice([1, 1, 4], count)
    pinned = np.where(rng.random(count) < 0.1, 4 * rng.integers(0, 9, count), -1)
    apart = [(0, count - 1)] if count > 1 and rng.random() < 0.3 else []
    buffers = Buffers.of(
        lower,
        lower + rng.integers(1, 9, count),
        rng.integers(0, 9, count),
        alignment=alignment,
        pinned=pinned,
        apart=apart,
    )
    capacity = None if rng.random() < 0.5 else int(rng.integers(1, 80))
    problem = Allocation(buffers, capacity)
    offsets = rng.integers(0, 20 * count, count) * alignment
    offsets = np.where((pinned >= 0) & (rng.random(count) < 0.9), pinned, offsets)
    wild = rng.random(count) < 0.03
    offsets[wild] = rng.choice([-1, -(2**62), 2**62, 2**63 - 1], int(wild.sum()))
    slow = reference.check_offsets(
        buffers.ids,
        list(zip(*(column.tolist() for column in buffers.pieces), strict=True)),
        buffers.size.tolist(),
        offsets.tolist(),
        alignment=alignment.tolist(),
        pinned=pinned.tolist(),
        apart=apart,
        capacity=capacity,
    )
    assert problem.offset_violations(offsets) == slow


def test_check_offsets_takes_columns() -> None:
    buffers = Buffers.of([0, 1], [2, 3], [4, 4])
    found = check_offsets(
        buffers.ids,
        buffers.pieces,
        buffers.size,
        np.array([0, 3]),
        alignment=buffers.alignment,
        pinned=buffers.pinned,
    )
    assert [str(each) for each in found] == ["overlap: buffers '0' and '1' share address 3 at time 1"]


def test_weights_that_are_fetched_once_are_judged_alike() -> None:
    """By columns, and one by one as soon as something is wrong with a copy, its residency or a reader."""
    rng, by_columns, wrong = np.random.default_rng(7), 0, 0
    for problem in problems(40):
        for decision in Layerwise().make(problem):
            program, machine, plan = problem.program, problem.machine, problem.plan(decision)
            assert agree(program, machine, plan) == []
            by_columns += int(_is_fetched_and_found(Facts(program, machine, plan))[0].sum())
            for _ in range(10):
                changed = mutated(rng, program, machine, plan)
                try:
                    timeline = simulate_reference(program, machine, changed)
                except BadPlan:
                    timeline = None
                wrong += bool(agree(program, machine, changed, timeline))
    assert by_columns > 50 and wrong > 100
