"""Training GO by expert iteration: search on many graphs, learn which changes were for the better, search with that.

A round: workers make graphs and machines by number (`cases`), search them, and send back what every candidate and some
small changes of the plans in hand looked like and what they gained; two networks are fitted to all of it with NumPy
alone. The first round searches without networks. It also tries one portfolio of scheduler parameters on every graph;
those that together do best are kept. Every tenth graph is left out of the fit and tells how well changes are ranked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Bool, Float32, Float64, Int64, Message
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.graph.go.cases import (
    DEVICES,
    HELD_OUT_FAMILIES,
    HELD_OUT_MACHINES,
    HELD_OUT_MODELS,
    SMALL,
    TRACED,
    make_case,
)
from loadmaster.graph.go.scores import (
    CHANGE_FEATURES,
    CHANGES,
    FEATURES,
    MODES,
    PARTS,
    RANKER,
    GraphView,
    Network,
    PlanView,
    RunView,
    change_features,
    make_features,
    rank,
    take_changes,
)
from loadmaster.graph.go.search import FIRST, UNTRAINED, Go, Policy, ScreenedStretch, first_pairs, load_policy
from loadmaster.graph.large_neighbourhood import (
    DEVIATION,
    MEAN,
    ORDER_SHARES,
    Proposer,
    Standing,
    Starts,
    Stretch,
    reckon_time,
)
from loadmaster.graph.moves import Changes
from loadmaster.graph.pipeline import WORST, batch_size
from loadmaster.graph.problem import UNFIT
from loadmaster.learn.backend import single_threaded_products
from loadmaster.learn.checkpoints import BadState, check_same, read_state, state_path, write_state
from loadmaster.learn.policies import read_policy, save_policy
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
from loadmaster.search.solver import Budget, Meter, solve

Rng = np.random.Generator

MOST_LOG = 0.3
"""Larger gains and losses, and plans that do not fit, count as this."""
NEVER = 2.0
"""The logarithm of the time of a placement that does not fit, over the best one's."""
TEMPERATURE = 0.1
"""Of the shares that placements should have of the first ones, by the logarithms of their times."""
CASES = 24
"""Graphs in a batch of first placements."""
GAIN = 1e-6
"""A change is for the better from this on."""
TRIED, TRIED_LATER, KEPT = 64, 32, 16
"""Placements that the scheduler makes of every graph of the first round, each with parameters that the portfolio is chosen
from, and of later graphs; and members of the portfolio."""
VALIDATION = 10
"""Every such graph is left out of the fit."""
REQUESTS = 32
"""Graphs for each worker at once, one in a request."""
FIT_SHARE = 0.2
"""Of a round's seconds, for the fit."""
JUDGED, JUDGED_STRETCHES = 96, 6
"""Changes that are judged before a stretch of annealing, and before how many stretches of a search."""


@dataclass(frozen=True)
class Options:
    """Of training."""

    rounds: int = 2
    graphs: int = 4_000
    """A round."""
    evaluations: int = 320
    """Of the search of a graph, after the portfolio."""
    steps: int = 6_000
    """Of the fit of a round."""
    batch: int = 2_048
    learning_rate: float = 2e-3
    decay: float = 1e-3

    def __post_init__(self) -> None:
        counts = ("rounds", "graphs", "evaluations", "steps", "batch")
        check_settings("train go", self, dict, counts=counts)


# --- what workers do ------------------------------------------------------------------------------


