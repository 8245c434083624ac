"""`Games`: a batch of games that step together, arrays in and out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.plan.plan import Plan
from loadmaster.problems.malloc_game.placement import game_plan

if TYPE_CHECKING:
    from loadmaster.problems.malloc_game.problem import MallocGame

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]


SHAPES: dict[str, tuple[tuple[int, ...], type[Any]]] = {
    "grid": ((128, 64, 4), np.uint8),
    "series": ((128, 8), np.float32),
    "current": ((24,), np.float32),
    "ahead": ((32, 16), np.float32),
    "back": ((32, 16), np.float32),
    "globals": ((8,), np.float32),
    "mask": ((3,), np.uint8),
}
"""Of one game's observation, whatever the program."""
MOST = 16.0
"""No number of an observation is larger, nor smaller than -MOST; `grid` has shares of 255."""


Seen = dict[str, npt.NDArray[Any]]


def seen_arrays(*count: int) -> Seen:
    """Room for observations [*count, ...]."""
    return {name: np.zeros((*count, *shape), kind) for name, (shape, kind) in SHAPES.items()}


class Games:
    """B games of one problem, all at their first move. Results do not depend on `threads`."""

    def __init__(self, problem: MallocGame, count: int, threads: int | None = None) -> None:
        self.problem, self.count = problem, count
        self.threads = threads or cores()
        self.native = _core.Game(problem.tables, problem.switches())
        self.native.reset(count, self.threads)
        self._seen: Seen = {}

    def observe(self, into: Seen | None = None) -> Seen:
        """Arrays [B, ...] as in `SHAPES`; the next call writes over them. `into`: arrays to fill."""
        if into is None:
            self._seen = into = self._seen or seen_arrays(self.count)
        self.native.observe(into, self.problem.scale_ps)
        return into

    def reset(self) -> None:
        """All at their first move again."""
        self.native.reset(self.count, self.threads)

    @property
    def cursors(self) -> Int64:
        """[B] the move that comes next; N: the game is over."""
        return self.native.cursors()

    def masks(self) -> UInt8:
        """[B, 3] which moves are legal; none in a game that is over."""
        return self.native.masks()

    def step(self, actions: Int8) -> Int64:
        """[B] picoseconds that legal moves [B] earn; a game that is over takes none."""
        return self.native.step(np.ascontiguousarray(actions, dtype=np.int8))

    def step_towards(self, preferences: Int8) -> Int64:
        """The same for moves that need not be legal: if not, NoCopy, else Copy, else Drop."""
        return self.native.step_towards(np.ascontiguousarray(preferences, dtype=np.int8))

    def finish(self, preferences: Int8) -> tuple[Int8, Int64, UInt8]:
        """To the end, moves as near to [B, N] as is legal: (played [B, N], earned [B, N], legal
        [B, N, 3]), zero before the moves that were next."""
        return self.native.finish(np.ascontiguousarray(preferences, dtype=np.int8))

    def replay(self, actions: Int8) -> None:
        """From the start, legal moves [B, k]."""
        self.native.replay(np.ascontiguousarray(actions, dtype=np.int8))

    def undo(self) -> None:
        """Take each game's last move back."""
        self.native.undo()

    def backups(self, game: int) -> int:
        """Dead ends of a game so far."""
        return int(self.native.backups()[game])

    def judged(self) -> tuple[Int64, Int64]:
        """([B] total, [B] of it stalls) in picoseconds; what is not decided yet is slow."""
        return self.native.judged()

    def plan(self, game: int) -> Plan:
        """What a game's moves so far amount to."""
        stays, copies, _ = self.native.placement(game)
        return game_plan(self.problem.model, self.problem.program.n_ops, stays, copies)
