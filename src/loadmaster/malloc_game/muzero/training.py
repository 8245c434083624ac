"""How the player on the board is trained: a score, then openings.

First the score: its weights are moved, each set decides many cells at once, and what made plans faster is
followed (`learn.evolution_strategies`). Then the openings, by expert iteration: on every cell a search in the
space of feature weights and settings finds what is better there than the score's own plan; all that was
found is tried on all cells, and those are kept, one after the other, that add most to the best so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Dict
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import Array, Float32, Float64, Int64, Message
from loadmaster.clock import now
from loadmaster.learn.checkpoints import check_same, read_state, state_path, write_state
from loadmaster.learn.evolution_strategies import Progress, Task, begin, evolve, share_out
from loadmaster.learn.policies import save_policy
from loadmaster.learn.session import check_settings, make_settings
from loadmaster.learn.training import (
    Calls,
    Own,
    Report,
    Unfinished,
    Workers,
    check_seconds,
    ignore,
    pack_own,
    policy_header,
    unpack_own,
)
from loadmaster.malloc_game.muzero.board import Board, board_settings
from loadmaster.malloc_game.muzero.cases import FOLDS, MACHINES, PROGRAMS, SHARES, left_out, make_case
from loadmaster.malloc_game.muzero.scores import (
    LinearScore,
    Policy,
    choose_openings,
    load_policy,
    make_features,
    pack_policy,
)

SETTINGS = 40
"""To choose openings from."""
FEATURE_CASES = 100
"""Cells whose features say how they are normalised."""
TOP_SETTINGS, ROUNDS, SAMPLES, SURVIVORS, FOUND = 4, 3, 32, 6, 2
FIND_SECONDS, TRY_SECONDS = 0.2, 0.4
"""A cell, about: to find openings on it, and to try all of them. A time limit keeps so much for them, or half of it."""
SIGMAS = (0.03, 0.06, 0.12, 0.2)


@dataclass(frozen=True)
class Options:
    """Of one training."""

    fold: str = ""
    """Of `cases.FOLDS`: the programs that are left out besides the held-out ones; '': none."""
    context: bool = True
    """Whether it sees what competes with a tensor, too."""
    cases: int = 160
    validation: int = 40
    generations: int = 150
    pairs: int = 12
    batch: int = 24
    sigma: float = 0.03
    learning_rate: float = 0.01
    decay: float = 0.002
    validate_every: int = 10
    openings: int = 200
    search_cases: int = 120
    """Cells that openings are found on."""
    opening_cases: int = 300
    """Cells that all openings are tried on."""

    def __post_init__(self) -> None:
        counts = [each.name for each in fields(self) if each.type == "int"]
        check_settings("training muzero", self, self._rules, counts=counts)

    def _rules(self) -> dict[str, bool]:
        positive = {name: getattr(self, name) > 0 for name in ("sigma", "learning_rate")}
        return {"fold": self.fold in ("", *FOLDS), **positive}


@lru_cache(maxsize=1)
def random_changes() -> tuple[dict[str, Any], ...]:
    """[SETTINGS] options that openings are made of; the first changes nothing."""
    rng = np.random.default_rng(0)
    values: dict[str, tuple[float, ...]] = {
        "min_ratio": (0.5, 0.8, 1.0, 1.0, 1.2),
        "preferred_ratio": (1.0, 1.5, 2.0, 3.0, 5.0),
        "max_ratio": (1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 40.0, 200.0),
        "inefficient_ratio": (0.0, 0.0, 0.5),
    }
    whole: dict[str, tuple[int, ...]] = {"repacks": (4, 50), "retries": (2, 4), "slices": (1, 4)}
    found: list[dict[str, Any]] = [{}]
    for _ in range(SETTINGS - 1):
        drawn: dict[str, Any] = {name: float(rng.choice(each)) for name, each in values.items()}
        found.append(drawn | {name: int(rng.choice(each)) for name, each in whole.items()})
    return tuple(found)


@dataclass
class Cell:
    """A board with what a score sees of it."""

    board: Board
    features: Float32
    """[B, F] normalised"""
    reference: int
    """Picoseconds of the first state"""

    def times(self, priorities: Float64) -> Int64:
        """[K] in the first state's setting"""
        return self.board.assigner(0).totals(self.board.orders(priorities), 1)


