"""Fits or not: proofs, blame and plans, against brute force and against the example of the nine graphs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from generate import random_program
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.machine import load_machine
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.check import check
from loadmaster.planner.fitting import Fits, buffers_fit, fits
from loadmaster.program import Builder, Program
from loadmaster.program.models import load_model
from loadmaster.runs.session import solve


def light(name: str) -> Program:
    onnx = pytest.importorskip("onnx")
    return load_model(str(Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx"))


def asked(program: Program, size: int, keep_order: bool = False) -> Fits:
    machine = load_machine(f"arena:{size}")
    found = fits(program, machine, keep_order=keep_order)
    assert (found.plan is not None) == (found.answer is True)
    if found.plan is not None:
        assert check(program, machine, found.plan) == []
        offset = [row for row in found.plan.residency_rows if row.memory == machine.home[0]]
        assert all(row.offset >= 0 for row in offset), "every buffer of the arena has an offset"
    return found


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("resnet50", 9_633_792),
        ("squeezenet", 6_308_352),
        ("shufflenet", 2_885_120),
        ("densenet121", 8_429_568),
    ],
)
def test_the_least_capacity_says_yes_and_one_byte_less_says_no(name: str, least: int) -> None:
    program = light(name)
    assert asked(program, least).answer is True
    no = asked(program, least - 1)
    assert no.answer is False and no.any_order
    assert (no.need, no.enough, no.excess) == (least, least, 1)


def test_the_example_of_resnet50_to_the_byte() -> None:
    program = light("resnet50")
    no = asked(program, 8 * 2**20)
    assert no.excess == 1_245_184 and no.op == 14 and program.op_name[14] == "n14"
    assert no.tensors == [("r11", 3_211_264), ("r13", 3_211_264), ("r14", 3_211_264)]


def test_another_order_is_found_unless_the_order_is_kept() -> None:
    program = light("shufflenet")
    yes = asked(program, 3_000_000)
    assert yes.answer and yes.plan is not None and yes.plan.order is not None
    no = asked(program, 3_000_000, keep_order=True)
    assert no.answer is False and not no.any_order and no.need == 3_110_912
    assert sum(size for _, size in no.tensors) > 3_000_000


def _orders(problem: PeakOrder) -> list[int]:
    """Peaks of all orders."""
    every = (np.array(order, dtype=np.int32) for order in itertools.permutations(range(problem.nodes)))
    return [value for order in every if (value := problem.evaluate(order)) is not None]


def test_small_programs_agree_with_all_orders() -> None:
    """No is never said of what some order fits, nor yes of what none does."""
    seen = {True: 0, False: 0}
    for seed in range(120):
        program = random_program(np.random.default_rng(seed), 6)
        if program.n_loops or not 2 <= (~program.op_view).sum() <= 6:
            continue
        stays = ProgramAllocation(program, load_machine("arena:1000")).resident
        least = min(_orders(PeakOrder(program)), default=0) + stays
        for size in {least, least - 1, least // 2} - {0, -1}:
            found = asked(program, size)
            if found.answer is None:  # bytes that fit, and no offsets were found
                assert size >= least
                continue
            assert found.answer == (size >= least)
            seen[found.answer] += 1
            if found.answer is False:
                assert size < found.need <= least
    assert min(seen.values()) >= 30, seen


def test_the_blamed_buffers_fit_without_any_one_of_them() -> None:
    tried = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        lower = rng.integers(0, 8, 7)
        buffers = Buffers.of(lower, lower + rng.integers(1, 5, 7), rng.integers(1, 20, 7))
        least = solve(Allocation(buffers), seconds=None).value
        assert least is not None
        no = buffers_fit(Allocation(buffers, least - 1))
        assert no.answer is False and no.need <= least and no.enough == least
        rows = [buffers.ids.index(name) for name, _ in no.tensors]

        def some(kept: list[int], of: Buffers = buffers) -> Buffers:
            return Buffers.of(of.lower[kept], of.upper[kept], of.size[kept])

        assert buffers_fit(Allocation(some(rows), least - 1)).answer is False
        for row in rows:
            rest = [other for other in rows if other != row]
            assert not rest or buffers_fit(Allocation(some(rest), least - 1)).answer is True
        tried += 1
    assert tried == 60


def test_several_memories_and_several_devices() -> None:
    yes = fits(load_model("resnet50"), load_machine("nnp-i"))
    assert yes.answer is True and yes.plan is not None
    small = load_machine("nnp-i:sram=1KiB,llc=1KiB,dram=1MiB")
    no = fits(load_model("resnet50"), small)
    assert no.answer is False and no.any_order and no.excess == no.need - (2**20 + 2**11)
    build = Builder("two")
    x = build.tensor("x", bytes=64, kind="input")
    w = build.tensor("w", bytes=2**20, kind="weight")
    y = build.tensor("y", bytes=64, kind="output")
    build.op("dot", "matmul", reads=[x, w], writes=[y], matrix=100)
    program = build.build()
    machine = load_machine("p100x4")
    assert fits(program, machine).answer is True
    memories = [memory.name for memory in machine.memories]
    for name in memories:
        machine = machine.with_capacity(name, 1024)
    assert fits(program, machine).answer is False


def test_a_program_s_order_is_kept_in_its_allocation() -> None:
    program = light("shufflenet")
    problem = PeakOrder(program)
    best = solve(problem, seconds=None)
    assert best.decision is not None
    order = problem.plan(best.decision).order
    machine = load_machine("arena:2885120")
    placed = ProgramAllocation(program, machine, order=order)
    found = solve(placed, seconds=None)
    assert found.value == best.value == 2_885_120 and found.decision is not None
    plan = placed.plan(found.decision)
    assert check(program, machine, plan) == []
    assert np.array_equal(placed.decision(plan), found.decision)
