"""What EGRL's policy sees of a (tensor, memory) pair, and the small graph network that scores it.

A policy is conditioned on the program and on the machine: every number is a ratio (bytes to a capacity,
memory time to compute time, a life to the program), so that it means the same on a microcontroller and on
a GPU. Two views, one network:

- *nominal*: times are those of the machine's description, which may be wrong.
- *strict*: no rates are known. Every memory is assumed to be `ASSUMED_RATIO` times as fast as the next
  slower one, and ops to wait for memory alone; what is left is the observation (graph, bytes, flops and
  kinds of ops, lives, capacities).

Scores are 0 before anything is learned, which with the decoder is greedy by density. Shapes: E entries,
S memories faster than the slowest, F features, H hidden units, P members of a population.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from loadmaster.arrays import Bool, Float32, Float64, Int8, Int32, Int64
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.features import OPS, op_kinds
from loadmaster.mapping.model import MappingModel, make_model
from loadmaster.mapping.problem import Mapping

ASSUMED_RATIO = 8
ASSUMED_SLOWEST = 10**9
"""Bytes per second of the slowest memory; only ratios matter."""
VIEWS = ("nominal", "strict")
_LEAST = 1e-12
_FLOOR = 1e-7
"""Shares of the whole time below this are the same."""


class View:
    """A problem as a policy sees it: features, who shares an op with whom, and the decoder.

    Args:
      problem: the maps to be made.
      kind: 'nominal' or 'strict'.
    """

    def __init__(self, problem: Mapping, kind: str = "nominal") -> None:
        if kind not in VIEWS:
            raise ValueError(f"a view is {' or '.join(VIEWS)}, not {kind!r}")
        self.problem, self.kind = problem, kind
        self.model: MappingModel = make_model(problem) if kind == "nominal" else assume_rates(problem)
        self.decoder = Decoder(problem, self.model)
        self.open: Bool = self.model.pinned < 0
        """[E] entries that are not pinned."""

    @property
    def shape(self) -> tuple[int, int]:
        """(E, S)"""
        return self.decoder.shape

    @cached_property
    def features(self) -> Float32:
        """[E * S, F], pair by pair; not yet normalised. The second half is the first half's mean over what
        shares an op with the tensor: one graph convolution, which no parameter changes, made once."""
        own = _pair_features(self)
        near = _mean_around(self, own.reshape(self.shape[0], -1)).reshape(own.shape)
        return np.concatenate([own, near], axis=1)

    def decode(self, scores: Float64, linear: float | Float64 = 0.0, threads: int | None = None) -> Int8:
        """Maps int8[B, 2N] of scores [B, E * S] or [B, E, S]."""
        return self.decoder.decode(scores.reshape(-1, *self.shape), linear=linear, threads=threads)


def assume_rates(problem: Mapping) -> MappingModel:
    """The model of a machine of which only the capacities are known: see the head of this file."""
    memories = list(problem.machine.memories)
    for position, number in enumerate(problem.memories):
        rate = ASSUMED_SLOWEST * ASSUMED_RATIO ** (problem.slowest - position)
        memories[number] = replace(memories[number], read=rate, write=rate, latency=0)
    assumed = replace(problem.machine, memories=tuple(memories), text="")
    model = make_model(problem, assumed)
    nothing = np.zeros_like(model.compute)
    return replace(
        model, compute=nothing, launch=nothing, overlap=np.zeros_like(model.overlap), parallel=np.bool_(False)
    )


def _log(x: Float64) -> Float64:
    return np.log(np.maximum(x, _LEAST))


def _pair_features(view: View) -> Float32:
    """[E * S, F]: of the entry, of the ops that access it, of its neighbours, and of the pair."""
    model, problem = view.model, view.problem
    entries, slowest = view.shape
    node, entry = model.access_node, model.access_entry
    cost = model.access_cost.astype(np.float64)
    repeat, compute = model.repeat.astype(np.float64), model.compute.astype(np.float64)
    slow = model.fixed.astype(np.float64)
    fast = slow.copy()
    np.add.at(slow, node, cost[:, -1])
    np.add.at(fast, node, cost[:, 0])
    lives = _Lives(view)
    times = np.maximum(compute, slow) * repeat
    total = max(float(times.sum()), 1.0)
    weight = cost[:, -1] * repeat[node]
    weight_sum = np.maximum(_sums(entry, weight, entries), 1e-9)

    def mean(value: Float64) -> Float64:
        return _sums(entry, weight * value, entries) / weight_sum

    def extreme(value: Float64, by: np.ufunc, start: float) -> Float64:
        found = np.full(entries, start)
        by.at(found, entry, value)
        return np.where(accesses > 0, found, 0.0)

    accesses = np.bincount(entry, minlength=entries).astype(np.float64)
    traffic = _sums(entry, weight, entries)
    share = cost[:, -1] / np.maximum(slow[node], 1e-9)
    bound_slow = np.clip(_log(slow / np.maximum(compute, 1.0)) / 3, -3, 3)
    bound_fast = np.clip(_log(fast / np.maximum(compute, 1.0)) / 3, -3, 3)
    intensity = _log_intensity(problem)
    kinds = np.zeros((entries, len(OPS)))
    np.add.at(kinds, (entry, op_kinds(problem)[node]), weight)
    columns = [
        _log(lives.size[:, -1] / lives.size[:, -1].sum()) / 3,
        lives.life,
        _log(lives.life + 1e-4) / 3,
        lives.always,
        np.log1p(accesses) / 2,
        _log(traffic / np.maximum(lives.size[:, -1], 1.0) / total * lives.size[:, -1].sum() + 1e-3) / 3,
        lives.first / lives.ops,
        mean(share),
        extreme(share, np.maximum, 0.0),
        mean(bound_slow[node]),
        extreme(bound_slow[node], np.maximum, -9.0),
        extreme(bound_slow[node], np.minimum, 9.0),
        mean(bound_fast[node]),
        extreme(bound_fast[node], np.maximum, -9.0),
        mean(_log((times / total)[node])) / 3,
        mean(intensity[node]) / 3,
        *(kinds / weight_sum[:, None]).T,
    ]
    of_entry = np.stack(columns, axis=1)
    pairs = [_of_pair(view, lives, memory, slow, fast, total) for memory in range(slowest)]
    of_pair = np.stack(pairs, axis=1)  # [E, S, .]
    rows = np.concatenate([np.repeat(of_entry[:, None], slowest, axis=1), of_pair], axis=2)
    flat: Float32 = np.clip(np.nan_to_num(rows), -8, 8).reshape(entries * slowest, -1).astype(np.float32)
    return flat


class _Lives:
    """Bytes and lives of entries, and how many bytes are alive at every op."""

    def __init__(self, view: View) -> None:
        entries = view.problem.entries
        live = view.decoder.live
        self.ops = view.problem.program.n_ops
        counts = np.diff(entries.piece_start)[live]
        self.owner = np.repeat(np.arange(len(live)), counts)
        self.begin = entries.piece_first.astype(np.int64)
        self.end = entries.piece_last.astype(np.int64) + 1
        self.piece_size = entries.piece_size.astype(np.float64)
        self.piece_always = entries.piece_always
        count = len(live)
        self.size = _sums(self.owner, self.piece_size, count)
        self.volume = np.maximum(
            _sums(self.owner, self.piece_size * (self.end - self.begin)[:, None], count), 1.0
        )
        self.life = self.volume[:, -1] / np.maximum(self.size[:, -1], 1.0) / self.ops
        self.always = _sums(self.owner, entries.piece_always.astype(np.float64), count) > 0
        self.first = np.full(count, self.ops, dtype=np.float64)
        np.minimum.at(self.first, self.owner, self.begin)
        loose = ~entries.piece_always
        change = np.zeros(self.ops + 1)
        np.add.at(change, self.begin[loose], self.piece_size[loose, -1])
        np.add.at(change, self.end[loose], -self.piece_size[loose, -1])
        self.activations = np.cumsum(change)[:-1]
        """[ops] bytes of activations alive."""
        self.weights = float(self.piece_size[~loose, -1].sum())

    def over(self, value: Float64) -> Float64:
        """[E] the mean over an entry's life of a value per op, each piece by its bytes."""
        summed = np.concatenate([[0.0], np.cumsum(value)])
        each = self.piece_size[:, -1] * (summed[self.end] - summed[self.begin])
        return _sums(self.owner, each, len(self.size)) / self.volume[:, -1]


