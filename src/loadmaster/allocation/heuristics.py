"""Greedy solvers of the offset problem: ours for large inputs, and what other tools do.

The baselines are re-implemented from their described behaviour, so that all are measured in one run
on equal terms: size-ordered first fit (ExecuTorch, TFLite Micro, IREE), XLA's best fit by size, the
hill climbs of TVM and of Arm's Vela.
"""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.problem import Allocation
from loadmaster.host import cores
from loadmaster.search.native import INFEASIBLE, run_native
from loadmaster.search.solver import Meter, Solution, Solver, State


class Large(Solver):
    """A portfolio of greedy orders, then repair around the peak; near-linear, no conflict graph."""

    name = "large"
    problem_kind = "allocation"
    summary = "portfolio of greedy orders with repair, for 10,000 to 1,000,000 buffers"
    deterministic = True

    def __init__(self, threads: int | None = None, effort: int | None = None) -> None:
        self.threads = threads
        self.effort = effort
        """Steps to spend on improvement; None: until the time is over, without a limit some seconds' worth."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if meter.exhausted:
            return meter.solution()
        capacity = -1 if problem.capacity is None else problem.capacity
        threads, effort = self.threads or cores(), -1 if self.effort is None else self.effort
        answer = run_native(
            meter,
            lambda stop, improved: problem.native.large(capacity, seed, threads, effort, stop, improved),
        )
        meter.raise_bound(answer.bound, "bytes alive at one time")
        return meter.solution(infeasible=answer.status == INFEASIBLE)


class _Baseline(Solver):
    """One native baseline by name."""

    problem_kind = "allocation"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Allocation)
        if meter.exhausted:
            return meter.solution()
        run_native(meter, lambda stop, _: problem.native.baseline(self.name, seed, stop))
        if not len(problem.buffers):  # no offsets, which for the native search is no answer
            meter.evaluate(np.empty(0, dtype=np.int64))
        return meter.solution()


class SizeFirstFit(_Baseline):
    name = "first-fit"
    summary = "largest first at the lowest free offset, as ExecuTorch, TFLite Micro and IREE do"


class XlaBestFit(_Baseline):
    name = "xla-best-fit"
    summary = "largest first into the tightest free chunk, as XLA's heap simulator does"


class TvmHillClimb(_Baseline):
    name = "tvm-hill-climb"
    summary = "500 swaps among the neighbours of the highest buffer, as TVM's memory planner does"


class VelaHillClimb(_Baseline):
    name = "vela-hill-climb"
    summary = "order by pressure, then swaps around the highest buffer, as Arm's Vela does"