class Judge:
    """Makes cells when they are first asked for, and says how good parameters and openings are on them."""

    def __init__(self, linear: LinearScore, without: Sequence[str], own: Own = ()) -> None:
        self.linear, self.without, self.own = linear, tuple(without), own
        self._kept: dict[tuple[int, int], Cell] = {}

    def cell(self, seed: int, number: int) -> Cell:
        if (seed, number) not in self._kept:
            board = make_case(number, seed, self.without, self.own)
            first = board.place(board.own[None], np.zeros(1, dtype=np.int64))
            features = self.linear.normalise(make_features(board, first))
            self._kept[seed, number] = Cell(board, features, int(first.total[0]))
        return self._kept[seed, number]

    def __call__(self, parameters: Float64, tasks: Sequence[Task]) -> Float64:
        """[P, cells] log(time / that of the first state) of plans that scores decide at once."""
        rows = []
        for seed, numbers in tasks:
            for cell in (self.cell(seed, number) for number in numbers):
                scores = self.linear.score(cell.features, parameters)
                rows.append(np.log(cell.times(cell.board.own + scores) / cell.reference))
        return np.stack(rows, axis=1) if rows else np.empty((len(parameters), 0))

    def _ready(self, number: int, parameters: Float64) -> tuple[Cell, Board, Float64]:
        """(cell, its board with every setting, the score's priorities [1, B])"""
        cell = self.cell(0, number)
        board = Board(cell.board.assigner(0), board_settings(random_changes()))
        return cell, board, board.own + self.linear.score(cell.features, parameters[None])

    def find_openings(self, number: int, parameters: Float64) -> tuple[Float64, Int64]:
        """(weights [FOUND, F], settings [FOUND]) that are best on one cell, of a search around the score (cross
        entropy)."""
        cell, board, base = self._ready(number, parameters)
        rng = np.random.default_rng([0, number, 1])
        weights, settings = np.zeros((SETTINGS, len(parameters))), 1 + np.arange(SETTINGS)
        values = board.place(np.repeat(base, SETTINGS, axis=0), settings).total
        chosen = np.resize(settings[np.argsort(values, kind="stable")[:TOP_SETTINGS]], SAMPLES)
        drawn = rng.choice(SIGMAS, size=(SAMPLES, 1)) * rng.normal(size=(SAMPLES, len(parameters)))
        for _ in range(ROUNDS):
            found = board.place(base + drawn @ cell.features.T, chosen).total
            weights, settings = np.concatenate([weights, drawn]), np.concatenate([settings, chosen])
            values = np.concatenate([values, found])
            best = np.argsort(values, kind="stable")[:SURVIVORS]
            spread = 0.8 * weights[best].std(axis=0) + 0.02
            drawn = weights[best].mean(axis=0) + spread * rng.normal(size=drawn.shape)
            chosen = settings[best][rng.integers(0, len(best), SAMPLES)]
        kept = np.argsort(values, kind="stable")[:FOUND]
        return weights[kept], settings[kept]

    def try_openings(self, number: int, parameters: Float64, weights: Float64, settings: Int64) -> Float64:
        """[K] log(time of the first state / time) of openings on one cell."""
        cell, board, base = self._ready(number, parameters)
        total = board.place(base + weights @ cell.features.T, settings).total
        return np.log(cell.reference / total)

    def answer(self, request: Message) -> Message:
        """As a worker is asked: `numbers` [C] of cells, `parameters`, and what to `do` with them."""
        given, do = request.arrays, request.about.get("do", "judge")
        numbers = given["numbers"].tolist()
        if do == "find":
            found = [self.find_openings(number, given["parameters"]) for number in numbers]
            stacked = {
                "weights": np.stack([weights for weights, _ in found]) if found else np.empty(0),
                "settings": np.stack([settings for _, settings in found]) if found else np.empty(0, np.int64),
            }
            return Message({}, stacked)
        if do == "try":
            openings = given["parameters"], given["weights"], given["settings"]
            rows = [self.try_openings(number, *openings) for number in numbers]
            return Message({}, {"gains": np.stack(rows) if rows else np.empty(0)})
        tasks = zip(given["seeds"].tolist(), numbers, strict=True)
        return Message({}, {"logs": self(given["parameters"], [(seed, [each]) for seed, each in tasks])})


