"""Evolution: who breeds with whom, and the breeding itself, over whole arrays of members.

It works on NumPy arrays: a mutation touches a few per cent of the weights, which sparse host code
does several times faster than dense masks in compiled code, with nothing to compile.

Slots 0..G-1 hold GNNs, the others Boltzmann chromosomes; a slot never changes its kind. "Source"
G, one past the last GNN, is the learner's actor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Bool, Float32, Float64, Int8, Int32, Int64
from loadmaster.mapping.egrl.paper import Settings

Rng = np.random.Generator

WARMEST, COLDEST = 10.0, 0.1
LEAST = 1e-6


class Shapes(NamedTuple):
    """Where the parameters lie in a flat vector of `W` weights."""

    leaf: Int32
    """[W] the number of the matrix or vector that a weight belongs to"""
    row: Int32
    """[W] the number of its row, counted through all matrices; each vector is one row"""
    vector: Bool
    """[leaves]"""
    start: Int32
    """[leaves + 1]"""


class Chromosomes(NamedTuple):
    """Boltzmann members: each tensor is drawn from softmax(prior / temperature)."""

    prior: Float32
    """[K, 2N, M], rows sum to 1"""
    temperature: Float32
    """[K, 2N, 1]"""


class Breeding(NamedTuple):
    """What becomes of each slot."""

    gnn_a: Int32
    """[G] the GNN that a GNN slot is made from (G: the learner's actor)"""
    gnn_b: Int32
    """[G] the one that it is crossed with, or the same"""
    chromosome_a: Int32
    """[K] likewise for chromosomes"""
    chromosome_b: Int32
    seeded_by: Int32
    """[K] the GNN (G: the actor) that a chromosome is seeded from, or -1"""
    mutated: Bool
    """[G + K]"""


def find_shapes(shapes: list[tuple[int, ...]]) -> Shapes:
    """Of parameters that are laid out one after another."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    rows = [shape[0] if len(shape) > 1 else 1 for shape in shapes]
    first = np.cumsum([0, *rows])
    row = [f + np.repeat(np.arange(r), n // r) for f, r, n in zip(first, rows, sizes, strict=False)]
    return Shapes(
        np.repeat(np.arange(len(sizes)), sizes).astype(np.int32),
        np.concatenate(row).astype(np.int32),
        np.array([len(shape) < 2 for shape in shapes]),
        np.cumsum([0, *sizes]).astype(np.int32),
    )


def first_chromosomes(rng: Rng, count: int, entries: int, memories: int) -> Chromosomes:
    """Random ones."""
    prior = rng.random((count, entries, memories), dtype=np.float32)
    warmth = rng.uniform(COLDEST, WARMEST, (count, entries, 1)).astype(np.float32)
    return _projected(prior, warmth)


def draw(rng: Rng, chromosomes: Chromosomes) -> Int8:
    """int8[K, 2N]: one map from each."""
    logits = chromosomes.prior / chromosomes.temperature
    gumbel = -np.log(-np.log(np.maximum(rng.random(logits.shape, dtype=np.float32), 1e-12)))
    maps: Int8 = (logits + gumbel).argmax(-1).astype(np.int8)
    return maps


def choose(rng: Rng, fitness: Float64, settings: Settings) -> Breeding:
    """Elites, tournaments, the migrant's slot, parents and pairs of the next generation."""
    size, gnns = settings.population, settings.gnns
    ranked = np.argsort(-fitness, kind="stable")
    elites = ranked[: settings.elites]
    entrants = rng.integers(0, size, (max(0, size - settings.elites - 1), settings.tournament))
    winners = entrants[np.arange(len(entrants)), np.argmax(fitness[entrants], axis=1)]
    selected = np.setdiff1d(winners, elites)
    unselected = np.setdiff1d(np.arange(size), np.concatenate([elites, selected]))
    a, b = np.arange(size), np.arange(size)
    from_actor = -1
    if settings.learner and settings.migration:
        from_actor = int(rng.choice(unselected)) if len(unselected) else int(ranked[-1])
    a[unselected] = rng.choice(elites, len(unselected))
    b[unselected] = rng.choice(selected if len(selected) else elites, len(unselected))
    shuffled = rng.permutation(selected)
    pairs = len(shuffled) // 2
    left, right = shuffled[:pairs], shuffled[pairs : 2 * pairs]
    crossed = rng.random(pairs) < settings.crossover
    b[left[crossed]], b[right[crossed]] = right[crossed], left[crossed]
    mutated = rng.random(size) < settings.mutation
    mutated[elites] = False
    return _by_kind(a, b, from_actor, mutated, fitness, gnns, settings.seeding != "none")


def _by_kind(
    a: Int64, b: Int64, from_actor: int, mutated: Bool, fitness: Float64, gnns: int, seeding: bool
) -> Breeding:
    """Parents of either kind, sorted out for the kind of the child's slot."""
    slots = np.arange(len(a))
    a_gnn, b_gnn = a < gnns, b < gnns
    # A GNN's child needs a GNN; where neither parent is one, the slot keeps its parameters.
    gnn_a = np.where(a_gnn, a, np.where(b_gnn, b, slots))
    gnn_b = np.where(a_gnn & b_gnn, b, gnn_a)
    fitter = np.where(a_gnn & (~b_gnn | (fitness[a] >= fitness[b])), a, b)
    seeded = np.where((a_gnn | b_gnn) & (slots >= gnns), fitter, -1)
    if from_actor >= 0:
        gnn_a[from_actor] = gnn_b[from_actor] = gnns
        seeded[from_actor] = gnns
    chromosome_a = np.where(a_gnn, slots, a)[gnns:] - gnns
    chromosome_b = np.where(b_gnn, slots, b)[gnns:] - gnns
    return Breeding(
        gnn_a[:gnns].astype(np.int32),
        gnn_b[:gnns].astype(np.int32),
        chromosome_a.astype(np.int32),
        chromosome_b.astype(np.int32),
        (seeded if seeding else np.full_like(seeded, -1))[gnns:].astype(np.int32),
        mutated,
    )


def breed(rng: Rng, stack: Float32, shapes: Shapes, plan: Breeding) -> Float32:
    """[G, W] the next GNNs from `stack` [G or G + 1, W], which may end with the actor."""
    child = stack[plan.gnn_a]
    _cross(rng, child, stack[plan.gnn_b], plan.gnn_a != plan.gnn_b, shapes)
    _mutate(rng, child, plan.mutated[: len(child)], shapes)
    return child


def _cross(rng: Rng, child: Float32, other: Float32, crossed: Bool, shapes: Shapes) -> None:
    """Rows of a random subset of each matrix come from the other parent; of a vector, seldom, one
    element."""
    members, leaves = len(child), len(shapes.vector)
    rows = int(shapes.row[-1]) + 1
    leaf_of_row = shapes.leaf[np.unique(shapes.row, return_index=True)[1]]
    share = 0.3 * rng.random((members, leaves))
    taken = rng.random((members, rows)) < share[:, leaf_of_row]
    taken &= crossed[:, None] & ~shapes.vector[leaf_of_row]
    member, weight = np.nonzero(taken[:, shapes.row])
    child[member, weight] = other[member, weight]
    often = (rng.random((members, leaves)) < 0.2) & crossed[:, None] & shapes.vector
    size = np.diff(shapes.start)
    element = shapes.start[:-1] + (rng.random((members, leaves)) * size).astype(np.int64)
    member, leaf = np.nonzero(often)
    child[member, element[member, leaf]] = other[member, element[member, leaf]]


def _mutate(rng: Rng, child: Float32, mutated: Bool, shapes: Shapes) -> None:
    """A few weights of some matrices, in three strengths; vectors rarely."""
    members, leaves = len(child), len(shapes.vector)
    probability = np.minimum(1.0, 2.0 * rng.random((members, leaves))) * np.where(shapes.vector, 0.04, 1.0)
    rate = 0.05 * rng.random((members, leaves))
    rate *= (rng.random((members, leaves)) < probability) & mutated[:, None]
    picked = rng.random(child.shape, dtype=np.float32) < rate[:, shapes.leaf].astype(np.float32)
    member, weight = np.nonzero(picked)
    w = child[member, weight]
    z, kind = rng.standard_normal(len(w)), rng.random(len(w))
    added = w + np.where(kind < 0.05, 10.0, 0.1) * np.abs(w) * z
    new = np.where((kind >= 0.05) & (kind < 0.07), 0.1 * z, added)
    new = np.where(shapes.vector[shapes.leaf[weight]], z, new)
    child[member, weight] = np.clip(new, -1e3, 1e3)


def breed_chromosomes(rng: Rng, probabilities: Float32, old: Chromosomes, plan: Breeding) -> Chromosomes:
    """The next chromosomes: mixed, or seeded from a GNN, then mutated.

    Args:
      rng: the generator.
      probabilities: [G, 2N, M] of the GNNs, the actor's last.
      old: the chromosomes of this generation.
      plan: who their parents are.
    """
    count, entries, _ = old.prior.shape
    a, b = plan.chromosome_a, plan.chromosome_b
    mix = rng.random((count, entries, 1)) < 0.5
    prior = np.where(mix, old.prior[a], old.prior[b])
    warmth = np.where(mix, old.temperature[a], old.temperature[b])
    seeded = plan.seeded_by >= 0
    prior[seeded] = probabilities[plan.seeded_by[seeded]]
    mutated = plan.mutated[-count:, None, None]
    prior = prior * np.where(mutated, rng.normal(1.0, 0.1, prior.shape), 1.0)
    warmth = warmth * np.where(mutated, rng.normal(0.95, 0.1, warmth.shape), 1.0)
    return _projected(prior, warmth)


def _projected(prior: npt.NDArray[np.floating], warmth: npt.NDArray[np.floating]) -> Chromosomes:
    prior = np.maximum(prior, LEAST)
    return Chromosomes(
        (prior / prior.sum(-1, keepdims=True)).astype(np.float32),
        np.clip(warmth, COLDEST, WARMEST).astype(np.float32),
    )
