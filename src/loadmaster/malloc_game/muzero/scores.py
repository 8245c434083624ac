"""What the player sees of a tensor, and how it scores it: a weight for every feature.

Features are ranks among the tensors of the program and ratios (bytes to capacity, times to the program's),
so that they mean the same for every program and machine; a third of them is feedback of the first plan. The
second half is the first half's mean over the tensors that are alive at the same steps, by their bytes: one
graph convolution over what competes for the same room, which no weight changes and which is made once.

A score is added to a tensor's priority on the board: with scores 0 the plan is that of `msa-refined`.
Shapes: B tensors, F features, P members of a population.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

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
    """What a player brings to every game: openings, which of them gain together, and the odds of moves."""

    linear: LinearScore
    weights: Float64
    """[F] of the score that decides best at once"""
    heads: Float64
    """[M, F] added to the weights, for each opening"""
    settings: Int64
    """[M] of the openings, among the changes; 0: the first state's own"""
    changes: tuple[dict[str, Any], ...]
    """[S] of the options of the first state"""
    portfolio: Portfolio | None = None
    screen: Screen | None = None

    def openings(self, board: Board, features: Float32) -> Float64:
        """[M, B] priorities, of normalised features."""
        return board.own + self.linear.score(features, self.weights[None]) + self.heads @ features.T


def untrained(features: int = FEATURES, changes: tuple[dict[str, Any], ...] = CHANGES) -> Policy:
    """Scores nothing: its openings are the first state with other settings, one after the other."""
    linear = LinearScore(np.zeros(features, np.float32), np.full(features, 0.3, np.float32))
    count = len(changes)
    return Policy(linear, np.zeros(features), np.zeros((count, features)), 1 + np.arange(count), changes)


@lru_cache(maxsize=32)
def load_policy(name: str) -> Policy:
    """`SHIPPED`, or a file of `train`."""
    arrays, about = read_policy(name, "muzero")
    try:
        policy = make_policy(arrays, about)
        fine = _fits(policy)
    except (KeyError, TypeError, ValueError, OverflowError, BadOption):
        fine = False
    if not fine:
        raise BadPolicy(
            f"policy '{name}' has no score for the board",
            object=name,
            remedy="train it with this version: loadmaster train muzero --out POLICY.npz",
        )
    return policy


def pack_policy(policy: Policy) -> dict[str, Array]:
    """Its arrays, in single precision; `changes` go into the header."""
    parts = (("portfolio", policy.portfolio, _PORTFOLIO), ("screen", policy.screen, _SCREEN))
    arrays: dict[str, Array] = {
        "mean": policy.linear.mean,
        "deviation": policy.linear.deviation,
        "parameters": policy.weights,
        "heads": policy.heads,
    }
    for part, held, names in parts:
        if held is not None:
            arrays |= {f"{part}.{name}": np.asarray(getattr(held, name)) for name in names}
    small: dict[str, Array] = {name: each.astype(np.float32) for name, each in arrays.items()}
    return small | {"settings": policy.settings.astype(np.int16)}


_PORTFOLIO, _SCREEN = ("mean", "factors", "noise", "scales"), ("mean", "deviation", "weights", "bias")


def make_policy(arrays: Mapping[str, Array], about: Mapping[str, Any]) -> Policy:
    """Of what `pack_policy` wrote and a header."""
    mean, deviation = (arrays[part].astype(np.float32) for part in ("mean", "deviation"))
    weights, heads = (arrays[part].astype(np.float64) for part in ("parameters", "heads"))
    portfolio = Portfolio(*(arrays[f"portfolio.{name}"].astype(np.float64) for name in _PORTFOLIO))
    screen = None
    if "screen.mean" in arrays:
        low, wide, odds, bias = (arrays[f"screen.{name}"] for name in _SCREEN)
        screen = Screen(low.astype(np.float32), wide.astype(np.float32), odds.astype(np.float64), float(bias))
    changes = tuple(dict(each) for each in about["changes"])
    board_settings(changes)
    settings = arrays["settings"].astype(np.int64)
    return Policy(LinearScore(mean, deviation), weights, heads, settings, changes, portfolio, screen)


def _fits(policy: Policy) -> bool:
    """Whether all is there, of one size, and finite."""
    linear, known, screen = policy.linear, policy.portfolio, policy.screen
    if known is None or screen is None:
        return False
    count, width, moves = len(policy.settings), linear.features, len(screen.mean)
    shapes: list[tuple[Array, tuple[int, ...]]] = [
        (linear.mean, (width,)),
        (linear.deviation, (width,)),
        (policy.weights, (width,)),
        (policy.heads, (count, width)),
        (known.mean, (count,)),
        (known.factors, (count, *known.factors.shape[1:2])),
        (known.noise, (count,)),
        (known.scales, (*known.scales.shape[:1],)),
        (screen.mean, (moves,)),
        (screen.deviation, (moves,)),
        (screen.weights, (moves,)),
    ]
    fine = all(each.shape == shape and bool(np.isfinite(each).all()) for each, shape in shapes)
    fine = fine and 1 <= count <= MOST_OPENINGS and moves == moves_width(width) and math.isfinite(screen.bias)
    fine = fine and bool(((policy.settings >= 0) & (policy.settings <= len(policy.changes))).all())
    positive = (linear.deviation, known.noise, known.scales, screen.deviation)
    return fine and all(len(each) > 0 and bool((each > 0).all()) for each in positive)