def make_judge(setup: Message) -> Callable[[Message], Message]:
    """A judge in a worker."""
    about, arrays = setup.about, setup.arrays
    linear = LinearScore(arrays["mean"], arrays["deviation"])
    return Judge(linear, about["without"], unpack_own(arrays)).answer


def measure_features(without: Sequence[str], cases: int, context: bool) -> tuple[Float32, Float32]:
    """(mean, deviation) [F] of the features of the first training cells."""
    rows = []
    for number in range(cases):
        board = make_case(number, 0, without)
        rows.append(make_features(board, board.place(board.own[None], np.zeros(1, dtype=np.int64))))
    features = np.concatenate(rows)
    if not context:
        features = features[:, : features.shape[1] // 2]
    return features.mean(axis=0), features.std(axis=0) + np.float32(1e-3)


def _ask(
    calls: Calls, size: int, cases: int, about: dict[str, Any], given: Dict[str, Array], until: float | None
) -> dict[str, Array]:
    """Rows of the first cells in order, whoever made them; where the time is over, of fewer cells, at least of one."""
    at_once = cases if until is None else size
    found = list[dict[str, Array]]()
    for at in range(0, cases, at_once):
        if found and until is not None and now() >= until:
            break
        found.append(_ask_for(calls, size, np.arange(at, min(at + at_once, cases)), about, given))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}


def _ask_for(
    calls: Calls, size: int, numbers: Int64, about: dict[str, Any], given: Dict[str, Array]
) -> dict[str, Array]:
    """Rows of these cells in order: each worker has the cells that it judged."""
    parts = [numbers[numbers % size == worker] for worker in range(size)]
    parts = [part for part in parts if len(part)]
    replies = [
        reply.arrays for reply in calls([Message(about, {"numbers": part, **given}) for part in parts])
    ]
    order = np.argsort(np.concatenate(parts), kind="stable")
    return {name: np.concatenate([reply[name] for reply in replies])[order] for name in replies[0]}


def train(
    *,
    out: Path,
    seconds: float | None = None,
    generations: int | None = None,
    seed: int = 0,
    options: Dict[str, Any] | None = None,
    own: Own = (),
    init: str | None = None,
    resume: Path | None = None,
    workers: Workers | None = None,
    report: Report = ignore,
) -> dict[str, Any]:
    """Train a policy for the board on many programs, memory sizes and bandwidths (`cases`).

    Args:
      out: where the policy is written; beside it, in `OUT.state.npz`, what a training goes on from.
      seconds: of all; openings are found and tried on fewer cells than the options say where these are few.
      generations: of the evolution strategies.
      seed: the same seed and generations give the same policy, whoever computes it.
      options: fields of `Options`.
      own: programs and their machines that every second cell is made from; the others are random.
      init: a policy to start from.
      resume: a state file of an earlier training with the same options.
      workers: shares the work out; without, all is done in this process.
      report: takes a line about how it goes.

    Returns:
      Generations, how much less time its plans take at once than those of `msa-refined` on validation cells
      (in the mean of logarithms), and what its openings gain on training cells.
    """
    check_seconds(seconds)
    given = dict(options or {}) | ({} if generations is None else {"generations": generations})
    if seconds is not None and generations is None:
        given.setdefault("generations", 10**6)
    settings = make_settings(Options, "train muzero", given, {})
    return _Training(settings, seed, own, init, workers, report).run(out, seconds, resume)


