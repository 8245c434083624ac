"""One run of mallocMuZero over one program or many: play a batch of games, learn from all of them,
play again; now and then a few games with more search and less noise.

The problem scores every finished game through its meter. A checkpoint may be made after each batch
of games and after each round of learning, and a run goes on from it as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.muzero.learner import Learner, Losses, compiled_improve, first_learner
from loadmaster.solvers.muzero.lessons import Prepared, finish, prepare
from loadmaster.solvers.muzero.network import make_network
from loadmaster.solvers.muzero.policy import load_policy, policy_arrays
from loadmaster.solvers.muzero.replay import Picked, Record, Replay, played_out
from loadmaster.solvers.muzero.search import Search
from loadmaster.solvers.muzero.selfplay import Searching, Style, play
from loadmaster.solvers.muzero.settings import LEARNING, SEARCHING, Settings
from loadmaster.solvers.muzero.state import arrays_of, restored
from loadmaster.solvers.muzero.true_model import TrueSearch
from loadmaster.solvers.solver import Meter, Solution, State
from loadmaster.solvers.state import generator_state, restore_generator

SPREAD = 1.5
"""Most that the longest game of a bucket may have of the shortest's moves, unless it has few."""
FEW = 64
CHUNK = 8
"""Gradient steps whose positions are made again at once."""


