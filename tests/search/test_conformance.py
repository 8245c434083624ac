"""Every registered solver is put through `conforms`; solvers that cheat are caught by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import toy
from generate_graph import random_graph
from generate_mapping import layers, random_mapping, three_memories
from loadmaster.allocation.buffers_csv import parse_buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import MissingPackage
from loadmaster.graph import GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.mapping.search import RandomMaps
from loadmaster.program.models import load_model
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import Meter, Solution, State
from search.conformance import conforms


@pytest.mark.parametrize("solver", [toy.Climb, toy.Plain])
def test_honest_solvers_conform(solver: type) -> None:
    conforms(solver, toy.Toy())


@pytest.mark.parametrize(
    ("solver", "rule"),
    [
        (toy.Greedy, "budget: "),
        (toy.SelfScorer, "budget: "),
        (toy.Liar, "value: "),
        (toy.Overlapper, "checker: "),
        (toy.Moody, "seed: "),
        (toy.Forgetful, "resume: "),
        (toy.Deaf, "budget: .* s of "),
        (toy.Sleeper, "budget: .* s of "),
    ],
)
def test_cheats_are_caught(solver: type, rule: str) -> None:
    with pytest.raises(AssertionError, match=f"^{rule}"):
        conforms(solver, toy.Toy(), seeds=(0,))


def test_asking_the_problem_is_caught_within_the_budget_too() -> None:
    with pytest.raises(AssertionError, match=r"^score: "):
        conforms(toy.SelfScorer, toy.Toy(), evaluations=(1000,))


COMPLETE = {"auto", "exact", "large", "cp-sat"}
"""They end when they have a proof, not when evaluations are spent."""
CASES = [
    (name, kind)
    for name in solver_labels("allocation")
    for kind in ("least", "fit", "too small", "aligned")
    if kind != "aligned" or name not in COMPLETE
]


def _allocation(kind: str) -> Allocation:
    """24 buffers; with alignments the bound is out of reach, so that a search goes on."""
    rng = np.random.default_rng(5)
    rows = ["id,lower,upper,size,alignment"]
    for i in range(24):
        start = int(rng.integers(0, 20))
        end, size = start + int(rng.integers(1, 9)), int(rng.integers(1, 40))
        rows.append(f"b{i},{start},{end},{size},{(1, 8, 32)[i % 3] if kind == 'aligned' else 1}")
    buffers = parse_buffers("\n".join([*rows, ""]), "test.csv")
    capacity = {"fit": 2 * buffers.max_live, "too small": buffers.max_live - 1}.get(kind)
    return Allocation(buffers, capacity, "test")


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_allocation_solvers_conform(name: str, kind: str) -> None:
    try:
        conforms(
            lambda: make_labelled("allocation", name), _allocation(kind), evaluations=(1, 30), seeds=(0,)
        )
    except MissingPackage as missing:
        pytest.skip(missing.message)


LEARNING: dict[str, Any] = {"width": 8, "heads": 2, "depth": 0, "batch": 4, "burn_in": 8}
MAPPING_OPTIONS = {
    "paper": {**LEARNING, "population": 6, "boltzmann": 0.34},
    "ea": {**LEARNING, "population": 6, "boltzmann": 0.34},
    "pg": LEARNING,
}
"""Networks that are too small to be good, and quick."""


def _mapping(kind: str) -> Mapping:
    """Little of it fits in the fast memories, so that the bound is out of reach."""
    if kind == "places":  # several tensors in one place, several places in one entry
        problem = Mapping(*random_mapping(np.random.default_rng(205), 30))
        assert problem.entries.piece_start.max() > problem.live.sum()
        return problem
    if kind == "repair":
        return Mapping(layers(), three_memories("parallel", 333_333), invalid="repair")
    return Mapping(layers(), three_memories())


PART_OF_EGRL = ("pg",)
"""The published one's actor alone: on one kind of problem, since each takes seconds to compile."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in solver_labels("mapping")
        for kind in ("plain", "repair", "places")
        if kind == "repair" or name not in PART_OF_EGRL
    ],
)
def test_mapping_solvers_conform(name: str, kind: str) -> None:
    problem, options = _mapping(kind), MAPPING_OPTIONS.get(name)
    try:
        slow = bool(options) or name in COMPLETE
        conforms(
            lambda: make_labelled("mapping", name, options),
            problem,
            evaluations=(1, 2, 40) if slow else (1, 2, 70, 260),
            seeds=(0,) if slow else (0, 3),
        )
    except MissingPackage as missing:
        pytest.skip(missing.message)