# Which opening to try next: openings that gain together, as training cells showed, and what came of those tried.
#
# On a cell the gains of all M openings are taken to be `scale * (mean + factors @ z + noise)` with normal z and noise
# (factor analysis): a few openings that were tried say which others are likely to gain, and how much there is to
# gain on this cell at all. The next is the one whose expected improvement over the best so far is largest.

LEAST_GAIN, MOST_GAIN = -0.05, 0.15
"""Gains beyond count as these: no cell outweighs the others, and bad openings are bad, whatever they cost."""
FACTORS, SCALES = 8, 9
_LEAST_SCALE, _LEAST_NOISE = 1e-3, 0.02


class Posterior(NamedTuple):
    """Of a cell's gains, in its scale."""

    scale: float
    mean: Float64
    variance: Float64
    """[M]"""


@dataclass(frozen=True)
class Portfolio:
    """What is known of M openings before a game."""

    mean: Float64
    factors: Float64
    """[M, R]"""
    noise: Float64
    """[M] variances"""
    scales: Float64
    """[S] of cells, all as likely"""

    def posterior(self, tried: Int64, gains: Float64) -> Posterior:
        """Given the gains [n] of the openings tried [n]; the likeliest scale is taken."""
        factors, noise, cut = self.factors[tried], self.noise[tried], np.clip(gains, LEAST_GAIN, MOST_GAIN)
        precision = np.eye(factors.shape[1]) + factors.T @ (factors / noise[:, None])
        covariance = np.linalg.inv(precision)
        left = cut / self.scales[:, None] - self.mean[tried]
        pull = left @ (factors / noise[:, None])
        misfit = (left**2 / noise).sum(axis=1) - np.einsum("sr,rq,sq->s", pull, covariance, pull)
        likely = int(np.argmax(-0.5 * misfit - len(tried) * np.log(self.scales)))
        variance = np.einsum("mr,rq,mq->m", self.factors, covariance, self.factors) + self.noise
        mean = self.mean + self.factors @ (covariance @ pull[likely])
        return Posterior(float(self.scales[likely]), mean, variance)

    def choose(self, count: int, tried: Int64, gains: Float64) -> Int64:
        """[count] the openings of most expected improvement, none of those tried."""
        scale, mean, variance = self.posterior(tried, gains)
        deviation = np.sqrt(variance)
        ahead = (mean - max(0.0, float(gains.max(initial=0.0))) / scale) / deviation
        improvement = deviation * (ahead * _below(ahead) + np.exp(-(ahead**2) / 2) / np.sqrt(2 * np.pi))
        improvement[tried] = -np.inf
        ranked: Int64 = np.argsort(-improvement, kind="stable")
        return ranked[: min(count, len(ranked) - len(tried))]


def _below(value: Float64) -> Float64:
    """The normal distribution's share below, to 0.001."""
    share: Float64 = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    return share


def fit_portfolio(gains: Float64) -> Portfolio:
    """Of gains [cells, M]: principal factors of what each cell has in its own scale, the rest is noise."""
    cut = np.clip(gains, LEAST_GAIN, MOST_GAIN)
    scale = np.sqrt((cut**2).mean(axis=1)) + _LEAST_SCALE
    own = cut / scale[:, None]
    mean = own.mean(axis=0)
    spread = own - mean
    _, size, axes = np.linalg.svd(spread / np.sqrt(len(own)), full_matrices=False)
    factors = (axes[:FACTORS] * size[:FACTORS, None]).T
    noise = np.maximum((spread**2).mean(axis=0) - (factors**2).sum(axis=1), _LEAST_NOISE)
    scales = np.exp(np.quantile(np.log(scale), (np.arange(SCALES) + 0.5) / SCALES))
    return Portfolio(mean, factors, noise, scales)


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


# Which of many proposed moves are evaluated: those that are likely to make a plan faster than the one they change.
#
# A move changes the priorities of some tensors. What it changes is summed over the tensors that move, each by how far: what
# they are (features) and what the plan in hand says of them (kept, lost, blamed). A weight for each of these sums gives
# the logarithm of the odds that the changed plan is faster: learned from every move that was evaluated on training
# cells (logistic regression), so that it says how plans *differ*, and never what one is worth.

KINDS = 4
"""Of moves."""
SEEN = 39
"""Of a tensor's features, without what is around it."""
VIEWED = 17
"""Of a tensor, in a plan."""
_MOST = 4.0
_STEPS, _RIDGE = 12, 30.0
"""Of Newton's method; against weights that few moves decide."""


