"""`Mapping`: agreement with a slow reference, the rectifier's properties, rewards, plans, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from generate_mapping import layers, random_mapping, random_maps, three_memories
from loadmaster.errors import BadMachine, BadPlan
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Builder, TieKind
from loadmaster.program.importers.onnx.importer import import_onnx
from loadmaster.program.models import load_model
from loadmaster.program.program import CANNOT_RUN, COMPUTED, Program
from loadmaster.runs import run_solver
from loadmaster.search.problem import keys
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.solver import Budget
from loadmaster.simulate import simulate
from reference.mapping import SlowMapping, textbook_time

BLOCKS, CASES_PER_BLOCK = 8, 60


def small(**options: object) -> Mapping:
    return Mapping(layers(), three_memories(), **options)  # type: ignore[arg-type]


def some_maps(problem: Mapping, count: int = 40, seed: int = 0) -> np.ndarray:
    return random_maps(np.random.default_rng(seed), problem, count)


def agree(problem: Mapping, slow: SlowMapping, maps: np.ndarray) -> None:
    """Rectified maps, times and epsilon are the reference's, and have the properties they must."""
    times, epsilon, rectified = problem.rectify(maps)
    assert np.array_equal(problem.times(rectified), times)
    for row, decision in enumerate(maps.tolist()):
        result, share = slow.rectify(decision)
        assert rectified[row].tolist() == result
        assert epsilon[row] == share and 0 <= share <= 1
        assert times[row] == slow.time(result)
        assert slow.valid(result), "the result does not fit"
        assert slow.valid(decision) == (share == 0), "epsilon is 0 if and only if the map fits"
    again = problem.rectify(rectified)
    assert np.array_equal(again[2], rectified) and not again[1].any(), "twice changes something"
    assert np.array_equal(again[0], times)
    assert problem.rectify(problem.all_slowest()[None])[1][0] == 0


@pytest.mark.parametrize("block", range(BLOCKS))
def test_random_programs_agree_with_the_reference(block: int) -> None:
    for seed in range(block * CASES_PER_BLOCK, (block + 1) * CASES_PER_BLOCK):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng)
        problem, slow = Mapping(program, machine), SlowMapping(program, machine)
        assert np.flatnonzero(problem.live).tolist() == sorted(slow.pieces), seed
        agree(problem, slow, random_maps(rng, problem, 6))


@pytest.mark.parametrize("machine", ["nnp-i", "nnp-i-half"])
@pytest.mark.parametrize("model", ["resnet50", "resnet101", "bert"])
def test_the_zoo_agrees_with_the_reference(model: str, machine: str) -> None:
    problem = Mapping(load_model(model), load_machine(machine))
    slow = SlowMapping(problem.program, problem.machine)
    maps = some_maps(problem, 6)
    agree(problem, slow, maps)
    times, _, rectified = problem.rectify(maps)
    assert [textbook_time(slow, row) for row in rectified.tolist()] == times.tolist()


def test_random_cases_are_of_all_kinds() -> None:
    """What the agreement above is worth: its cases must meet every rule."""
    seen = {"several pieces": 0, "parallel": 0, "overlap": 0, "costs": 0, "moved": 0, "fits": 0}
    for seed in range(BLOCKS * CASES_PER_BLOCK):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng)
        problem = Mapping(program, machine)
        epsilon = problem.rectify(random_maps(rng, problem, 6))[1]
        seen["several pieces"] += int((np.diff(problem.entries.piece_start) > 1).any())
        seen["parallel"] += machine.rules.ports == "parallel"
        seen["overlap"] += machine.rules.overlap > 0
        seen["costs"] += program.costs is not None
        seen["moved"] += int((epsilon > 0).any())
        seen["fits"] += int((epsilon == 0).any())
    assert min(seen.values()) >= 40, seen


def test_plans_pass_the_checker_take_the_same_time_and_give_the_map_back() -> None:
    checked = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng)
        problem = Mapping(program, machine)
        times, _, rectified = problem.rectify(random_maps(rng, problem, 3))
        sound = not check(program, machine, Plan())  # some programs overwrite what is read later
        for time, decision in zip(times, rectified, strict=True):
            assert problem.admits(decision)
            plan = problem.plan(decision)
            timeline = simulate(program, machine, plan)
            assert timeline.total_ps == time and timeline.fits
            assert np.array_equal(problem.decision(plan), decision)
            if sound:
                checked += 1
                assert check(program, machine, plan, timeline) == []
    assert checked > 300


