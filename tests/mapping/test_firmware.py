"""What firmware does today: one arena, and greedy by size."""

from __future__ import annotations

import numpy as np
import pytest

from generate_mapping import random_mapping
from generate_tflite import branchy
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.program.program import TensorKind
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

NAMES = ("one-arena", "greedy-by-size")


@pytest.mark.parametrize("name", NAMES)
def test_maps_of_random_programs_fit(name: str) -> None:
    tried = 0
    for seed in range(150):
        program, machine = random_mapping(np.random.default_rng(seed))
        try:
            problem = Mapping(program, machine)
        except LoadmasterError:
            continue
        if problem.violations(problem.plan(problem.all_slowest())):
            continue  # the program's own order reads what was overwritten
        solution = solve(make_labelled("mapping", name), problem, Budget())
        assert solution.decision is not None and solution.value == problem.evaluate(solution.decision)
        assert not problem.violations(problem.plan(solution.decision))
        weights = solution.decision[problem.nodes :]
        if not len(program.tie_kind):  # else a weight may share its place with a result
            assert (weights[problem.live[problem.nodes :]] == problem.slowest).all()
        tried += 1
    assert tried > 50


@pytest.mark.parametrize("seed", range(6))
def test_one_arena_is_the_fastest_memory_that_holds_all(seed: int) -> None:
    program = import_tflite(branchy(seed, 20))
    used = set()
    for capacity in (200, 2_000, 200_000):
        problem = Mapping(program, load_machine(f"imxrt1170:tcm={capacity},ocram=3000"))
        decision = solve(make_labelled("mapping", "one-arena"), problem, Budget()).decision
        assert decision is not None
        memories = problem.tensor_memories(decision)
        moved = np.flatnonzero(np.isin(program.tensor_kind, [TensorKind.ACTIVATION, TensorKind.OUTPUT]))
        roots = [t for t in moved.tolist() if program.tensor_alias[t] == t]
        assert len({int(memories[t]) for t in roots}) == 1
        used.add(int(memories[roots[0]]))
    assert max(used) > 0 and min(used) == 0


def test_greedy_takes_the_largest_first() -> None:
    program = import_tflite(branchy(2, 20))
    problem = Mapping(program, load_machine("imxrt1170:tcm=640,ocram=1600"))
    decision = solve(make_labelled("mapping", "greedy-by-size"), problem, Budget()).decision
    assert decision is not None
    memories = problem.tensor_memories(decision)
    made = [t for t in range(program.n_tensors) if program.producer[t] >= 0 and program.tensor_alias[t] == t]
    fits = [t for t in made if program.storage_bytes[t] <= 640]
    largest = max(fits, key=lambda t: (int(program.storage_bytes[t]), -t))
    assert memories[largest] == 0  # nothing larger had a claim on it
    assert len({int(memories[t]) for t in made}) > 1
