"""The exact solver of the Mapping problem: a map with a proof, or with the bound that was reached.

HiGHS and CP-SAT work side by side, each in a process of its own (`exact_worker`), on the same cases
of the same linear program (`linear`). The bound of the problem is the least bound of all cases,
whichever engine gave it; a map better than the other's is passed on.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadmaster.arrays import Int8
from loadmaster.clock import engine_seconds
from loadmaster.errors import BadProgram, LoadmasterError, nearest, require
from loadmaster.host import cores
from loadmaster.mapping.exact_worker import model_bytes
from loadmaster.mapping.heuristics import Density
from loadmaster.mapping.linear import make_linear, peak_cases, whole_case
from loadmaster.mapping.model import MappingModel, make_model
from loadmaster.mapping.problem import Mapping
from loadmaster.search.or_tools import ENGINES, relaxed
from loadmaster.search.problem import Bound
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State

SECONDS = 300.0
"""Where the budget has no clock."""
RESERVE = 0.3
"""Seconds in which an engine says its last bound before its process is ended."""
START_SHARE = 0.1
POLL = 0.05


class Exact(Solver):
    """`methods`: 'highs', 'cp-sat' or both. `gap`: how far from the bound is near enough."""

    name = "exact"
    problem_kind = "mapping"
    summary = "HiGHS and CP-SAT side by side, with proof or bound (white box; needs: pip install 'loadmaster[exact]')"
    deterministic = False

    def __init__(self, methods: Sequence[str] | str = ("highs", "cp-sat"), gap: float = 0.0) -> None:
        self.methods = methods.split(",") if isinstance(methods, str) else list(methods)
        self.gap = float(gap)
        self.options = {"methods": self.methods, "gap": self.gap}
        for method in self.methods:
            if method not in ENGINES:
                raise LoadmasterError(
                    f"'exact' has no method '{method}'{nearest(method, tuple(ENGINES))}",
                    object=method,
                    remedy=f"use {' or '.join(ENGINES)}",
                )
        if not self.methods or not 0 <= self.gap < 1:
            raise LoadmasterError(
                "'exact' needs a method and a gap from 0 to less than 1",
                object="gap",
                number=self.gap,
                remedy="leave them out",
            )

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        require("ortools", "exact")
        if meter.evaluations_left == 0 or (meter.exhausted and meter.best is not None):
            return meter.solution()
        # Out of time before the first map, it still gives one: those to start from take no search.
        model = _solvable_model(problem)
        return _Race(meter, problem, model, self.methods, self.gap).run()


def linear_bound(problem: Mapping, seconds: float = 10.0) -> Bound:
    """The bound of the linear relaxation: about a second for a few hundred nodes."""
    require("ortools", "exact")
    model = _solvable_model(problem)
    return Bound(relaxed(make_linear(model, whole_case(model)), seconds), "linear relaxation")


def _solvable_model(problem: Mapping) -> MappingModel:
    model = make_model(problem)
    if model.too_long:
        raise BadProgram(
            f"'{problem.program.name}' runs too long on '{problem.machine.name}' to be solved exactly",
            object=problem.program.name,
            number=int(problem.compiler_ps),
            remedy="use another solver, such as density",
        )
    return model


class _Race:
    """The engines at work, and what they have reported."""

    def __init__(
        self, meter: Meter, problem: Mapping, model: MappingModel, methods: list[str], gap: float
    ) -> None:
        self.meter, self.problem, self.methods, self.gap = meter, problem, methods, gap
        self.model, self.payload = model, model_bytes(model)
        self.entries = np.flatnonzero(problem.entries.live)
        self.cases: list[Bound | None] = [None] * len(peak_cases(model))
        self.best = min(_initial_maps(problem, meter), key=self._time)
        self.value = self._time(self.best)
        """Of `best`, which the meter may not have seen yet."""
        self.messages: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self.workers: dict[str, tuple[subprocess.Popen[bytes], threading.Thread]] = {}
        self.ready: set[str] = set()
        self.failed: dict[str, str] = {}

    def run(self) -> Solution:
        left, counted = self.meter.seconds_left, self.meter.budget.evaluations is not None
        clock = self.meter.clock
        deadline = clock() + (SECONDS if left is None else left)
        if not counted:
            self.meter.evaluate(self.best)
        running: set[str] = set(self.methods)
        try:
            for method in () if self._finished() or left == 0 else self.methods:
                self._start(method, deadline - clock() - RESERVE)
            while running and not self._finished() and clock() < deadline:
                try:
                    method, message = self.messages.get(timeout=POLL)
                except queue.Empty:
                    continue
                if "ended" in message:
                    running.discard(method)
                self._receive(method, message)
        finally:
            self._stop_workers()
            if counted:  # only the last map is scored: how many come before depends on the clock
                self._submit()
        if self.meter.best is None and not counted:
            self._submit()
        return self.meter.solution(failed=self.failed)

    def _submit(self) -> None:
        pinned = bool(self.problem.pins)
        self.meter.evaluate(self.problem.packable(self.best) if pinned else self.best)

    def _start(self, method: str, seconds: float) -> None:
        settings = {
            "method": method,
            "seconds": engine_seconds(max(0.0, seconds)),
            "best": self.value,
            "gap": self.gap,
            "threads": max(1, cores() - len(self.methods) + 1),
            "backwards": method != self.methods[0],
        }
        worker = subprocess.Popen(
            [sys.executable, "-m", "loadmaster.mapping.exact_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is handled by the run
        )
        assert worker.stdin is not None and worker.stdout is not None
        text, lines = json.dumps(settings).encode() + b"\n" + self.payload, worker.stdout

        def exchange() -> None:
            with contextlib.suppress(OSError, ValueError):  # it may be ended within a line
                _send(worker, text)
                for line in lines:
                    self.messages.put((method, json.loads(line)))
            self.messages.put((method, {"ended": worker.wait()}))

        thread = threading.Thread(target=exchange, name=f"exact: {method}", daemon=True)
        self.workers[method] = (worker, thread)
        thread.start()

    def _stop_workers(self) -> None:
        for worker, thread in self.workers.values():
            worker.kill()
            thread.join()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()

    def _finished(self) -> bool:
        enough = self.value <= self.meter.bound.value * (1 + self.gap)
        return enough or self.meter.observer.stop

    def _receive(self, method: str, message: dict[str, Any]) -> None:
        if method not in self.ready:
            self.ready.add(method)  # it has read the model
            self._notify(method, best=self.value)
            for case, known in enumerate(self.cases):
                if known is not None:
                    self._notify(method, case=case, bound=known.value)
        if "map" in message:
            decision = self.problem.all_slowest()
            decision[self.entries] = message["map"]
            self._improve(decision)
        elif "bound" in message:
            bound = Bound(int(message["bound"]), message["method"])
            if message["case"] is None:
                self._raise(bound)
            else:
                self._raise_case(method, int(message["case"]), bound)
        elif "error" in message:
            self.failed[method] = message["error"]
        elif message.get("ended"):
            self.failed.setdefault(method, f"its process ended with code {message['ended']}")

    def _improve(self, decision: Int8) -> None:
        value = self._time(decision)
        if value >= self.value:
            return
        self.best, self.value = decision, value
        if self.meter.budget.evaluations is None:
            self.meter.evaluate(decision)
        for method in self.ready:
            self._notify(method, best=value)

    def _time(self, decision: Int8) -> int:
        return int(self.model.time(decision[None, self.entries].astype(np.int64))[0])

    def _notify(self, method: str, **message: int) -> None:
        with contextlib.suppress(OSError):  # it may just have ended
            _send(self.workers[method][0], json.dumps(message).encode() + b"\n")

    def _raise_case(self, method: str, case: int, bound: Bound) -> None:
        """The least bound of all cases is the problem's, once each has one."""
        before = self.cases[case]
        if before is not None and before.value >= bound.value:
            return
        self.cases[case] = bound
        for other in self.ready - {method}:
            self._notify(other, case=case, bound=bound.value)
        bounds = [bound for bound in self.cases if bound is not None]
        if len(bounds) == len(self.cases):
            self._raise(min(bounds, key=lambda bound: bound.value))

    def _raise(self, bound: Bound) -> None:
        self.meter.raise_bound(min(bound.value, self.value), bound.method)


def _initial_maps(problem: Mapping, meter: Meter) -> list[Int8]:
    """Maps to improve on, made within a part of the time."""
    left = SECONDS if meter.seconds_left is None else meter.seconds_left
    part = Meter(problem, Budget(seconds=START_SHARE * left), meter.observer)
    start = [] if meter.start is None else [np.asarray(meter.start, dtype=np.int8)]
    return [*start, problem.make_legal(problem.compiler), Density().make(problem, part)]


def _send(worker: subprocess.Popen[bytes], text: bytes) -> None:
    assert worker.stdin is not None
    worker.stdin.write(text)
    worker.stdin.flush()
