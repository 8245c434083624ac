"""Every way to time a plan that is not the engine itself gives the engine's times, to the picosecond.

docs/simulation.md ("Fast paths") lists them and what each leaves out. A case is named by its seed; a path is a
function that times one random case both ways and returns what happened in it, so that a test can tell whether
its cases were any good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from generate import Rng, chance, pick, random_machine, random_program, whole
from generate_game import random_game
from generate_graph import random_graph, random_keys
from loadmaster import _core
from loadmaster.errors import BadPlan, LoadmasterError
from loadmaster.graph import TASKS, GraphOptimization
from loadmaster.malloc_game.model import make_model
from loadmaster.plan import Plan
from loadmaster.plan.plan import static_plan
from loadmaster.simulate import get_simulator, simulate
from reference.game import SlowGame
from reference.graph import decoded

BLOCKS, CASES_PER_BLOCK = 4, 60
FOREVER = 2**62 - 1
Seen = Counter[str]


def static_maps(rng: Rng) -> Seen:
    """`run_static`: whole-life mappings on one device."""
    machine = random_machine(rng)
    while len(machine.devices) > 1 or machine.rules.copies == "idle":
        machine = random_machine(rng)
    if chance(rng, 0.2):
        latency = pick(rng, (2**40, 2**60, 2**61))  # sums that stick to FOREVER
        machine = replace(machine, memories=tuple(replace(m, latency=latency) for m in machine.memories))
    program = random_program(rng, max_ops=20, cost_devices=1 if chance(rng, 0.3) else None)
    timer, seen = get_simulator(program, machine), Seen()
    maps = rng.choice([-1, *machine.reach[0]], size=(4, program.n_tensors)).astype(np.int8)
    total, peak = timer.run_static(maps)
    for row, time, high in zip(maps, total.tolist(), peak.tolist(), strict=True):
        try:
            timeline = simulate(program, machine, static_plan(program, machine, row.tolist()))
        except BadPlan:  # an op that the cost table lets run nowhere
            seen["refused"] += 1
            continue
        assert (time, high) == (timeline.total_ps, timeline.memory_peak.tolist())
        seen["late" if time == FOREVER else "timed"] += 1
        seen["parallel"] += machine.rules.ports == "parallel"
        seen["overlap"] += machine.rules.overlap > 0
        seen["named"] += program.costs is not None
        seen["shared"] += len(program.tie_kind) > 0
        seen["looped"] += bool((program.op_repeat > 1).any())
    return seen


def game_placements(rng: Rng) -> Seen:
    """`GameTables.judge`: fast and slow memory, copies between them, under both rules for copies."""
    program, machine = random_game(rng)
    model, seen = make_model(program, machine), Seen()
    game = SlowGame(model, supply="elapsed", ledger="latest")
    game.play(rng.integers(0, 3, model.sites))
    for hurried in (False, True):
        if hurried:  # later than any ledger allows, and listed in any order
            for copy in game.copies:
                if copy.into:
                    copy.issued = whole(rng, copy.issued, copy.needed - 1)
                else:
                    copy.needed = whole(rng, copy.issued + 1, copy.needed)
            rng.shuffle(game.copies)  # type: ignore[arg-type]
        timeline = simulate(program, machine, game.plan(program.n_ops))
        _, copies, fast = game.placement()
        rows = np.array(copies, dtype=np.int64).reshape(len(copies), 5)
        judged = _core.GameTables(model.columns()).judge(np.array(fast, dtype=np.int8), rows)
        assert judged == (timeline.total_ps, timeline.total_ps - int(timeline.device_busy.sum()))
        seen["timed"] += 1
        if judged[1]:
            seen[f"stalled, {machine.rules.copies}"] += 1
        both_ways = {copy.into for copy in game.copies} == {True, False}
        seen["both ways, idle"] += both_ways and machine.rules.copies == "idle"
        turns = [engine for engine in model.engines if engine >= 0]
        seen["one engine"] += both_ways and len(turns) == 2 and turns[0] == turns[1]
        seen["in a loop"] += any(
            model.loop[c.issued] == model.loop[c.needed] >= 0
            for c in game.copies
            if c.issued >= 0 and c.needed < model.steps
        )
    return seen


def graph_problem(rng: Rng) -> GraphOptimization | None:
    program, machine = random_graph(rng, 24)
    try:
        problem = GraphOptimization(
            program,
            machine,
            tasks=[task for task in TASKS if chance(rng, 0.75)] or ["placement"],
            groups=pick(rng, ("op", "auto")),
            tie=pick(rng, ("fifo", "critical_path")),
        )
    except LoadmasterError:
        return None
    return problem if problem.width else None


def compare_graph_plan(
    problem: GraphOptimization, vector: np.ndarray, total: int, over: np.ndarray, fault: int
) -> Seen:
    """What is known of a vector against the engine's Timeline of its plan."""
    try:
        timeline = simulate(problem.program, problem.machine, decoded(problem, vector))
    except BadPlan:
        assert fault
        return Seen(refused=1)
    assert not fault
    assert (total, over.tolist()) == (timeline.total_ps, timeline.memory_over.tolist())
    several = len(np.unique(decoded(problem, vector).device)) > 1
    seen = Seen(timed=1, over=int(over.any()), transfers=int(len(timeline.transfers) > 1), several=several)
    starts, ends = set(timeline.transfers[:, 2].tolist()), set(timeline.transfers[:, 3].tolist())
    seen["queued"] = bool(starts & ends)  # a transfer waited for another to end
    return seen


