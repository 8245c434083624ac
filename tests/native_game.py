"""One native game with the calls of the slow reference, so that tests can play either."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from loadmaster import _core
from loadmaster.malloc_game.model import GameModel

Placement = tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[bool]]


class Play(Protocol):
    """What both games offer."""

    @property
    def cursor(self) -> int: ...
    def step(self, action: int) -> int: ...
    def mask(self) -> list[int]: ...
    def placement(self) -> Placement: ...
    def judged(self) -> tuple[int, int]: ...


class NativeGame:
    """A batch of one."""

    def __init__(self, model: GameModel, **switches: Any) -> None:
        self.native = _core.Game(_core.GameTables(model.columns()), switches)
        self.native.reset(1, 1)

    @property
    def cursor(self) -> int:
        return int(self.native.cursor)

    def step(self, action: int) -> int:
        return int(self.native.step(np.array([action], dtype=np.int16))[0])

    def mask(self) -> list[int]:
        mask: list[int] = self.native.masks()[0].tolist()
        return mask

    def placement(self) -> Placement:
        stays, copies, fast = self.native.placement(0)
        rows = sorted(tuple(row) for row in stays.tolist())
        return rows, [tuple(row) for row in copies.tolist()], [bool(yes) for yes in fast]

    def judged(self) -> tuple[int, int]:
        total, stall = self.native.judged()
        return int(total[0]), int(stall[0])

    @property
    def backups(self) -> int:
        return int(self.native.backups()[0])
