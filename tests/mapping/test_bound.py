"""The bound that needs NumPy alone is below every map, pinned or not, and above the plain one where
weights do not fit."""

from __future__ import annotations

import numpy as np

from generate_mapping import layers, random_mapping, random_maps, three_memories
from loadmaster.errors import Refused
from loadmaster.machine import load_machine
from loadmaster.mapping.model import weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.search.pins import Pins


def test_no_map_is_below_it() -> None:
    higher = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        program, machine = random_mapping(rng, 10)
        problem = Mapping(program, machine)
        roots = np.flatnonzero(problem.entries.of_tensor >= 0)
        if seed % 3 == 0 and len(roots):
            memory = problem.memories[int(rng.integers(len(problem.memories)))]
            try:
                problem = Mapping(program, machine, pins=Pins({int(rng.choice(roots)): (memory, -1)}))
            except Refused:
                continue
        bound = weights_bound(problem)
        value = problem.score(random_maps(rng, problem, 60)).value
        legal = value[value >= 0]
        assert not len(legal) or bound.value <= int(legal.min()), seed
        assert bound.value <= (problem.evaluate(problem.all_slowest()) or bound.value)
        higher += bound.value > problem.bound().value
    assert higher > 10, higher


def test_it_knows_that_weights_do_not_fit() -> None:
    problem = Mapping(load_model("bert"), load_machine("nnp-i:sram=1MiB,llc=6MiB"))
    bound, plain = weights_bound(problem), problem.bound()
    assert bound.value > 1.5 * plain.value
    assert bound.value <= problem.compiler_ps


def test_small_layers_by_all_their_maps() -> None:
    program = layers(4)
    problem = Mapping(program, three_memories())
    live = np.flatnonzero(problem.live)
    maps = np.tile(problem.all_slowest(), (3 ** len(live), 1))
    maps[:, live] = np.array(list(np.ndindex(*[3] * len(live))), dtype=np.int8)
    value = problem.score(maps).value
    assert problem.bound().value <= weights_bound(problem).value <= int(value[value >= 0].min())