PLAYING: dict[str, Any] = {
    "init": "scratch",
    "width": 16,
    "channels": 2,
    "grid_blocks": 0,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
    "games": 8,
    "eval_games": 4,
    "eval_every": 2,
    "replay_games": 100,
}
TEACHING = {"simulations": 4, "eval_simulations": 4, "batch": 8, "updates": 2, "unroll": 2}
GAME_OPTIONS: dict[str, dict[str, Any]] = {
    "paper": PLAYING | TEACHING,
    "paper-prod": PLAYING | TEACHING,
    "policy-only": PLAYING,
}


def _game(name: str) -> MallocGame:
    """Small enough for exact solvers; a production placement is known of real programs alone."""
    if name == "production":
        return MallocGame(load_model("alexnet-inf"), load_machine("tpu-v4i-16m"))
    number = 4 if name in ("exhaustive", "cp-sat") else 36  # with a bound that is out of reach
    return MallocGame(synthetic(number), load_machine("tpu-v4i:cmem=1MiB"))


@pytest.mark.parametrize("name", solver_labels("malloc-game"))
def test_game_solvers_conform(name: str, request: pytest.FixtureRequest) -> None:
    options = GAME_OPTIONS.get(name)
    if options:
        request.getfixturevalue("quickly_compiled")
    slow = bool(options) or name in COMPLETE or name == "exhaustive"
    conforms(
        lambda: make_labelled("malloc-game", name, options),
        _game(name),
        evaluations=(1, 2, 40) if slow else (1, 2, 70, 260),
        seeds=(0,) if slow else (0, 3),
    )


GRAPHS = {"joint": ("placement", "fusion", "schedule"), "placement": ("placement",), "order": ("schedule",)}
GRAPH_TESTED_APART = {"go", "paper"}
"""Networks, small ones: beside their own tests."""


def _graph(kind: str) -> GraphOptimization:
    """Small enough for exact solvers, with a bound that is out of reach."""
    program, machine = random_graph(np.random.default_rng(181), 24)
    return GraphOptimization(program, machine, tasks=GRAPHS[kind])


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("name", [n for n in solver_labels("graph") if n not in GRAPH_TESTED_APART])
def test_graph_solvers_conform(name: str, kind: str) -> None:
    slow = name in COMPLETE
    try:
        conforms(
            lambda: make_labelled("graph", name),
            _graph(kind),
            evaluations=(1, 2, 40) if slow else (1, 2, 70, 260),
            seeds=(0,) if slow else (0, 3),
        )
    except MissingPackage as missing:
        pytest.skip(missing.message)


class Peeking(RandomMaps):
    """Scores maps by itself and hands in the best."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, rng = meter.problem, np.random.default_rng(seed)
        assert isinstance(problem, Mapping)
        maps = rng.integers(0, 3, (500, 2 * problem.nodes), dtype=np.int8)
        meter.evaluate_many(maps[problem.score(maps).reward.argmax()][None])
        return meter.solution()


def test_scoring_in_batches_behind_the_meter_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"^budget: "):
        conforms(Peeking, _mapping("plain"))
    with pytest.raises(AssertionError, match=r"^score: "):
        conforms(Peeking, _mapping("plain"), evaluations=(1000,))