def _of_pair(view: View, lives: _Lives, memory: int, slow: Float64, fast: Float64, total: float) -> Float64:
    """[E, .] features of all entries with one memory. The last one is the log of the density."""
    model = view.model
    node, entry, count = model.access_node, model.access_entry, len(lives.size)
    compute, repeat = model.compute.astype(np.float64)[node], model.repeat.astype(np.float64)[node]
    cost = model.access_cost.astype(np.float64)
    less = cost[:, -1] - cost[:, memory]
    capacity = float(max(1, model.capacity[memory]))

    def saved(base: Float64) -> Float64:
        after = np.maximum(base - less, compute)
        return _sums(entry, repeat * (np.maximum(base, compute) - after), count)

    linear = _sums(entry, repeat * less, count)
    first = saved(slow[node])
    last = saved(fast[node] - cost[:, 0] + cost[:, -1])
    floor = _FLOOR * total
    size = lives.size[:, memory]
    pressure = lives.activations / capacity
    whole = pressure + lives.weights / capacity
    contended = lives.over(np.minimum(1.0, whole))
    crowded = lives.over((pressure > 1).astype(np.float64))
    density = _log((linear + floor) / total) - _log(lives.volume[:, memory] / lives.volume[:, -1].sum())
    ones = np.ones(count)
    columns = [
        _log(linear / total + _FLOOR) / 3,
        _log(first / total + _FLOOR) / 3,
        _log(last / total + _FLOOR) / 3,
        (first + floor) / (linear + floor),
        (last + floor) / (linear + floor),
        np.clip(_log(size / capacity) / 3, -4, 4),
        ones * np.clip(np.log((lives.weights + 1) / capacity) / 3, -4, 4),
        ones * np.clip(np.log((lives.activations.max(initial=0) + 1) / capacity) / 3, -4, 4),
        ones * np.log((cost[:, -1].sum() + 1) / (cost[:, memory].sum() + 1)) / 3,
        ones * (memory == 0),
        ones * (view.shape[1] > 1),
        ones * np.log((compute.sum() + 1) / (slow.sum() + 1)) / 3,
        crowded,
        lives.over(np.clip(_log(pressure) / 3, -3, 3)),
        lives.over((pressure > 2).astype(np.float64)),
        np.minimum(1.0, lives.size[:, -1] * lives.over(1 / np.maximum(lives.activations, 1.0))),
        _log(contended + 1e-3) / 3,
        _log(crowded + 1e-2) / 3,
        _log(lives.over(np.minimum(4.0, pressure)) + 1e-3) / 3,
        ones * bool(model.parallel),
        density / 3,
    ]
    return np.stack(columns, axis=1)


