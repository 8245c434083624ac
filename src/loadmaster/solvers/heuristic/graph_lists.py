"""List placers: HEFT, m-ETF and m-SCT, with the memory of devices in mind.

All three walk over steps, and the first step of a group decides for the group. That is short-sighted:
the transfers of the group's other steps (its backward half, its share of gradients) don't count. So
each rule is tried as it is in the books, and then with transfers that wait for each other and with a
share of the group's later transfers counted when its device is chosen; the best plan is kept.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from loadmaster.problems.graph import UNFIT
from loadmaster.solvers.heuristic.graph_favourites import favourites
from loadmaster.solvers.heuristic.graph_placing import NONE, Int32, Int64, Places
from loadmaster.solvers.heuristic.graph_simple import Placements, Placer

OUTLOOKS = ((False, 0), (True, 30), (True, 100), (True, 0), (False, 30))
"""(transfers wait for each other, percent of a group's later transfers that count)"""
ROOMS = (1.0, 0.8, 0.6, 0.4)
"""Shares of the capacities that a placer is shown, until its plan fits: what groups hold is a guess."""


class _List(Placer):
    """`variants`: how many of the outlooks are tried; 1 is the rule as it is in the books."""

    def __init__(self, variants: int = len(OUTLOOKS)) -> None:
        super().__init__()
        self.variants = variants
        self.switches: dict[str, float] = {"variants": variants}

    def place(self, places: Places, seconds: float | None = None) -> Placements:
        self.prepare(places, seconds)
        for engines, ahead in OUTLOOKS[: max(1, self.variants)]:
            for share in ROOMS:
                room = (places.capacity * share).astype(np.int64)
                value = yield self.listed(places, room, engines, ahead)
                if value is None or value < UNFIT:
                    break

    def prepare(self, places: Places, seconds: float | None) -> None:
        """Called once, before any placement is made."""

    @abstractmethod
    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        """[G] devices."""


class Heft(_List):
    name = "heft"
    summary = "steps by upward rank, each where it ends first, in the first gap that is long enough"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        return places.native.heft(room, engines, ahead)


class MEtf(_List):
    name = "m-etf"
    summary = "always the step and the device that can start first, where there is room"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        return places.native.earliest_start(room, NONE, engines, ahead)


class MSct(_List):
    """`lp_seconds`: limit of the linear programme that finds favourite children; where it is not
    solved in time, the dearest transfers choose them."""

    name = "m-sct"
    summary = "as m-etf, but a device may wait for the favourite child of what it ran last"

    def __init__(self, variants: int = len(OUTLOOKS), lp_seconds: float = 30.0) -> None:
        super().__init__(variants)
        self.lp_seconds = lp_seconds
        self.switches = {"variants": variants, "lp_seconds": lp_seconds}
        self._favourite: Int32 = NONE

    def prepare(self, places: Places, seconds: float | None) -> None:
        limit = self.lp_seconds if seconds is None else min(self.lp_seconds, seconds / 2)
        self._favourite, solved = favourites(places, limit)
        self.notes["favourites"] = "linear programme" if solved else "dearest transfers"
        if not solved:
            self.notes["reason"] = f"the linear programme was not solved within {limit:.1f} s"

    def listed(self, places: Places, room: Int64, engines: bool, ahead: int) -> Int32:
        favourite = np.ascontiguousarray(self._favourite, dtype=np.int32)
        return places.native.earliest_start(room, favourite, engines, ahead)
