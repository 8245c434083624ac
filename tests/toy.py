"""A small problem over a real program, and solvers of it that behave, or cheat.

A decision is an offset per activation; its value is the height. The bound is weak on purpose, so
that a search goes on until its budget is spent.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.machine import Machine, load_machine
from loadmaster.plan import Plan
from loadmaster.plan.check import Violation, check
from loadmaster.plan.plan import HOME, lifetimes, static_plan
from loadmaster.program import Builder, Program, TensorKind
from loadmaster.search import registry
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.solver import (
    Meter,
    Solution,
    Solver,
    State,
    Status,
    generator_state,
    restore_generator,
)

registry.KINDS["toy"] = "toy:Toy"


def toy_program(count: int = 40, seed: int = 1) -> Program:
    """A chain in which each result is read once more, some ops later."""
    rng = np.random.default_rng(seed)
    build = Builder("toy <chain>")
    tensors = [build.tensor("x", bytes=8, kind="input")]
    for i in range(count):
        kind = "output" if i == count - 1 else "activation"
        tensors.append(build.tensor(f"t{i}", bytes=int(rng.integers(8, 200)), kind=kind))
        late = tensors[int(rng.integers(max(0, i - 12), i + 1))]
        build.op(f"op{i}", "add", reads=sorted({tensors[i], late}), writes=[tensors[i + 1]], vector=4)
    return build.build()


class Toy(Problem):
    """Offsets of the activations in 'arena'."""

    kind = "toy"
    unit = "bytes"

    def __init__(self, program: Program | None = None, pause: float = 0.0, slack: int = 0) -> None:
        self.program = toy_program() if program is None else program
        self.machine: Machine = load_machine("arena:64KiB")
        self.pause, self.slack = pause, slack
        first, last = lifetimes(self.program)
        made = self.program.tensor_kind != TensorKind.INPUT
        self.roots = np.flatnonzero(made & (last >= first))
        self.first, self.last = first[self.roots], last[self.roots]
        self.size = self.program.storage_bytes[self.roots]
        self.clash = (self.first[:, None] <= self.last) & (self.first <= self.last[:, None])

    def options(self) -> dict[str, Any]:
        return {"slack": self.slack}

    def evaluate(self, decision: Decision) -> int | None:
        if self.pause:
            time.sleep(self.pause)
        low, high = decision, decision + self.size
        over = self.clash & (low[:, None] < high) & (low < high[:, None])
        if np.count_nonzero(over) > len(low) or low.min() < 0:
            return None
        return int(high.max()) + self.slack

    def plan(self, decision: Decision) -> Plan:
        memory = np.full(self.program.n_tensors, HOME)
        offset = np.zeros(self.program.n_tensors, dtype=np.int64)
        memory[self.roots], offset[self.roots] = self.machine.memory("arena"), decision
        return static_plan(self.program, self.machine, memory.tolist(), offset.tolist())

    def decision(self, plan: Plan) -> Decision:
        offsets = {row.tensor: row.offset for row in plan.residency_rows}
        return np.array([offsets[root] for root in self.roots.tolist()], dtype=np.int64)

    def admits(self, decision: Decision) -> bool:
        return True

    def violations(self, plan: Plan) -> list[Violation]:
        return check(self.program, self.machine, plan)

    def bound(self) -> Bound:
        return Bound(int(self.size.max()), "largest tensor")

    def save(self, folder: Path) -> None:
        (folder / "toy.json").write_text(json.dumps({"slack": self.slack}))

    @classmethod
    def load(cls, folder: Path) -> Toy:
        from loadmaster.program import load

        about = json.loads((folder / "toy.json").read_text())
        return cls(load(folder / "program.npz"), slack=about["slack"])

    def place(self, order: Decision) -> Decision:
        """Lowest offset that is free, in this order."""
        offsets = np.zeros(len(self.roots), dtype=np.int64)
        done: list[int] = []
        for i in order.tolist():
            near = sorted((int(offsets[j]), int(self.size[j])) for j in done if self.clash[i, j])
            for low, size in near:
                if offsets[i] + self.size[i] <= low:
                    break
                offsets[i] = max(offsets[i], low + size)
            done.append(i)
        return offsets


def swapped(order: Decision, rng: np.random.Generator) -> Decision:
    i, j = rng.integers(len(order), size=2)
    order = order.copy()
    order[i], order[j] = order[j], order[i]
    return order


class Climb(Solver):
    """Hill climbing with restarts from the meter's best: its course depends on all it has seen."""

    name = "climb"
    problem_kind = "toy"
    summary = "swaps two"
    deterministic = True
    every = 10

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        if state is None:
            rng = np.random.default_rng(seed)
            order = rng.permutation(len(problem.roots))
            value = meter.evaluate(problem.place(order))
        else:
            rng, order, value = restore_generator(state["rng"]), state["order"], int(state["value"])
        while not meter.exhausted:
            # A worse one is taken unless it is far from the best, so that it goes on for long.
            tried = swapped(order, rng)
            found = meter.evaluate(problem.place(tried))
            if found is not None and found <= (meter.best_value or found) + rng.integers(30):
                order, value = tried, found
            if meter.evaluations % self.every == 0:
                meter.checkpoint(self.state(rng, order, value))
                meter.progress(current=float(value or 0))
        return meter.solution()

    def state(self, rng: Any, order: Any, value: Any) -> State:
        return {"rng": generator_state(rng), "order": order, "value": np.array(value)}


