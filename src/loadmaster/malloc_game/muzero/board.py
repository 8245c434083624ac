"""The board of mallocMuZero: every state is a complete, legal plan.

A state is a priority for each tensor and one of several settings of memory space assignment. Native memory
space assignment takes the tensors in order of priority and decides all that follows (what stays, what is
copied when, every address), so that each move leads to a plan that the checker accepts, and its time is the
simulator's. What a plan says about itself comes back with it: what each tensor saves, what it could save and
does not, who lies in its way, how full fast memory is.

The first state is `msa-refined`: its own order and its own options. A zero score leaves it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.malloc_game.msa import STYLES, Assigner, MsaOptions, Placements, make_options, place_many
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import Plan

FIRST = STYLES["refined"]
"""The options of the first state."""
LEFTOVER: dict[str, Any] = {"write_back": True, "stretch": True}
"""Of all other settings: what no order of tensors leads to."""


def board_settings(changes: Sequence[dict[str, Any]]) -> list[MsaOptions]:
    """Settings of the board: that of the first state, then it with each of the changes and, unless one
    says otherwise, with what room is left made use of."""
    return [FIRST, *(make_options("refined", {**LEFTOVER, **change}) for change in changes)]


class Board:
    """All plans that priorities and settings lead to, for one game.

    Args:
      assigner: the first state's, with the times of steps that refinement found.
      settings: other options to choose from; the first are those of `assigner`.
      threads: of native runs.
    """

    def __init__(
        self, assigner: Assigner, settings: Sequence[MsaOptions] = (FIRST,), threads: int = 1
    ) -> None:
        self.model, self.threads, self.settings = assigner.model, threads, settings
        self._assigners = {0: assigner}
        self.sorted: Int64 = np.asarray(assigner.sorted, dtype=np.int64)
        """[B] tensors in the order of the first state"""
        self._rank = np.argsort(self.sorted)

    @property
    def tensors(self) -> int:
        return len(self.sorted)

    def assigner(self, setting: int) -> Assigner:
        """Of a setting, made when it is first asked for."""
        if setting not in self._assigners:
            self._assigners[setting] = self._assigners[0].varied(self.settings[setting])
        return self._assigners[setting]

    @cached_property
    def own(self) -> Float64:
        """[B] the priorities of the first state, from 0 to 1; the lowest comes first"""
        return (self._rank + 0.5) / max(1, self.tensors)

    def orders(self, priorities: Float64) -> Int32:
        """[K, B] as `Assigner` takes them; among equals the first state's order decides."""
        order: Int32 = np.argsort(priorities[:, self.sorted], axis=1, kind="stable").astype(np.int32)
        return order

    def place(self, priorities: Float64, settings: Int64) -> Placements:
        """The plans of priorities [K, B] with settings [K]."""
        used, which = np.unique(settings, return_inverse=True)
        assigners = [self.assigner(setting) for setting in used.tolist()]
        return place_many(assigners, which, self.orders(priorities), self.threads)

    def plan(self, priorities: Float64, setting: int) -> Plan:
        """The plan of priorities [B]."""
        return self.assigner(setting).plan(self.orders(priorities[None])[0])

    @cached_property
    def classes(self) -> list[Int64]:
        """Tensors that look alike (kind, size, uses, span of life), such as one weight of every layer."""
        model, tensors = self.model, self.model.tensors
        first, last = lives(model.site_tensor, model.site_step, self.tensors)
        uses = np.bincount(model.site_tensor, minlength=self.tensors)
        looks = np.stack(
            [tensors.size, tensors.given, tensors.output, uses, np.minimum(last - first, 8)], axis=1
        )
        _, number = np.unique(looks, axis=0, return_inverse=True)
        return [np.flatnonzero(number == each) for each in range(int(number.max(initial=-1)) + 1)]


def lives(tensor: Int32, step: Int32, count: int) -> tuple[Int64, Int64]:
    """(first, last) [count] step at which each tensor is used."""
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.zeros(count, dtype=np.int64)
    np.minimum.at(first, tensor, step)
    np.maximum.at(last, tensor, step)
    return np.minimum(first, last), last


def first_board(problem: MallocGame, settings: Sequence[MsaOptions] = (FIRST,), threads: int = 1) -> Board:
    """The board of a problem, refined as `msa-refined` is."""
    assigner = Assigner(problem.program, problem.machine, problem.model, FIRST)
    best, least = assigner, None
    own = np.arange(assigner.tensors, dtype=np.int32)[None]
    for number in range(FIRST.refinements + 1):
        total = int(assigner.totals(own, 1)[0])
        if least is None or total < least:
            best, least = assigner, total
        if number < FIRST.refinements:
            assigner = assigner.refined()
    return Board(best, settings, threads)