class Session:
    """Meters of the programs, the networks, and the games played so far."""

    def __init__(self, meters: Sequence[Meter], seed: int, settings: Settings, init: str | None,
                 state: State | None) -> None:  # fmt: skip
        platform = jax.default_backend()
        self.settings = settings = settings.on(platform)
        self.meters = list(meters)
        self.problems = [problem_of(meter) for meter in meters]
        self.buckets = buckets([problem.moves for problem in self.problems])
        self.lanes = 1 if platform == "cpu" else 2
        self.key = jax.random.key(seed)
        self.rng = np.random.default_rng(seed)
        self.trained = init is not None
        network = make_network(jax.random.fold_in(self.key, 0), settings)
        self.learner = first_learner(
            network if init is None else load_policy(init, network), settings
        )
        self.replay = Replay(self.problems, settings)
        self.search: Searching = (Search(settings.only(SEARCHING)) if settings.model == "learned"
                                  else TrueSearch(settings.only(SEARCHING), self.problems[0]))  # fmt: skip
        self.iteration = self.steps = 0
        self.owed = 0
        """Gradient steps that the last batch of games is still to be followed by."""
        self.seconds = dict.fromkeys(("play", "evaluate", "learn"), 0.0)
        self.moves = 0
        self.metrics: dict[str, float] = {}
        if state is not None:
            self.restore(state)

    def run(self) -> Solution:
        """Until all meters are exhausted; the first one's solution."""
        if self.settings.warm_start and not self.iteration:
            self._warm_start()
        while not self.stopped:
            whole = self._learn() if self.owed else self._play()
            if not whole:
                break
            meter = self.meters[0]
            if meter.observer.wants_checkpoint(meter):
                meter.checkpoint(self.arrays())
            self._tell()
        return self.meters[0].solution(
            iterations=self.iteration, gradient_steps=self.steps, seconds_split=dict(self.seconds),
            policy=policy_arrays(self.learner.network), metrics=dict(self.metrics),
        )  # fmt: skip

    @property
    def stopped(self) -> bool:
        return all(meter.exhausted for meter in self.meters)

    def _play(self) -> bool:
        """One batch of games, of one bucket's programs; whether all of them could be scored."""
        settings = self.settings
        mine = [number for number in self.buckets[self.iteration % len(self.buckets)]
                if not self.meters[number].exhausted]  # fmt: skip
        visit = self.iteration // len(self.buckets)
        key = jax.random.fold_in(self.key, 2 * self.iteration + 1)
        self.iteration += 1
        if not mine:
            return True
        whole = True
        again = settings.updates and visit % settings.eval_every == 0
        if again if visit else self.trained:
            most = max(map(len, self.buckets))
            careful = Style(self.search, settings.eval_simulations or 0, settings.eval_gumbel_scale, True)  # fmt: skip
            if not settings.simulations:
                careful = careful._replace(simulations=0)  # the bare policy has no search to show
            rows = max(settings.eval_games, most)
            whole = self._batch(mine, rows, careful, jax.random.fold_in(key, 1), "careful_reward")
        if whole:
            bold = Style(self.search, settings.simulations or 0, settings.gumbel_scale)
            whole = self._batch(mine, settings.games or 1, bold, key, "mean_reward")
        self.owed = settings.updates or 0
        return whole

    def _batch(self, mine: list[int], rows: int, style: Style, key: jax.Array, name: str) -> bool:
        """Play games of these programs, have them scored, keep them."""
        problems = [self.problems[number] for number in mine]
        with self._timed("play"):
            records, moves = play(problems, rows, style, self.learner.network, key,
                                  lambda: self.stopped, self.lanes)  # fmt: skip
        self.moves += moves
        finished = not self.stopped or moves == sum(record.actions.size for record in records)
        earned = []
        for number, record in zip(mine, records, strict=True):
            if finished or self.meters[number].best is None:
                earned.append(self._score(number, record, finished))
        self.metrics[name] = float(np.mean(np.concatenate(earned))) if earned else 0.0
        return finished and sum(map(len, earned)) == sum(len(record.value) for record in records)

    def _score(self, number: int, record: Record, keep: bool) -> Any:
        with self._timed("evaluate"):
            scores = self.meters[number].evaluate_many(record.actions)
        count = len(scores.value)
        if keep and self.settings.updates and count:
            self.replay.shelves[number].store(record.take(slice(0, count)), scores.value)
        return scores.reward

    def _learn(self) -> bool:
        """The gradient steps that are owed; whether there was time for all of them."""
        settings, improve = self.settings, compiled_improve(self.settings.only(LEARNING))
        picked = self.replay.draw(self.rng, self.owed, settings.batch or 1)
        losses = None
        with self._timed("learn"), ThreadPoolExecutor(1) as ahead:

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
                lesson = finish(prepared, number, self.search, self.learner.target, key, settings)
                self.learner, losses = improve(self.learner, lesson)
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
        """The heuristic's own games, scored like any other."""
        from loadmaster.solvers.heuristic.msa import Assigner, switches_of

        for number, problem in enumerate(self.problems):
            assigner = Assigner(problem.program, problem.machine, problem.model, switches_of("2023", {}))  # fmt: skip
            moves = problem.moves_of(assigner.plan())
            self._score(number, played_out(problem, moves[None]), keep=True)

    def _tell(self) -> None:
        """The same names as EGRL's; evaluations, best, bound and gap are the meter's."""
        split, told = self.seconds, dict(self.metrics)
        told["moves_per_s"] = self.moves / max(split["play"], 1e-9)
        told["steps_per_s"] = self.steps / max(split["learn"], 1e-9)
        for meter in self.meters:
            meter.progress(generation=self.iteration, steps=self.steps, **told, **split)

    def arrays(self, ring: bool = True) -> State:
        """All that changes; without `ring`, only what is small: neither the games in the replay nor
        the target network, and so a run goes on from it, but not identically."""
        counters = [self.iteration, self.steps, self.owed, self.moves]
        shelves = {f"shelf{number}.{name}": array for number, shelf in enumerate(self.replay.shelves)
                   for name, array in shelf.arrays(ring).items()}  # fmt: skip
        return {"rng": generator_state(self.rng), "counters": np.array(counters, np.int64),
                **arrays_of(self.learner if ring else self.learner._replace(target=None)), **shelves}  # fmt: skip

    def restore(self, state: State) -> None:
        """Go on from `arrays`; this object gives the shapes."""
        self.iteration, self.steps, self.owed, self.moves = (int(x) for x in state["counters"])
        self.rng = restore_generator(state["rng"])
        light = len(arrays_of(self.learner)) != sum(name.startswith("leaf") for name in state)
        if light:
            network, _, memory = restored(self.learner._replace(target=None), state)
            self.learner = Learner(network, network, memory)
            self.owed = 0  # there is nothing yet to learn from
        else:
            self.learner = Learner(*restored(self.learner, state))
        for number, shelf in enumerate(self.replay.shelves):
            start = f"shelf{number}."
            shelf.restore({name.removeprefix(start): array for name, array in state.items()
                           if name.startswith(start)})  # fmt: skip

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - started


def problem_of(meter: Meter) -> MallocGame:
    assert isinstance(meter.problem, MallocGame)
    return meter.problem


def buckets(moves: Sequence[int]) -> list[list[int]]:
    """Programs whose games are of about the same length, by number: they step together."""
    found: list[list[int]] = []
    for number in np.argsort(moves, kind="stable").tolist():
        if found and moves[number] <= max(FEW, SPREAD * moves[found[-1][0]]):
            found[-1].append(number)
        else:
            found.append([number])
    return found
