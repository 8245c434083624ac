"""A bound of the Mapping problem that knows that fast memories are small, and needs NumPy alone.

All weights in a memory fit it together. Let a byte of weights in memory m cost a price p_m: the time
of a map plus the price of its weights, less the price of the whole memory, is never above its time.
With prices fixed every node can choose for itself, so the least of that sum is quick to find; any
prices give a bound, and good ones are searched for. Activations are taken to be where they cost
least, and weights that several nodes read to be paid for by the first: both only lower the bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster.mapping.exact_model import MappingModel, mapping_model
from loadmaster.mapping.problem import Mapping
from loadmaster.search.problem import Bound

Float64 = npt.NDArray[np.float64]
ROUNDS, STEPS = 6, 40
SAFETY = 1e-9
"""Of floating point: sums of a million numbers are far more exact than this."""
_NEVER = 1e30


def weights_bound(problem: Mapping) -> Bound:
    """The problem's own bound, or this one if it is higher."""
    own = problem.bound()
    model = mapping_model(problem)
    if not problem.repeatable or model.parallel or model.too_long or not model.entries:
        return own
    time, size = _choices(model)
    room = model.capacity[:-1].astype(np.float64)
    prices = np.zeros(len(room))

    def worth(at: Float64) -> float:
        paid = np.append(at, 0.0)
        return float((time + paid * size).min(axis=1).sum() - at @ room)

    # All together first: a price for one memory alone only drives weights into the next.
    heads = [np.arange(len(room)) <= last for last in range(len(room) - 1, -1, -1)]
    ways = [way.astype(np.float64) for way in (*heads, *np.eye(len(room)))]
    dearest = max((_dearest(time, size, memory) for memory in range(len(room))), default=0.0)
    for _ in range(ROUNDS):
        for way in ways:
            prices = _along(worth, prices, way, dearest)
    found = int(worth(prices) * (1 - SAFETY)) - 1
    return max(own, Bound(found, "prices for room, activations left out"), key=lambda b: b.value)


def _choices(model: MappingModel) -> tuple[Float64, Float64]:
    """([N, M] time of each node by the memory of its own weights, [N, M] their bytes)."""
    node = np.repeat(np.arange(model.nodes), np.diff(model.access_start))
    cost = model.access_cost.astype(np.float64)
    pinned = model.pinned[model.access_entry]
    barred = (pinned[:, None] >= 0) & (np.arange(model.memories) != pinned[:, None])
    cost[barred] = _NEVER
    own = _owned(model, node)
    memory = model.fixed.astype(np.float64)
    np.add.at(memory, node[~own], cost[~own].min(axis=1))
    by_choice = np.repeat(memory[:, None], model.memories, axis=1)
    by_choice[node[own]] += cost[own]
    size = np.zeros_like(by_choice)
    size[node[own]] = model.always[model.access_entry[own]]
    small = np.minimum(model.compute[:, None], by_choice)
    large = np.maximum(model.compute[:, None], by_choice)
    once = large + small * (model.overlap[:, None] / 10**6) + model.launch[:, None]
    return np.maximum(1.0, once) * model.repeat[:, None], size


def _owned(model: MappingModel, node: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """[A] accesses to weights by their first reader, at most one (the largest) for a node."""
    bytes_ = model.always[model.access_entry, -1]
    own = np.zeros(len(node), dtype=np.bool_)
    weights = np.flatnonzero(bytes_ > 0)
    _, first = np.unique(model.access_entry[weights], return_index=True)
    candidates = weights[first]  # accesses stand in the order of their nodes
    by_size = candidates[np.lexsort((-bytes_[candidates], node[candidates]))]
    _, largest = np.unique(node[by_size], return_index=True)
    own[by_size[largest]] = True
    return own


def _dearest(time: Float64, size: Float64, memory: int) -> float:
    """A price at which nobody wants a byte of a memory."""
    held = size[:, memory] > 0
    gain = time[held].max(axis=1) - time[held, memory]
    gain = np.where(time[held].max(axis=1) >= _NEVER, 0.0, gain)
    return float((gain / size[held, memory]).max(initial=0.0))


def _along(worth: Callable[[Float64], float], prices: Float64, way: Float64, most: float) -> Float64:
    """Better prices along one direction: what they are worth is concave."""
    low, high = -float(prices[way > 0].min()), most  # no price is below 0

    for _ in range(STEPS):
        third = (high - low) / 3
        if worth(prices + (low + third) * way) < worth(prices + (high - third) * way):
            low += third
        else:
            high -= third
    best = np.maximum(0.0, prices + (low + high) / 2 * way)
    return best if worth(best) > worth(prices) else prices
