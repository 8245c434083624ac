"""Searches over the moves of the MallocGame, and `auto`. A genome is N preferred moves; the game plays each
if it is legal, else NoCopy, else Copy, else Drop, so every genome is a whole game."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from loadmaster.arrays import Float64, Int16, Int64
from loadmaster.malloc_game.games import COPY, DROP, NO_COPY
from loadmaster.malloc_game.heuristics import has_production
from loadmaster.malloc_game.msa import MSA_STEPS, msa_moves
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search import metaheuristics
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.metaheuristics import Rng, Search, Walk
from loadmaster.search.problem import Decision, Problem
from loadmaster.search.solver import Meter, State, generator_state

STARTS = ("greedy", "msa", "random")
"""What a search begins with: 'greedy' also has all-slow; 'msa' has the heuristic's moves as well."""


class _Search(Search[MallocGame]):
    problem_kind = "malloc-game"

    def only_decision(self, problem: MallocGame) -> Decision | None:
        return None if problem.moves else np.zeros(0, dtype=np.int16)


class RandomBest(_Search, metaheuristics.RandomBest[MallocGame]):
    """Uniform preferences, the best of the budget."""

    name = "random-best"
    summary = "best of games with random moves"

    def draw(self, problem: MallocGame, rng: Rng, count: int) -> Int16:
        return _random_games(rng, count, problem)


class EsMoves(_Search):
    """Evolution: the two best are kept; parents win tournaments of four; children take one segment of
    the program from the second parent and one to three random moves."""

    name = "es-moves"
    summary = "evolution over moves"

    def __init__(
        self,
        population: int = 64,
        tournament: int = 4,
        elite: int = 2,
        mutations: int = 3,
        start: str = "greedy",
    ) -> None:
        if not 1 <= elite < population or not 1 <= tournament <= population or mutations < 1:
            raise ValueError("elite and tournament must be within the population, mutations positive")
        self.population, self.tournament, self.elite = population, tournament, elite
        self.mutations, self.start = mutations, _known_start(start)
        self.options = {
            "population": population,
            "tournament": tournament,
            "elite": elite,
            "mutations": mutations,
            "start": start,
        }

    def search(self, meter: Meter, problem: MallocGame, rng: Rng, state: State | None) -> None:
        if state is None:
            games = _random_games(rng, self.population, problem)
            seeds = _seeds(problem, self.start)[: self.population]
            games[: len(seeds)] = seeds
            reward = meter.evaluate_many(games).reward
            if len(reward) < self.population:
                return
        else:
            games, reward = np.array(state["games"]), np.array(state["reward"])
        while not meter.exhausted:
            children = self._children(rng, games, reward, problem)
            scored = meter.evaluate_many(children).reward
            if len(scored) < len(children):
                return
            best = np.argsort(-reward, kind="stable")[: self.elite]
            games = np.concatenate([games[best], children])
            reward = np.concatenate([reward[best], scored])
            meter.checkpoint({"rng": generator_state(rng), "games": games, "reward": reward})
            meter.progress(mean_reward=float(reward.mean()))

    def _children(self, rng: Rng, games: Int16, reward: Float64, problem: MallocGame) -> Int16:
        count, moves = self.population - self.elite, games.shape[1]
        first, second = (self._winners(rng, reward, count) for _ in range(2))
        children = games[first]
        edges = np.sort(rng.integers(0, moves + 1, (count, 2)), axis=1)
        site = np.arange(moves)
        segment = (site >= edges[:, :1]) & (site < edges[:, 1:])
        children = np.where(segment, games[second], children)
        for row, count_changed in enumerate(rng.integers(1, self.mutations + 1, count).tolist()):
            chosen = rng.integers(0, moves, count_changed)
            children[row, chosen] = _other_moves(rng, children[row, chosen], problem)
        return children

    def _winners(self, rng: Rng, reward: Float64, count: int) -> Int64:
        few = rng.integers(0, len(reward), (count, self.tournament))
        winners: Int64 = few[np.arange(count), reward[few].argmax(axis=1)]
        return winners