def test_entries_that_decide_nothing_are_ignored() -> None:
    build = Builder("part")
    x = build.tensor("x", bytes=8, kind="input")
    w = build.tensor("w", bytes=32, kind="weight")
    a, b = build.tensor("a", bytes=16), build.tensor("b", bytes=16, kind="output", fast=False)
    build.op("first", "matmul", reads=[x, w], writes=[a], matrix=5)
    build.op("second", "add", reads=[a], writes=[b], vector=5)
    problem = Mapping(build.build(), three_memories())
    assert problem.live.tolist() == [True, False, True, False]  # b stays at home; no second weight
    clean, odd = np.array([[0, 2, 1, 2]]), np.array([[0, 0, 1, 77]])
    for ours, theirs in zip(problem.rectify(clean), problem.rectify(odd), strict=True):
        assert np.array_equal(ours, theirs)
    assert problem.rectify(odd)[2].tolist() == clean.tolist()


def test_a_map_that_fits_always_earns_more_than_one_that_does_not() -> None:
    problem = small()
    scores = problem.score(some_maps(problem, 300))
    epsilon = problem.rectify(some_maps(problem, 300))[1]
    fits = epsilon == 0
    assert 20 < fits.sum() < 280
    assert scores.reward[fits].min() > 0 > scores.reward[~fits].max()
    assert scores.reward.min() >= -1
    assert np.array_equal(scores.reward[~fits], -epsilon[~fits])
    assert (scores.value[~fits] == -1).all() and (scores.value[fits] > 0).all()
    by_time = np.argsort(scores.value[fits], kind="stable")
    assert (np.diff(scores.reward[fits][by_time]) <= 0).all()  # faster earns more


def test_the_reward_is_the_square_of_the_gain_over_the_compiler() -> None:
    for power in (2.0, 1.0):
        problem = small(power=power)
        slowest = problem.all_slowest()[None]
        gain = problem.compiler_ps / problem.evaluate(slowest[0])  # type: ignore[operator]
        assert 0 < gain < 1
        assert problem.score(slowest).reward[0] == pytest.approx(gain**power, rel=1e-12)
        assert problem.score(problem.compiler[None]).reward[0] == 1.0


def test_repair_runs_the_rectified_map() -> None:
    problem, maps = small(invalid="repair"), some_maps(small(), 100)
    times, epsilon, rectified = problem.rectify(maps)
    assert (epsilon > 0).any()
    scores = problem.score(maps)
    assert np.array_equal(scores.value, times)
    assert np.array_equal(scores.reward, small().score(rectified).reward)
    broken = int(epsilon.argmax())
    assert problem.evaluate(maps[broken]) == times[broken]
    assert small().evaluate(maps[broken]) is None
    plan = problem.plan(maps[broken])
    assert not problem.violations(plan) and np.array_equal(problem.decision(plan), rectified[broken])


def test_noise_is_that_of_an_evaluation_and_not_of_a_batch() -> None:
    problem = small(noise=0.1, noise_seed=3)
    maps = np.repeat(problem.all_slowest()[None], 50, axis=0)
    whole = problem.score(maps, 7)
    parts = [problem.score(maps[:20], 7), problem.score(maps[20:21], 27), problem.score(maps[21:], 28)]
    assert np.array_equal(whole.value, np.concatenate([part.value for part in parts]))
    assert np.array_equal(whole.reward, np.concatenate([part.reward for part in parts]))
    true = problem.evaluate(maps[0])
    assert true == small().evaluate(maps[0])  # known without noise
    assert len(set(whole.value.tolist())) > 40
    assert 0.05 < np.std(whole.value / true) < 0.2
    other = small(noise=0.1, noise_seed=4).score(maps, 7)
    assert not np.array_equal(other.value, whole.value)
    assert keys(problem) != keys(small()) and keys(small(invalid="repair")) != keys(small())


def test_threads_change_nothing() -> None:
    problem = Mapping(load_model("resnet50"), load_machine("nnp-i"))
    maps = some_maps(problem, 200)
    one = problem.rectify(maps, threads=1)
    for threads in (2, 5):
        for ours, theirs in zip(one, problem.rectify(maps, threads=threads), strict=True):
            assert np.array_equal(ours, theirs)


def test_a_slowest_memory_that_can_not_hold_everything_is_refused_by_name() -> None:
    program, machine = layers(), three_memories()
    needed = simulate(program, machine).memory_peak[2]
    assert Mapping(program, machine.with_capacity("large", int(needed)))
    with pytest.raises(BadMachine, match="memory 'large' of machine 'three'") as refusal:
        Mapping(program, machine.with_capacity("large", int(needed) - 1))
    assert refusal.value.number == needed and "capacity" in str(refusal.value.remedy)


