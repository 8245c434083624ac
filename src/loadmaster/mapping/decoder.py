"""Scores of (tensor, memory) pairs into maps that fit: what a policy says, and what becomes of it.

A score ranks; the native decoder decides. It starts with everything in the slowest memory and makes,
again and again, the best move to a faster one that still fits over the tensor's whole life. Two ways to
rank:

- *strict*: by score alone. Sees the program (graph, bytes, kinds of ops) and the capacities.
- *nominal*: by exp(score) times the time that the machine's description says a move saves now, per byte
  and op of life. All scores 0 is greedy by density. The description may be wrong: scores correct it.

Every map that comes out is legal, and every legal map comes out for some scores (`scores_of`).
"""

from __future__ import annotations

import numpy as np

from loadmaster import _core
from loadmaster.arrays import Float64, Int8
from loadmaster.host import cores
from loadmaster.mapping.model import MappingModel, make_model
from loadmaster.mapping.problem import Mapping

NEVER = -np.inf
"""A score with which a tensor never goes to a memory."""


class Decoder:
    """Of one problem: `E` entries that are live (pinned ones too), `M` memories, `S` = M - 1 of them
    faster than the slowest.

    Args:
      problem: whose maps are made.
      model: its arrays; by default of the problem's own machine.
    """

    def __init__(self, problem: Mapping, model: MappingModel | None = None) -> None:
        self.problem = problem
        self.model = make_model(problem) if model is None else model
        self.live = np.flatnonzero(problem.entries.live)
        """[E] where the entries stand in a map."""
        self._base = problem.all_slowest()
        self._core = _core.ScoreDecoder(self._columns())

    @property
    def shape(self) -> tuple[int, int]:
        """(E, S) of the scores of one map."""
        return len(self.live), self.problem.slowest

    def decode(
        self,
        scores: Float64,
        *,
        nominal: bool = True,
        linear: float | Float64 = 0.0,
        threads: int | None = None,
    ) -> Int8:
        """Maps int8[B, 2N] of scores [B, E, S]; all of them fit.

        Args:
          scores: a larger one comes first; `NEVER` keeps a tensor out of a memory.
          nominal: rank by score and the time saved; False: by score alone (strict).
          linear: with `nominal`, how much of the ranking looks at memory time that a move takes off even
            where the op does not get faster by it alone, 0 to 1; of each map, or of all.
          threads: by default all cores. They change nothing but the time it takes.
        """
        given = np.ascontiguousarray(scores, dtype=np.float64)
        maps = np.repeat(self._base[None], len(given), axis=0)
        shares = np.broadcast_to(np.asarray(linear, dtype=np.float64), len(given))
        maps[:, self.live] = self._core.decode(
            given, np.ascontiguousarray(shares), nominal, threads or cores()
        )
        return maps

    def scores_of(self, decision: Int8) -> Float64:
        """[E, S] strict scores that give this map, if it is legal: each entry may go to its memory alone."""
        chosen = np.asarray(decision)[self.live]
        return np.where(chosen[:, None] == np.arange(self.problem.slowest), 0.0, NEVER)

    def _columns(self) -> dict[str, object]:
        model, entries = self.model, self.problem.entries
        # Entries that decide nothing have no pieces, so that starts of live ones suffice.
        return {
            "compute": model.compute,
            "launch": model.launch.astype(np.int64),
            "repeat": model.repeat,
            "fixed": model.fixed,
            "overlap": model.overlap.astype(np.int64),
            "parallel": bool(model.parallel),
            "access_start": model.access_start,
            "access_entry": model.access_entry.astype(np.int32),
            "access_cost": model.access_cost,
            "capacity": model.capacity,
            "pinned": model.pinned.astype(np.int32),
            "piece_start": np.append(entries.piece_start[:-1][self.live], entries.piece_start[-1]),
            "piece_first": entries.piece_first,
            "piece_last": entries.piece_last,
            "piece_always": entries.piece_always.astype(np.int8),
            "piece_size": entries.piece_size,
            "ops": self.problem.program.n_ops,
        }