def random_vector(rng: Rng, problem: GraphOptimization) -> np.ndarray:
    return problem.vector(
        random_keys(rng, problem.nodes),
        rng.integers(0, problem.devices, problem.groups),
        random_keys(rng, problem.nodes),
    )


def graph_vectors(rng: Rng) -> Seen:
    """`GraphBatch.evaluate`: decision vectors over steps that are built once."""
    problem = graph_problem(rng)
    if problem is None:
        return Seen()
    vectors = np.array([random_vector(rng, problem) for _ in range(2)])
    seen = Seen()
    for vector, total, over, fault in zip(vectors, *problem.measure(vectors), strict=True):
        seen += compare_graph_plan(problem, vector, int(total), over, int(fault[0]))
    return seen


def graph_changes(rng: Rng) -> Seen:
    """`GraphClimb`: each vector a few changes from one before, run from the first difference on."""
    problem = graph_problem(rng)
    if problem is None:
        return Seen()
    climb, vector = problem.climb(), random_vector(rng, problem)
    total, over, fault = climb.start(vector)
    seen = compare_graph_plan(problem, vector, int(total[0]), over[0], int(fault[0, 0]))
    for _ in range(5):
        other = random_vector(rng, problem)
        changed = rng.choice(problem.width, min(problem.width, pick(rng, (1, 1, 2))), replace=False)
        (total, over, fault), _ = climb.run(
            np.array([0, len(changed)]),
            changed.astype(np.int64),
            np.full(len(changed), -1),
            other[changed],
            np.array([pick(rng, (np.inf, -np.inf))]),
        )
        seen += compare_graph_plan(problem, climb.vector(0), int(total[0]), over[0], int(fault[0, 0]))
    runs, full = climb.counts()
    seen["resumed"] += runs - full
    return seen


def many_plans(rng: Rng) -> Seen:
    """`run_many`: several plans of devices and keys at once."""
    machine = random_machine(rng)
    while machine.rules.copies == "idle":
        machine = random_machine(rng)
    program = random_program(rng, max_ops=20)
    n = program.n_ops
    plans = [
        Plan.of(
            device=rng.integers(0, len(machine.devices), n), queue="priority", priority=random_keys(rng, n)
        )
        for _ in range(3)
    ]
    try:
        alone = [simulate(program, machine, plan) for plan in plans]
    except BadPlan:
        return Seen(refused=1)
    total, over = get_simulator(program, machine).run_many(plans, 2)
    assert total.tolist() == [timeline.total_ps for timeline in alone]
    assert over.tolist() == [timeline.memory_over.tolist() for timeline in alone]
    return Seen(timed=len(plans), transfers=sum(len(timeline.transfers) > 1 for timeline in alone))


PATHS: dict[Callable[[Rng], Seen], Seen] = {
    static_maps: Seen(timed=150, late=5, parallel=40, overlap=40, named=30, shared=20, looped=30),
    game_placements: Seen(
        {"timed": 120, "stalled, idle": 10, "stalled, free": 10, "both ways, idle": 5, "one engine": 3}
    ),
    graph_vectors: Seen(timed=60, over=5, transfers=10, several=10),
    graph_changes: Seen(timed=150, over=15, transfers=30, several=30, queued=5, resumed=10),
    many_plans: Seen(timed=50, transfers=10),
}
"""Each path, and what must have happened at least so often in one block of cases."""


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__)
def test_the_fast_path_gives_the_times_of_the_engine(path: Callable[[Rng], Seen], block: int) -> None:
    seen = Seen()
    for seed in range(block * CASES_PER_BLOCK, (block + 1) * CASES_PER_BLOCK):
        try:
            seen += path(np.random.default_rng([seed, 21]))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    few = {name: (seen[name], least) for name, least in PATHS[path].items() if seen[name] < least}
    assert not few, f"too little happened: (seen, least) {few}"