def test_what_can_not_be_mapped_is_refused() -> None:
    device = replace(three_memories().devices[0], memories=("large",))
    with pytest.raises(BadMachine, match="machine 'three' gives its device 'dev' one memory"):
        Mapping(layers(), replace(three_memories(), devices=(device,)))
    costs = np.full((layers().n_ops, 1), COMPUTED, dtype=np.int64)
    costs[3] = CANNOT_RUN
    with pytest.raises(BadPlan, match="op 'op3' can't run"):
        Mapping(replace(layers(), costs=costs), three_memories())
    for options in ({"invalid": "ignore"}, {"noise": 1.0}, {"noise": -0.1}, {"power": 0.0}):
        with pytest.raises(ValueError, match="must be"):
            small(**options)
    with pytest.raises(ValueError, match="maps must be"):
        small().rectify(np.zeros((1, 3), dtype=np.int8))
    for memory in (-1, 3):
        with pytest.raises(ValueError, match="no such memory"):
            small().rectify(np.full((1, 24), memory, dtype=np.int8))


def carrying(source_kind: str, touched: bool) -> Program:
    """A loop whose body leaves `b` where it found `a`, and an op after that needs neither."""
    build = Builder("carrying")
    if source_kind == "activation":
        a = build.tensor("a", bytes=16)
        build.op("start", "exp", reads=[], writes=[a], vector=4)
    else:
        a = build.tensor("a", bytes=16, kind=source_kind)
    loop = build.loop(3)
    b, c, d = (build.tensor(name, bytes=16) for name in "bcd")
    out = build.tensor("out", bytes=16, kind="output")
    build.op("step", "add", reads=[a] if touched else [], writes=[b], vector=4, loop=loop)
    build.op("more", "add", reads=[b], writes=[c], vector=4, loop=loop)
    build.op("rest", "add", reads=[c], writes=[d], vector=4, loop=loop)
    build.op("end", "add", reads=[d], writes=[out], vector=4)
    build.tie(TieKind.CARRIED, a, b, loop)
    return build.build()


@pytest.mark.parametrize("touched", [True, False])
@pytest.mark.parametrize("kind", ["activation", "input", "state"])
def test_what_a_loop_carries_stays_for_the_whole_loop(kind: str, touched: bool) -> None:
    program = carrying(kind, touched)
    problem = Mapping(program, three_memories())
    slow = SlowMapping(program, problem.machine)
    maps = np.zeros((1, 2 * problem.nodes), dtype=np.int8)
    agree(problem, slow, maps)
    decision = problem.rectify(maps)[2][0]
    plan = problem.plan(decision)
    assert problem.violations(plan) == [] and np.array_equal(problem.decision(plan), decision)
    a, b = (program.tensor_name.index(name) for name in "ab")
    rows = {row.tensor: row for row in plan.residency_rows}
    # One place, one decision: inputs are at home, and so is state that no op reads.
    assert (a in rows) == (b in rows) == (kind == "activation" or (kind == "state" and touched))
    if kind == "activation":
        assert program.op_name[rows[b].last] == "rest"


def test_programs_without_ops_or_decisions() -> None:
    nothing = Mapping(Builder("nothing").build(), three_memories())
    assert nothing.nodes == 0 and nothing.evaluate(nothing.all_slowest()) == 0
    build = Builder("given")
    build.tensor("w", bytes=8, kind="weight")
    unread = Mapping(build.build(), three_memories())
    assert not unread.live.any() and unread.violations(unread.plan(unread.all_slowest())) == []


def test_a_run_folder_gives_the_problem_back(tmp_path: Path) -> None:
    problem = small(invalid="repair", power=1.5)
    solution = run_solver(make_labelled("mapping", "annealing"), problem, Budget(60), 3, folder=tmp_path)
    again = load_problem(solution.run)
    assert isinstance(again, Mapping) and keys(again) == keys(problem)
    maps = some_maps(problem)
    assert np.array_equal(again.score(maps).reward, problem.score(maps).reward)
    assert solution.decision is not None and again.evaluate(solution.decision) == solution.value


def test_an_imported_model_is_mapped() -> None:
    onnx = pytest.importorskip("onnx")
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    problem = Mapping(import_onnx(light / "light_resnet50.onnx"), load_machine("nnp-i"))
    assert problem.nodes > 100 and problem.live[: problem.nodes].all()
    agree(problem, SlowMapping(problem.program, problem.machine), some_maps(problem, 2))
    compiler = problem.rectify(problem.compiler[None])[2][0]
    for decision in (problem.all_slowest(), compiler):
        plan = problem.plan(decision)
        assert problem.violations(plan) == []
        assert simulate(problem.program, problem.machine, plan).total_ps == problem.evaluate(decision)
    assert problem.compiler_ps < problem.evaluate(problem.all_slowest()) / 1.2  # type: ignore[operator]
