"""`distribute`: what of a problem is done by workers.

A problem that measures has its measurements shared out, plan by plan; all else about it stays here,
so its baselines, failures and leaders are as they are without workers. Of others batches are scored
in parts, and an evaluation keeps its number: the same seed gives the same run. Whole searches are shared out by
`search_islands`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from loadmaster.arrays import Message
from loadmaster.errors import LoadmasterError
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan.json import plan_to_json
from loadmaster.plan.plan import Plan
from loadmaster.runs.workers.clients import ProcessWorker, hire_ray_workers
from loadmaster.runs.workers.pool import Address, Pool, Reply, StartWorker, parse_workers
from loadmaster.runs.workers.server import Array, pack, pack_function, pack_problem, search_island, unpack
from loadmaster.search.evaluator import EvaluationError, Gauge, Measurement
from loadmaster.search.problem import BatchProblem, Decision, Problem, Scores
from loadmaster.search.solver import Scoring


@dataclass(frozen=True)
class Distributed:
    """Workers at work. `score` is for `run_solver`; None where the problem sees to it itself."""

    pool: Pool
    score: Scoring | None


@contextlib.contextmanager
def distribute(problem: Problem, workers: str | Address) -> Iterator[Distributed]:
    """Share a problem's evaluations out for as long as the context lasts."""
    address = parse_workers(workers) if isinstance(workers, str) else workers
    if not isinstance(problem, MeasuredMapping) and not isinstance(problem, BatchProblem):
        raise LoadmasterError(
            f"a problem of kind '{problem.kind}' is not evaluated in batches",
            object="--workers",
            number=problem.kind,
            remedy="leave --workers out",
        )
    with (
        _started_workers(address, pack_problem(problem)) as (start_worker, size),
        Pool(start_worker, size) as pool,
    ):
        if not isinstance(problem, MeasuredMapping):
            yield Distributed(pool, _DistributedScoring(problem, pool))
            return
        own = problem.gauge
        problem.gauge = _DistributedGauge(problem, pool)
        try:
            yield Distributed(pool, None)
        finally:
            problem.gauge = own


@dataclass(frozen=True)
class Island:
    """What one of several searches found."""

    seed: int
    value: int | None
    """None: nothing that is legal."""
    evaluations: int
    decision: Decision | None


def search_islands(
    problem: Problem,
    solver: str,
    evaluations: int,
    *,
    islands: int,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    workers: str | Address | None = None,
) -> list[Island]:
    """Several searches that know nothing of each other, each with its own seed: the same ones wherever they run.

    What workers find is evaluated and checked here before it counts.

    Args:
      problem: one whose values are computed, so that they compare.
      solver, options: by its name among the solvers of the problem.
      evaluations: of each island.
      seed: an island's own follows from it and from the island's number alone.
      workers: 'local:4', 'ray:8', …; None: one island after the other, here.

    Returns:
      by number; `min(found, key=…)` of the values is the answer.
    """
    if not problem.repeatable:
        raise LoadmasterError(
            f"values of this problem of kind '{problem.kind}' are measured, and islands have only their own",
            object="islands",
            number=islands,
            remedy="use distribute, which shares out the measurements of one search",
        )
    seeds = [int(np.random.SeedSequence([seed, each]).generate_state(1)[0]) for each in range(islands)]
    asked = [
        {
            "do": "search",
            "solver": solver,
            "options": dict(options or {}),
            "evaluations": evaluations,
            "seed": each,
        }
        for each in seeds
    ]
    if workers is None:
        replies = [search_island(problem, each) for each in asked]
    else:
        address = parse_workers(workers) if isinstance(workers, str) else workers
        with (
            _started_workers(address, pack_problem(problem)) as (start_worker, size),
            Pool(start_worker, size) as pool,
        ):
            replies = [_content(reply) for reply in pool.map([pack(each) for each in asked])]
    return [_verified(problem, own, reply) for own, reply in zip(seeds, replies, strict=True)]


def _verified(problem: Problem, seed: int, found: Message) -> Island:
    value, decision = found.about["value"], found.arrays.get("decision")
    if decision is None or value is None:
        return Island(seed, None, found.about["evaluations"], None)
    own = problem.evaluate(decision)
    violations = problem.violations(problem.plan(decision))
    if own != value or violations:
        why = violations[0].message if violations else f"it is {own}"
        raise LoadmasterError(
            f"the island of seed {seed} says that its plan has {value}, and here {why}",
            object="islands",
            number=seed,
            remedy="install the same Loadmaster on all workers",
        )
    return Island(seed, value, found.about["evaluations"], decision)


