"""Evolution keeps its promises: elites, kinds of slots, the migrant, projections and anchors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.mapping.egrl.population import (
    COLDEST,
    WARMEST,
    Breeding,
    Chromosomes,
    Proposals,
    Shapes,
    breed,
    breed_chromosomes,
    choose,
    draw,
    find_shapes,
    first_chromosomes,
    settle,
)
from loadmaster.mapping.egrl.settings import Settings

LEAVES = [(12, 8), (8,), (4, 6), (1,), (40, 30)]
ENTRIES, MEMORIES = 12, 3


@st.composite
def some_settings(draws: st.DrawFn) -> Settings:
    size = draws(st.integers(4, 12))
    return Settings(
        population=size,
        boltzmann=draws(st.sampled_from([0.0, 0.2, 0.5, 1.0])),
        elites=draws(st.integers(1, size - 1)),
        tournament=draws(st.integers(1, 4)),
        learner=draws(st.booleans()),
        migration=draws(st.booleans()),
        anchor=draws(st.booleans()),
        crossover=draws(st.sampled_from([0.0, 0.3, 1.0])),
        seeding=draws(st.sampled_from(["sharp", "posterior", "none"])),
    )


@st.composite
def some_breeding(draws: st.DrawFn) -> tuple[Settings, np.ndarray, Breeding]:
    settings = draws(some_settings())
    fitness = st.sampled_from([-np.inf, -1.0, -0.25, 0.5, 1.0, 1.5])  # ties are common
    fitness = np.array(draws(st.lists(fitness, min_size=settings.population, max_size=settings.population)))
    rng = np.random.default_rng(draws(st.integers(0, 2**32)))
    return settings, fitness, choose(rng, fitness, settings)


def elites_of(settings: Settings, fitness: np.ndarray) -> list[int]:
    """The best; of equals the lower slot."""
    return sorted(range(len(fitness)), key=lambda slot: (-fitness[slot], slot))[: settings.elites]


@given(some_breeding())
def test_elites_stay_as_they_are(case: tuple[Settings, np.ndarray, Breeding]) -> None:
    settings, fitness, plan = case
    for slot in elites_of(settings, fitness):
        assert not plan.mutated[slot]
        if slot < settings.gnns:
            assert plan.gnn_a[slot] == plan.gnn_b[slot] == slot
        else:
            own = slot - settings.gnns
            assert plan.chromosome_a[own] == plan.chromosome_b[own] == own
            assert plan.seeded_by[own] == -1


@given(some_breeding())
def test_slots_keep_their_kind_and_parents_exist(case: tuple[Settings, np.ndarray, Breeding]) -> None:
    settings, _, plan = case
    gnns, chromosomes = settings.gnns, settings.chromosomes
    assert len(plan.gnn_a) == len(plan.gnn_b) == gnns and len(plan.mutated) == gnns + chromosomes
    assert len(plan.chromosome_a) == len(plan.chromosome_b) == len(plan.seeded_by) == chromosomes
    for parents in (plan.gnn_a, plan.gnn_b):
        assert ((parents >= 0) & (parents <= gnns)).all()
    for parents in (plan.chromosome_a, plan.chromosome_b):
        assert ((parents >= 0) & (parents < chromosomes)).all()
    assert ((plan.seeded_by >= -1) & (plan.seeded_by <= gnns)).all()
    if settings.seeding == "none":
        assert (plan.seeded_by == -1).all()


@given(some_breeding())
def test_the_migrant_comes_once(case: tuple[Settings, np.ndarray, Breeding]) -> None:
    settings, _, plan = case
    gnns = settings.gnns
    assert np.array_equal(plan.gnn_a == gnns, plan.gnn_b == gnns)
    copies = int((plan.gnn_a == gnns).sum() + (plan.seeded_by == gnns).sum())
    if not (settings.learner and settings.migration):
        assert copies == 0
    elif settings.seeding == "none":
        assert copies <= 1  # it finds no way into a chromosome
    else:
        assert copies == 1


def test_shapes_number_leaves_and_rows() -> None:
    shapes = find_shapes([(2, 3), (4,), (1, 2)])
    assert shapes.leaf.tolist() == [0] * 6 + [1] * 4 + [2] * 2
    assert shapes.row.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert shapes.vector.tolist() == [False, True, False]
    assert shapes.start.tolist() == [0, 6, 10, 12]


def population(seed: int, **changes: Any) -> tuple[np.random.Generator, Settings, np.ndarray, Shapes]:
    """(generator, settings, weights with the actor's last, shapes)"""
    rng, settings = np.random.default_rng(seed), Settings(**changes)
    shapes = find_shapes(LEAVES)
    stack = rng.normal(size=(settings.gnns + settings.learner, len(shapes.leaf)))
    return rng, settings, stack.astype(np.float32), shapes


def test_bred_elites_are_the_same_to_the_bit() -> None:
    changed = 0
    for seed in range(20):
        rng, settings, stack, shapes = population(seed)
        fitness = rng.normal(size=settings.population)
        before = stack.copy()
        child = breed(rng, stack, shapes, choose(rng, fitness, settings))
        assert child.shape == (settings.gnns, stack.shape[1])
        assert np.array_equal(stack, before)  # nothing in place
        for slot in elites_of(settings, fitness):
            if slot < settings.gnns:
                assert np.array_equal(child[slot], stack[slot])
        changed += int((child != stack[: settings.gnns]).any(axis=1).sum())
    assert changed > 20 * 8


def test_without_mutation_children_are_made_of_their_parents() -> None:
    mixed = 0
    for seed in range(20):
        rng, settings, stack, shapes = population(seed, mutation=0.0, crossover=1.0)
        plan = choose(rng, rng.normal(size=settings.population), settings)
        child = breed(rng, stack, shapes, plan)
        for slot in range(settings.gnns):
            a, b = stack[plan.gnn_a[slot]], stack[plan.gnn_b[slot]]
            for leaf, vector in enumerate(shapes.vector):
                at = np.flatnonzero(shapes.leaf == leaf)
                from_b = child[slot, at] != a[at]
                assert np.array_equal(child[slot, at][from_b], b[at][from_b])
                if vector:
                    assert from_b.sum() <= 1
                else:  # whole rows
                    rows = [from_b[shapes.row[at] == row] for row in np.unique(shapes.row[at])]
                    assert all(row.all() or not row.any() for row in rows)
                mixed += int(from_b.any())
    assert mixed > 20


def test_weights_stay_within_a_thousand() -> None:
    rng, settings, stack, shapes = population(0, mutation=1.0)
    stack = np.clip(500 * stack, -1000, 1000)
    for _ in range(100):
        plan = choose(rng, rng.normal(size=settings.population), settings)
        stack = np.concatenate([breed(rng, stack, shapes, plan), stack[:1]])
        assert np.abs(stack).max() <= 1000


def test_a_mutation_touches_few_weights() -> None:
    rng, settings, stack, shapes = population(1, mutation=1.0, learner=False)
    own = np.arange(settings.gnns, dtype=np.int32)
    none = np.zeros(settings.chromosomes, dtype=np.int32)
    plan = Breeding(own, own, none, none, none - 1, np.arange(settings.population) % 2 == 0)
    shares = []
    for _ in range(50):
        changed = breed(rng, stack, shapes, plan) != stack
        assert not changed[1::2].any()
        shares.append(changed[::2][:, ~shapes.vector[shapes.leaf]].mean())
    # 0.75 of the matrices, with a mean rate of 0.025
    assert np.mean(shares) == pytest.approx(0.75 * 0.025, rel=0.2)


def proposals(rng: np.random.Generator, count: int) -> Proposals:
    p = rng.dirichlet(np.ones(MEMORIES), (count, ENTRIES)).astype(np.float32)
    return Proposals(p.argmax(-1).astype(np.int8), p, rng.normal(size=count))


@pytest.mark.parametrize("seeding", ["sharp", "posterior", "none"])
@pytest.mark.parametrize("anchor", [True, False])
def test_chromosomes_stay_in_range_for_a_thousand_rounds(seeding: str, anchor: bool) -> None:
    rng = np.random.default_rng(0)
    settings = Settings(seeding=seeding, anchor=anchor, mutation=1.0)
    now = first_chromosomes(rng, settings.chromosomes, ENTRIES, MEMORIES)
    for _ in range(1000):
        plan = choose(rng, rng.normal(size=settings.population), settings)
        now = breed_chromosomes(rng, proposals(rng, settings.gnns + 1), now, plan, settings)
        assert (now.temperature >= np.float32(COLDEST)).all()
        assert (now.temperature <= np.float32(WARMEST)).all()
        assert (now.prior > 0).all()
        np.testing.assert_allclose(now.prior.sum(-1), 1, atol=1e-5)
        assert anchor or not np.isfinite(now.fitness).any()  # as published: none is anchored
    assert now.prior.dtype == now.temperature.dtype == np.float32


def bred(seeding: str, anchor: bool = False) -> tuple[Chromosomes, Chromosomes, Proposals]:
    """(before, after, proposals): the second of two is seeded by the third of four, none mutated."""
    rng = np.random.default_rng(2)
    settings = Settings(population=6, boltzmann=0.34, seeding=seeding, anchor=anchor)
    old, given_ = first_chromosomes(rng, 2, ENTRIES, MEMORIES), proposals(rng, 5)
    by = np.array([-1, 2 if seeding != "none" else -1], dtype=np.int32)
    own, two = np.arange(4, dtype=np.int32), np.arange(2, dtype=np.int32)
    plan = Breeding(own, own, two, two, by, np.zeros(6, dtype=bool))
    return old, breed_chromosomes(rng, given_, old, plan, settings), given_


@pytest.mark.parametrize("seeding", ["sharp", "posterior", "none"])
def test_seeding(seeding: str) -> None:
    old, new, given_ = bred(seeding)
    np.testing.assert_allclose(new.prior[0], old.prior[0], atol=1e-6)
    assert np.array_equal(new.temperature[0], old.temperature[0])
    p, warmth = given_.probabilities[2], new.temperature[1]
    if seeding == "sharp":
        sharp = 0.9 * np.eye(MEMORIES)[given_.maps[2]] + 0.1 * p
        np.testing.assert_allclose(new.prior[1], sharp, atol=1e-5)
        assert 0.1 <= warmth.min() == warmth.max() <= 0.4
        return
    np.testing.assert_allclose(new.prior[1], p if seeding == "posterior" else old.prior[1], atol=1e-5)
    assert np.array_equal(warmth, old.temperature[1])


def test_a_seeded_chromosome_is_anchored_to_the_map_that_it_comes_from() -> None:
    _, new, given_ = bred("sharp", anchor=True)
    assert np.array_equal(new.anchor[1], given_.maps[2]) and new.fitness[1] == given_.rewards[2]
    assert np.isneginf(new.fitness[0])


def around(rng: np.random.Generator, count: int, entries: int, memories: int) -> Chromosomes:
    """Anchored ones that are nearly sure of their anchor."""
    anchor = rng.integers(0, memories, (count, entries)).astype(np.int8)
    prior = 0.9 * np.eye(memories, dtype=np.float32)[anchor] + 0.1 / memories
    warmth = rng.uniform(0.1, 0.5, (count, entries, 1)).astype(np.float32)
    return Chromosomes(prior.astype(np.float32), warmth, anchor, rng.normal(size=count))


@pytest.mark.parametrize(("entries", "memories"), [(2, 2), (4, 2), (6, 3), (30, 3)])
@pytest.mark.parametrize(("swaps", "runs"), [(0.3, 0.2), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_anchored_draws_are_never_the_anchor(entries: int, memories: int, swaps: float, runs: float) -> None:
    rng = np.random.default_rng(entries)
    settings = Settings(swaps=swaps, runs=runs)
    live = np.arange(0, entries, 2) if entries > 4 else np.arange(entries)
    for _ in range(20):
        members = around(rng, 200, entries, memories)
        maps = draw(rng, members, live, settings)
        assert maps.dtype == np.int8 and maps.min() >= 0 and maps.max() < memories
        assert (maps[:, live] != members.anchor[:, live]).any(axis=1).all()


def test_draws_without_an_anchor_follow_the_prior() -> None:
    rng = np.random.default_rng(0)
    one = first_chromosomes(rng, 1, 4, MEMORIES)
    many = one.take(np.zeros(20_000, dtype=np.int64))
    maps = draw(rng, many, np.arange(4), Settings())
    wanted = np.exp(one.prior[0] / one.temperature[0])
    wanted /= wanted.sum(-1, keepdims=True)
    shares = np.eye(MEMORIES)[maps].mean(axis=0)
    np.testing.assert_allclose(shares, wanted, atol=0.02)


def test_no_chromosomes_draw_nothing() -> None:
    none = first_chromosomes(np.random.default_rng(0), 0, 6, MEMORIES)
    assert draw(np.random.default_rng(0), none, np.arange(6), Settings()).shape == (0, 6)


@given(
    st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, 2.0]), min_size=3, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-np.inf, -0.5, 0.0, 0.5, 3.0])), max_size=8),
)
def test_settling_never_lowers_worth(worths: list[float], drawn: list[tuple[int, float]]) -> None:
    rng = np.random.default_rng(0)
    old = around(rng, 3, ENTRIES, MEMORIES)._replace(fitness=np.array(worths))
    kept = old.take(np.arange(3))
    by = np.array([member for member, _ in drawn], dtype=np.int64)
    rewards = np.array([reward for _, reward in drawn])
    maps = rng.integers(0, MEMORIES, (len(drawn), ENTRIES)).astype(np.int8)
    new = settle(old, by, maps, rewards)
    assert all(np.array_equal(a, b) for a, b in zip(old, kept, strict=True))  # nothing in place
    for member in range(3):
        own = rewards[by == member]
        best = max([worths[member], *own])
        assert new.fitness[member] == best
        if len(own) and own.max() >= worths[member]:
            assert any(np.array_equal(new.anchor[member], m) for m in maps[rewards == best])
            # Nearly sure of it, whatever was thought before.
            assert np.array_equal(new.prior[member].argmax(-1), new.anchor[member])
        else:
            assert np.array_equal(new.anchor[member], old.anchor[member])
    np.testing.assert_allclose(new.prior.sum(-1), 1, atol=1e-5)
