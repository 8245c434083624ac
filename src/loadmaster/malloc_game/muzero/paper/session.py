"""One run of mallocMuZero over one program or many: play a batch of games, learn from all of them,
play again; now and then a few games with more search and less noise.

The problem scores every finished game through its meter. A checkpoint may be made after each batch
of games and after each round of learning, and a run goes on from it as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from loadmaster.learn import session as learn
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.learn.policies import policy_arrays
from loadmaster.learn.session import keep_only
from loadmaster.malloc_game.games import NO_COPY
from loadmaster.malloc_game.muzero.paper import LEARNING, SEARCHING, Settings, load_policy
from loadmaster.malloc_game.muzero.paper.batches import Prepared, finish, prepare, pretrain, pretrain_batch
from loadmaster.malloc_game.muzero.paper.learner import (
    Learner,
    Losses,
    compiled_improve,
    first_learner,
    resume_learner,
)
from loadmaster.malloc_game.muzero.paper.network import make_network
from loadmaster.malloc_game.muzero.paper.replay import Picked, Replay, played_out
from loadmaster.malloc_game.muzero.paper.search import Search
from loadmaster.malloc_game.muzero.paper.selfplay import (
    MOST,
    Gain,
    Opening,
    Played,
    Style,
    buckets,
    combine_gains,
    play,
    whole_games,
    windows,
)
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.problem import Scores
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, State, generator_state, restore_generator, solve

WARM: tuple[tuple[str, dict[str, Any]], ...] = (
    ("msa", {"style": "2023"}),
    ("msa", {"style": "refined"}),
    ("es-moves", {"start": "msa"}),
)
"""Solvers, with options, whose games a warm start begins with."""
CHUNK = 8
"""Gradient steps whose positions are made again at once."""


class Session(learn.Session):
    """Meters of the programs, the networks, and the games played so far."""

    def __init__(
        self, meters: Sequence[Meter], seed: int, settings: Settings, init: str | None, state: State | None
    ) -> None:
        super().__init__(meters[0], "play", "evaluate", "learn")
        self.settings = settings = settings.on(jax.default_backend())
        self.meters = list(meters)
        self.problems = [problem_of(meter) for meter in meters]
        self.numbers = {id(problem): number for number, problem in enumerate(self.problems)}
        # Windows are of one length, whatever the games'.
        self.buckets = (
            [list(range(len(meters)))]
            if settings.window
            else buckets([problem.moves for problem in self.problems])
        )
        self.key = jax.random.key(seed)
        self.rng = np.random.default_rng(seed)
        self.trained = init is not None
        network = make_network(jax.random.fold_in(self.key, 0), settings)
        self.learner = first_learner(network if init is None else load_policy(init, network), settings)
        self.replay = Replay(self.problems, settings)
        model = None if settings.model == "learned" else self.problems[0]
        self.search = Search(keep_only(settings, SEARCHING), model)
        self.iteration = self.steps = 0
        self.owed = 0
        """Gradient steps that the last batch of games is still to be followed by."""
        self.moves = 0
        self.metrics: dict[str, float] = {}
        if state is not None:
            self.restore(state)

    def run(self) -> Solution:
        """Until all meters are exhausted; the first one's solution."""
        if self.settings.warm_start and not self.iteration:
            self._warm_start()
        if self.settings.pretrain_steps > self.steps:
            self._pretrain()
        while not self.stopped:
            whole = self._learn() if self.owed else self._play()
            if not whole and all(meter.exhausted for meter in self.meters):
                break  # otherwise only some programs have had their games
            self.offer_checkpoint()
            self._report()
        self._report()
        return self.meters[0].solution(
            iterations=self.iteration,
            gradient_steps=self.steps,
            seconds_split=dict(self.seconds),
            policy=policy_arrays(self.learner.network),
            metrics=dict(self.metrics),
        )

    @property
    def stopped(self) -> bool:
        return all(meter.exhausted for meter in self.meters)

    def _play(self) -> bool:
        """One batch of games; whether all of them could be scored."""
        settings, visit = self.settings, self.iteration // len(self.buckets)
        mine = [
            number
            for number in self.buckets[self.iteration % len(self.buckets)]
            if not self.meters[number].exhausted
        ]
        key = jax.random.fold_in(self.key, 2 * self.iteration + 1)
        self.iteration += 1
        if not mine:
            return True
        unknown = [number for number in mine if not len(self.replay.programs[number].best_times)]
        careful = (mine if visit else unknown) if self.trained or visit else []
        if visit and (visit % settings.eval_every or not settings.updates):
            careful = []
        whole = not careful or self._play_evaluation_games(careful, jax.random.fold_in(key, 1))
        return whole and self._self_play(mine, key)

    def _play_evaluation_games(self, mine: list[int], key: jax.Array) -> bool:
        """A few whole games with more search and less noise."""
        settings, most = self.settings, max(map(len, self.buckets))
        style = Style(self.search, settings.eval_simulations or 0, settings.eval_gumbel_scale, True)
        if not settings.simulations:
            style = style._replace(simulations=0)  # the bare policy has no search to show
        games = whole_games([self.problems[number] for number in mine], max(settings.eval_games, most))
        return self._batch(games, 0, style, key, "careful_reward")

    def _self_play(self, mine: list[int], key: jax.Array) -> bool:
        """Many games to learn from."""
        settings = self.settings
        rows, window = settings.games or 1, settings.window or 0
        style = Style(self.search, settings.simulations or 0, settings.gumbel_scale)
        if len(mine) > MOST:
            mine = sorted(self.rng.choice(mine, MOST, replace=False).tolist())
        programs = [self.replay.programs[number] for number in mine]
        if window:
            for number, program in zip(mine, programs, strict=True):
                if not len(program.best_times):  # something to begin in the middle of
                    self._add_games(number, [np.full(program.problem.moves, NO_COPY, np.int8)])
            if self.stopped:
                return False
            games = windows(programs, rows, window, self.rng)
        else:
            games = whole_games([program.problem for program in programs], rows)
        whole = self._batch(games, window, style, key, "mean_reward")
        self.owed = settings.updates or 0
        return whole

    def _batch(self, openings: list[Opening], window: int, style: Style, key: jax.Array, name: str) -> bool:
        """Play games, have them scored, keep them; whether all were."""
        with self.timed("play"):
            games, moves, whole = play(
                openings, window, style, self.learner.network, key, lambda: self.stopped
            )
        self.moves += moves
        earned, games_played = [], 0
        gains: dict[int, list[Gain]] = {}
        for opening, played in zip(openings, games, strict=True):
            number = self.numbers[id(opening.problem)]
            games_played += opening.rows
            if not whole and self.meters[number].best is not None:
                continue
            scores = self._score(number, played, whole)
            earned.append(scores.reward)
            if opening.times is not None:
                gains.setdefault(number, []).extend(_gains(opening, played, scores.value))
        for number, some in gains.items():
            rows = combine_gains(self.replay.programs[number].best.actions[0], some)
            if rows and not self.meters[number].exhausted:
                self._add_games(number, rows)
        self.metrics[name] = float(np.mean(np.concatenate(earned))) if earned else 0.0
        return whole and sum(map(len, earned)) == games_played

    def _score(self, number: int, played: Played, keep: bool) -> Scores:
        with self.timed("evaluate"):
            scores = self._evaluate(number, played.record.actions)
        count = len(scores.value)
        if keep and count and (self.settings.updates or self.settings.window):
            program, record = self.replay.programs[number], played.record.take(slice(0, count))
            program.add(record, scores.value, played.first, played.last)
        return scores

    def _evaluate(self, number: int, actions: Any) -> Scores:
        """By the meter's problem, which may have more moves: a game of this one is a plan of that one."""
        meter, problem = self.meters[number], self.problems[number]
        if meter.problem is problem:
            return meter.evaluate_many(actions)
        scores = problem.score(actions[: meter.evaluations_left])
        meter.take_many(scores.value, lambda row: problem.decision(problem.plan(actions[row])))
        return scores

    def _add_games(self, number: int, moves: list[Any]) -> None:
        """Games that prefer moves [N], scored like any other and kept."""
        record = played_out(self.problems[number], np.stack(moves))
        self._score(number, Played(record, 0, self.problems[number].moves), keep=True)

    def _learn(self) -> bool:
        """The gradient steps that are owed; whether there was time for all of them."""
        settings, improve = self.settings, compiled_improve(keep_only(self.settings, LEARNING))
        picked = self.replay.draw(self.rng, self.owed, settings.batch or 1)
        losses = None
        with self.timed("learn"), ThreadPoolExecutor(1) as ahead:

            def begin(first: int) -> Future[Prepared]:
                some = Picked(*(each[first : first + CHUNK] for each in picked))
                return ahead.submit(prepare, self.replay, some, settings)

            waiting, steps = begin(0), self.owed
            for step in range(steps):
                number = step % CHUNK
                if number == 0:
                    prepared = waiting.result()
                    if step + CHUNK < steps:  # the next ones are made while these are learned from
                        waiting = begin(step + CHUNK)
                key = jax.random.fold_in(jax.random.fold_in(self.key, 2 * self.iteration), step)
                batch = finish(prepared, number, self.search, self.learner.target, key, settings)
                self.learner, losses = improve(self.learner, batch)
                self._count_step()
                if self.stopped:
                    break
            if losses is not None:
                self._note(jax.block_until_ready(losses))
        return self.owed == 0

    def _count_step(self) -> None:
        self.steps, self.owed = self.steps + 1, self.owed - 1
        if self.steps % self.settings.target_every == 0:
            self.learner = self.learner._replace(target=self.learner.network)

    def _note(self, losses: Losses) -> None:
        self.metrics |= {f"{name}_loss": float(value) for name, value in losses._asdict().items()}

    def _warm_start(self) -> None:
        """The heuristic's own games and one that evolution found, scored like any other."""
        for number, problem in enumerate(self.problems):
            known = []
            for solver, options in WARM:
                budget = Budget(self.settings.warm_start)
                best = solve(make_labelled("malloc-game", solver, options), problem, budget, number).decision
                if best is not None:
                    known.append(best if best.ndim == 1 else problem.moves_of(problem.plan(best)))
            self._add_games(number, known)

    def _pretrain(self) -> None:
        """Learn from the game itself before play."""
        begun = self.steps

        def report(steps: int, learner: Learner, losses: Losses) -> bool:
            self.steps, self.learner = begun + steps, learner
            self._note(losses)
            self._report()
            return not self.stopped

        with self.timed("learn"):
            batch = pretrain_batch(self.replay.programs, self.settings, self.rng)
            self.learner = pretrain(self.learner, batch, self.settings, self.key, report)

    def _report(self) -> None:
        """The same names as EGRL's; evaluations, best, bound and gap are the meter's."""
        split, metrics = self.seconds, dict(self.metrics)
        metrics["moves_per_s"] = self.moves / max(split["play"], 1e-9)
        metrics["steps_per_s"] = self.steps / max(split["learn"], 1e-9)
        for meter in self.meters:
            meter.progress(generation=self.iteration, steps=self.steps, **metrics, **split)

    def arrays(self, full: bool = True) -> State:
        """All that changes; without `full`, only what is small: neither the games in the replay nor
        the target network nor the optimiser's memory, and so a run goes on, but not identically."""
        counters = [self.iteration, self.steps, self.owed, self.moves]
        replay = {
            f"{_program_key(number)}{name}": array
            for number, program in enumerate(self.replay.programs)
            for name, array in program.arrays(full).items()
        }
        learned = self.learner if full else self.learner.network
        return {
            "rng": generator_state(self.rng),
            "counters": np.array(counters, np.int64),
            **tree_arrays(learned),
            **replay,
        }

    def restore(self, state: State) -> None:
        """Go on from `arrays`; this object gives the shapes."""
        self.iteration, self.steps, self.owed, self.moves = (int(x) for x in state["counters"])
        self.rng = restore_generator(state["rng"])
        light = len(tree_arrays(self.learner)) != sum(name.startswith("leaf") for name in state)
        if light:
            self.learner = resume_learner(
                restore_tree(self.learner.network, state), self.settings, self.steps
            )
            self.owed = 0  # there is nothing yet to learn from
        else:
            self.learner = Learner(*restore_tree(self.learner, state))
        for number, program in enumerate(self.replay.programs):
            start = _program_key(number)
            program.restore(
                {name.removeprefix(start): array for name, array in state.items() if name.startswith(start)}
            )


def _program_key(number: int) -> str:
    """What the names of a program's arrays begin with in a checkpoint: as they always did."""
    return f"shelf{number}."


def _gains(opening: Opening, played: Played, times: Any) -> list[Gain]:
    """The games that were better than the ones they began in."""
    assert opening.times is not None
    return [
        Gain(int(before - after), played.first, played.last, actions)
        for before, after, actions in zip(opening.times, times, played.record.actions, strict=False)
        if after < before
    ]


def problem_of(meter: Meter) -> MallocGame:
    """The game that a meter counts evaluations of, with the published moves."""
    assert isinstance(meter.problem, MallocGame)
    return meter.problem.published()
