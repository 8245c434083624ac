"""Evolution keeps its promises: elites, kinds of slots, the migrant and projections."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.mapping.egrl.paper import Settings
from loadmaster.mapping.egrl.paper.population import (
    COLDEST,
    WARMEST,
    Breeding,
    Chromosomes,
    Shapes,
    breed,
    breed_chromosomes,
    choose,
    draw,
    find_shapes,
    first_chromosomes,
)

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
        crossover=draws(st.sampled_from([0.0, 0.3, 1.0])),
        seeding=draws(st.sampled_from(["posterior", "none"])),
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


def probabilities(rng: np.random.Generator, count: int, entries: int = ENTRIES) -> np.ndarray:
    return rng.dirichlet(np.ones(MEMORIES), (count, entries)).astype(np.float32)


@pytest.mark.parametrize("seeding", ["posterior", "none"])
def test_chromosomes_stay_in_range_for_a_thousand_rounds(seeding: str) -> None:
    rng = np.random.default_rng(0)
    settings = Settings(seeding=seeding, mutation=1.0)
    now = first_chromosomes(rng, settings.chromosomes, ENTRIES, MEMORIES)
    for _ in range(1000):
        plan = choose(rng, rng.normal(size=settings.population), settings)
        now = breed_chromosomes(rng, probabilities(rng, settings.gnns + 1), now, plan)
        assert (now.temperature >= np.float32(COLDEST)).all()
        assert (now.temperature <= np.float32(WARMEST)).all()
        assert (now.prior > 0).all()
        np.testing.assert_allclose(now.prior.sum(-1), 1, atol=1e-5)
    assert now.prior.dtype == now.temperature.dtype == np.float32


def of_two(b: list[int], seeded_by: list[int]) -> Breeding:
    """A plan for four GNNs and two chromosomes, none of them mutated."""
    own, two = np.arange(4, dtype=np.int32), np.arange(2, dtype=np.int32)
    parents, seeds = (np.array(each, dtype=np.int32) for each in (b, seeded_by))
    return Breeding(own, own, two, parents, seeds, np.zeros(6, dtype=bool))


def test_a_seeded_chromosome_has_the_probabilities_of_its_network() -> None:
    rng = np.random.default_rng(2)
    old, p = first_chromosomes(rng, 2, ENTRIES, MEMORIES), probabilities(rng, 5)
    new = breed_chromosomes(rng, p, old, of_two([0, 1], [-1, 2]))
    np.testing.assert_allclose(new.prior, [old.prior[0], p[2]], atol=1e-6)
    assert np.array_equal(new.temperature, old.temperature)


def test_crossed_chromosomes_take_each_tensor_from_either_parent() -> None:
    """Of the circulated code the child is always the second parent."""
    rng = np.random.default_rng(3)
    old, p = first_chromosomes(rng, 2, 400, MEMORIES), probabilities(rng, 5, 400)
    new = breed_chromosomes(rng, p, old, of_two([1, 1], [-1, -1]))
    np.testing.assert_allclose(new.prior[1], old.prior[1], atol=1e-6)
    from_b = np.isclose(new.prior[0], old.prior[1], atol=1e-6).all(axis=1)
    from_a = np.isclose(new.prior[0], old.prior[0], atol=1e-6).all(axis=1)
    assert (from_a ^ from_b).all() and 0.4 < from_b.mean() < 0.6
    parents = np.where(from_b[:, None], old.temperature[1], old.temperature[0])  # T goes with P
    assert np.array_equal(new.temperature[0], parents)


def test_draws_follow_the_prior() -> None:
    rng = np.random.default_rng(0)
    one = first_chromosomes(rng, 1, 4, MEMORIES)
    many = Chromosomes(np.repeat(one.prior, 20_000, axis=0), np.repeat(one.temperature, 20_000, axis=0))
    shares = np.eye(MEMORIES)[draw(rng, many)].mean(axis=0)
    likely = np.exp(one.prior[0] / one.temperature[0])
    np.testing.assert_allclose(shares, likely / likely.sum(-1, keepdims=True), atol=0.02)


def test_no_chromosomes_draw_nothing() -> None:
    none = first_chromosomes(np.random.default_rng(0), 0, 6, MEMORIES)
    assert draw(np.random.default_rng(0), none).shape == (0, 6)