Calls = Callable[[Sequence[Message]], list[Message]]
"""Requests -> replies. Of no more requests than workers, the one at a place goes to the same worker every time, as long
as it lives; of more, each goes to whoever is free."""


@contextlib.contextmanager
def distribute_function(
    name: str, about: Mapping[str, Any], arrays: Mapping[str, Array], workers: str | Address
) -> Iterator[tuple[Calls, int]]:
    """Workers that answer with one of `server.FUNCTIONS`, and how many they are.

    Args:
      name, about, arrays: which function, and what it is made from, once in every worker.
      workers: 'local:4', 'ray:8', …
    """
    address = parse_workers(workers) if isinstance(workers, str) else workers
    setup = pack_function(name, about, arrays)
    with _started_workers(address, setup) as (start_worker, size), Pool(start_worker, size) as pool:

        def call(requests: Sequence[Message]) -> list[Message]:
            packed = [pack(*request) for request in requests]
            places = range(len(packed)) if len(packed) <= size else None
            return [_content(reply) for reply in pool.map(packed, places)]

        yield call, size


@contextlib.contextmanager
def _started_workers(address: Address, setup: bytes) -> Iterator[tuple[StartWorker, int]]:
    if address.kind == "ray":
        with hire_ray_workers(address, setup) as found:
            yield found
        return
    yield (lambda place: ProcessWorker(setup)), address.workers or 1


class _DistributedScoring:
    """Scores batches in parts."""

    def __init__(self, problem: Problem, pool: Pool) -> None:
        self.problem, self.pool = cast(BatchProblem, problem), pool

    def __call__(self, decisions: Decision, first: int = 0) -> Scores:
        if len(decisions) < 2:  # nobody else could do anything meanwhile
            return self.problem.score(decisions, first)
        parts = [part for part in np.array_split(np.arange(len(decisions)), self.pool.size) if len(part)]
        requests = [
            pack(
                {"do": "score", "first": first + int(part[0])},
                {"decisions": np.ascontiguousarray(decisions[part])},
            )
            for part in parts
        ]
        replies = [_content(reply).arrays for reply in self.pool.map(requests)]
        failed = [reply["failed"] for reply in replies if "failed" in reply]
        return Scores(
            _joined(replies, "value"), _joined(replies, "reward"), np.concatenate(failed) if failed else None
        )


class _DistributedGauge(Gauge):
    """Measures plans on workers, each a board of its own: a reward is relative to the baseline of
    the worker that measured it. Warm-ups and repeats of a plan stay together on one."""

    def __init__(self, problem: MeasuredMapping, pool: Pool) -> None:
        super().__init__(problem.gauge.evaluator, problem.gauge.repeats, problem.gauge.warmups)
        self._problem, self._pool, self.boards = problem, pool, pool.size

    def once(self, plan: Plan) -> float:
        """One board for all that is compared with one another."""
        found = next(self._measure_on("once", [plan], [0]))
        if found.fault is not None:
            raise EvaluationError(found.fault, object=self.name, remedy="try it alone")
        return found.seconds[0]

    def baseline_once(self, plan: Plan) -> float:
        return self.once(plan)

    def measure(self, plans: Sequence[Plan]) -> Iterator[Measurement]:
        return self._measure_on("measure", plans)

    def measure_baseline(self, plan: Plan) -> list[Measurement]:
        places = range(self._pool.size)
        found = self._measure_on("measure", [plan] * self._pool.size, places)
        return [
            Measurement(each.seconds, each.fault, place) for place, each in zip(places, found, strict=True)
        ]

    def _measure_on(
        self, do: str, plans: Sequence[Plan], places: Sequence[int] | None = None
    ) -> Iterator[Measurement]:
        problem = self._problem
        requests = [
            pack({"do": do, "plan": plan_to_json(plan, problem.program, problem.machine)}) for plan in plans
        ]
        for reply in self._pool.map(requests, places):
            if reply.fault is not None:
                yield Measurement((), reply.fault, reply.place)
                continue
            about = _content(reply).about
            yield Measurement(tuple(about["seconds"]), about["fault"], reply.place)


def _content(reply: Reply) -> Message:
    found = Message({"error": reply.fault}, {}) if reply.fault else unpack(reply.data)
    if "error" in found.about:
        raise LoadmasterError(
            f"worker {reply.place} could not evaluate: {found.about['error']}",
            object="--workers",
            number=reply.place,
            remedy="try it without --workers",
        )
    return found


def _joined(replies: Sequence[dict[str, Array]], name: str) -> Array:
    return np.concatenate([reply[name] for reply in replies])
