"""The decoder of maps as plainly as it can be said: after every move all moves are tried again.

Written from the text of `native/src/map_decoder.hpp`; times and capacities are those of `MappingModel`, and no code
is shared with the native core.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from loadmaster.mapping.model import MappingModel
from loadmaster.mapping.problem import Mapping


def decode_slowly(
    problem: Mapping, model: MappingModel, scores: np.ndarray, nominal: bool, linear: float
) -> np.ndarray:
    """int8[2N]: the map of scores [E, S]."""
    slowest, volume = problem.slowest, _volumes(problem)
    chosen = np.where(model.pinned < 0, slowest, model.pinned)
    while True:
        moves = [
            (entry, memory)
            for entry in np.flatnonzero(model.pinned < 0).tolist()
            for memory in range(chosen[entry])
            if _fits(model, chosen, entry, memory)
        ]
        ranked = []
        for entry, memory in moves:
            score, bytes_times_life = float(scores[entry, memory]), int(volume[entry][memory])
            if not nominal:
                if score > -math.inf:
                    ranked.append((score, Fraction(0), -entry, -memory))
                continue
            saved = _time(model, chosen) - _time(model, _moved(chosen, entry, memory))
            gain = (1 - linear) * saved + linear * _memory_time_saved(model, chosen, entry, memory)
            density = Fraction(saved, bytes_times_life) if linear == 0 else Fraction(0)
            key = math.exp(min(score, 300.0)) * (gain / bytes_times_life)
            if gain > 0 and key > 0:
                ranked.append((key, density, -entry, -memory))
        if not ranked:
            decision = problem.all_slowest()
            decision[problem.entries.live] = chosen
            return decision
        *_, entry, memory = max(ranked)
        chosen = _moved(chosen, -entry, -memory)


def _moved(chosen: np.ndarray, entry: int, memory: int) -> np.ndarray:
    after = chosen.copy()
    after[entry] = memory
    return after


def _fits(model: MappingModel, chosen: np.ndarray, entry: int, memory: int) -> bool:
    return bool(model.fits(_moved(chosen, entry, memory)[None])[0])


def _time(model: MappingModel, chosen: np.ndarray) -> int:
    return int(model.time(chosen[None])[0])


def _memory_time_saved(model: MappingModel, chosen: np.ndarray, entry: int, memory: int) -> int:
    """Of all accesses to an entry, one by one, whether their op gets faster by it or not."""
    saved = 0
    for node in range(model.nodes):
        here = model.accesses(node)
        for accessed, cost in zip(model.access_entry[here], model.access_cost[here], strict=True):
            if accessed == entry:
                saved += int(model.repeat[node]) * int(cost[chosen[entry]] - cost[memory])
    return saved


def _volumes(problem: Mapping) -> list[list[int]]:
    """[E][M] aligned bytes times ops of life, at least 1."""
    entries = problem.entries
    volumes = []
    for entry in np.flatnonzero(entries.live):
        total = [0] * len(problem.memories)
        for piece in range(entries.piece_start[entry], entries.piece_start[entry + 1]):
            life = int(entries.piece_last[piece]) - int(entries.piece_first[piece]) + 1
            sizes = entries.piece_size[piece].tolist()
            total = [sum_ + size * life for sum_, size in zip(total, sizes, strict=True)]
        volumes.append([max(1, each) for each in total])
    return volumes
