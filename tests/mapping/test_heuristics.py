"""Baselines of the Mapping problem: each does what its definition says, and sees no more."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from generate_mapping import layers, random_mapping, three_memories
from loadmaster.machine import load_machine
from loadmaster.mapping.first_fit import sparse_tables
from loadmaster.mapping.problem import Mapping
from loadmaster.mapping.search import AgeingEvolution, Annealing, GreedyDp, RandomMaps
from loadmaster.program import Builder
from loadmaster.program.models import load_model
from loadmaster.search.problem import Decision, Scores
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, Solution, solve
from reference.mapping import SlowMapping

SEARCHES = ["greedy-dp", "random", "annealing", "ageing-evolution"]
WHITE_BOX = ["all-slowest", "role-split", "compiler", "density"]


def small() -> Mapping:
    return Mapping(layers(), three_memories())


def asked(solver: Any, problem: Mapping, budget: Budget, seed: int = 0) -> tuple[Solution, np.ndarray]:
    """The solution, and every map that a solver submits, in order. It sees rewards and nothing else of them: what
    would tell it more about a map raises."""
    blind = copy.copy(problem)
    seen: list[np.ndarray] = []

    def score(decisions: Decision, first: int = 0) -> Scores:
        seen.append(np.array(decisions))
        return problem.score(decisions, first)

    def hidden(*args: Any) -> Any:
        raise AssertionError("a black box was opened")

    blind.__dict__ |= {"score": score, "admits": problem.admits, "bound": problem.bound}
    blind.__dict__ |= dict.fromkeys(("rectify", "times", "evaluate", "plan", "reward"), hidden)
    solution = solve(solver, blind, budget, seed)
    return solution, np.concatenate(seen)


def naive_density(problem: Mapping) -> np.ndarray:
    """The definition, word for word: all moves are tried again after every move."""
    slow, decision = SlowMapping(problem.program, problem.machine), problem.all_slowest().tolist()
    while True:
        best: tuple[Fraction, int, int] | None = None
        for entry, pieces in sorted(slow.pieces.items()):
            for memory in range(decision[entry]):
                tried = [*decision[:entry], memory, *decision[entry + 1 :]]
                saved = slow.time(decision) - slow.time(tried)
                if saved <= 0 or not slow.valid(tried):
                    continue
                volume = sum(slow.aligned(piece, memory) * len(piece.alive) for piece in pieces)
                key = (-Fraction(saved, max(1, volume)), entry, memory)
                best = key if best is None else min(best, key)
        if best is None:
            return np.array(decision, dtype=np.int8)
        decision[best[1]] = best[2]


def test_density_is_greedy_by_exact_fractions() -> None:
    cases = [random_mapping(np.random.default_rng(seed), 9) for seed in range(150)]
    cases += [(layers(8), three_memories(ports)) for ports in ("serial", "parallel")]
    moved = 0
    for number, case in enumerate(cases):
        problem = Mapping(*case)
        solution = solve(make_labelled("mapping", "density"), problem, Budget())
        expected = naive_density(problem)
        assert np.array_equal(solution.decision, expected), number  # type: ignore[arg-type]
        moved += int((expected != problem.slowest).sum())
    assert moved > 150


def test_density_of_ten_thousand_ops() -> None:
    problem = Mapping(load_model("vit-l16"), load_machine("h200-zero-copy:hbm=2GiB"))
    assert problem.live.sum() > 9_000
    solution = solve(make_labelled("mapping", "density"), problem, Budget())
    assert solution.value is not None
    assert solution.value < problem.compiler_ps / 3


def test_role_split_by_hand() -> None:
    build = Builder("roles")
    x = build.tensor("x", bytes=8, kind="input")
    tables = [build.tensor(f"w{i}", bytes=256, kind="weight") for i in range(4)]
    for i, table in enumerate(tables):
        out = build.tensor(f"t{i}", bytes=160, kind="output" if i == 3 else "activation")
        part = (table, 100) if i == 1 else table  # the second is a table of which little is read
        build.op(f"op{i}", "gather", reads=[x, part], writes=[out], vector=1)
        x = out
    problem = Mapping(build.build(), three_memories())
    assert [problem.program.tensor_name[t] for t in np.flatnonzero(sparse_tables(problem.program))] == ["w1"]
    solution = solve(make_labelled("mapping", "role-split"), problem, Budget())
    # 320 bytes hold two activations at a time; 700 bytes two of the other three weights.
    assert solution.decision is not None
    assert solution.decision.tolist() == [0, 0, 0, 0, 1, 2, 1, 2]
    tight = Mapping(problem.program, three_memories().with_capacity("small", 200))
    split = solve(make_labelled("mapping", "role-split"), tight, Budget()).decision
    assert split is not None
    assert split.tolist() == [0, 2, 0, 2, 1, 2, 1, 2]  # not to the memory of the other role


def test_heuristics_use_one_evaluation() -> None:
    problem = small()
    for name in WHITE_BOX:
        solution = solve(make_labelled("mapping", name), problem, Budget(10))
        assert solution.evaluations == 1 and solution.metrics == {}, name
        assert solve(make_labelled("mapping", name), problem, Budget(0)).evaluations == 0
    rectified = problem.rectify(problem.compiler[None])[2][0]
    compiler = solve(make_labelled("mapping", "compiler"), problem, Budget())
    assert np.array_equal(compiler.decision, rectified)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_see_rewards_only_and_submit_canonical_maps(name: str) -> None:
    build = Builder("few weights")
    last = build.tensor("x", bytes=8, kind="input")
    for i in range(8):
        out = build.tensor(f"t{i}", bytes=100, kind="output" if i == 7 else "activation", fast=i != 4)
        weight = [build.tensor(f"w{i}", bytes=90, kind="weight")] if i % 3 == 0 else []
        build.op(f"op{i}", "add", reads=[last, *weight], writes=[out], vector=3)
        last = out
    problem = Mapping(build.build(), three_memories())
    assert 0 < problem.live.sum() < 16
    solution, maps = asked(make_labelled("mapping", name), problem, Budget(300))
    assert len(maps) == solution.evaluations <= 300
    assert maps.dtype == np.int8 and (maps[:, ~problem.live] == problem.slowest).all()
    assert solution.value == problem.evaluate(solution.decision)  # type: ignore[arg-type]
    assert solution.value == min(value for value in problem.score(maps).value.tolist() if value >= 0)


@pytest.mark.parametrize("name", [*SEARCHES, *WHITE_BOX])
def test_nothing_to_decide(name: str) -> None:
    build = Builder("fixed")
    x = build.tensor("x", bytes=8, kind="input")
    build.op("op", "add", reads=[x], writes=[build.tensor("y", bytes=8, fast=False)], vector=3)
    for program in (build.build(), Builder("nothing").build()):
        problem = Mapping(program, three_memories())
        assert not problem.live.any()
        solution = solve(make_labelled("mapping", name), problem, Budget(50))
        assert solution.evaluations <= 1 and solution.value == problem.evaluate(problem.all_slowest())


@pytest.mark.parametrize(("model", "cost"), [("resnet50", 495), ("resnet101", 954), ("bert", 2_160)])
def test_a_pass_of_greedy_dp(model: str, cost: int) -> None:
    problem = Mapping(load_model(model), load_machine("nnp-i"))
    _, maps = asked(GreedyDp(), problem, Budget(cost + 1))
    changed = [np.flatnonzero((maps != problem.all_slowest()).any(axis=0)) % problem.nodes]
    assert changed[0].max() == problem.nodes - 1  # it has been at the last node
    first = maps[cost]  # the second pass begins with what the first one came to
    best = problem.score(maps[:cost]).reward.max()
    assert problem.score(first[None]).reward[0] == best
    assert np.array_equal(maps[0], problem.all_slowest())


def test_greedy_dp_ends_where_no_pair_is_better() -> None:
    problem = small()
    solution, maps = asked(GreedyDp(), problem, Budget(100_000))
    per_pass = 12 * 9
    assert solution.evaluations % per_pass == 0 and solution.evaluations < 10 * per_pass
    last, found = maps[-per_pass:], solution.decision
    assert found is not None
    assert problem.score(last).reward.max() == problem.score(found[None]).reward[0]
    assert sum(np.array_equal(row, found) for row in last) == 12  # once for each node


def test_random_maps_have_shares_of_their_own() -> None:
    problem = Mapping(load_model("bert"), load_machine("nnp-i"))
    _, maps = asked(RandomMaps(), problem, Budget(1000))
    heads = maps.reshape(len(maps), 2, problem.nodes)
    live = problem.live.reshape(2, problem.nodes)
    for head in (0, 1):
        share = np.stack([(heads[:, head][:, live[head]] == m).mean(axis=1) for m in range(3)])
        assert np.allclose(share.mean(axis=1), 1 / 3, atol=0.03)
        # A flat Dirichlet of three has a standard deviation of sqrt(1/18) = 0.236 in each share.
        assert np.allclose(share.std(axis=1), 0.236, atol=0.03)
    weights, activations = ((heads[:, h][:, live[h]] == 0).mean(axis=1) for h in (1, 0))
    assert abs(np.corrcoef(weights, activations)[0, 1]) < 0.15  # drawn apart
    _, even = asked(RandomMaps(uniform=True), problem, Budget(200))
    assert (even[:, problem.live] == 0).mean(axis=1).std() < 0.03


def is_move(before: np.ndarray, after: np.ndarray) -> bool:
    """One entry elsewhere, or two that have swapped."""
    changed = before != after
    old, new = before[changed].tolist(), after[changed].tolist()
    return len(old) == 1 or (len(old) == 2 and old == new[::-1])


def test_annealing_moves_one_or_swaps_two_and_cools() -> None:
    problem, seen = small(), []

    class Thermometer(Observer):
        def progress(self, meter: Meter, metrics: Any) -> None:
            seen.append((meter.evaluations, metrics["temperature"]))

    _, maps = asked(Annealing(), problem, Budget(2_000), 1)
    assert np.array_equal(maps[0], problem.all_slowest())
    rewards, swaps, worse = problem.score(maps).reward, 0, 0
    # Each map is one move from the one that was last accepted: follow which that can be.
    possible = {0}
    for i in range(1, len(maps)):
        parents = {j for j in possible if is_move(maps[j], maps[i])}
        assert parents, f"map {i} is no single move from what was accepted"
        swaps += all((maps[i] != maps[j]).sum() == 2 for j in parents)
        worse += all(rewards[i] < rewards[j] for j in parents)
        possible = {i, *(j for j in parents if rewards[i] < rewards[j])}
    assert 0.1 < swaps / len(maps) < 0.25 and worse > 200
    solve(Annealing(), problem, Budget(2_000), 1, Thermometer())
    assert seen[0][1] == pytest.approx(0.05 * 0.002 ** (seen[0][0] / 2_000), rel=0.02)
    assert seen[-1][1] == pytest.approx(1e-4, rel=0.02)
    assert all(b[1] < a[1] for a, b in itertools.pairwise(seen))


def test_ageing_evolution_drops_the_oldest() -> None:
    problem = small()
    _, maps = asked(AgeingEvolution(population=20, sample=5), problem, Budget(400), 2)
    rewards = problem.score(maps).reward
    for i in range(20, len(maps)):
        living = maps[i - 20 : i]  # the youngest twenty, never anything older
        near = np.flatnonzero((living != maps[i]).sum(axis=1) == 1)
        assert len(near), f"child {i} is no single change from one of the living"
        # A parent is the best of five: at least four of the others are no better.
        assert (rewards[i - 20 : i] <= rewards[i - 20 : i][near].max()).sum() >= 5
    assert rewards[-100:].mean() > rewards[:100].mean()
    with pytest.raises(ValueError, match="sample"):
        AgeingEvolution(population=4, sample=5)


@pytest.mark.parametrize("name", sorted({*SEARCHES} - {"annealing"}))  # it cools over its budget
def test_a_longer_budget_begins_like_a_shorter_one(name: str) -> None:
    problem = small()
    short = asked(make_labelled("mapping", name), problem, Budget(130), 5)[1]
    long = asked(make_labelled("mapping", name), problem, Budget(210), 5)[1]
    assert len(short) == 130 and np.array_equal(long[:130], short)