class RecordedStretch(ScreenedStretch):
    """A stretch that judges some changes of the plan in hand apart from each other before it begins, and keeps what they
    looked like and the logarithm of their time over the plan's. `network`: None before there is one."""

    def __init__(
        self,
        proposer: Proposer,
        begun: float,
        budget: Budget,
        network: Network | None,
        rows: list[Float32],
        logs: list[Float64],
    ) -> None:
        super().__init__(proposer, begun, budget, CHANGES.make(0) if network is None else network)
        self.learned, self.rows, self.logs = network is not None, rows, logs

    def draw(self, rng: Rng, standing: Standing, start: Float64) -> Changes:
        if standing.value < UNFIT and len(self.logs) < JUDGED_STRETCHES:
            run = RunView(self.graph, self.climb, start)
            pool = self.pool(rng, run)
            some = rng.permutation(len(pool[0]) - 1)[:JUDGED]
            if self.learned:  # half of them are those that it would try: there it has to be right
                utility = rank(self.network, change_features(run, pool))
                some[: JUDGED // 2] = np.argsort(-utility, kind="stable")[: len(some[: JUDGED // 2])]
            changes = take_changes(pool, some)
            never = np.full(len(some), -1e9)
            judged, _ = self.climb.run(*changes, never, False)
            values = self.problem.values(*judged)
            self.rows.append(change_features(run, changes))
            self.logs.append(logs_over(np.where(values < 0, WORST, values), standing))
        return (
            super().draw(rng, standing, start) if self.learned else Stretch.draw(self, rng, standing, start)
        )


def logs_over(values: Int64, standing: Standing) -> Float64:
    """Logarithms of values over a plan's that fits."""
    logs = np.clip(np.log(np.maximum(1, values) / max(1, standing.value)), -MOST_LOG, MOST_LOG)
    return np.where(values >= UNFIT, MOST_LOG, logs)


class Recorder(Go):
    """A search that keeps what its first placements and some small changes looked like, and the logarithm of their time
    over that of the best placement and of the plan in hand."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(UNTRAINED, screen=1, portfolio=len(policy.portfolio), threads=1)
        self.policy = policy
        self.rows = np.zeros((0, FEATURES), np.float32)
        self.logs = np.zeros((0, MODES), np.float32)
        """[K, MODES] of first placements with each fusion; NEVER where that does not fit."""
        self.change_rows: list[Float32] = []
        self.change_logs: list[Float64] = []
        self.tried = np.zeros(len(policy.portfolio))
        """[P] of the portfolio's members with their best fusions, over the best of the other placements."""

    def begin(self, meter: Meter, proposer: Proposer, rng: Rng) -> Standing | None:
        if proposer.neighbourhoods is not None:
            self._try_placements(proposer, rng)
        return super().begin(meter, proposer, rng)

    def construct(self, meter: Meter, proposer: Proposer, found: Starts) -> None:
        """Nothing: what constructive placers make is no part of what is learned, and takes a fifth of a search."""

    def make_stretch(self, proposer: Proposer, begun: float, budget: Budget) -> Stretch:
        network = self.policy.changes
        return RecordedStretch(proposer, begun, budget, network, self.change_rows, self.change_logs)

    def _try_placements(self, proposer: Proposer, rng: Rng) -> None:
        """All first placements with every fusion; that is no part of the search."""
        space, problem, members = proposer.space, proposer.problem, len(self.tried)
        count = TRIED if self.policy.ranker is None else TRIED_LATER
        made = np.concatenate([self.decode(proposer, rng, count), np.stack(proposer.starts)])
        device, which = np.unique(made, axis=0, return_inverse=True)
        values = np.full((len(device), MODES), WORST)
        for mode, fusion in enumerate(space.modes):
            for begin in range(0, len(device), size := batch_size(problem, 64)):
                plain = np.stack([space.plain(each, fusion) for each in device[begin : begin + size]])
                found = problem.score(space.vectors(plain, np.full(len(plain), fusion.within))).value
                values[begin : begin + size, mode] = np.where(found < 0, WORST, found)
        best = int(values.min())
        if best >= UNFIT:
            return
        logs = np.log(np.maximum(1, values) / max(1, best))
        logs = np.where(values >= UNFIT, NEVER, np.minimum(logs, NEVER))
        first = device[int(reckon_time(proposer, device).argmin())]
        self.rows = make_features(PlanView(GraphView(proposer.decoder), first), device)
        self.logs = logs.astype(np.float32)
        each = logs.min(axis=1)[which.reshape(-1)]
        self.tried = np.clip(each[:members] - each[members:].min(initial=NEVER), -MOST_LOG, MOST_LOG)


def make_searcher(setup: Message) -> Callable[[Message], Message]:
    """What a worker answers: searches of cases by number."""
    own = unpack_own(setup.arrays)

    def answer(request: Message) -> Message:
        given, about = request.arrays, request.about
        policy = Policy(None, None, given["portfolio"])
        if about["learned"]:
            networks = RANKER.read(given, "ranker"), CHANGES.read(given, "changes")
            policy = Policy(*networks, given["portfolio"])
        with single_threaded_products():
            return search_case(int(about["case"]), int(about["seed"]), policy, int(about["evaluations"]), own)

    return answer


def search_case(number: int, seed: int, policy: Policy, evaluations: int, own: Own = ()) -> Message:
    """`rows` [R, F] and `logs` [R, MODES] of first placements; `tried` [1, P] logs of the portfolio's members; of small
    changes, see `RecordedStretch`, `change_rows` and `change_logs`."""
    recorder = Recorder(policy)
    if solve(recorder, make_case(number, seed, own), Budget(evaluations), number).interrupted:
        raise KeyboardInterrupt  # it ends the training, not one of its searches
    change_rows = np.concatenate([np.zeros((0, CHANGE_FEATURES)), *recorder.change_rows])
    found: dict[str, npt.NDArray[Any]] = {
        "rows": recorder.rows.astype(np.float16),
        "logs": recorder.logs,
        "tried": recorder.tried[None].astype(np.float32),
        "change_rows": change_rows.astype(np.float16),
        "change_logs": np.concatenate([np.zeros(0), *recorder.change_logs]).astype(np.float32),
    }
    return Message({}, found)


# --- the fit ----------------------------------------------------------------------------------------


def fit_changes(
    network: Network, rows: Float32, logs: Float32, options: Options, rng: Rng, until: float | None = None
) -> Network:
    """Cross-entropy of whether a change was for the better, and the square error of the signed root of the logarithm of
    what it gained."""
    better = (logs < -GAIN).astype(np.float32)
    gain = (-np.sign(logs) * np.sqrt(np.abs(logs))).astype(np.float32)

    def draw() -> tuple[Float32, Callable[[Float32], Float32]]:
        chosen = rng.integers(len(rows), size=options.batch)

        def error(out: Float32) -> Float32:
            found: Float32 = np.empty_like(out)
            found[:, 0] = 1 / (1 + np.exp(-np.clip(out[:, 0], -30, 30))) - better[chosen]
            found[:, 1] = 8 * (out[:, 1] - gain[chosen])
            found /= len(out)
            return found

        return rows[chosen].astype(np.float32), error

    return descend(network, draw, options, until)


def fit_ranker(
    network: Network,
    rows: Float32,
    logs: Float32,
    case: Int64,
    options: Options,
    rng: Rng,
    until: float | None = None,
) -> Network:
    """Cross-entropy of which placement and fusion of a graph is taken; each should be by its time over the best one's."""
    own_rows = _graphs(case)
    wanted = np.where(logs < NEVER, np.exp(-logs / TEMPERATURE), 0.0).astype(np.float32)

    def draw() -> tuple[Float32, Callable[[Float32], Float32]]:
        own = [own_rows[each] for each in rng.integers(len(own_rows), size=CASES).tolist()]
        index, cuts = np.concatenate(own), np.cumsum([0, *map(len, own)])[:-1]
        graph = np.repeat(np.arange(CASES), list(map(len, own)))

        def share(amount: Float32) -> Float32:
            whole = np.add.reduceat(amount.sum(axis=1), cuts)
            return np.asarray(amount / whole[graph, None])

        def error(out: Float32) -> Float32:
            out = out - np.maximum.reduceat(out.max(axis=1), cuts)[graph, None]
            return np.asarray((share(np.exp(out)) - share(wanted[index])) / CASES, dtype=np.float32)

        return rows[index].astype(np.float32), error

    return descend(network, draw, options, until)


Draw = Callable[[], tuple[Float32, Callable[[Float32], Float32]]]
"""A batch [R, F], and the gradient of the loss by the outputs [R, outputs]."""


def descend(network: Network, draw: Draw, options: Options, until: float | None) -> Network:
    """The network after so many steps of Adam, or fewer where the time is over; the rate falls to nothing with either."""
    begun, over = now(), 0.0
    names = PARTS[2:]
    weights = {name: getattr(network, name).copy() for name in names}
    first, second = ({name: np.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    for step in range(options.steps):
        over = max(over, step / options.steps)
        if until is not None:
            over = max(over, (now() - begun) / max(1e-9, until - begun))
            if over >= 1:
                break
        rows, error = draw()
        gradient = _gradient(weights, (rows - network.mean) / network.deviation, error)
        rate = options.learning_rate * 0.5 * (1 + np.cos(np.pi * over))
        for name in names:
            first[name] += 0.1 * (gradient[name] - first[name])
            second[name] += 0.001 * (gradient[name] ** 2 - second[name])
            unbiased = first[name] / (1 - 0.9 ** (step + 1))
            scale = np.sqrt(second[name] / (1 - 0.999 ** (step + 1))) + 1e-8
            weights[name] -= (rate * (unbiased / scale + options.decay * weights[name])).astype(np.float32)
    return Network(network.mean, network.deviation, **weights)


def _gradient(
    weights: Mapping[str, Float32], x: Float32, error_of: Callable[[Float32], Float32]
) -> dict[str, Float32]:
    """Of a batch's loss by the weights."""

    def silu(z: Float32) -> tuple[Float32, Float32]:
        s: Float32 = np.asarray(1 / (1 + np.exp(-np.clip(z, -30, 30))), dtype=np.float32)
        return np.asarray(z * s), np.asarray(s * (1 + z * (1 - s)))

    a, slope_a = silu(x @ weights["enter"] + weights["enter_bias"])
    b, slope_b = silu(a @ weights["inner"] + weights["inner_bias"])
    error = error_of(b @ weights["leave"] + weights["leave_bias"])
    back_b = (error @ weights["leave"].T) * slope_b
    back_a = (back_b @ weights["inner"].T) * slope_a
    return {
        "enter": x.T @ back_a,
        "enter_bias": back_a.sum(axis=0),
        "inner": a.T @ back_b,
        "inner_bias": back_b.sum(axis=0),
        "leave": b.T @ error,
        "leave_bias": error.sum(axis=0),
    }


def area_under_curve(score: npt.NDArray[np.floating], positive: Bool) -> float:
    """How often a positive row is ranked above a negative one."""
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(len(score))
    positives = int(positive.sum())
    if not 0 < positives < len(score):
        return float("nan")
    return float((rank[positive].mean() - (positives - 1) / 2) / (len(score) - positives))


def choose_portfolio(tried: Float64, count: int) -> list[int]:
    """Columns of logs [cases, P], each adding most to the best of those before."""
    best, chosen = np.zeros(len(tried)), list[int]()
    for _ in range(min(count, tried.shape[1])):
        mean = np.minimum(best[:, None], tried).mean(axis=0)
        mean[chosen] = np.inf
        chosen.append(int(mean.argmin()))
        best = np.minimum(best, tried[:, chosen[-1]])
    return chosen


# --- training -----------------------------------------------------------------------------------------


def _no_data() -> dict[str, npt.NDArray[Any]]:
    """What searches send, and the cases of rows and of changes."""
    return {
        "rows": np.zeros((0, FEATURES), np.float16),
        "logs": np.zeros((0, MODES), np.float32),
        "case": np.zeros(0, np.int64),
        "tried": np.zeros((0, TRIED), np.float32),
        "change_rows": np.zeros((0, CHANGE_FEATURES), np.float16),
        "change_logs": np.zeros(0, np.float32),
        "change_case": np.zeros(0, np.int64),
    }


def train(
    *,
    out: Path,
    seconds: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    own: Own = (),
    init: str | None = None,
    resume: Path | None = None,
    workers: Workers | None = None,
    report: Report = ignore,
) -> dict[str, Any]:
    """Train a ranker and a portfolio on thousands of graphs and machines.

    Args:
      out: where the policy is written after every round; beside it, in `OUT.state.npz`, what training goes on from.
      seconds: for all rounds together; without, `graphs` are searched in every round.
      seed: the same seed and graphs give the same policy, whoever computes it.
      options: fields of `Options`.
      own: programs and their machines that every second case is made from; the others are random.
      init: a policy to start from: its networks search from the first round on, and every fit begins with them.
      resume: a state file of an earlier training with the same options; rounds that it has are not done again.
      workers: shares the searches out; without, all are done in this process.
      report: takes a line about how it goes.

    Returns:
      rounds, graphs and candidates seen, and how well changes of graphs left out are ranked (area under curve).
    """
    check_seconds(seconds)
    settings = make_settings(Options, "train go", dict(options or {}), {})
    training = _Training(settings, out, seed, init, resume, report)
    setup = Message({}, pack_own(own))
    if workers is None:
        search = make_searcher(setup)
        return training.run(lambda requests: [search(each) for each in requests], 1, seconds)
    with workers("go", *setup) as (calls, size):
        return training.run(calls, size, seconds)


class _Training:
    def __init__(
        self, options: Options, out: Path, seed: int, init: str | None, resume: Path | None, report: Report
    ) -> None:
        self.options, self.out, self.seed, self.report, self.started = options, out, seed, report, now()
        self.first = _first_portfolio(seed)
        """[TRIED, 6]"""
        self.initial, self.before = Policy(None, None, self.first), dict[str, Any]()
        """What fits begin with, and what made it."""
        if init not in (None, UNTRAINED):
            self.initial, about = load_policy(init), read_policy(init, "go")[1]
            kept = ("command", "seed", "rounds", "data", "init")
            self.before = {name: about[name] for name in kept if name in about}
        self.policy = self.initial
        self.rounds = list[dict[str, Any]]()
        self.data = _no_data()
        if resume is not None:
            self._resume(resume)

    def run(self, calls: Calls, size: int, seconds: float | None) -> dict[str, Any]:
        for number in range(len(self.rounds), self.options.rounds):
            searched, share = None, 0.0
            if seconds is not None:
                left = max(0.0, self.started + seconds - now())
                share = left / (self.options.rounds - number)
                searched = now() + (1 - FIT_SHARE) * share
            self._search(number, calls, size, searched)
            if not all(_learned_from(self.data[name]).any() for name in ("case", "change_case")):
                if seconds is None:
                    raise Unfinished(
                        "no graph that may be learned from was searched with success",
                        object="graphs",
                        number=self.options.graphs,
                        remedy="give more graphs or evaluations",
                    )
                raise Unfinished(
                    f"no graph that may be learned from was finished in {seconds:g} s",
                    object="seconds",
                    number=seconds,
                    remedy="give more --time-limit",
                )
            self._fit(number, None if searched is None else max(now(), searched) + FIT_SHARE * share)
            self._write()
        if not self.rounds:
            raise Unfinished("training has no round", object="rounds", remedy="give rounds=2")
        return self.rounds[-1]

    def _search(self, number: int, calls: Calls, size: int, until: float | None) -> None:
        """Searches of a round's graphs, as many as there is time for."""
        begin, policy = number * self.options.graphs, self.policy
        numbers = list(range(begin, begin + self.options.graphs))
        learned = policy.ranker is not None
        arrays = policy.arrays()
        about = {"learned": learned, "seed": self.seed, "evaluations": self.options.evaluations}
        pieces: dict[str, list[npt.NDArray[Any]]] = {name: [each] for name, each in self.data.items()}
        begun, last = now(), 0
        while (at := last) < len(numbers):
            at_once = REQUESTS * size if size > 1 else 1
            if until is not None:
                if now() > until:
                    break
                pace = at / max(1e-9, now() - begun)  # the first are as many as there are workers
                at_once = min(at_once, max(size, int(pace * (until - now()))))
            last = min(at + at_once, len(numbers))
            requests = [Message({**about, "case": each}, arrays) for each in numbers[at:last]]
            for case, reply in zip(numbers[at:last], calls(requests), strict=True):
                found = dict(reply.arrays)
                found["case"] = np.full(len(found["logs"]), case)
                found["change_case"] = np.full(len(found["change_logs"]), case)
                if learned:  # its portfolio is another
                    found["tried"] = found["tried"][:0, :0].reshape(0, TRIED)
                for name, each in found.items():
                    pieces[name].append(each)
            self.report(f"round {number + 1}: {last:,} graphs, {now() - self.started:.0f} s")
        self.data = {name: np.concatenate(each) for name, each in pieces.items()}

    def _fit(self, number: int, until: float | None) -> None:
        data, options = self.data, self.options
        kept = _learned_from(data["case"])
        rows, logs = data["rows"][kept], data["logs"][kept]
        own = _learned_from(data["change_case"])
        change_rows, change_logs = data["change_rows"][own], data["change_logs"][own]
        one, other = (np.random.default_rng([self.seed, number, each]) for each in (6, 7))
        first = self.initial.ranker or RANKER.make(self.seed, *_moments(rows))
        second = self.initial.changes or CHANGES.make(self.seed, *_moments(change_rows))
        # Most of it is in NumPy, which lets the other go on meanwhile.
        with single_threaded_products(), ThreadPoolExecutor(2) as pool:
            fits = (
                pool.submit(fit_ranker, first, rows, logs, data["case"][kept], options, one, until),
                pool.submit(fit_changes, second, change_rows, change_logs, options, other, until),
            )
            ranker, changes = (each.result() for each in fits)
        portfolio = self.policy.portfolio
        if len(data["tried"]):
            portfolio = self.first[choose_portfolio(data["tried"].astype(np.float64), KEPT)]
        self.policy = Policy(ranker, changes, portfolio)
        self.rounds.append(
            {
                "graphs": len(np.unique(data["case"])),
                "placements": len(data["logs"]),
                "first_over_best": self._judge_ranker(ranker, ~kept),
                "reckoned_over_best": self._judge_ranker(None, ~kept),
                "changes": len(data["change_logs"]),
                "changes_better": float((data["change_logs"] < -GAIN).mean()),
                "changes_area_under_curve": self._judge_changes(changes, ~own),
                "portfolio": _mean_best(data["tried"], self.first, portfolio),
                "took_seconds": now() - self.started,
            }
        )
        self.report(f"round {number + 1}: {_round_text(self.rounds[-1])}")

    def _judge_ranker(self, network: Network | None, left_out: Bool) -> float | None:
        """The mean logarithm of the best of those that come first over the best of all, of graphs that were left out;
        without a network, of those that the scheduler reckons best with the first fusion."""
        data = self.data
        rows, logs = data["rows"][left_out].astype(np.float32), data["logs"][left_out]
        found = []
        for own in _graphs(data["case"][left_out]):
            if network is None:
                found.append(logs[own, 0][np.argsort(rows[own, 0], kind="stable")[:FIRST]].min())
            else:
                found.append(min(logs[own[row], mode] for row, mode in first_pairs(network(rows[own]))))
        return float(np.mean(found)) if found else None

    def _judge_changes(self, network: Network, left_out: Bool) -> float | None:
        """How a network ranks changes: the mean over graphs that were left out."""
        data = self.data
        score = network(data["change_rows"][left_out].astype(np.float32))[:, 0]
        better = data["change_logs"][left_out] < -GAIN
        found = [
            area_under_curve(score[own], better[own])
            for own in _graphs(data["change_case"][left_out])
            if 3 < better[own].sum() < len(own)
        ]
        return float(np.mean(found)) if found else None

    def _write(self) -> None:
        policy = self.policy
        trained_on = {
            "traced": TRACED,
            "small": SMALL,
            "devices": DEVICES,
            "graphs": self.rounds[-1]["graphs"] + _graphs_before(self.before),
        }
        held_out = {"models": HELD_OUT_MODELS, "families": HELD_OUT_FAMILIES, "machines": HELD_OUT_MACHINES}
        header = policy_header(
            "go",
            self.seed,
            asdict(self.options),
            rounds=self.rounds,
            data=_digests(self.data),
            trained_on=trained_on,
            held_out=held_out,
            **({"init": self.before} if self.before else {}),
        )
        arrays = policy.arrays()
        save_policy(self.out, arrays, header)
        about = {
            "agent": "go",
            "options": asdict(self.options),
            "seed": self.seed,
            "rounds": self.rounds,
            "init": self.before,
        }
        initial = {f"initial.{name}": each for name, each in self.initial.arrays().items()}
        write_state(state_path(self.out), {**self.data, **arrays, **initial}, about, compress=False)

    def _resume(self, path: Path) -> None:
        state, about = read_state(path, "go")
        check_same(path, about, asdict(self.options), self.seed, "go")
        try:
            portfolio = np.asarray(state["portfolio"], dtype=np.float64)
            networks = RANKER.read(state, "ranker"), CHANGES.read(state, "changes")
            self.policy = Policy(*networks, portfolio)
            self.data = {name: np.asarray(state[name]) for name in self.data}
            self.rounds = list(about["rounds"])
            if about["init"]:
                networks = RANKER.read(state, "initial.ranker"), CHANGES.read(state, "initial.changes")
                self.initial, self.before = Policy(*networks, portfolio), dict(about["init"])
        except (LoadmasterError, KeyError, TypeError) as error:
            raise BadState(
                f"'{path}' can't be resumed: {error}",
                object=str(path),
                remedy="give the .state.npz beside a policy of 'train go'",
            ) from None


def _learned_from(case: Int64) -> Bool:
    """Rows of graphs that are not left out of the fit."""
    return np.asarray(case % VALIDATION != 0)


def _round_text(row: Mapping[str, Any]) -> str:
    """A round in one line."""
    parts = [
        f"{row['graphs']:,} graphs",
        f"{row['placements']:,} placements",
        f"{row['changes']:,} small changes ({100 * row['changes_better']:.1f} % for the better)",
    ]
    if row["first_over_best"] is not None:
        parts.append(f"first plans {100 * row['first_over_best']:.2f} % over the best")
    if row["changes_area_under_curve"] is not None:
        parts.append(f"better changes ranked above others {100 * row['changes_area_under_curve']:.1f} %")
    return f"{', '.join(parts)}, {row['took_seconds']:.0f} s"


def _graphs(case: Int64) -> list[Int64]:
    """Rows of each graph, which are together."""
    starts = np.flatnonzero(np.diff(case, prepend=-1))
    return np.split(np.arange(len(case)), starts[1:]) if len(case) else []


def _graphs_before(about: Mapping[str, Any]) -> int:
    """Graphs that a policy was trained on, with those of the one that it began with."""
    return int(about["rounds"][-1]["graphs"]) + _graphs_before(about.get("init", {})) if about else 0


def _digests(data: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
    """SHA-256 of what the networks were fitted to: the same seed and graphs give the same."""
    return {
        name: hashlib.sha256(np.ascontiguousarray(each).tobytes()).hexdigest() for name, each in data.items()
    }


def _moments(rows: npt.NDArray[np.float16]) -> tuple[Float32, Float32]:
    """Mean and deviation [F] of rows, of some of them where there are many."""
    some = rows[:: max(1, len(rows) // 200_000)].astype(np.float32)
    return some.mean(axis=0), some.std(axis=0) + np.float32(1e-2)


def _first_portfolio(seed: int) -> Float64:
    """[TRIED, 6] drawn as the search draws them, a little wider."""
    rng = np.random.default_rng([seed, 5])
    drawn = MEAN + 1.2 * DEVIATION * rng.normal(size=(TRIED, len(MEAN)))
    order = rng.choice(len(ORDER_SHARES), size=(TRIED, 1), p=ORDER_SHARES)
    return np.concatenate([drawn, order], axis=1)


def _mean_best(tried: Float32, first: Float64, portfolio: Float64) -> float | None:
    """The mean logarithm of the best of the portfolio over the best plan before it."""
    if not len(tried):
        return None
    rows = [int(np.flatnonzero((first == each).all(axis=1))[0]) for each in portfolio]
    return float(np.minimum(0.0, tried[:, rows].min(axis=1)).mean())
