"""mallocMuZero on the board: a policy opens, and a search with the true model goes on from there.

- *Openings*: plans of the policy's scores, each with its own settings of memory space assignment, those first
  that covered most of the training cells.
- *Search*: rounds of moves from the best plans so far, each evaluated by native memory space assignment:
  *lift* raises what a plan leaves unserved, or lowers what lies in its way, alone or with all that look like
  it (which moves: Gumbel top-k over the feedback of that plan); *score* moves the weights of features, so
  that all tensors that look alike move together; *cross* takes priorities from two plans; *setting* changes
  the options. Kinds that succeed are proposed more often.

The model is the game itself: no plan's value is estimated, it is compared with the one in hand by its time. The
first state is `msa-refined`, so that no player is worse than it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from loadmaster.arrays import Float64, Int64
from loadmaster.host import cores
from loadmaster.learn.session import Session, check_settings, free_settings, make_settings
from loadmaster.malloc_game.msa import Assigner, Placements, submit
from loadmaster.malloc_game.muzero.board import FIRST, Board, board_settings
from loadmaster.malloc_game.muzero.scores import (
    SHIPPED,
    UNTRAINED,
    Policy,
    load_policy,
    make_features,
    untrained,
)
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

MOVES = ("lift", "score", "cross", "setting")
PRIOR = 3.0
"""Moves of each kind that are taken to have been made, a third of them well, before any was."""
STEPS = (0.25, 0.5, 1.0, 2.0)
FEATURE_SHARES = (0.1, 0.3, 1.0)
MOST_LIFTED = 3
"""Tensors, or classes of them, that one move raises or lowers."""
BIAS = 0.7
"""Of a crossed plan towards the better one."""


@dataclass(frozen=True)
class Settings:
    """Parts are switched off by 0 or 'none'; each is one ablation."""

    init: str = SHIPPED
    """A trained policy: the shipped one, a file of `train`, or 'none'."""
    openings: int = 16
    """Tried before the search."""
    sigma: float = 0.08
    """Of feature weights."""
    batch: int = 8
    """Plans a round."""
    elites: int = 8
    """Plans that moves begin from."""
    spread: float = 1.5
    """How far down the elites moves begin, in the mean."""
    lift: float = 1.0
    score: float = 1.0
    cross: float = 1.0
    setting: float = 0.5
    """Weights of the kinds of moves, before any has shown more success; all 0: the policy's samples alone."""
    feedback: float = 0.7
    """Share of feedback in what is lifted; the rest is even."""
    classes: float = 0.5
    """Share of lifts that take all alike tensors along."""
    patience: int = 12
    """Rounds without a better plan after which the search begins anew elsewhere, and later goes on from the best of
    all; 0: never."""

    def __post_init__(self) -> None:
        counts = ("batch", "elites")
        check_settings("muzero", self, self._rules, counts=counts, shares=("feedback", "classes"))

    def _rules(self) -> dict[str, bool]:
        return {"init": bool(self.init), "batch": self.batch <= 4096}


class Elite(NamedTuple):
    """A plan that moves begin from."""

    value: int
    priorities: Float64
    """[B] from 0 to 1"""
    setting: int
    placed: Placements
    """Of this plan alone"""