class Plain(Climb):
    """The same without checkpoints."""

    name = "plain"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert state is None
        problem: Any = meter.problem
        rng = np.random.default_rng(seed)
        while not meter.exhausted:
            meter.evaluate(problem.place(rng.permutation(len(problem.roots))))
        return meter.solution()


class Greedy(Plain):
    """Ignores its budget of evaluations by one."""

    name = "greedy"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        solution = super().run(meter, seed, state)
        problem: Any = meter.problem
        meter.evaluate(problem.place(np.arange(len(problem.roots))))
        return solution if meter.best is None else meter.solution()


class SelfScorer(Plain):
    """Asks the problem behind the meter's back."""

    name = "self-scorer"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        rng = np.random.default_rng(seed)
        tries = [problem.place(rng.permutation(len(problem.roots))) for _ in range(200)]
        meter.evaluate(min(tries, key=problem.evaluate))
        return meter.solution()


class Liar(Plain):
    """Claims less than it found."""

    name = "liar"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        solution = super().run(meter, seed, state)
        assert solution.value is not None
        return Solution(
            Status.OPTIMAL,
            solution.decision,
            solution.value - 100,
            solution.bound,
            solution.evaluations,
            solution.seconds,
        )


class Overlapper(Plain):
    """Puts a decision into the meter whose plan the checker refuses."""

    name = "overlapper"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        meter.evaluate(problem.place(np.arange(len(problem.roots))))
        meter.best, meter.best_value = np.zeros(len(problem.roots), dtype=np.int64), 200
        meter.observer.improved(meter)
        return super().run(meter, seed, state)


class Deaf(Plain):
    """Hears of no stop and no clock, only of evaluations."""

    name = "deaf"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem: Any = meter.problem
        rng = np.random.default_rng(seed)
        for _ in range(2_000):
            if meter.evaluations_left == 0:
                break
            meter.evaluate(problem.place(rng.permutation(len(problem.roots))))
        return meter.solution()


class Sleeper(Plain):
    """Ends late without computing anything."""

    name = "sleeper"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        if meter.budget.evaluations is None:
            clock: Any = meter.clock  # a test's own: nobody waits for it
            clock.advance(5.5)
        return super().run(meter, seed, state)


class Moody(Plain):
    """Throws dice of its own."""

    name = "moody"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        return super().run(meter, random.SystemRandom().randrange(2**32), state)


class Forgetful(Climb):
    """Leaves its generator out of its checkpoints."""

    name = "forgetful"

    def state(self, rng: Any, order: Any, value: Any) -> State:
        fresh = np.random.default_rng(0)
        return {"rng": generator_state(fresh), "order": order, "value": np.array(value)}
