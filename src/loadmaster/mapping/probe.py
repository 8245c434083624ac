"""Measured density: time one tensor of each kind in each memory, then be greedy with what was measured.

Grey box: it reads sizes, lives and capacities, so that whatever it evaluates fits; how fast anything is it
learns from evaluations alone. Tensors of layers with equal features share what was measured. What is left of
the budget goes to noise on the measured savings, of whole kinds and of single tensors.
"""

from __future__ import annotations

import numpy as np

from loadmaster.arrays import Float64, Int8, Int64
from loadmaster.mapping.decoder import NEVER, Decoder
from loadmaster.mapping.features import COLUMNS, node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

_POSITION = [COLUMNS.index(name) for name in ("n_ops_left", "n_w_left", "placed_activation", "placed_weight")]
BATCH = 10
STALE_BATCHES = 50
"""So many batches in a row without a new map, and the search is over."""


class Probe(Solver):
    """One tensor per kind and memory first, then greedy by measured density, then noise on both."""

    name = "probe"
    problem_kind = "mapping"
    summary = "times one tensor of each kind, then greedy by measured density and local search (grey box)"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Mapping)
        if meter.exhausted or not meter.problem.live.any():
            if not meter.exhausted:
                meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        search = _Probing(meter, seed)
        if state is None:
            search.measure()
        else:
            search.restore(state)
        search.improve()
        return meter.solution(kinds=search.kinds, legality_checks=search.checked)


class _Probing:
    def __init__(self, meter: Meter, seed: int) -> None:
        assert isinstance(meter.problem, Mapping)
        self.meter, self.problem = meter, meter.problem
        self.decoder = Decoder(self.problem)
        self.rng = np.random.default_rng(seed)
        live = self.decoder.live
        self.kind, self.kinds = _kinds(self.problem, live)
        entries = self.problem.entries
        life = entries.piece_last.astype(np.float64) - entries.piece_first + 1
        owner = np.repeat(np.arange(len(live)), np.diff(entries.piece_start)[live])
        volume = np.zeros((len(live), entries.piece_size.shape[1]))
        np.add.at(volume, owner, entries.piece_size * life[:, None])
        self.log_volume: Float64 = np.log(np.maximum(1.0, volume[:, :-1]))
        self.scores = np.full(self.decoder.shape, NEVER)
        self.best = np.inf
        self.seen: set[bytes] = set()
        self.stale = self.checked = 0

    def measure(self) -> None:
        """Everything slow, then one tensor of each kind alone in each memory; the heaviest kinds first."""
        entries, faster = self.decoder.shape
        slow = self._evaluate(self.problem.all_slowest()[None])
        if not len(slow):
            return
        traffic = np.bincount(self.kind, self.problem.entries.bytes[self.decoder.live], self.kinds)
        # Half of the budget at most: a probe that nothing is made of is wasted.
        left = self.meter.evaluations_left
        most = self.kinds * faster if left is None else left // 2
        probes = [(kind, memory) for kind in np.argsort(-traffic).tolist() for memory in range(faster)][:most]
        maps, kept = [], []
        for kind, memory in probes:
            alone = np.full((1, entries, faster), NEVER)
            alone[0, np.flatnonzero((self.kind == kind) & (self.decoder.model.pinned < 0))[:1], memory] = 0.0
            found = self._decode(alone)[0]
            if not np.array_equal(found, self.problem.all_slowest()):  # it fits
                maps.append(found)
                kept.append((kind, memory))
        saved = np.zeros((self.kinds, faster))
        values = self._evaluate(np.array(maps)) if maps else np.empty(0)
        for (kind, memory), value in zip(kept, values.tolist(), strict=False):
            saved[kind, memory] = max(0.0, slow[0] - value)
        with np.errstate(divide="ignore"):
            self.scores = np.log(saved[self.kind]) - self.log_volume
        if not self.meter.exhausted:
            self._take(self.scores[None])

    def improve(self) -> None:
        """Noise on the measured savings, around the best so far."""
        while not self.meter.exhausted and self.stale < STALE_BATCHES:
            before = len(self.seen)
            self._take(np.stack([self._moved() for _ in range(BATCH)]))
            self.stale = 0 if len(self.seen) > before else self.stale + 1
            if self.meter.observer.wants_checkpoint(self.meter):
                self.meter.checkpoint(self.arrays())
            self.meter.progress(distinct_maps=float(len(self.seen)))

    def _moved(self) -> Float64:
        """[E, S] the best scores with some kinds, or some tensors, moved."""
        rng, (entries, faster) = self.rng, self.decoder.shape
        size = rng.choice([0.1, 0.3, 1.0, 2.0])
        noise = size * rng.normal(size=(entries, faster))
        moved = rng.random(entries) < rng.choice([1.0, 0.3, 0.1, 0.03])
        if rng.random() < 0.5:
            of_kind = rng.normal(size=(self.kinds, faster))
            noise, moved = size * of_kind[self.kind], (rng.random(self.kinds) < 0.3)[self.kind]
        if not moved.any():
            moved[rng.integers(entries)] = True
        floor = self.scores[np.isfinite(self.scores)].min(initial=0.0) - 1.0
        # Where nothing was saved alone, something may be together with others: at the end of the queue.
        scores: Float64 = np.maximum(self.scores, floor) + np.where(moved[:, None], noise, 0.0)
        return scores

    def _take(self, scores: Float64) -> None:
        maps = self._decode(scores)
        rows: list[int] = []
        for row, decision in enumerate(maps):
            if decision.tobytes() not in self.seen and len(rows) < (self.meter.evaluations_left or len(maps)):
                self.seen.add(decision.tobytes())
                rows.append(row)
        for row, value in zip(rows, self._evaluate(maps[rows]).tolist(), strict=False):
            if 0 <= value < self.best:
                self.best, self.scores = value, scores[row]

    def _decode(self, scores: Float64) -> Int8:
        self.checked += len(scores)
        return self.decoder.decode(scores, nominal=False)

    def _evaluate(self, maps: Int8) -> Float64:
        if not len(maps):
            return np.empty(0)
        values: Int64 = self.meter.evaluate_many(maps).value
        return values.astype(np.float64)

    def arrays(self) -> State:
        seen = np.frombuffer(b"".join(sorted(self.seen)), dtype=np.int8)
        return {
            "rng": generator_state(self.rng),
            "scores": self.scores,
            "best": np.array(self.best),
            "seen": seen.reshape(len(self.seen), -1),
            "counters": np.array([self.stale, self.checked]),
        }

    def restore(self, state: State) -> None:
        self.rng = restore_generator(state["rng"])
        self.scores, self.best = np.array(state["scores"]), float(state["best"])
        self.seen = {row.tobytes() for row in np.asarray(state["seen"], dtype=np.int8)}
        self.stale, self.checked = (int(each) for each in state["counters"])


def _kinds(problem: Mapping, live: Int64) -> tuple[Int64, int]:
    """([E] a number for tensors of layers with equal features, how many there are)"""
    rows = np.delete(node_features(problem), _POSITION, axis=1).round(6)
    node = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    both = np.concatenate([2 * node, 2 * node + 1])[live]  # activations and weights apart
    found, number = np.unique(both, return_inverse=True)
    return number.reshape(-1).astype(np.int64), len(found)
