"""The MallocGame of a machine whose ops work in fast memory alone, over runs that follow each other.

A game begins with nothing in fast memory, so it can't tell which weights stay there between runs. A game
over two runs in a row can: what is held from the last use in the first to the first use in the second.
And it lets ops read slow memory, which these machines can't: so games are judged by the plans that they
become, and by nothing else. What players learn move by move is still the game's.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from loadmaster.malloc_game.games import NO_COPY
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.offload.gaps import gaps_of_plan
from loadmaster.offload.model import Bool, Int8, Int64
from loadmaster.offload.problem import Offload
from loadmaster.program.repeats import twice
from loadmaster.search.problem import Bound, Decision, Scores

RUNS = 2


class Streamed(MallocGame):
    """Two runs in a row; the value of a game is what two runs of its plan take."""

    def __init__(self, problem: Offload) -> None:
        super().__init__(twice(problem.program), problem.machine.with_reach("all"))
        self.offload = problem
        bound = problem.bound()
        self._bound = Bound(RUNS * bound.value, bound.method)

    @cached_property
    def gap_site(self) -> Int64:
        """[G] the site at the end of each gap of the offload problem: in the second run, of one between runs.
        -1: nothing is decided there."""
        model, own, run = self.offload.model, self.model, self.offload.program.n_ops
        root, op = own.tensors.root[own.site_tensor], own.step_op[own.site_step]
        # Of what an op reads and writes, it reads first.
        sites = {
            key: site for site, key in reversed(list(enumerate(zip(root.tolist(), op.tolist(), strict=True))))
        }
        found = np.full(model.gaps, -1, dtype=np.int64)
        for gap in np.flatnonzero(model.gap_to < model.steps).tolist():
            at = int(model.step_op[model.gap_to[gap]]) + (run if model.gap_from[gap] < 0 else 0)
            found[gap] = sites.get((int(model.root[model.gap_item[gap]]), at), -1)
        return found

    def kept(self, decision: Decision) -> Bool:
        """The gaps of the offload problem that a game keeps."""
        if np.asarray(decision).ndim == 1:
            return self._stays(self.play(np.asarray(decision)[None]).actions[0])
        return gaps_of_plan(self.offload.model, self.plan(decision), self.offload.program.n_ops)

    def _stays(self, actions: Int8) -> Bool:
        """A tensor is still there for a use that needs no copy. A game takes that back if the tensor was not
        written to slow memory and can't stay to the end; plans copy it out then."""
        stays: Bool = (self.gap_site >= 0) & (actions[self.gap_site] == NO_COPY)
        return stays

    def _total(self, kept: Bool) -> int | None:
        found = self.offload.evaluate(self.offload.vector(kept))
        return None if found is None else RUNS * found

    def evaluate(self, decision: Decision) -> int | None:
        return self._total(self.kept(decision))

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        played = self.play(decisions).actions
        found = [self._total(self._stays(each)) for each in played]
        total = np.array([self.all_slow_ps if each is None else each for each in found], np.int64)
        return Scores(total, (self.all_slow_ps - total) / self.scale_ps)
