"""White-box baselines of the MallocGame: each makes one list of moves, or a plan, and submits it."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from loadmaster.arrays import Bool, Int16, Int32, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.malloc_game.games import COPY, DROP, NO_COPY
from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import Plan
from loadmaster.plan.production import load_production_plan
from loadmaster.search.problem import Decision
from loadmaster.search.solver import Meter, Solution, Solver, State


class _OneDecision(Solver):
    """Makes one decision and submits it."""

    name: str
    problem_kind = "malloc-game"
    deterministic = True

    @abstractmethod
    def make(self, problem: MallocGame) -> Decision:
        """[N] preferred moves, or the rows of a plan."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        decision = self.make(problem)
        if not meter.exhausted:
            meter.evaluate(decision)
        return meter.solution()


class AllSlow(_OneDecision):
    name = "all-slow"
    summary = "everything stays in slow memory (white box)"

    def make(self, problem: MallocGame) -> Int16:
        return problem.all_slow()


class GreedyOrder(_OneDecision):
    """In program order: NoCopy if legal, else Copy, else Drop. `gain`: only where a fast access
    saves time by itself, so that nothing is moved for nothing."""

    name = "greedy-order"
    summary = "in program order: stay, else copy, else drop (white box)"

    def __init__(self, gain: bool = False) -> None:
        self.gain = gain
        self.options = {"gain": gain}

    def make(self, problem: MallocGame) -> Int16:
        moves = np.full(problem.moves, NO_COPY, dtype=np.int16)
        if self.gain:
            moves[site_gains(problem.model) <= 0] = DROP
        return moves


class GreedyDensity(_OneDecision):
    """Segments, from a site of a tensor to its next one, by time saved per byte and second of
    residency: each is taken if its bytes fit beside those taken before. A tensor that comes from
    slow memory has a segment as long as its copy takes."""

    name = "greedy-density"
    summary = "segments by time saved per byte and second of residency (white box)"

    def make(self, problem: MallocGame) -> Int16:
        model = problem.model
        begin, kept = _segments(model)
        gains, size = site_gains(model), model.tensors.size[model.site_tensor]
        clock = np.concatenate([[0], np.cumsum(model.all_slow * model.repeat)])
        held = size * np.maximum(1, clock[model.site_step + 1] - clock[begin])
        moves = problem.all_slow()
        used = np.zeros(model.steps, dtype=np.int64)
        for site in np.argsort(-gains / held, kind="stable").tolist():
            window = slice(int(begin[site]), int(model.site_step[site]) + 1)
            if gains[site] <= 0 or int(used[window].max()) + int(size[site]) > model.capacity:
                continue
            used[window] += size[site]
            moves[site] = NO_COPY if kept[site] else COPY
        return _linked(model, moves)


class NoProduction(LoadmasterError):
    """No production placement is known."""


class Production(_OneDecision):
    """The placement that the machine's own production compiler chose for this very program, where
    one was extracted; timed by our model, for which it was not tuned."""

    name = "production"
    summary = "the production compiler's own placement, where one was extracted"

    def make(self, problem: MallocGame) -> Decision:
        return problem.decision(known_production(problem))


def known_production(problem: MallocGame) -> Plan:
    """The production placement; an error if none is known."""
    plan = load_production_plan(problem.program, problem.machine)
    if plan is None:
        raise NoProduction(
            f"no production placement of '{problem.program.name}' on '{problem.machine.name}' is known",
            object=problem.program.name,
            remedy="see 'loadmaster models' for those of tpu-v4i",
        )
    return plan


def has_production(problem: MallocGame) -> bool:
    """Whether `Production` has an answer here."""
    return load_production_plan(problem.program, problem.machine) is not None


def site_gains(model: GameModel) -> Int64:
    """[N] time saved over the whole program if this site alone were fast."""
    slow, _ = model.memory_times(np.zeros(model.sites, dtype=bool))
    step = model.site_step
    alone_slow = slow[step] - model.site_slow
    alone = model.step_times(alone_slow, model.site_fast, step)
    gains: Int64 = (model.all_slow[step] - alone) * model.repeat[step]
    return gains


def neighbours(model: GameModel) -> tuple[Int32, Int32]:
    """([N] the site of the same tensor before each site, [N] the one after it), or -1."""
    before = np.full(model.sites, -1, dtype=np.int32)
    after = np.full(model.sites, -1, dtype=np.int32)
    order = np.argsort(model.site_tensor, kind="stable")
    same = model.site_tensor[order[1:]] == model.site_tensor[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after


def _segments(model: GameModel) -> tuple[Int32, Bool]:
    """([N] first step of the segment that ends at each site, [N] whether it begins at a site)."""
    before, _ = neighbours(model)
    begin, kept = model.site_step.copy(), model.site_write != 0
    supply = np.concatenate([[0], np.cumsum(model.all_slow)])
    for site in np.flatnonzero(model.site_write == 0).tolist():
        step, earlier = int(model.site_step[site]), int(before[site])
        need = int(model.tensors.copy_in[model.site_tensor[site]])
        start = int(np.searchsorted(supply, supply[step] - max(0, need), side="right")) - 1
        if earlier >= 0 and model.site_step[earlier] >= start:
            begin[site], kept[site] = model.site_step[earlier], True
        else:
            begin[site] = max(0, min(start, step))
    return begin, kept


def _linked(model: GameModel, moves: Int16) -> Int16:
    """NoCopy is only possible after a fast site, so the site before it is made fast too."""
    before, _ = neighbours(model)
    for site in np.flatnonzero(moves == NO_COPY)[::-1].tolist():
        earlier = int(before[site])
        if earlier >= 0 and moves[earlier] == DROP:
            moves[earlier] = NO_COPY if model.site_write[earlier] else COPY
    return moves