class AnnealMoves(_Search, metaheuristics.Annealing[MallocGame]):
    """Simulated annealing: one to three moves of one tensor change; the temperature falls
    geometrically over the evaluations of the budget, and now and then the walk returns to its
    best."""

    name = "anneal-moves"
    summary = "simulated annealing over moves"
    scheduled = True
    last_share = 1e-3
    stored = ("game", "reward")
    checkpoint_every = 100

    def __init__(self, temperature: float = 0.01, restarts: int = 8, start: str = "greedy") -> None:
        if not 0 < temperature <= 1 or restarts < 0:
            raise ValueError("temperature must be in (0, 1] and restarts not negative")
        self.temperature, self.restarts, self.start = temperature, restarts, _known_start(start)
        self.options = {"temperature": temperature, "restarts": restarts, "start": start}

    def begin(self, meter: Meter, problem: MallocGame) -> Walk | None:
        seeds = _seeds(problem, self.start)
        rewards = meter.evaluate_many(seeds).reward
        if len(rewards) < len(seeds):
            return None
        best = int(rewards.argmax())
        return Walk(seeds[best], float(rewards[best]), {"best": seeds[best], "best_reward": rewards[best]})

    def neighbourhood(self, problem: MallocGame) -> Callable[[Rng, Int16], Int16]:
        return partial(_changed, _sites_of_tensors(problem), problem)

    def adjust(self, meter: Meter, walk: Walk, length: int) -> None:
        if walk.score > float(walk.also["best_reward"]):
            walk.also |= {"best": walk.decision, "best_reward": np.array(walk.score)}
        if meter.evaluations % (length // (self.restarts + 1) + 1) == 0:
            walk.decision, walk.score = walk.also["best"], float(walk.also["best_reward"])


def _known_start(start: str) -> str:
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, not {start!r}")
    return start


def _random_games(rng: Rng, count: int, problem: MallocGame) -> Int16:
    return _random_starts(rng, rng.integers(0, 3, (count, problem.moves), dtype=np.int16), problem)


def _random_starts(rng: Rng, moves: Int16, problem: MallocGame) -> Int16:
    """Copies of every kind that there is, all as likely."""
    kinds = np.array([COPY, *range(DROP + 1, problem.actions)], dtype=np.int16)
    return np.where(moves == COPY, rng.choice(kinds, moves.shape), moves)


def _other_moves(rng: Rng, moves: Int16, problem: MallocGame) -> Int16:
    """For each move another; Copy of any kind, NoCopy and Drop are as likely as each other."""
    plain = np.where(moves > DROP, COPY, moves)
    same = (plain == COPY) & (problem.actions > DROP + 1)  # a Copy may become one of another kind
    other = (plain + rng.integers(np.where(same, 0, 1), 3)) % 3
    return _random_starts(rng, other.astype(np.int16), problem)


def _seeds(problem: MallocGame, start: str) -> Int16:
    """[k, N] games to begin with."""
    if start == "random":
        return _random_games(np.random.default_rng(0), 1, problem)
    games = [np.full(problem.moves, move, dtype=np.int16) for move in (NO_COPY, DROP, COPY)]
    if start == "msa":
        games.insert(0, msa_moves(problem))
    return np.stack(games)


def _sites_of_tensors(problem: MallocGame) -> list[Int64]:
    """The sites of each tensor that has any."""
    tensor = problem.model.site_tensor
    order = np.argsort(tensor, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(tensor[order])) + 1)


def _changed(sites: list[Int64], problem: MallocGame, rng: Rng, game: Int16) -> Int16:
    """One to three neighbouring moves of one tensor set to another move."""
    own = sites[int(rng.integers(len(sites)))]
    count = min(len(own), int(rng.integers(1, 4)))
    first = int(rng.integers(0, len(own) - count + 1))
    chosen = own[first : first + count]
    changed = game.copy()
    changed[chosen] = _other_moves(rng, game[chosen], problem)
    return changed


CLIMB_STARTS = ("nocopy", "msa")
AT_ONCE = 256
"""Sites that are tried between two looks at the clock."""


class Standing(NamedTuple):
    """A game as it was played, and its time."""

    game: Int16
    value: int


class Change(NamedTuple):
    """Other moves that would each improve a game, the best first."""

    site: Int64
    move: Int16


