"""Which opening to try next: openings that gain together, as training cells showed, and what came of those tried.

On a cell the gains of all M openings are taken to be `scale * (mean + factors @ z + noise)` with normal z and noise
(factor analysis): a few openings that were tried say which others are likely to gain, and how much there is to
gain on this cell at all. The next is the one whose expected improvement over the best so far is largest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadmaster.arrays import Float64, Int64

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