def _mean_around(view: View, value: Float32) -> Float32:
    """[E, .]: of values [E, .] the mean, over the ops that access an entry, of what else they access by
    memory time; 0 where they access nothing else."""
    model = view.model
    node, entry = model.access_node, model.access_entry
    cost = model.access_cost[:, -1:].astype(np.float64) + 1.0
    by_node = _sums(node, value[entry] * cost, model.nodes)
    others = _sums(entry, by_node[node] - value[entry] * cost, len(value))
    weight = _sums(entry, _sums(node, cost, model.nodes)[node] - cost, len(value))
    return np.clip(others / np.maximum(weight, 1e-9), -8, 8).astype(np.float32)


def _log_intensity(problem: Mapping) -> Float64:
    """[N] the log of flops per byte that a node accesses: of the program, whatever the machine."""
    program, nodes = problem.program, problem.entries.node_op
    bytes_ = _sums(program.read_op, program.read_bytes.astype(np.float64), program.n_ops)
    bytes_ += _sums(program.write_op, program.write_bytes.astype(np.float64), program.n_ops)
    flops = program.op_flops[nodes].astype(np.float64)
    return np.log1p(flops if flops.ndim == 1 else flops.sum(axis=1)) - np.log1p(bytes_[nodes])


def _sums(index: Int64 | Int32, values: Float64, count: int) -> Float64:
    """[count, …] the sums of values [n, …] with equal index."""
    if values.ndim == 1:
        return np.bincount(index, weights=values, minlength=count).astype(np.float64)
    found = np.zeros((count, *values.shape[1:]))
    np.add.at(found, index, values)
    return found


@dataclass(frozen=True)
class Network:
    """A score for every pair: a linear part and hidden units, over features of the pair and of its
    neighbourhood in the graph.

    Parameters are one vector: `linear` [F], `enter` [F, H], `bias` [H], `leave` [H], and the log of the
    decoder's `linear`. With `linear` and `leave` 0 all scores are 0.
    """

    mean: Float32
    deviation: Float32
    """[F] of the features of the training set."""
    hidden: int = 16

    @property
    def features(self) -> int:
        return len(self.mean)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Parameters of each part."""
        f, h = self.features, self.hidden
        return f, f * h, h, h, 1

    @property
    def parameters(self) -> int:
        return sum(self.sizes)

    def start(self, rng: np.random.Generator) -> Float64:
        """[parameters] that score nothing yet."""
        f, h = self.features, self.hidden
        enter = rng.normal(size=f * h) / np.sqrt(f)
        return np.concatenate([np.zeros(f), enter, np.zeros(2 * h), [np.log(1e-3)]])

    def normalise(self, view: View) -> Float32:
        """[E * S, F] the view's features as the network takes them."""
        scaled = (view.features - self.mean) / self.deviation
        clipped: Float32 = np.clip(scaled, -5, 5).astype(np.float32)
        return clipped

    def score(self, features: Float32, parameters: Float64) -> Float64:
        """[P, E * S] of normalised features [E * S, F] and parameters [P, parameters]."""
        p, f, h = len(parameters), self.features, self.hidden
        parts = np.split(parameters.astype(np.float32), np.cumsum(self.sizes)[:-1], axis=1)
        linear, enter, bias, leave, _ = parts
        x = features @ enter.reshape(p, f, h).transpose(1, 0, 2).reshape(f, p * h) + bias.reshape(-1)
        x = np.maximum(x, np.float32(0.1) * x).reshape(-1, p, h)
        scores: Float64 = (linear @ features.T + np.einsum("eph,ph->pe", x, leave)).astype(np.float64)
        return scores

    def linear_of(self, parameters: Float64) -> Float64:
        """[P] how much of the decoder's ranking looks at memory time alone."""
        return np.exp(np.clip(parameters[..., -1], -11, -0.7))