@dataclass
class _Training:
    options: Options
    seed: int
    own: Own
    init: str | None
    workers: Workers | None
    report: Report

    def run(self, out: Path, seconds: float | None, resume: Path | None) -> dict[str, Any]:
        options, started = self.options, now()
        linear, progress = self._begin(resume)
        first = progress.parameters.copy()
        with self._calls(linear) as (calls, size):
            left = until = None
            if seconds is not None:
                until = started + seconds
                openings = FIND_SECONDS * options.search_cases + TRY_SECONDS * options.opening_cases
                left = until - min(seconds / 2, openings / size) - now()
            for _ in evolve(options, progress, share_out(calls, size), seconds=left):
                self.report(
                    f"generation {progress.generation:,}, {-100 * progress.best_value:.3f} % less time than "
                    "msa-refined at once"
                )
                self._write_state(out, linear, progress)
            if not progress.curve or np.array_equal(progress.best, first):
                raise Unfinished(
                    "training ended before it changed anything",
                    object=str(out),
                    remedy="give more --time-limit or generations",
                )
            policy, covered = self._find_openings(calls, size, linear, progress.best, until)
        row = {
            "generations": progress.generation,
            "validation": progress.best_value,
            "curve": progress.curve,
            "openings": covered,
            "took_seconds": now() - started,
        }
        save_policy(out, pack_policy(policy), self._header(row, list(policy.changes)))
        return row

    def _begin(self, resume: Path | None) -> tuple[LinearScore, Progress]:
        options = self.options
        if resume is not None:
            state, about = read_state(resume, "muzero")
            check_same(resume, about, asdict(options), self.seed, "muzero")
            linear = LinearScore(state["feature_mean"], state["feature_deviation"])
            return linear, Progress.restore(state)
        rng = np.random.default_rng(self.seed)
        if self.init is not None:
            policy = load_policy(self.init)
            return policy.linear, begin(policy.weights.copy(), rng)
        count = min(FEATURE_CASES, options.cases)
        measured = measure_features(self._without, count, options.context)
        linear = LinearScore(*measured)
        return linear, begin(np.zeros(linear.features), rng)

    @property
    def _without(self) -> tuple[str, ...]:
        return left_out(self.options.fold or None)

    @contextmanager
    def _calls(self, linear: LinearScore) -> Iterator[tuple[Calls, int]]:
        if self.workers is None:
            judge = Judge(linear, self._without, self.own)
            yield (lambda requests: [judge.answer(request) for request in requests]), 1
            return
        about = {"without": list(self._without)}
        arrays = {"mean": linear.mean, "deviation": linear.deviation, **pack_own(self.own)}
        with self.workers("muzero", about, arrays) as found:
            yield found

    def _find_openings(
        self, calls: Calls, size: int, linear: LinearScore, parameters: Float64, until: float | None
    ) -> tuple[Policy, list[float]]:
        """(the policy; mean gain of its first 1, 2, … openings on training cells)"""
        options = self.options
        self.report(f"openings: a search on each of {options.search_cases:,} cells")
        given, soon = {"parameters": parameters}, None
        if until is not None:
            soon = now() + (until - now()) / 4
        found = _ask(calls, size, options.search_cases, {"do": "find"}, given, soon)
        if (searched := len(found["settings"])) < options.search_cases:
            self.report(f"openings: there was time for {searched:,} cells")
        weights = found["weights"].reshape(-1, len(parameters))
        settings = found["settings"].reshape(-1)
        # The score's own plan, and that of the first state, in every setting.
        plain = np.concatenate(
            [np.zeros((SETTINGS, len(parameters))), np.tile(-parameters, (SETTINGS, 1))], axis=0
        )
        weights = np.concatenate([plain, weights])
        settings = np.concatenate([np.tile(1 + np.arange(SETTINGS), 2), settings])
        self.report(f"openings: {len(settings):,} of them on each of {options.opening_cases:,} cells")
        given |= {"weights": weights, "settings": settings}
        gains = _ask(calls, size, options.opening_cases, {"do": "try"}, given, until)["gains"]
        if len(gains) < options.opening_cases:
            self.report(f"openings: there was time for {len(gains):,} cells")
        chosen, covered = choose_openings(gains, options.openings)
        return Policy(linear, parameters, weights[chosen], settings[chosen], random_changes()), covered

    def _write_state(self, out: Path, linear: LinearScore, progress: Progress) -> None:
        state = {**progress.arrays(), "feature_mean": linear.mean, "feature_deviation": linear.deviation}
        about = {"agent": "muzero", "options": asdict(self.options), "seed": self.seed}
        write_state(state_path(out), state, about)

    def _header(self, row: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
        trained_on = {
            "programs": [name for name in PROGRAMS if name not in self._without],
            "shares": SHARES,
            "machines": MACHINES,
            "cases": self.options.cases,
            "own_programs": len(self.own),
        }
        return policy_header(
            "muzero",
            self.seed,
            asdict(self.options),
            changes=changes,
            training=row,
            trained_on=trained_on,
            held_out=list(self._without),
            folds=FOLDS,
            init=self.init,
        )