class Climb(_Search):
    """Hill climbing: at every site each other legal move is tried in the game itself, the best changes
    are made together, and so on until none helps; then the best game is shaken and climbed again.

    `start`: 'nocopy', or 'msa' for the moves of memory space assignment. `least` and `most` are the
    shares of the moves that are changed at random when no single change helps any more.
    """

    name = "climb"
    summary = "hill climbing over moves, each of them tried in the game"

    def __init__(self, start: str = "nocopy", least: float = 0.01, most: float = 0.03) -> None:
        if start not in CLIMB_STARTS:
            raise ValueError(f"start must be one of {', '.join(CLIMB_STARTS)}, not {start!r}")
        if not 0 < least <= most <= 1:
            raise ValueError("least and most must be shares, the one not above the other")
        self.start, self.least, self.most = start, least, most
        self.options = {"start": start, "least": least, "most": most}

    def search(self, meter: Meter, problem: MallocGame, rng: Rng, state: State | None) -> None:
        if state is None:
            nocopy = np.full(problem.moves, NO_COPY, dtype=np.int16)
            first = msa_moves(problem) if self.start == "msa" else nocopy
            here = _played(meter, problem, first[None])
            top, rounds = here, 0
        else:
            here = Standing(np.array(state["game"]), int(state["value"]))
            top = Standing(np.array(state["top"]), int(state["top_value"]))
            rounds = int(state["rounds"])
        while not meter.exhausted:
            changes = _improving(meter, problem, here)
            if changes is None:
                return
            if len(changes.site):
                tried = together(here.game, changes)
            else:  # a summit
                rounds += 1
                top = min(here, top, key=lambda standing: standing.value)
                tried = self._shaken(rng, top.game, problem)[None]
            if (left := meter.evaluations_left) is not None and left < len(tried):
                if left:
                    _played(meter, problem, tried[:left])
                return
            here = _played(meter, problem, tried)
            meter.checkpoint(
                {
                    "rng": generator_state(rng),
                    "game": here.game,
                    "value": np.array(here.value),
                    "top": top.game,
                    "top_value": np.array(top.value),
                    "rounds": np.array(rounds),
                }
            )
            meter.progress(rounds=rounds, reward=(problem.all_slow_ps - here.value) / problem.scale_ps)

    def _shaken(self, rng: Rng, game: Int16, problem: MallocGame) -> Int16:
        """With some moves changed, two at least where there are as many."""
        share = rng.uniform(self.least, self.most)
        count = min(len(game), max(2, round(share * len(game))))
        site = rng.choice(len(game), count, replace=False)
        shaken = game.copy()
        shaken[site] = _other_moves(rng, game[site], problem)
        return shaken


def together(game: Int16, changes: Change) -> Int16:
    """[K, N] the game with the best 1, 2, 3, 4, 6, 8, 12, … of the changes, and with all of them."""
    most = len(changes.site)
    counts = {min(most, count << twice) for twice in range(most.bit_length()) for count in (2, 3)}
    tried = np.repeat(game[None], len(counts | {1}), axis=0)
    for row, count in zip(tried, sorted(counts | {1}), strict=True):
        row[changes.site[:count]] = changes.move[:count]
    return tried


def _improving(meter: Meter, problem: MallocGame, here: Standing) -> Change | None:
    """Every other legal move at every site; None if there was no time, or no budget, for all of them.
    Each is one evaluation."""
    gain = np.zeros((problem.moves, problem.actions), np.int64)
    first = 0
    while first < problem.moves:
        if meter.exhausted:
            return None
        last = min(problem.moves, first + min(AT_ONCE, meter.evaluations_left or AT_ONCE))
        totals = problem.try_all(here.game[None], first, last)[0]
        played = here.game[first:last]
        listed = np.flatnonzero(played < problem.actions)
        totals[listed, played[listed]] = -1  # known
        site, move = (totals >= 0).nonzero()
        value = totals[site, move]
        gain[first + site, move] = here.value - value
        left = meter.evaluations_left
        meter.take_many(value, partial(_changed_site, here.game, first + site, move))
        if left is not None and left < len(value):
            return None
        first = last
    best, move = gain.max(axis=1), gain.argmax(axis=1).astype(np.int16)
    order = np.argsort(-best, kind="stable")
    order = order[best[order] > 0]
    return Change(order, move[order])


def _changed_site(game: Int16, site: Int64, move: Int64, row: int) -> Int16:
    changed = game.copy()
    changed[site[row]] = move[row]
    return changed


def _played(meter: Meter, problem: MallocGame, games: Int16) -> Standing:
    """The best of these games, as it was played."""
    played = problem.play(games)
    best = int(played.total.argmin())
    meter.take_many(played.total, played.actions.__getitem__)
    return Standing(played.actions[best], int(played.total[best]))


# `auto`: the best game that can be had.

WHITE_BOX = frozenset(
    {"all-slow", "greedy-order", "greedy-density", "msa", "production", "cp-sat", "exhaustive"}
)
"""They make one plan, or prove something, instead of trying many."""
BY_CLOCK = ("auto", "cp-sat", "exhaustive")


def make_auto() -> Auto:
    """Greedy and, where there is one, the production placement; then the trained player goes on from memory
    space assignment until the budget is spent."""
    summary = "known heuristics, then the trained player searches from memory space assignment"
    return Auto("malloc-game", _schedule, summary=summary)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, MallocGame)
    if problem.model.steps > MSA_STEPS:
        return [Stage("all-slow"), Stage("greedy-order")]
    known = ["all-slow", "greedy-order", "greedy-density"]
    if has_production(problem):
        known.append("production")
    return [*(Stage(name) for name in known), Stage("muzero", resumes=True)]
