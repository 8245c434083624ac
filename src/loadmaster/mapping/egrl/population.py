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

from loadmaster.mapping.egrl.settings import Settings

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Rng = np.random.Generator

WARMEST, COLDEST = 10.0, 0.1
LEAST = 1e-6


class Shapes(NamedTuple):
    """Where the parameters lie in a flat vector of `W` weights."""

    leaf: Int32
    """[W] the number of the matrix or vector that a weight belongs to"""
    row: Int32
    """[W] the number of its row, counted through all matrices; each vector is one row"""
    vector: npt.NDArray[np.bool_]
    """[leaves]"""
    start: Int32
    """[leaves + 1]"""


class Chromosomes(NamedTuple):
    """Boltzmann members: each tensor is drawn from softmax(prior / temperature)."""

    prior: Float32
    """[K, 2N, M], rows sum to 1"""
    temperature: Float32
    """[K, 2N, 1]"""
    anchor: npt.NDArray[np.int8]
    """[K, 2N] the best map that it has drawn"""
    fitness: npt.NDArray[np.float64]
    """[K] the reward of that map; -inf: it has none"""

    def take(self, members: Int64) -> Chromosomes:
        """Copies of these members, in this order."""
        return Chromosomes(
            self.prior[members], self.temperature[members], self.anchor[members], self.fitness[members]
        )


class Proposals(NamedTuple):
    """What the GNNs proposed in a generation, the actor last if there is a learner."""

    maps: npt.NDArray[np.int8]
    """[G, 2N]"""
    probabilities: Float32
    """[G, 2N, M]"""
    rewards: npt.NDArray[np.float64]
    """[G]"""

    def join(self, other: Proposals) -> Proposals:
        """These, then the others."""
        return Proposals(
            np.concatenate([self.maps, other.maps]),
            np.concatenate([self.probabilities, other.probabilities]),
            np.concatenate([self.rewards, other.rewards]),
        )


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
    mutated: npt.NDArray[np.bool_]
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
    nothing = np.zeros((count, entries), dtype=np.int8)
    return Chromosomes(*_projected(prior, warmth), nothing, np.full(count, -np.inf))


def chromosomes_around(
    rng: Rng, count: int, decision: npt.NDArray[np.int8], probabilities: Float32
) -> Chromosomes:
    """Ones that start near the map of a trained policy, at different distances from it."""
    prior = np.repeat(_around(decision, probabilities)[None], count, axis=0)
    cold = np.exp(rng.uniform(np.log(0.1), np.log(0.4), (count, 1, 1)))
    warmth = np.broadcast_to(cold, (*prior.shape[:2], 1))
    anchor = np.repeat(decision[None], count, axis=0)
    return Chromosomes(*_projected(prior, warmth), anchor, np.full(count, -np.inf))


def mutants(rng: Rng, stack: Float32, shapes: Shapes) -> Float32:
    """[G, W] the same networks, each mutated."""
    child = stack.copy()
    _mutate(rng, child, np.ones(len(child), dtype=np.bool_), shapes)
    return child


def draw(
    rng: Rng, chromosomes: Chromosomes, live: npt.NDArray[np.int64], settings: Settings
) -> npt.NDArray[np.int8]:
    """int8[K, 2N]: one map from each; an anchored one changes at least one of the `live` entries."""
    if not len(chromosomes.fitness):
        return chromosomes.anchor
    logits = chromosomes.prior / chromosomes.temperature
    gumbel = -np.log(-np.log(np.maximum(rng.random(logits.shape, dtype=np.float32), 1e-12)))
    maps: npt.NDArray[np.int8] = (logits + gumbel).argmax(-1).astype(np.int8)
    count, memories = len(maps), logits.shape[-1]
    member = np.arange(count)
    a, b = rng.choice(live, (2, count))
    step = rng.integers(1, memories, count)
    other = (maps[member, a] + step) % memories
    anchored = np.isfinite(chromosomes.fitness)
    what = rng.random(count)
    swapped = anchored & (what < settings.swaps)
    was = maps.copy()
    maps[member[swapped], a[swapped]] = was[member[swapped], b[swapped]]
    maps[member[swapped], b[swapped]] = was[member[swapped], a[swapped]]
    run = anchored & (what > 1 - settings.runs)
    nodes = maps.shape[1] // 2
    far = np.abs(np.arange(2 * nodes) - a[:, None]) < rng.geometric(0.2, count)[:, None]
    far &= (np.arange(2 * nodes) >= nodes) == (a >= nodes)[:, None]
    maps = np.where(far & run[:, None], other[:, None], maps).astype(np.int8)
    same = anchored & (maps[:, live] == chromosomes.anchor[:, live]).all(axis=1)
    # Not `other`: a swap or a run may have undone the only difference there was.
    maps[member[same], a[same]] = (maps[member[same], a[same]] + step[same]) % memories
    return maps


