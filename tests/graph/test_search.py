"""Searches over fusion, placement and schedule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from generate_graph import random_graph, roomy
from loadmaster.errors import LoadmasterError
from loadmaster.graph import TASKS, UNFIT, Base, GraphOptimization
from loadmaster.graph.anneal import ACCEPTED_AT_FIRST, _first_temperature
from loadmaster.graph.moves import Moves
from loadmaster.graph.search import Genes, random_vectors, starts
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, solve
from search.conformance import conforms

SEARCHES = ("random-best", "anneal", "brkga")
TASK_SETS = [tasks for count in (1, 2, 3) for tasks in itertools.combinations(TASKS, count)]


def _problem(seed: int, tasks: tuple[str, ...] = TASKS, most: int = 40) -> GraphOptimization:
    program, machine = random_graph(np.random.default_rng(seed), most)
    return GraphOptimization(program, roomy(machine), tasks=tasks)


def _recurrent(**about: object) -> GraphOptimization:
    return GraphOptimization(load_model("rnnlm-2:steps=3"), load_machine("p100x2"), **about)  # type: ignore[arg-type]


def _solved(
    problem: GraphOptimization, name: str, evaluations: int, seed: int = 0, **options: object
) -> Solution:
    return solve(make_labelled("graph", name, options), problem, Budget(evaluations), seed)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("tasks", [TASKS, ("placement",), ("schedule",)])
def test_searches_conform(name: str, tasks: tuple[str, ...]) -> None:
    conforms(
        lambda: make_labelled("graph", name),
        _recurrent(tasks=tasks),
        evaluations=(1, 2, 70, 260),
        seconds=0.2,
    )


@pytest.mark.parametrize("name", ["anneal", "brkga"])
def test_seeds_are_taken_up(name: str) -> None:
    problem = _problem(3)
    seeds = starts(Meter(problem, Budget()), "seeds")
    values = problem.score(np.stack(seeds)).value
    best = values[(values >= 0) & (values < UNFIT)].min()
    assert len(seeds) > 3
    solution = _solved(problem, name, len(seeds), start="seeds")
    assert solution.value is not None and solution.value <= best


@pytest.mark.parametrize("name", ["anneal", "brkga"])
@pytest.mark.parametrize("tasks", TASK_SETS)
def test_never_worse_than_where_they_begin(name: str, tasks: tuple[str, ...]) -> None:
    for seed in range(6):
        problem = _problem(seed, tasks)
        found = [problem.evaluate(vector) for vector in starts(Meter(problem, Budget()), "base")]
        legal = [value for value in found if value is not None and value < UNFIT]
        solution = _solved(problem, name, 120, seed)
        if legal:
            assert solution.value is not None and solution.value <= min(legal)
            assert solution.value >= problem.bound().value


def test_annealing_finds_the_best_placement_of_a_small_graph() -> None:
    """Against all placements, one by one."""
    gaps = []
    for seed in range(60):
        problem = _problem(seed, ("placement",), 12)
        count = problem.devices**problem.groups
        if not 4 <= count <= 600:
            continue
        every = np.array(list(itertools.product(range(problem.devices), repeat=problem.groups)))
        values = problem.score(every.astype(np.float64)).value
        best = values[(values >= 0) & (values < UNFIT)].min(initial=UNFIT)
        solution = _solved(problem, "anneal", 1500)
        if best < UNFIT and problem.evaluate(problem.vector()) is not None:
            assert solution.value is not None and solution.value >= best
            gaps.append(solution.value / best - 1)
    assert len(gaps) >= 20 and np.mean(np.array(gaps) == 0) >= 0.9 and max(gaps) < 0.1


def test_annealing_beats_the_expert_and_random_vectors() -> None:
    problem = GraphOptimization(load_model("rnnlm-2"), load_machine("p100x2"))
    expert = problem.evaluate(problem.vector(schedule=np.zeros(problem.nodes)))
    assert expert is not None
    anneal, chance = _solved(problem, "anneal", 600), _solved(problem, "random-best", 60)
    assert anneal.value is not None and chance.value is not None
    assert anneal.value < 0.95 * expert and anneal.value < chance.value


def test_annealing_finds_its_way_to_plans_that_fit() -> None:
    """All weights on one device are too much for it; half of them fit."""
    program, machine = load_model("rnnlm-2:steps=3"), load_machine("p100x2")
    free = GraphOptimization(program, machine, tasks=("placement",), base=Base(placement="single"))
    peaks = free.simulator.run(free.plan(free.vector())).memory_peak
    capacity = int(0.8 * max(peaks.tolist()))
    machine = load_machine(f"p100x2:hbm0={capacity},hbm1={capacity}")
    problem = GraphOptimization(program, machine, tasks=("placement",), base=Base(placement="single"))
    start = problem.evaluate(problem.vector())
    assert start is not None and start >= UNFIT
    solution = _solved(problem, "anneal", 400)
    assert solution.value is not None and solution.value < UNFIT
    assert not problem.violations(problem.plan(solution.decision))


def test_moves_stay_within_their_parts() -> None:
    for seed, tasks in enumerate(TASK_SETS * 2):
        problem, rng = _problem(seed, tasks), np.random.default_rng(seed)
        moves = Moves(problem)
        if not moves:
            continue
        rows, index, source, value = moves.draw(rng, 200)
        assert len(rows) == 201 and rows[-1] == len(index)
        assert index.min() >= 0 and index.max() < problem.width
        at = problem.part("device")
        device = (index >= at.start) & (index < at.stop)
        given = source < 0
        assert np.all(value[device & given] < problem.devices)
        assert np.all(value[device & given] == np.floor(value[device & given]))
        assert np.all((value[~device & given] >= 0) & (value[~device & given] <= 1))


def test_the_first_temperature_takes_three_in_ten() -> None:
    rng = np.random.default_rng(0)
    losses = rng.lognormal(0, 2, 500)
    values = (1e9 * (1 + losses)).astype(np.int64)
    heat = _first_temperature(values, 10**9, 10**9)
    assert np.exp(-losses / heat).mean() == pytest.approx(ACCEPTED_AT_FIRST, abs=1e-3)
    assert _first_temperature(np.array([5, UNFIT + 5]), 10, 10) > 0  # nothing is worse


def test_chromosomes_and_vectors() -> None:
    for seed, tasks in enumerate(TASK_SETS):
        problem, rng = _problem(seed, tasks), np.random.default_rng(seed)
        genes = Genes(problem)
        for vector in random_vectors(problem, rng, 5):
            keys = genes.encoded(vector, rng.random(genes.width, dtype=np.float32))
            assert keys.min() >= 0 and keys.max() <= 1
            again = genes.decoded(keys[None])[0]
            at = problem.part("device")
            assert np.array_equal(again[at], vector[at])
            assert np.allclose(again, vector, atol=1e-6)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(LoadmasterError, match="no start 'hot'"):
        make_labelled("graph", "anneal", {"start": "hot"})
    with pytest.raises(LoadmasterError, match="no room for children"):
        make_labelled("graph", "brkga", {"population": 4, "elite": 0.8, "mutants": 0.2})
