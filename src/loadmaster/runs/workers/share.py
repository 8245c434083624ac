"""`sharing`: what of a problem is done by workers.

A problem that measures has its measurements shared out, plan by plan; all else about it stays here,
so its baselines, failures and leaders are as they are without workers. Of others batches are scored
in parts, and an evaluation keeps its number: the same seed gives the same run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan.json import plan_to_json
from loadmaster.plan.plan import Plan
from loadmaster.runs.workers.clusters import ray_workers
from loadmaster.runs.workers.desk import setup_of
from loadmaster.runs.workers.pool import (
    Address,
    Array,
    Hire,
    Message,
    Pool,
    Reply,
    packed,
    parse_workers,
    unpacked,
)
from loadmaster.runs.workers.processes import ProcessWorker
from loadmaster.search.evaluator import EvaluationError, Gauge, Measurement
from loadmaster.search.problem import BatchProblem, Decision, Problem, Scores
from loadmaster.search.solver import Scoring


@dataclass(frozen=True)
class Shared:
    """Workers at work. `score` is for `run_solver`; None where the problem sees to it itself."""

    pool: Pool
    score: Scoring | None


@contextlib.contextmanager
def sharing(problem: Problem, workers: str | Address) -> Iterator[Shared]:
    """Share a problem's evaluations out for as long as the context lasts."""
    address = parse_workers(workers) if isinstance(workers, str) else workers
    if not isinstance(problem, MeasuredMapping) and not isinstance(problem, BatchProblem):
        raise LoadmasterError(
            f"a problem of kind '{problem.kind}' is not evaluated in batches",
            object="--workers",
            number=problem.kind,
            remedy="leave --workers out",
        )
    with _hiring(address, setup_of(problem)) as (hire, size), Pool(hire, size) as pool:
        if not isinstance(problem, MeasuredMapping):
            yield Shared(pool, _Scored(problem, pool))
            return
        own = problem.gauge
        problem.gauge = _SharedGauge(problem, pool)
        try:
            yield Shared(pool, None)
        finally:
            problem.gauge = own


@contextlib.contextmanager
def _hiring(address: Address, setup: bytes) -> Iterator[tuple[Hire, int]]:
    if address.kind == "ray":
        with ray_workers(address, setup) as found:
            yield found
        return
    yield (lambda place: ProcessWorker(setup)), address.workers or 1


class _Scored:
    """Scores batches in parts."""

    def __init__(self, problem: Problem, pool: Pool) -> None:
        self.problem, self.pool = cast(BatchProblem, problem), pool

    def __call__(self, decisions: Decision, first: int = 0) -> Scores:
        if len(decisions) < 2:  # nobody else could do anything meanwhile
            return self.problem.score(decisions, first)
        parts = [part for part in np.array_split(np.arange(len(decisions)), self.pool.size) if len(part)]
        requests = [
            packed(
                {"do": "score", "first": first + int(part[0])},
                {"decisions": np.ascontiguousarray(decisions[part])},
            )
            for part in parts
        ]
        replies = [_content(reply).arrays for reply in self.pool.share(requests)]
        failed = [reply["failed"] for reply in replies if "failed" in reply]
        return Scores(
            _joined(replies, "value"), _joined(replies, "reward"), np.concatenate(failed) if failed else None
        )


class _SharedGauge(Gauge):
    """Measures plans on workers, each a board of its own: a reward is relative to the baseline of
    the worker that measured it. Warm-ups and repeats of a plan stay together on one."""

    def __init__(self, problem: MeasuredMapping, pool: Pool) -> None:
        super().__init__(problem.gauge.evaluator, problem.gauge.repeats, problem.gauge.warmups)
        self._problem, self._pool, self.boards = problem, pool, pool.size

    def once(self, plan: Plan) -> float:
        """One board for all that is compared with one another."""
        found = next(self._asked("once", [plan], [0]))
        if found.fault is not None:
            raise EvaluationError(found.fault, object=self.name, remedy="try it alone")
        return found.seconds[0]

    def baseline_once(self, plan: Plan) -> float:
        return self.once(plan)

    def measure(self, plans: Sequence[Plan]) -> Iterator[Measurement]:
        return self._asked("measure", plans)

    def measure_baseline(self, plan: Plan) -> list[Measurement]:
        places = range(self._pool.size)
        found = self._asked("measure", [plan] * self._pool.size, places)
        return [
            Measurement(each.seconds, each.fault, place) for place, each in zip(places, found, strict=True)
        ]

    def _asked(
        self, do: str, plans: Sequence[Plan], places: Sequence[int] | None = None
    ) -> Iterator[Measurement]:
        problem = self._problem
        requests = [
            packed({"do": do, "plan": plan_to_json(plan, problem.program, problem.machine)}) for plan in plans
        ]
        for reply in self._pool.share(requests, places):
            if reply.fault is not None:
                yield Measurement((), reply.fault, reply.place)
                continue
            about = _content(reply).about
            yield Measurement(tuple(about["seconds"]), about["fault"], reply.place)


def _content(reply: Reply) -> Message:
    found = Message({"error": reply.fault}, {}) if reply.fault else unpacked(reply.data)
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