def settle(
    old: Chromosomes, drawn_by: Int64, maps: npt.NDArray[np.int8], rewards: npt.NDArray[np.float64]
) -> Chromosomes:
    """Move each chromosome to the best map that was drawn from it, if no worse than its anchor."""
    new = old.take(np.arange(len(old.fitness)))
    for row in np.argsort(rewards, kind="stable"):  # the best comes last and stays
        member = drawn_by[row]
        if rewards[row] >= new.fitness[member]:
            new.anchor[member], new.fitness[member] = maps[row], rewards[row]
            new.prior[member] = _around(maps[row], old.prior[member])
    return Chromosomes(*_projected(new.prior, new.temperature), new.anchor, new.fitness)


def _around(maps: npt.NDArray[np.int8], prior: Float32) -> Float32:
    """Sharp: nearly sure of a map, with a little of what was thought before."""
    return 0.9 * np.eye(prior.shape[-1], dtype=np.float32)[maps] + 0.1 * prior


def choose(rng: Rng, fitness: npt.NDArray[np.float64], settings: Settings) -> Breeding:
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
    if settings.anchor:  # a chromosome follows the elite itself, of whichever kind
        chromosome = unselected[unselected >= gnns]
        b[chromosome] = a[chromosome]
    return _by_kind(a, b, from_actor, mutated, fitness, gnns, settings.seeding != "none")


def _by_kind(
    a: npt.NDArray[np.int64],
    b: npt.NDArray[np.int64],
    from_actor: int,
    mutated: npt.NDArray[np.bool_],
    fitness: npt.NDArray[np.float64],
    gnns: int,
    seeding: bool,
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


def _cross(rng: Rng, child: Float32, other: Float32, crossed: npt.NDArray[np.bool_], shapes: Shapes) -> None:
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


def _mutate(rng: Rng, child: Float32, mutated: npt.NDArray[np.bool_], shapes: Shapes) -> None:
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


def breed_chromosomes(
    rng: Rng, proposals: Proposals, old: Chromosomes, plan: Breeding, settings: Settings
) -> Chromosomes:
    """The next chromosomes: mixed, or seeded from a GNN, then mutated."""
    count, entries, _ = old.prior.shape
    a, b = plan.chromosome_a, plan.chromosome_b
    mix = rng.random((count, entries, 1)) < (1.0 if settings.anchor else 0.5)
    prior = np.where(mix, old.prior[a], old.prior[b])
    warmth = np.where(mix, old.temperature[a], old.temperature[b])
    anchor, fitness = old.anchor[a], old.fitness[a]
    cold = np.exp(rng.uniform(np.log(0.1), np.log(0.4), (count, 1, 1)))
    seeded = plan.seeded_by >= 0
    if seeded.any():
        by = plan.seeded_by[seeded]
        p = proposals.probabilities[by]
        if settings.seeding == "sharp":  # nothing calibrates a GNN's probabilities
            p = _around(proposals.maps[by], p)
            warmth[seeded] = cold[seeded]
        prior[seeded] = p
        if settings.anchor:
            anchor[seeded], fitness[seeded] = proposals.maps[by], proposals.rewards[by]
    if settings.anchor:  # a copy tries other distances than its parent
        copied = (a != np.arange(count))[:, None, None]
        warmth = np.where(copied, cold, warmth)
    mutated = plan.mutated[-count:, None, None]
    prior = prior * np.where(mutated, rng.normal(1.0, 0.1, prior.shape), 1.0)
    warmth = warmth * np.where(mutated, rng.normal(0.95, 0.1, warmth.shape), 1.0)
    return Chromosomes(*_projected(prior, warmth), anchor, fitness)


def _projected(prior: npt.NDArray[np.floating], warmth: npt.NDArray[np.floating]) -> tuple[Float32, Float32]:
    prior = np.maximum(prior, LEAST)
    return (
        (prior / prior.sum(-1, keepdims=True)).astype(np.float32),
        np.clip(warmth, COLDEST, WARMEST).astype(np.float32),
    )
