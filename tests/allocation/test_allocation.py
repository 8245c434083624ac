"""The allocation solvers: exact against brute force, what users ask for, and plans that hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.suites.packings import perfect_packing, training_like
from clocks import wait_until
from generate import random_program
from loadmaster import _core
from loadmaster.allocation.auto import allocate, explain_infeasible, make_auto
from loadmaster.allocation.buffers import Buffers, Gap
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.heuristics import SizeFirstFit
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.allocation.several import NOWHERE, banks, replan, spill, subset
from loadmaster.machine import load_machine
from loadmaster.plan import Plan, plan_from_json, plan_to_json
from loadmaster.plan.check import check
from loadmaster.program import Builder
from loadmaster.program.models import load_model
from loadmaster.program.program import TieKind
from loadmaster.search.native import FEASIBLE, run_native
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, Status, solve


def sound(problem: Allocation, decision: np.ndarray) -> None:
    """Both checkers, and the way through a plan and its JSON and back."""
    plan = problem.plan(decision)
    assert problem.violations(plan) == []
    text = plan_to_json(plan, problem.program, problem.machine)
    again = plan_from_json(text, problem.program, problem.machine)
    occupied = problem.buffers.size > 0
    assert np.array_equal(problem.decision(again)[occupied], np.asarray(decision)[occupied])


def small(rng: np.random.Generator) -> Buffers:
    n = int(rng.integers(2, 5))
    lower = rng.integers(0, 5, n)
    upper = lower + rng.integers(1, 5, n)
    size = rng.integers(1, 4, n)
    gaps = {}
    if upper[0] - lower[0] >= 3 and rng.random() < 0.5:
        gaps[0] = [Gap(int(lower[0]) + 1, int(lower[0]) + 2, 0, int(rng.integers(0, size[0] + 1)))]
    pinned = np.full(n, -1)
    alignment = rng.choice([1, 1, 2], n)
    if rng.random() < 0.3:
        pinned[1] = 2 * rng.integers(0, 3)
    return Buffers.of(
        lower,
        upper,
        size,
        alignment=alignment,
        pinned=pinned,
        gaps=gaps,
        apart=[(0, 1)] if rng.random() < 0.3 else [],
    )


def brute_force(buffers: Buffers, most: int) -> int | None:
    """The least height up to `most`, by trying every offset of every buffer."""
    problem = Allocation(buffers)
    best = None
    ranges = [range(most - int(size) + 1) for size in buffers.size]
    for offsets in itertools.product(*ranges):
        height = problem.evaluate(np.array(offsets))
        if height is not None and (best is None or height < best):
            best = height
    return best


@pytest.mark.parametrize("block", range(4))
def test_exact_equals_brute_force(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        buffers = small(np.random.default_rng(seed))
        most = int(buffers.size.sum()) + 4
        least = brute_force(buffers, most)
        solution = allocate(buffers)
        if least is None:
            assert solution.status == Status.INFEASIBLE or (solution.value or 0) > most
            continue
        assert (solution.status, solution.value) == (Status.OPTIMAL, least), seed
        assert solution.decision is not None
        sound(Allocation(buffers), solution.decision)
        for capacity in (least - 1, least):
            fitted = allocate(buffers, capacity)
            assert (fitted.status == Status.INFEASIBLE) == (capacity < least), seed


def test_every_switch_can_be_off_and_threads_do_not_matter() -> None:
    buffers, height = perfect_packing(np.random.default_rng(3), 40, "pinwheel")
    placements = {}
    for off in (None, *_core.TECHNIQUES):
        switches = {} if off is None else {off: False}
        solution = solve(Exact(switches, threads=2, nodes=20_000), Allocation(buffers, height), Budget())
        if solution.decision is not None:
            sound(Allocation(buffers, height), solution.decision)
            placements[off] = solution.decision
        assert solution.status != Status.INFEASIBLE, off
    for threads in (1, 3):
        again = solve(Exact(threads=threads), Allocation(buffers, height), Budget()).decision
        assert again is not None and np.array_equal(again, placements[None])


def test_unknown_switches_are_refused() -> None:
    buffers, _ = perfect_packing(np.random.default_rng(0), 10, "guillotine")
    with pytest.raises(ValueError, match="there is no switch 'magic'"):
        solve(Exact({"magic": True}), Allocation(buffers), Budget())


@pytest.mark.parametrize("kind", ["guillotine", "pinwheel"])
def test_perfect_packings_are_solved(kind: str) -> None:
    solved = 0
    for seed in range(12):
        buffers, height = perfect_packing(np.random.default_rng([7, seed]), 50 + 20 * seed, kind)
        assert buffers.max_live == height and len(buffers) == 50 + 20 * seed
        solution = allocate(buffers)
        assert solution.decision is not None
        sound(Allocation(buffers), solution.decision)
        solved += solution.status == Status.OPTIMAL
    assert solved >= 11


@pytest.mark.parametrize("name", ["first-fit", "xla-best-fit", "tvm-hill-climb", "vela-hill-climb", "large"])
def test_every_solver_is_sound_and_none_beats_the_exact_one(name: str) -> None:
    for seed in range(6):
        buffers = training_like(np.random.default_rng(seed), 120)
        problem = Allocation(buffers)
        best = allocate(buffers)
        solution = solve(make_labelled("allocation", name), problem, Budget(evaluations=60), seed)
        assert solution.decision is not None and solution.value is not None and best.value is not None
        sound(problem, solution.decision)
        assert solution.value >= best.bound.value and solution.value >= best.value
        assert best.value <= (solve(SizeFirstFit(), problem, Budget()).value or 0), "never worse than greedy"


def test_cp_sat_agrees() -> None:
    pytest.importorskip("ortools")
    for seed in range(8):
        buffers = small(np.random.default_rng(seed))
        ours, theirs = (
            allocate(buffers),
            solve(make_labelled("allocation", "cp-sat"), Allocation(buffers), Budget()),
        )
        assert (ours.value, ours.status) == (theirs.value, theirs.status)


def test_large_inputs_go_another_way() -> None:
    buffers = training_like(np.random.default_rng(0), 20_000)
    problem = Allocation(buffers)
    solution = allocate(buffers)
    assert solution.decision is not None and solution.gap is not None and solution.gap < 0.02
    assert problem.evaluate(solution.decision) == solution.value


def test_infeasible_is_explained() -> None:
    buffers = Buffers.of([0, 0, 0, 5], [4, 4, 4, 9], [40, 40, 40, 10])
    problem = Allocation(buffers, 100)
    assert allocate(buffers, 100).status == Status.INFEASIBLE
    blame = explain_infeasible(problem)
    assert blame.buffers.tolist() == [0, 1, 2]
    assert (blame.instant, blame.alive, blame.excess) == (0, 120, 20)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        found = small(rng)
        least = allocate(found).value
        if not least:
            continue
        blamed = explain_infeasible(Allocation(found, least - 1)).buffers
        assert len(blamed)
        assert allocate(subset(found, blamed), least - 1).status == Status.INFEASIBLE
        for one in range(len(blamed)):
            fewer = subset(found, np.delete(blamed, one))
            assert len(blamed) == 1 or allocate(fewer, least - 1).decision is not None


def test_a_time_out_is_not_infeasible() -> None:
    buffers, height = perfect_packing(np.random.default_rng(5), 400, "pinwheel")
    solution = allocate(buffers, height, seconds=0.0)
    assert solution.status == Status.UNKNOWN


def test_stop_is_honoured() -> None:
    class Impatient(Observer):
        def improved(self, meter: object) -> None:
            self.stop = True

    buffers, _ = perfect_packing(np.random.default_rng(5), 1000, "guillotine")  # takes minutes
    solution = solve(Exact(), Allocation(buffers), Budget(), 0, Impatient())
    assert solution.decision is not None and solution.status == Status.FEASIBLE


def test_spilling_fills_the_fast_memory_with_what_is_worth_most() -> None:
    benefit = [100, 1, 50, 1]
    buffers = Buffers.of([0, 0, 0, 0], [4, 4, 4, 4], [40, 40, 40, 40], benefit=benefit)
    result = spill(buffers, [80, 1000])
    assert result.memory.tolist() == [0, 1, 0, 1]
    for number in (0, 1):
        chosen = np.flatnonzero(result.memory == number)
        sound(Allocation(subset(buffers, chosen), [80, 1000][number]), result.offset[chosen])
    assert spill(buffers, [80]).memory.tolist() == [0, NOWHERE, 0, NOWHERE]


def test_banks_are_not_crossed_and_pairs_are_kept_apart() -> None:
    buffers = Buffers.of([0] * 6, [4] * 6, [30, 30, 30, 30, 20, 20])
    result = banks(buffers, 2, 90, different=[(0, 1), (2, 3)])
    assert (result.memory >= 0).all()
    assert result.memory[0] != result.memory[1] and result.memory[2] != result.memory[3]
    for b in range(6):
        assert result.offset[b] // 90 == (result.offset[b] + buffers.size[b] - 1) // 90 == result.memory[b]
    assert Allocation(buffers, 180).evaluate(result.offset) is not None
    assert NOWHERE in banks(buffers, 2, 40).memory


def test_replanning_moves_little() -> None:
    before = training_like(np.random.default_rng(4), 200)
    first = allocate(before)
    assert first.decision is not None and first.value is not None
    capacity = first.value + first.value // 10
    size = before.size.copy()
    size[7] += 64
    after = before.changed(size=size)
    answer = replan(after, before, np.asarray(first.decision), capacity)
    assert answer is not None
    sound(Allocation(after, capacity), answer.offset)
    assert len(answer.moved) < 40, "little else moves"
    same = replan(before, before, np.asarray(first.decision), capacity)
    assert same is not None and len(same.moved) == 0


def test_a_program_in_an_arena() -> None:
    program = load_model("resnet50")
    problem = ProgramAllocation(program, load_machine("arena:2MiB"))
    solution = solve(make_auto(), problem, Budget())
    assert solution.decision is not None
    sound(problem, solution.decision)
    tight = ProgramAllocation(program, load_machine("arena:1MiB"))
    assert solve(make_auto(), tight, Budget()).status == Status.INFEASIBLE


@pytest.mark.parametrize("machine", ["arena:1MiB", "nnp-i"])
def test_programs_with_loops_and_ties(machine: str) -> None:
    chip, unlimited, carried = load_machine(machine), load_machine("arena:unlimited"), 0
    for seed in range(160):
        program = random_program(np.random.default_rng(seed))
        if not program.n_ops or check(program, unlimited, Plan()):
            continue  # an order that no plan can save
        problem = ProgramAllocation(program, chip)
        order = np.arange(len(problem.buffers), dtype=np.int32)
        offsets = problem.native.place(order) if len(order) else np.empty(0, dtype=np.int64)
        assert problem.violations(problem.plan(offsets)) == [], seed
        carried += bool((program.tie_kind == TieKind.CARRIED).any())
    assert carried > 30


def test_what_a_loop_carries_stays_to_its_end() -> None:
    build = Builder("loop")
    start = build.tensor("start", bytes=64)
    build.op("make", "add", writes=[start], vector=1)
    loop = build.loop(5)
    kept = build.tensor("next", bytes=64)
    scratch = [build.tensor(f"s{i}", bytes=64) for i in range(2)]
    build.op("step", "add", reads=[start], writes=[kept], vector=1, loop=loop)
    build.op("more", "add", writes=[scratch[0]], vector=1, loop=loop)
    build.op("last", "add", reads=[scratch[0]], writes=[scratch[1]], vector=1, loop=loop)
    build.tie(TieKind.CARRIED, start, kept, loop)
    problem = ProgramAllocation(build.build(), load_machine("arena:1MiB"))
    # 'next' is last touched by 'step', but the next iteration finds it: three are alive at 'last'.
    solution = solve(make_auto(), problem, Budget())
    assert solution.decision is not None and solution.value == 192
    sound(problem, solution.decision)


def test_problems_survive_a_folder(tmp_path: Path) -> None:
    buffers = small(np.random.default_rng(11))
    problem = Allocation(buffers, 99, "kept")
    problem.save(tmp_path)
    again = Allocation.load(tmp_path)
    assert again.options() == problem.options() and again.program.hash == problem.program.hash


@pytest.mark.parametrize("count", [1, 64, 65, 5_000])
def test_collisions_are_found_among_thousands(count: int) -> None:
    """What is alive is kept as bits of words, words of words: a placement is legal, and one byte lower it is not."""
    rng = np.random.default_rng(count)
    lower = rng.integers(0, 4 * count, count)
    buffers = Buffers.of(lower, lower + rng.integers(1, 2 * count + 2, count), rng.integers(1, 50, count))
    problem = Allocation(buffers)
    found = np.asarray(problem.native.place(np.argsort(-buffers.size).astype(np.int32)))
    height = int((found + buffers.size).max())
    assert problem.native.height(found) == height
    moved = rng.permutation(np.flatnonzero(found > 0))[:50].tolist()
    for b in moved:
        changed = found.copy()
        changed[b] -= 1
        beside = (buffers.lower < buffers.upper[b]) & (buffers.lower[b] < buffers.upper)
        beside &= (changed < changed[b] + buffers.size[b]) & (changed[b] < changed + buffers.size)
        beside[b] = False
        assert (problem.native.height(changed) == -1) == bool(beside.any())
    assert count == 1 or moved


def test_the_first_answer_is_told_while_the_search_goes_on() -> None:
    told: list[int | None] = []

    class Watching(Observer):
        def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
            told.append(meter.best_value)

    first, better = np.array([0, 9]), np.array([0, 4])

    def search(
        stop: _core.Stop, improved: Callable[[np.ndarray], None]
    ) -> tuple[int, np.ndarray, int, int, int]:
        improved(first)
        wait_until(lambda: told, "the first answer")
        return FEASIBLE, better, 8, 8, 1

    meter = Meter(Allocation(Buffers.of([0, 0], [9, 9], [4, 4])), Budget(), observer=Watching())
    run_native(meter, search)
    assert told == [13] and meter.best_value == 8
