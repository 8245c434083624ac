"""Scores into maps: as the slow decoder does it, always legal, and any legal map can be had."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from generate_mapping import layers, random_mapping, random_maps, three_memories
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.decoder import NEVER, Decoder
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.search.pins import Pins
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, solve
from reference.map_decoder import decode_slowly


def problems(count: int, max_ops: int = 9) -> Iterator[tuple[np.random.Generator, Mapping]]:
    """Random ones with something to decide, each third with a pin or two."""
    found, seed = 0, 0
    while found < count:
        rng = np.random.default_rng(seed)
        seed += 1
        program, machine = random_mapping(rng, max_ops)
        problem = Mapping(program, machine)
        if seed % 3 == 0 and problem.live.any():
            roots = rng.choice(np.flatnonzero(problem.entries.of_tensor >= 0), 2)
            pins = Pins({int(root): (int(rng.choice(problem.memories)), -1) for root in roots})
            try:
                problem = Mapping(program, machine, pins=pins)
            except LoadmasterError:  # two pins of one entry, or no room for them
                continue
        if problem.live.any():
            found += 1
            yield rng, problem


def random_scores(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of all kinds: none, equal ones, wide ones, some that never may."""
    kind = int(rng.integers(4))
    if kind == 0:
        return np.zeros(shape)
    if kind == 1:
        return rng.integers(-1, 2, shape).astype(np.float64)
    scores = rng.normal(size=shape) * (1 if kind == 2 else 400)
    return np.where(rng.random(shape) < 0.2, NEVER, scores)


@pytest.mark.parametrize("nominal", [True, False], ids=["nominal", "strict"])
def test_it_decodes_as_the_slow_decoder_does(nominal: bool) -> None:
    moved = pinned = parallel = several = 0
    for rng, problem in problems(60):
        decoder = Decoder(problem)
        scores = np.stack([random_scores(rng, decoder.shape) for _ in range(3)])
        found = decoder.decode(scores, nominal=nominal)
        for row, decision in zip(scores, found, strict=True):
            assert np.array_equal(decision, decode_slowly(problem, decoder.model, row, nominal, 0.0))
        moved += int((found[:, problem.live] != problem.slowest).sum())
        pinned += bool(problem.pins)
        parallel += bool(decoder.model.parallel)
        several += int(problem.entries.piece_start[-1] > problem.entries.live.sum())
    assert moved > 150 and min(pinned, parallel, several) >= 5, (moved, pinned, parallel, several)


def test_memory_time_that_shows_only_later_counts_by_its_share() -> None:
    differs = 0
    for rng, problem in problems(40):
        decoder = Decoder(problem)
        shares = rng.uniform(0.05, 1.0, 2)
        # No two moves are equally good: of those, rounding decides.
        scores = rng.normal(size=(2, *decoder.shape))
        found = decoder.decode(scores, linear=shares)
        for row, share, decision in zip(scores, shares.tolist(), found, strict=True):
            assert np.array_equal(decision, decode_slowly(problem, decoder.model, row, True, share))
        differs += not np.array_equal(found, decoder.decode(scores))
    assert differs > 3


def test_every_map_is_legal() -> None:
    planned = 0
    for rng, problem in problems(60, 20):
        decoder = Decoder(problem)
        scores = np.stack([random_scores(rng, decoder.shape) for _ in range(6)])
        linear = rng.random(6) * (rng.random(6) < 0.5)
        for nominal in (True, False):
            maps = decoder.decode(scores, nominal=nominal, linear=linear)
            assert (problem.rectify(maps)[1] == 0).all()
            assert (maps[:, ~problem.live] == problem.all_slowest()[~problem.live]).all()
            if problem.admits(maps[0]):  # nearly always
                assert problem.violations(problem.plan(maps[0])) == []
                planned += 1
    assert planned > 100


def test_scores_of_nothing_are_greedy_by_density() -> None:
    cases = [Mapping(layers(), three_memories(ports)) for ports in ("serial", "parallel")]
    cases += [Mapping(load_model("resnet50"), load_machine("nnp-i"))]
    for problem in cases + [problem for _, problem in problems(20) if not problem.pins]:
        decoder = Decoder(problem)
        density = solve(make_solver("mapping", "density"), problem, Budget()).decision
        assert np.array_equal(decoder.decode(np.zeros((1, *decoder.shape)))[0], density)


def test_any_legal_map_can_be_had() -> None:
    fast = 0
    for rng, problem in problems(60, 20):
        decoder = Decoder(problem)
        maps = problem.rectify(random_maps(rng, problem, 8))[2]
        maps = maps[problem.rectify(maps)[1] == 0]
        scores = np.array([decoder.scores_of(decision) for decision in maps])
        assert np.array_equal(decoder.decode(scores, nominal=False), maps)
        fast += int((maps[:, problem.live] < problem.slowest).sum())
    assert fast > 500


def test_what_may_never_move_does_not() -> None:
    for rng, problem in problems(20):
        decoder = Decoder(problem)
        barred = rng.random(decoder.shape) < 0.5
        scores = np.where(barred, NEVER, rng.normal(size=decoder.shape))
        for nominal in (True, False):
            chosen = decoder.decode(scores[None], nominal=nominal)[0][decoder.live]
            loose = np.flatnonzero((chosen < problem.slowest) & (decoder.model.pinned < 0))
            assert not barred[loose, chosen[loose]].any()


def test_threads_change_nothing() -> None:
    problem = Mapping(load_model("resnet50"), load_machine("nnp-i"))
    decoder = Decoder(problem)
    scores = np.random.default_rng(0).normal(size=(16, *decoder.shape))
    for nominal in (True, False):
        alone = decoder.decode(scores, nominal=nominal, linear=0.01, threads=1)
        for threads in (2, 3, 16):
            assert np.array_equal(
                decoder.decode(scores, nominal=nominal, linear=0.01, threads=threads), alone
            )
        assert np.array_equal(decoder.decode(scores[3:4], nominal=nominal, linear=0.01)[0], alone[3])


def test_no_scores_give_no_maps() -> None:
    decoder = Decoder(Mapping(layers(), three_memories()))
    assert decoder.decode(np.empty((0, *decoder.shape))).shape == (0, 24)