class Player(Session):
    """One game. What it goes on from: the elites, the success of moves, the best in each setting, the generator, and
    how often the first state was refined."""

    def __init__(
        self,
        meter: Meter,
        seed: int,
        settings: Settings,
        policy: Policy,
        board: Board,
        refined: int = 0,
        state: State | None = None,
    ) -> None:
        super().__init__(meter, "propose", "evaluate")
        assert isinstance(meter.problem, MallocGame)
        self.problem, self.settings, self.board, self.refined = meter.problem, settings, board, refined
        first = board.place(board.own[None], np.zeros(1, dtype=np.int64))
        self.policy, self.features = policy, policy.linear.normalise(make_features(board, first))
        self.weights = np.array([float(getattr(settings, name)) for name in MOVES])
        self.tried, self.succeeded = np.full(len(MOVES), PRIOR), np.full(len(MOVES), PRIOR / 3)
        self.rng = np.random.default_rng(seed)
        self.elites = [Elite(int(first.total[0]), board.own, 0, first)]
        self.best_in = np.full(len(board.settings), np.inf)
        """[settings] the best time in each so far"""
        self.best_in[0] = first.total[0]
        self.class_of = np.zeros(board.tensors, dtype=np.int64)
        for number, alike in enumerate(board.classes):
            self.class_of[alike] = number
        self.past: list[Elite] = []
        """The best of each search before a new beginning"""
        self.waited, self.begun = 0, 0
        """Rounds without a better plan; new beginnings"""
        if state is not None:
            self.rng = restore_generator(state["rng"])
            self.tried, self.succeeded = np.array(state["tried"]), np.array(state["succeeded"])
            self.best_in = np.array(state["best_in"])
            self.waited, self.begun = int(state["waited"]), int(state["begun"])
            plans = self._placed(np.array(state["priorities"]), np.array(state["settings"]))
            count = int(state["elites"])
            self.elites, self.past = plans[:count], plans[count:]

    def _placed(self, priorities: Float64, settings: Int64) -> list[Elite]:
        placed = self.board.place(priorities, settings)
        return [
            Elite(int(placed.total[row]), priorities[row], int(settings[row]), placed[row])
            for row in range(len(priorities))
        ]

    def arrays(self) -> State:
        return {
            "rng": generator_state(self.rng),
            "refined": np.array(self.refined),
            "tried": self.tried,
            "succeeded": self.succeeded,
            "best_in": self.best_in,
            "waited": np.array(self.waited),
            "begun": np.array(self.begun),
            "elites": np.array(len(self.elites)),
            "priorities": np.stack([each.priorities for each in [*self.elites, *self.past]]),
            "settings": np.array([each.setting for each in [*self.elites, *self.past]]),
        }

    def run(self, is_new: bool) -> Solution:
        """Play until the meter is exhausted."""
        if is_new and self.settings.openings:
            self._open()
        while not self.meter.exhausted and self.board.tensors > 1:
            if self.weights.any():
                self._search()
            else:
                self._sample()
            self.offer_checkpoint()
            self.meter.progress(best_ps=float(min([*self.elites, *self.past], key=_value).value))
        return self.meter.solution(
            init=self.settings.init,
            tried=dict(zip(MOVES, (self.tried - PRIOR).tolist(), strict=True)),
            succeeded=dict(zip(MOVES, (self.succeeded - PRIOR / 3).tolist(), strict=True)),
            seconds_split=dict(self.seconds),
        )

    # Openings and samples.

    def _open(self) -> None:
        count = self.settings.openings
        priorities = self.policy.openings(self.board, self.features)
        self._evaluate(priorities[:count], self.policy.settings[:count])

    def _sample(self) -> None:
        """The bare policy: noise on the feature weights of its first openings, whatever came of earlier ones."""
        limit = max(1, self.settings.openings)
        priorities = self.policy.openings(self.board, self.features)[:limit]
        rows = self.rng.integers(0, len(priorities), self.settings.batch)
        noise = self.settings.sigma * self.rng.normal(size=(len(rows), self.features.shape[1]))
        self._evaluate(priorities[rows] + noise @ self.features.T, self.policy.settings[rows])

    # Search.

    def _search(self) -> None:
        if 0 < self.settings.patience <= self.waited:
            self._begin_anew()
        best = self.elites[0].value
        with self.timed("propose"):
            kinds, priorities, settings = self._propose()
        self._evaluate(priorities, settings, kinds)
        self.waited = 0 if self.elites[0].value < best else self.waited + 1

    def _begin_anew(self) -> None:
        """From openings at random, shaken; every other time from the best of all searches so far."""
        self.begun += 1
        self.waited = 0
        self.past = sorted([*self.past, self.elites[0]], key=_value)[: self.settings.elites]
        if self.begun % 2 == 0:
            self.elites = _unlike([*self.past, *self.elites], self.settings.elites)
            return
        self.elites = self.elites[-1:]
        priorities = self.policy.openings(self.board, self.features)
        rows = self.rng.integers(0, len(priorities), 2 * self.settings.batch)
        noise = self.settings.sigma * self.rng.normal(size=(len(rows), self.features.shape[1]))
        self._evaluate(priorities[rows] + noise @ self.features.T, self.policy.settings[rows])

    def _propose(self) -> tuple[Int64, Float64, Int64]:
        """(kinds, priorities [K, B], settings) of a round's moves."""
        count, share = self.settings.batch, self.weights * self.succeeded / self.tried
        kinds = np.sort(self.rng.choice(len(MOVES), count, p=share / share.sum()))
        ranks = self.rng.exponential(self.settings.spread, count).astype(np.int64)
        start = np.minimum(ranks, len(self.elites) - 1)
        make = (self._lift, self._move_weights, self._cross, self._change_setting)
        children = [
            make[kind](self.elites[rank]) for kind, rank in zip(kinds.tolist(), start.tolist(), strict=True)
        ]
        priorities = np.stack([priorities for priorities, _ in children])
        return kinds, priorities, np.array([setting for _, setting in children])

    def _lift(self, parent: Elite) -> tuple[Float64, int]:
        """Gumbel top-k over (tensor, raise or lower): feedback is the prior."""
        rng, placed, count = self.rng, parent.placed, self.board.tensors
        missing, kept, blamed = placed.lost[0], placed.kept[0], placed.blamed[0]
        idle = blamed / (kept + 1e-3 * missing.sum() + 1.0)
        wish = np.concatenate([_normalised(missing), _normalised(idle)])
        prior = self.settings.feedback * wish + (1 - self.settings.feedback) / count
        gumbel = np.log(prior + 1e-12) + rng.gumbel(size=2 * count)
        lifted = int(rng.integers(1, MOST_LIFTED + 1))
        chosen = np.argpartition(-gumbel, lifted)[:lifted]
        priorities = parent.priorities.copy()
        for move in chosen.tolist():
            tensor, lower = move % count, move >= count
            alike = self.board.classes[self.class_of[tensor]]
            rows = alike if rng.random() < self.settings.classes else np.array([tensor])
            share = rng.random()
            here = priorities[rows]
            priorities[rows] = here + share * (1 - here) if lower else share * here
        return priorities, parent.setting

    def _move_weights(self, parent: Elite) -> tuple[Float64, int]:
        rng, width = self.rng, self.features.shape[1]
        some = rng.random(width) < rng.choice(FEATURE_SHARES)
        step = rng.choice(STEPS) * self.settings.sigma * rng.normal(size=width) * some
        return parent.priorities + np.einsum("bf,f->b", self.features, step), parent.setting

    def _cross(self, parent: Elite) -> tuple[Float64, int]:
        other = self.elites[int(self.rng.integers(len(self.elites)))]
        mine = self.rng.random(self.board.tensors) < BIAS
        return np.where(mine, parent.priorities, other.priorities), parent.setting

    def _change_setting(self, parent: Elite) -> tuple[Float64, int]:
        """To one of those that were tried; before any was, to any."""
        known = np.flatnonzero(np.isfinite(self.best_in))
        return parent.priorities, int(self.rng.choice(known if len(known) > 1 else len(self.best_in)))

    # Evaluation.

    def _evaluate(self, priorities: Float64, settings: Int64, kinds: Int64 | None = None) -> Int64:
        """The times of plans, those beyond the budget left out; the best become elites."""
        left = self.meter.evaluations_left
        ranked, settings = even_ranks(priorities[:left]), settings[:left]
        if not len(ranked):
            return np.empty(0, dtype=np.int64)
        with self.timed("evaluate"):
            placed = self.board.place(ranked, settings)
        board, problem = self.board, self.problem
        self.meter.take_many(
            placed.total, lambda row: problem.decision(board.plan(ranked[row], int(settings[row])))
        )
        np.minimum.at(self.best_in, settings, placed.total)
        before = {id(each.priorities) for each in self.elites}
        rows = range(len(ranked))
        tried = [Elite(int(placed.total[row]), ranked[row], int(settings[row]), placed[row]) for row in rows]
        self.elites = _unlike([*self.elites, *tried], self.settings.elites)
        if kinds is not None:
            came = {id(each.priorities) for each in self.elites} - before
            for kind, each in zip(kinds.tolist(), tried, strict=False):
                self.tried[kind] += 1
                self.succeeded[kind] += id(each.priorities) in came
        return placed.total


