"""Generated buffers: perfect packings (the optimum is known by design) and training-like graphs."""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.buffers import Buffers

Rectangle = tuple[int, int, int, int]
"""(time, address, duration, size)"""


def perfect_packing(rng: np.random.Generator, count: int, kind: str) -> tuple[Buffers, int]:
    """(buffers, height): `count` buffers cut out of a rectangle without waste.

    'guillotine' cuts a rectangle in two; 'pinwheel' now and then cuts one into five around a middle,
    which no sequence of straight cuts can make. Offsets are not told: they are to be found.
    """
    height, width = 2**20, 10 * count
    pieces: list[Rectangle] = [(0, 0, width, height)]
    while len(pieces) < count:
        # Large pieces are cut more often, so that sizes stay of one order.
        areas = np.array([w * h for _, _, w, h in pieces], dtype=np.float64)
        number = int(rng.choice(len(pieces), p=areas / areas.sum()))
        piece = pieces[number]
        wheel = kind == "pinwheel" and len(pieces) + 4 <= count and rng.random() < 0.5
        parts = _pinwheel(rng, piece) if wheel else _two(rng, piece)
        pieces[number : number + 1] = parts or [piece]
        if not parts and all(w < 2 and h < 2 for _, _, w, h in pieces):
            break
    order = rng.permutation(len(pieces))
    chosen = [pieces[i] for i in order]
    lower = [t for t, _, _, _ in chosen]
    upper = [t + w for t, _, w, _ in chosen]
    return Buffers.of(lower, upper, [h for _, _, _, h in chosen]), height


def _cut(rng: np.random.Generator, length: int) -> int:
    return int(np.clip(round(length * rng.uniform(0.2, 0.8)), 1, length - 1))


def _two(rng: np.random.Generator, piece: Rectangle) -> list[Rectangle]:
    t, a, w, h = piece
    along_time = w >= 2 and (h < 2 or rng.random() < 0.5)
    if along_time:
        cut = _cut(rng, w)
        return [(t, a, cut, h), (t + cut, a, w - cut, h)]
    if h < 2:
        return []
    cut = _cut(rng, h)
    return [(t, a, w, cut), (t, a + cut, w, h - cut)]


def _pinwheel(rng: np.random.Generator, piece: Rectangle) -> list[Rectangle]:
    t, a, w, h = piece
    if w < 3 or h < 3:
        return _two(rng, piece)
    x1, x2 = sorted(rng.choice(np.arange(1, w), size=2, replace=False).tolist())
    y1, y2 = sorted(rng.choice(np.arange(1, h), size=2, replace=False).tolist())
    return [
        (t, a, x2, y1),
        (t + x2, a, w - x2, y2),
        (t + x1, a + y2, w - x1, h - y2),
        (t, a + y1, x1, h - y1),
        (t + x1, a + y1, x2 - x1, y2 - y1),
    ]


def training_like(rng: np.random.Generator, count: int) -> Buffers:
    """A training step: weights that live throughout, activations kept for the backward pass in
    nested lives, and many short temporaries."""
    kept, nested = count // 50, count // 3
    short = count - kept - nested
    length = 2 * count
    half = np.sort(rng.integers(0, length // 2, nested))
    start = np.concatenate([np.zeros(kept, dtype=np.int64), half, rng.integers(0, length - 8, short)])
    end = np.concatenate([np.full(kept, length), length - half, np.zeros(short, dtype=np.int64)])
    end[kept + nested :] = start[kept + nested :] + rng.integers(1, 9, short)
    size = np.exp(rng.uniform(np.log(256), np.log(2**22), count)).astype(np.int64) // 64 * 64 + 64
    return Buffers.of(start, end, size)