def view_plan(features: Float32, priorities: Float64, placed: Placements) -> Float32:
    """[B, V] what a move may know of the tensors of a plan, given their normalised features."""
    kept, lost, blamed, total = placed.kept[0], placed.lost[0], placed.blamed[0], float(placed.total[0])
    at, is_kept, is_lost = priorities - 0.5, kept > 0, lost > 0
    seen = [
        np.ones(len(at)),
        at,
        2 * at**2,
        _rank_one(kept) * is_kept,
        _rank_one(lost) * is_lost,
        _rank_one(blamed),
        is_kept - 0.5,
        is_lost - 0.5,
        at * is_kept,
        at * is_lost,
        kept / np.maximum(kept + lost, 1.0) - 0.5,
        *(
            1 + np.clip(np.log(np.maximum(each / total, _LEAST)) / 6, -1.5, 1.5)
            for each in (kept, lost, blamed)
        ),
        *(np.minimum(100 * each / total, 3.0) for each in (kept, lost, blamed)),
    ]
    return np.concatenate([features[:, :SEEN], np.stack(seen, axis=1)], axis=1).astype(np.float32)


def moves_width(features: int) -> int:
    """D of moves where tensors have so many features."""
    return KINDS + 5 + 2 * (min(SEEN, features) + VIEWED)


def _rank_one(values: Float64) -> Float64:
    return np.argsort(np.argsort(values, kind="stable")) / max(1, len(values) - 1) - 0.5


class Start(NamedTuple):
    """The plan that a move changes."""

    view: Float32
    """[B, V]"""
    priorities: Float64
    behind: float
    """log(its time / the best)"""
    setting: int


def describe_moves(
    starts: Sequence[Start],
    start: Int64,
    priorities: Float64,
    settings: Int64,
    kinds: Int64,
    best_in: Float64,
) -> Float32:
    """[K, D] of moves to priorities [K, B] and settings [K].

    Args:
      starts: the plans that are changed; `start` [K] says which by each move.
      kinds: [K] of the moves.
      best_in: [settings] the best time in each so far; infinite: none.
    """
    count = priorities.shape[1]
    rows = np.empty((len(priorities), KINDS + 5 + 2 * starts[0].view.shape[1]), np.float32)
    rows[:, :KINDS] = kinds[:, None] == np.arange(KINDS)
    for number, each in enumerate(starts):
        mine = np.flatnonzero(start == number)
        if not len(mine):
            continue
        moved = (priorities[mine] - each.priorities).astype(np.float32)
        far = np.abs(moved)
        whole = far.sum(axis=1, keepdims=True) + np.float32(1e-6)
        rows[mine, KINDS] = np.log(whole[:, 0] / count + 1e-4) / 4
        rows[mine, KINDS + 1] = np.log1p((far > 2.5 / count).sum(axis=1)) / 4 - 0.5
        rows[mine, KINDS + 2] = min(3.0, 100 * each.behind)
        with np.errstate(invalid="ignore"):
            change = np.log(best_in[settings[mine]] / best_in[each.setting])
        rows[mine, KINDS + 3] = np.where(np.isfinite(change), np.clip(30 * change, -2, 2), 0.0)
        rows[mine, KINDS + 4] = settings[mine] != each.setting
        sums = [_product(part, each.view) for part in (moved, far)]
        rows[mine, KINDS + 5 :] = np.concatenate(sums, axis=1) / whole
    return rows


def _product(left: Float32, right: Float32) -> Float32:
    """As `left @ right`, by one thread: those of BLAS wait for one another on a busy computer, a hundred times as
    long as a product of this size takes."""
    product: Float32 = np.einsum("kb,bv->kv", left, right)
    return product


@dataclass(frozen=True)
class Screen:
    """The odds of moves."""

    mean: Float32
    deviation: Float32
    weights: Float64
    """[D]"""
    bias: float

    def log_odds(self, moves: Float32) -> Float64:
        """[K] of moves [K, D] that their plans are faster than those they start from."""
        odds: Float64 = np.einsum("kd,d->k", self._normalise(moves), self.weights) + self.bias
        return odds

    def _normalise(self, moves: Float32) -> Float32:
        clipped: Float32 = np.clip((moves - self.mean) / self.deviation, -_MOST, _MOST)
        return clipped


def fit_screen(moves: Float32, is_faster: Float64) -> Screen:
    """Logistic regression of moves [K, D] by Newton's method."""
    mean, deviation = moves.mean(axis=0), moves.std(axis=0) + np.float32(1e-3)
    screen = Screen(mean, deviation, np.zeros(moves.shape[1]), 0.0)
    inputs = np.concatenate([screen._normalise(moves), np.ones((len(moves), 1), np.float32)], axis=1)
    ridge = np.full(inputs.shape[1], _RIDGE)
    ridge[-1] = 1e-3
    weights = np.zeros(inputs.shape[1])
    for _ in range(_STEPS):
        odds = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        slope = inputs.T @ (odds - is_faster).astype(np.float32) + ridge * weights
        curvature = inputs.T @ (inputs * (odds * (1 - odds)).astype(np.float32)[:, None]) + np.diag(ridge)
        weights = weights - np.linalg.solve(curvature, slope)
    return Screen(mean, deviation, weights[:-1], float(weights[-1]))
