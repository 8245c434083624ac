"""The MallocGame as a problem: its quick bounds, its own rules, and that it can be made again."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from generate_game import random_game
from loadmaster.errors import BadMachine, BadPlan
from loadmaster.machine import load_machine
from loadmaster.malloc_game.bounds import ideal_bound, side_by_side, traffic_bound
from loadmaster.malloc_game.games import COPY, encode
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program import Builder, Program
from loadmaster.program.models import load_model
from loadmaster.runs import run_solver
from loadmaster.search.problem import keys
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.solver import Budget
from loadmaster.simulate import simulate

SECOND = 10**12


def negate(size: int) -> Program:
    """x -> y -> z, `size` bytes each, x given and z returned."""
    build = Builder("negate")
    x = build.tensor("x", bytes=size, kind="input")
    y, z = build.tensor("y", bytes=size), build.tensor("z", bytes=size, kind="output")
    build.op("first", "negate", reads=[x], writes=[y])
    build.op("second", "negate", reads=[y], writes=[z])
    return build.build()


def test_bounds_by_hand() -> None:
    """Slow 1 B/s, fast 2 B/s, no work: four accesses of 16 s or 8 s; 16 bytes come and 16 leave."""
    machine = load_machine("xla-sim")
    problem = MallocGame(negate(16), machine)
    assert problem.all_slow_ps == 64 * SECOND
    assert ideal_bound(problem.program, machine, problem.model) == 32 * SECOND
    assert traffic_bound(problem.program, machine, problem.model) == 32 * SECOND
    small = MallocGame(negate(16), load_machine("xla-sim:fast=15B"))  # nothing fits
    assert small.moves == 0 and small.bound().value == 64 * SECOND
    assert small.evaluate(small.all_slow()) == 64 * SECOND and small.scale_ps == 1


def test_memoriesside_by_side_end_together_at_best() -> None:
    rng = np.random.default_rng(1)
    tight = 0
    for _ in range(300):
        fixed = int(rng.integers(0, 40))
        free = rng.integers(0, 30, (int(rng.integers(0, 7)), 2)).tolist()
        best = min(
            max(
                fixed + sum(pair[0] for pair, fast in zip(free, chosen, strict=True) if not fast),
                sum(pair[1] for pair, fast in zip(free, chosen, strict=True) if fast),
            )
            for chosen in product([False, True], repeat=len(free))
        )
        found = side_by_side(fixed, free)
        assert found <= best
        tight += found >= 0.8 * best
    assert tight > 200


def test_no_list_of_moves_beats_the_bound() -> None:
    """Every list, where there are few."""
    exhausted = reached = 0
    for seed in range(150):
        program, machine = random_game(np.random.default_rng([seed, 5]), (3, 5))
        problem = MallocGame(program, machine)
        if not 0 < problem.moves <= 7:
            continue
        every = np.array(list(product(range(3), repeat=problem.moves)), dtype=np.int8)
        best = int(problem.play(every).total.min())
        assert problem.bound().value <= best <= problem.all_slow_ps, f"seed {seed}"
        exhausted, reached = exhausted + 1, reached + (best == problem.bound().value)
    assert exhausted > 20 and reached > 3


def test_a_run_can_be_read_again(tmp_path: Path) -> None:
    problem = MallocGame(load_model("resnet50"), load_machine("tpu-v4i-8m"), profile="paper", repack=2)
    solver = make_labelled("malloc-game", "random-best")
    solution = run_solver(solver, problem, Budget(40), 3, folder=tmp_path)
    again = load_problem(solution.run)
    assert isinstance(again, MallocGame) and keys(again) == keys(problem)
    assert again.options()["ledger"] == "latest" and again.options()["repack"] == 2
    assert again.options()["starts"] == "hidden"
    assert solution.decision is not None and again.evaluate(solution.decision) == solution.value
    plan = again.plan(solution.decision)
    assert simulate(again.program, again.machine, plan).total_ps == solution.value


def test_another_fast_memory_can_be_chosen(tmp_path: Path) -> None:
    machine = load_machine("imxrt1170:hyperram=128MiB")
    problem = MallocGame(load_model("resnet50"), machine, fast="ocram")
    plan = problem.plan(np.full(problem.moves, COPY, dtype=np.int8))
    assert {row.memory for row in plan.residency_rows} == {machine.memory("ocram")}
    assert problem.violations(plan) == [] and problem.options()["fast"] == "ocram"
    problem.save(tmp_path)
    assert '"fast": "ocram"' in (tmp_path / "problem.json").read_text()
    with pytest.raises(BadMachine, match="no fast memory"):
        MallocGame(load_model("resnet50"), machine, fast="hyperram")


def test_what_the_checker_allows_and_the_game_does_not() -> None:
    build = Builder("weights")
    w, y = build.tensor("w", bytes=16, kind="weight"), build.tensor("y", bytes=16, kind="output")
    build.op("use", "negate", reads=[w], writes=[y])
    problem = MallocGame(build.build(), load_machine("xla-sim"))
    before = Plan.of(residencies=[(0, problem.model.fast, 0, BEFORE, 0)])
    assert [v.rule for v in problem.violations(before)] == ["malloc-game"]
    assert problem.evaluate(encode(before)) is None and not problem.admits(encode(before))
    ordered = Plan.of(order=[0])
    assert [v.rule for v in problem.violations(ordered)] == ["malloc-game"]
    with pytest.raises(BadPlan, match="order"):
        encode(ordered)
    with pytest.raises(BadPlan, match="placement"):
        problem.plan(np.zeros((2, 3), dtype=np.int64))
    nonsense = np.array([[0, problem.model.fast, 0, 0, 99, -2, -2]])
    assert problem.evaluate(nonsense) is None and not problem.admits(nonsense)


def test_slow_memory_must_hold_everything() -> None:
    with pytest.raises(BadMachine, match="must hold all of 'bert'"):
        MallocGame(load_model("bert"), load_machine("imxrt1170"))
