"""Chains of annealing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from generate_graph import random_graph, roomy
from loadmaster.errors import LoadmasterError
from loadmaster.graph import TASKS, UNFIT, Base, GraphOptimization
from loadmaster.graph.anneal import make_children, renamed
from loadmaster.graph.moves import FittedMoves
from loadmaster.graph.pipeline import WORST, Fitting, constructive, variants
from loadmaster.graph.search import random_vectors
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, solve
from search.conformance import conforms

NAME = "annealing-chains"
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


@pytest.mark.parametrize("tasks", [TASKS, ("placement",), ("schedule",)])
def test_chains_conform(tasks: tuple[str, ...]) -> None:
    conforms(
        lambda: make_labelled("graph", NAME, {"neighbourhoods": 60}),
        _recurrent(tasks=tasks),
        evaluations=(1, 2, 400),
        seconds=0.5,
        seeds=(0,),
    )


def test_the_number_of_threads_changes_nothing() -> None:
    for seed in range(3):
        problem = _recurrent() if seed == 0 else _problem(seed)
        one, two, three = (
            _solved(problem, NAME, 700, seed, threads=t, chains=5, neighbourhoods=100) for t in (1, 2, 3)
        )
        assert one.value == two.value == three.value
        assert np.array_equal(one.decision, two.decision) and np.array_equal(one.decision, three.decision)


@pytest.mark.parametrize("name", [NAME, "auto"])
@pytest.mark.parametrize("tasks", TASK_SETS)
def test_never_worse_than_any_constructive_plan(name: str, tasks: tuple[str, ...]) -> None:
    for seed in range(3):
        problem = _problem(seed, tasks)
        known = [_solved(problem, other, 10_000).value for other in ("classical", "heft", "expert")]
        least = min((value for value in known if value is not None), default=None)
        found = _solved(problem, name, 400, seed).value
        assert least is None or (found is not None and problem.bound().value <= found <= least)


def test_chains_beat_one_chain() -> None:
    """At equal evaluations; other seeds differ by less than what they gain here."""
    problem = GraphOptimization(load_model("rnnlm-2"), load_machine("p100x2"))
    one, many = (
        _solved(problem, "anneal", 1500, start="seeds"),
        _solved(problem, NAME, 1500, neighbourhoods=0),
    )
    assert one.value is not None and many.value is not None and many.value < 0.95 * one.value


def test_they_find_their_way_to_plans_that_fit() -> None:
    program, machine = load_model("rnnlm-2:steps=3"), load_machine("p100x2")
    free = GraphOptimization(program, machine, base=Base(placement="single"))
    capacity = int(0.8 * max(free.simulator.run(free.plan(free.vector())).memory_peak.tolist()))
    machine = load_machine(f"p100x2:hbm0={capacity},hbm1={capacity}")
    problem = GraphOptimization(program, machine, base=Base(placement="single"))
    solution = _solved(problem, NAME, 400)
    assert solution.value is not None and solution.value < UNFIT
    assert not problem.violations(problem.plan(solution.decision))


def test_fitted_fusion_stays_within_devices() -> None:
    for seed in range(30):
        problem, rng = _problem(seed), np.random.default_rng(seed)
        device = rng.integers(0, problem.devices, problem.groups)
        for keys, of in (
            (Fitting(problem).keys(device), device[problem.node_group]),
            (Fitting(problem).apart, problem.node_group),
        ):
            where = np.full(problem.program.n_ops, -1)
            where[problem.node_op] = of
            clusters = problem.fuse(keys)
            for cluster in np.unique(clusters[clusters >= 0]):
                members = where[(clusters == cluster) & (where >= 0)]
                assert len(np.unique(members)) <= 1, seed


def test_variants_keep_the_placement() -> None:
    for seed, tasks in enumerate(TASK_SETS):
        problem = _problem(seed, tasks)
        vectors = random_vectors(problem, np.random.default_rng(seed), 3)
        made = np.stack(variants(problem, vectors))
        at = problem.part("device")
        known = {vector[at].tobytes() for vector in vectors}
        assert {vector[at].tobytes() for vector in made} == known
        problem.score(made)


def test_renamed_devices_agree_most() -> None:
    rng = np.random.default_rng(0)
    for devices in (2, 3, 8):
        device = rng.integers(0, devices, 50)
        names = rng.permutation(devices)
        like = np.eye(devices)[names[device]]
        assert np.array_equal(renamed(device, like), names[device])


def test_children_have_two_parents() -> None:
    for seed, tasks in enumerate(TASK_SETS):
        problem, rng = _problem(seed, tasks), np.random.default_rng(seed)
        parents = random_vectors(problem, rng, 2)
        for child in make_children(problem, rng, parents, 20, alike=False):
            assert np.all((child == parents[0]) | (child == parents[1]))
        assert make_children(problem, rng, parents, 5, alike=True).shape == (5, problem.width)


def test_fitted_moves_stay_within_their_parts() -> None:
    for seed, tasks in enumerate(TASK_SETS * 2):
        problem, rng = _problem(seed, tasks), np.random.default_rng(seed)
        plans = constructive(Meter(problem, Budget()), problem)
        legal = plans.values < WORST
        moves = FittedMoves(problem)
        if not moves or not legal.any():
            continue
        standing = plans.vectors[int(plans.values.argmin())]
        changes = moves.draw_for(standing, rng, 300, 0.3)
        at, (_, index, source, value) = problem.part("device"), changes
        device = (index >= at.start) & (index < at.stop)
        given = source < 0
        assert np.all(value[device & given] < problem.devices)
        assert np.all((value[~device & given] >= 0) & (value[~device & given] <= 1))
        climb = problem.climb()
        climb.start(standing)
        climb.run(*changes, np.zeros(300))


def test_what_is_cut_short_could_not_have_been_accepted() -> None:
    """The same walk, with and without."""
    cut = 0
    for seed in range(40):
        problem, rng = _problem(seed, TASK_SETS[seed % len(TASK_SETS)]), np.random.default_rng(seed)
        moves = FittedMoves(problem)
        if not moves or problem.evaluate(problem.vector()) is None:
            continue
        climbs = problem.climb(), problem.climb()
        for climb in climbs:
            climb.start(problem.vector())
        for _ in range(4):
            changes = moves.draw_for(problem.vector(), rng, 50, 0.2)
            slack = rng.exponential(size=50) * 0.02
            (total, _, fault), accepted = climbs[0].run(*changes, slack)
            (quick, _, short), same = climbs[1].run(*changes, slack, True)
            assert np.array_equal(accepted, same)
            whole = short[:, 0] == 0
            assert np.array_equal(total[whole], quick[whole]) and np.all(fault[whole, 0] == 0)
            assert np.array_equal(climbs[0].vector(), climbs[1].vector())
            cut += int((~whole).sum() - (fault[:, 0] != 0).sum())
    assert cut > 100


def test_wrong_options_are_refused() -> None:
    with pytest.raises(LoadmasterError, match="chains = 0"):
        make_labelled("graph", NAME, {"chains": 0})
    with pytest.raises(LoadmasterError, match="neighbourhoods = -1"):
        make_labelled("graph", NAME, {"neighbourhoods": -1})


def test_neighbourhoods_come_first() -> None:
    """Within their share of the evaluations it is they that find the best."""
    problem = _recurrent()
    with_, without = (_solved(problem, NAME, 300, neighbourhoods=n).value for n in (200, 0))
    assert with_ is not None and without is not None and with_ < without
