"""What an allocator that leaves holes holds: as the slow one has it, and no plan for it is too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from loadmaster.machine.text import standalone_text
from loadmaster.problems.offload.heap import PAGES, Kernels, _Heap, held_by_allocator
from loadmaster.problems.offload.problem import LEADS, Offload
from loadmaster.program.storage import save
from loadmaster.simulate import simulate
from offload_stack import problems
from reference_heap import MIB, SlowHeap, slow_held

SCALE = 97 * 1024
"""Makes tensors of some bytes into tensors on both sides of a MiB."""


def random_vector(rng: np.random.Generator, problem: Offload) -> np.ndarray:
    keep = rng.random(problem.gaps) < rng.random()
    return problem.vector(keep, int(rng.integers(len(LEADS))))


def random_kernels(rng: np.random.Generator, ops: int) -> Kernels:
    workspace = np.where(rng.random(ops) < 0.3, rng.integers(1, 4 * MIB, ops), 0)
    return Kernels(workspace.astype(np.int64), int(rng.integers(0, 3 * MIB)), int(rng.integers(0, MIB)))  # fmt: skip


def large_problems(count: int, first: int = 0) -> list[Offload]:
    """Random problems with large tensors."""
    found = []
    for small in problems(count, first):
        program = replace(small.program, tensor_bytes=small.program.tensor_bytes * SCALE)
        memory = small.machine.memories[0]
        found.append(Offload(program, small.machine.with_capacity(memory.name, memory.capacity * SCALE)))  # fmt: skip
    return found


def test_the_smallest_hole_that_fits_is_taken_and_the_end_last() -> None:
    holes = grown = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        quick, slow = _Heap(), SlowHeap()
        live: list[tuple[int, int]] = []
        largest = int(rng.choice([3, 10, 200]))
        for _ in range(150):
            if live and rng.random() < 0.48:
                gone = live.pop(int(rng.integers(len(live))))
                quick.give(*gone)
                slow.give(*gone)
            else:
                size, top = int(rng.integers(1, largest + 1)), slow.top
                wanted = slow.take(size)
                assert quick.take(size) == wanted
                live.append(wanted)
                grown += slow.top > top
                holes += wanted[1] < top
            assert quick.top == slow.top
            assert sorted((start, end) for start, end in quick._end_of.items()) == slow.holes()
    assert holes > 500 and grown > 500


def test_the_end_is_taken_after_a_larger_hole() -> None:
    heap = _Heap()
    first, _, last = heap.take(10), heap.take(1), heap.take(5)
    heap.give(*first)
    heap.give(*last)
    assert heap.take(5) == (0, 5)  # the end would have fitted exactly
    assert heap.take(6) == (11, 17) and heap.top == 17  # it grows by what it lacks


def test_what_is_held_is_what_the_slow_allocator_takes_for_the_plan() -> None:
    compared = wasteful = 0
    for number, problem in enumerate(large_problems(150)):
        rng = np.random.default_rng(number)
        kernels = random_kernels(rng, problem.program.n_ops)
        made = problem.scheduled(random_vector(rng, problem))
        plan = problem_without_offsets(problem).with_offsets(made)
        assert plan is not None
        memory = problem.machine.memories[0]
        wanted = slow_held(problem.program, plan, memory.alignment, kernels.workspace.tolist())
        held = held_by_allocator(problem.model, made, kernels)
        assert held == wanted + kernels.kept + kernels.spare
        peak = int(simulate(problem.program, problem.machine, plan).memory_peak[0])
        assert peak + kernels.kept + kernels.spare <= held
        wasteful += held > peak + kernels.kept + kernels.spare + sum(PAGES.values())
        compared += 1
    assert compared > 80 and wasteful > 3


def test_workspace_is_held_beside_what_is_there() -> None:
    problem = next(each for each in large_problems(40) if each.gaps > 4)
    made = problem.scheduled(problem.vector(np.ones(problem.gaps, dtype=bool)))
    nothing = Kernels(np.zeros(problem.program.n_ops, dtype=np.int64))
    held = held_by_allocator(problem.model, made, nothing)
    much = Kernels(nothing.workspace.copy(), kept=3, spare=4)
    much.workspace[problem.model.step_op[0]] = 400 * MIB
    assert held_by_allocator(problem.model, made, much) >= 400 * MIB + 7
    assert held >= int(problem.model.size.max())


def test_a_tensor_of_a_mib_is_small_and_a_byte_more_is_not() -> None:
    problem = next(iter(problems(40)))  # tensors of some bytes: one small page
    made = problem.scheduled(problem.vector(np.zeros(problem.gaps, dtype=bool)))
    held = {}
    for size in (MIB - 1, MIB, MIB + 1):
        workspace = np.full(problem.program.n_ops, size, dtype=np.int64)
        held[size] = held_by_allocator(problem.model, made, Kernels(workspace))
    assert held == {MIB - 1: PAGES[True], MIB: PAGES[True], MIB + 1: sum(PAGES.values())}


def test_no_admitted_plan_makes_the_allocator_hold_more_than_there_is() -> None:
    admitted = refused = 0
    for number, roomy in enumerate(large_problems(120, first=3_000)):
        rng = np.random.default_rng(number)
        kernels = Kernels(random_kernels(rng, roomy.program.n_ops).workspace, MIB, 0)
        capacity = roomy.machine.memories[0].capacity + int(rng.integers(0, 45 * MIB))
        problem = Offload(
            roomy.program, roomy.machine.with_capacity("hbm", capacity), kernels=kernels
        )
        for _ in range(3):
            decision = random_vector(rng, problem)
            if not problem.admits(decision):
                refused += 1
                continue
            plan, admitted = problem.plan(decision), admitted + 1
            assert problem.violations(plan) == []
            alignment = problem.machine.memories[0].alignment
            held = slow_held(problem.program, plan, alignment, kernels.workspace.tolist())
            assert held + kernels.kept <= capacity
    assert admitted > 40 and refused > 40


def test_kernels_survive_saving_and_loading(tmp_path: Path) -> None:
    for number, problem in enumerate(large_problems(8)):
        kernels = random_kernels(np.random.default_rng(number), problem.program.n_ops)
        before = Offload(problem.program, problem.machine, kernels=kernels)
        folder = tmp_path / str(number)
        folder.mkdir()
        save(before.program, folder / "program.npz")
        (folder / "machine.toml").write_text(standalone_text(before.machine), encoding="utf-8")
        before.save(folder)
        again = Offload.load(folder).kernels
        assert again is not None and again.workspace.tolist() == kernels.workspace.tolist()
        assert (again.kept, again.spare) == (kernels.kept, kernels.spare)
        assert Offload.load(folder).switches() == before.switches()
        problem.save(folder)
        assert Offload.load(folder).kernels is None


def problem_without_offsets(problem: Offload) -> Offload:
    return Offload(problem.program, problem.machine, offsets=False)