def _value(elite: Elite) -> int:
    return elite.value


def _unlike(plans: list[Elite], count: int) -> list[Elite]:
    """The best of them; equal times are nearly always equal plans."""
    kept: dict[int, Elite] = {}
    for each in sorted(plans, key=_value):
        if len(kept) < count:
            kept.setdefault(each.value, each)
    return list(kept.values())


def _normalised(values: Float64) -> Float64:
    return values / max(float(values.sum()), 1e-9)


def even_ranks(priorities: Float64) -> Float64:
    """[K, B] the same orders, evenly from 0 to 1."""
    count = priorities.shape[1]
    ranks = np.argsort(np.argsort(priorities, axis=1, kind="stable"), axis=1)
    even: Float64 = (ranks + 0.5) / max(1, count)
    return even


class MuZero(Solver):
    """A trained policy and a search with the true model, on plans of memory space assignment. Options are the
    fields of `Settings`."""

    name = "muzero"
    problem_kind = "malloc-game"
    summary = (
        "a trained policy ranks tensors, memory space assignment places them, and a search goes on from there"
    )
    deterministic = True

    def __init__(self, *, threads: int | None = None, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, {})
        self.options = free_settings(self.settings, {})
        self.threads = threads or cores()
        init = self.settings.init  # a file that is no policy is refused before there is a run
        self.policy = untrained() if init == UNTRAINED else load_policy(init)

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, policy = meter.problem, self.policy
        assert isinstance(problem, MallocGame)
        if meter.exhausted:
            return meter.solution()
        if state is None:
            assigner, refined = submit(meter, problem, FIRST)
        else:
            refined = int(state["refined"])
            assigner = Assigner(problem.program, problem.machine, problem.model, FIRST)
            for _ in range(refined):
                assigner = assigner.refined()
        if meter.exhausted or not assigner.tensors:
            return meter.solution()
        board = Board(assigner, board_settings(policy.changes), self.threads)
        return Player(meter, seed, self.settings, policy, board, refined, state).run(state is None)
