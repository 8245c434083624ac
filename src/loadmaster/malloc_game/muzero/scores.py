"""What the player sees of a tensor, and how it scores it: a weight for every feature.

Features are ranks among the tensors of the program and ratios (bytes to capacity, times to the program's),
so that they mean the same for every program and machine; a third of them is feedback of the first plan. The
second half is the first half's mean over the tensors that are alive at the same steps, by their bytes: one
graph convolution over what competes for the same room, which no weight changes and which is made once.

A score is added to a tensor's priority on the board: with scores 0 the plan is that of `msa-refined`.
Shapes: B tensors, F features, P members of a population.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.arrays import Array, Float32, Float64, Int64
from loadmaster.learn.policies import BadPolicy, read_policy
from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.msa import Placements
from loadmaster.malloc_game.muzero.board import Board, board_settings, lives
from loadmaster.search.solver import BadOption

SHIPPED = "pretrained:board"
"""The policy that comes with the package."""
UNTRAINED = "none"
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"max_ratio": 2.0},
    {"max_ratio": 4.0},
    {"max_ratio": 40.0},
    {"repacks": 50},
    {"min_ratio": 0.5, "preferred_ratio": 1.0},
    {"min_ratio": 0.8, "preferred_ratio": 1.5, "max_ratio": 3.0},
    {"preferred_ratio": 5.0, "max_ratio": 16.0, "repacks": 50},
)
"""Settings of a player that has learned nothing."""
MOST_OPENINGS = 1024
FEATURES = 78
"""F, context included."""
_LEAST = 1e-9


def make_features(board: Board, first: Placements) -> Float32:
    """[B, F] of tensors, given what the first plan says about itself."""
    own = _own_features(board, first)
    near = _mean_around(board.model, own)
    return np.concatenate([own, near], axis=1).astype(np.float32)


def _rank(columns: Float64) -> Float64:
    """[B, .] the place of each in its column, from -0.5 to 0.5."""
    place = np.argsort(np.argsort(columns, axis=0, kind="stable"), axis=0)
    return place / max(1, len(columns) - 1) - 0.5


def _log(ratio: Float64) -> Float64:
    return np.clip(np.log(np.maximum(ratio, _LEAST)) / 6, -1.5, 1.5)


def _own_features(board: Board, first_plan: Placements) -> Float64:
    model, tensors = board.model, board.model.tensors
    site_tensor, site_step, count = model.site_tensor, model.site_step, board.tensors

    def total(values: Float64) -> Float64:
        return np.bincount(site_tensor, weights=values, minlength=count).astype(np.float64)

    repeat = model.repeat[site_step].astype(np.float64)
    gain = total((model.site_slow - model.site_fast) * repeat)
    clock = np.concatenate([[0.0], np.cumsum((model.all_slow * model.repeat).astype(np.float64))])
    whole = max(clock[-1], 1.0)
    size, uses = tensors.size.astype(np.float64), total(np.ones(len(site_step)))
    first, last = lives(site_tensor, site_step, count)
    life = clock[last] - clock[first]
    gap = _largest_gap(model, clock, count)
    copy_in = np.maximum(tensors.copy_in, 0).astype(np.float64)
    area = size * (life + whole / 1e4)
    kept, lost, blamed = first_plan.kept[0], first_plan.lost[0], first_plan.blamed[0]
    filled = np.concatenate([[0.0], np.cumsum(first_plan.pressure[0] * np.diff(clock))])
    pressure = (filled[last + 1] - filled[first]) / np.maximum(clock[last + 1] - clock[first], 1.0)
    written = total(model.site_write.astype(np.float64))
    live = _over_lives(model, size, count) / max(1, model.capacity)
    ranked = _rank(
        np.stack(
            [
                size,
                gain,
                gain / size,
                uses,
                life,
                first.astype(np.float64),
                gap,
                gain / area,
                kept,
                lost,
                (kept + lost) / area,
                pressure,
                copy_in / np.maximum(gap, 1e3),
                blamed,
                (kept + _LEAST) / (blamed + whole / 1e6),
                board.own,
            ],
            axis=1,
        )
    )
    size_rank, gain_rank, life_rank, lost_rank, pressure_rank = (ranked[:, i] for i in (0, 1, 4, 9, 11))
    crossed = [
        size_rank**2,
        gain_rank**2,
        life_rank**2,
        lost_rank**2,
        life_rank * size_rank,
        pressure_rank * size_rank,
        pressure_rank * life_rank,
    ]
    flags = np.stack(
        [
            tensors.given > 0,
            tensors.output > 0,
            (uses == 2) & (last - first <= 1) & (written > 0),
            uses <= 2,
            written > 0,
            kept > 0,
            lost > 0,
            tensors.over >= 0,
        ],
        axis=1,
    ).astype(np.float64)
    ratios = [
        _log(size / model.capacity),
        _log(gain / whole),
        _log(life / whole),
        _log(copy_in / np.maximum(gap, 1.0)),
        _log(lost / whole),
        _log(kept / whole),
        _log(live),
        kept / np.maximum(kept + lost, 1.0),
    ]
    return np.concatenate(
        [ranked, np.stack(crossed, axis=1), flags - flags.mean(axis=0), np.stack(ratios, axis=1)], axis=1
    )


def _largest_gap(model: GameModel, clock: Float64, count: int) -> Float64:
    """[B] the longest time between two uses of a tensor in a row."""
    order = np.lexsort((model.site_step, model.site_tensor))
    tensor, at = model.site_tensor[order], clock[model.site_step[order]]
    gap = np.where(tensor[1:] == tensor[:-1], at[1:] - at[:-1], 0.0)
    found = np.zeros(count)
    np.maximum.at(found, tensor[1:], gap)
    return found


def _over_lives(model: GameModel, weight: Float64, count: int) -> Float64:
    """[B] the mean over a tensor's life of the sum of the weights [B] that are alive."""
    first, last = lives(model.site_tensor, model.site_step, count)
    change = np.zeros(model.steps + 1)
    np.add.at(change, first, weight)
    np.add.at(change, last + 1, -weight)
    summed = np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1])])
    mean: Float64 = (summed[last + 1] - summed[first]) / (last + 1 - first)
    return mean


def _mean_around(model: GameModel, value: Float64) -> Float64:
    """[B, .] of values [B, .] the mean over what is alive at the same steps, by its bytes."""
    count, size = len(value), model.tensors.size.astype(np.float64)
    bytes_ = _over_lives(model, size, count)
    columns = [_over_lives(model, size * column, count) / bytes_ for column in value.T]
    return np.stack(columns, axis=1)


@dataclass(frozen=True)
class LinearScore:
    """A score for every tensor: weights [F] times normalised features. With weights 0 all scores are 0."""

    mean: Float32
    deviation: Float32
    """[F] of the features of training cells"""

    @property
    def features(self) -> int:
        return len(self.mean)

    def normalise(self, features: Float32) -> Float32:
        """[B, F] as weights take them; a score without context has the first of them alone."""
        own = features[:, : self.features]
        clipped: Float32 = np.clip((own - self.mean) / self.deviation, -4, 4).astype(np.float32)
        return clipped

    def score(self, features: Float32, weights: Float64) -> Float64:
        """[P, B] of normalised features [B, F] and weights [P, F]."""
        return np.asarray(weights.astype(np.float32) @ features.T, dtype=np.float64)


@dataclass(frozen=True)
class Policy:
    """What a player brings to every game: openings, those first that cover most."""

    linear: LinearScore
    weights: Float64
    """[F] of the score that decides best at once"""
    heads: Float64
    """[M, F] added to the weights, for each opening"""
    settings: Int64
    """[M] of the openings, among the changes; 0: the first state's own"""
    changes: tuple[dict[str, Any], ...]
    """[S] of the options of the first state"""

    def openings(self, board: Board, features: Float32) -> Float64:
        """[M, B] priorities, of normalised features."""
        return board.own + self.linear.score(features, self.weights[None]) + self.heads @ features.T


def untrained(features: int = FEATURES, changes: tuple[dict[str, Any], ...] = CHANGES) -> Policy:
    """Scores nothing: its openings are the first state with other settings, one after the other."""
    linear = LinearScore(np.zeros(features, np.float32), np.full(features, 0.3, np.float32))
    count = len(changes)
    return Policy(linear, np.zeros(features), np.zeros((count, features)), 1 + np.arange(count), changes)


def load_policy(name: str) -> Policy:
    """`SHIPPED`, or a file of `train`."""
    arrays, about = read_policy(name, "muzero")
    try:
        policy = make_policy(arrays, about)
        fine = _fits(policy)
    except (KeyError, TypeError, ValueError, OverflowError, BadOption):
        fine = False
    if not fine and "network" in about:
        raise BadPolicy(
            f"policy '{name}' is a network of muzero as published, with no score for the board",
            object=name,
            remedy="give --set profile=paper with it",
        )
    if not fine:
        raise BadPolicy(
            f"policy '{name}' has no score for the board",
            object=name,
            remedy="train it with this version: loadmaster train muzero --out POLICY.npz",
        )
    return policy


def pack_policy(policy: Policy) -> dict[str, Array]:
    """Its arrays, in single precision; `changes` go into the header."""
    arrays: dict[str, Array] = {
        "mean": policy.linear.mean,
        "deviation": policy.linear.deviation,
        "parameters": policy.weights,
        "heads": policy.heads,
    }
    small: dict[str, Array] = {name: each.astype(np.float32) for name, each in arrays.items()}
    return small | {"settings": policy.settings.astype(np.int16)}


def make_policy(arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Policy:
    """Of what `pack_policy` wrote and a header."""
    mean, deviation = (arrays[part].astype(np.float32) for part in ("mean", "deviation"))
    weights, heads = (arrays[part].astype(np.float64) for part in ("parameters", "heads"))
    changes = tuple(dict(each) for each in about["changes"])
    board_settings(changes)
    settings = arrays["settings"].astype(np.int64)
    return Policy(LinearScore(mean, deviation), weights, heads, settings, changes)


def _fits(policy: Policy) -> bool:
    """Whether all is there, of one size, and finite."""
    linear = policy.linear
    count, width = len(policy.settings), linear.features
    shapes: list[tuple[Array, tuple[int, ...]]] = [
        (linear.mean, (width,)),
        (linear.deviation, (width,)),
        (policy.weights, (width,)),
        (policy.heads, (count, width)),
    ]
    fine = all(each.shape == shape and bool(np.isfinite(each).all()) for each, shape in shapes)
    fine = fine and 1 <= count <= MOST_OPENINGS and width > 0 and bool((linear.deviation > 0).all())
    return fine and bool(((policy.settings >= 0) & (policy.settings <= len(policy.changes))).all())


MOST_GAIN = 0.15
"""Gains beyond count as this: no cell outweighs the others."""


def choose_openings(gains: Float64, count: int) -> tuple[list[int], list[float]]:
    """Columns of gains [cells, K], each adding most to the best of those before; and the mean gain after each."""
    cut = np.minimum(gains, MOST_GAIN)
    best, chosen, means = np.zeros(len(gains)), [], []
    for _ in range(min(count, gains.shape[1])):
        column = int(np.maximum(best[:, None], cut).mean(axis=0).argmax())
        chosen.append(column)
        best = np.maximum(best, cut[:, column])
        means.append(float(best.mean()))
    return chosen, means
