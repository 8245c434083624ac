"""`Problem`: one decision space over a program and a machine.

A problem turns a decision vector into a plan, says whether it is legal, scores it and bounds it.
Smaller values are better. Solvers see problems; they never score themselves.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadMachine
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import Violation, check
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program

Decision = npt.NDArray[Any]
COST_MODEL = "loadmaster-1"
"""Version of the rules by which values are made; a result is compared only at an equal one."""


@dataclass(frozen=True)
class Bound:
    """No decision has a value below it."""

    value: int
    method: str


class Problem(ABC):
    """What every problem offers."""

    kind: str
    """'allocation', 'mapping', 'malloc-game', 'offload', 'graph' or 'order'."""
    unit: str
    """Of the value: 'bytes', 'ps', or 'moved' (bytes moved, as `units.MOVED_BYTE_PS` says)."""
    program: Program
    machine: Machine
    invertible: bool = True
    """Whether every plan of this problem has a decision; where not, `value_of` needs none."""
    _sound: str | None = None
    """Hash of the plan that was judged last, if nothing is wrong with it."""

    @property
    def repeatable(self) -> bool:
        """Whether a decision has the same value at every evaluation.

        Where values are measured they are taken as they were measured (a run's log is not held to
        new ones), and nothing is proved about them.
        """
        return True

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """What distinguishes this problem from others over the same program and machine (JSON)."""

    @abstractmethod
    def evaluate(self, decision: Decision) -> int | None:
        """The value of a decision, or None if it is not legal."""

    def admits(self, decision: Decision) -> bool:
        """Whether a legal decision has a plan. It may cost time: would-be bests alone need it."""
        return True

    @abstractmethod
    def plan(self, decision: Decision) -> Plan:
        """The plan that a decision stands for."""

    @abstractmethod
    def decision(self, plan: Plan) -> Decision:
        """The decision that a plan stands for: the inverse of `plan`."""

    def adapt(self, plan: Plan) -> Decision:
        """The decision that comes nearest to a plan of a like problem: the same graph with other sizes, or a
        machine with other capacities and speeds. It may not be legal, and raises where nothing is alike."""
        return self.decision(plan)

    def value_of(self, plan: Plan) -> int | None:
        """The value of a plan, or None if it is not legal."""
        return self.evaluate(self.decision(plan))

    def violations(self, plan: Plan) -> list[Violation]:
        """What is wrong with a plan: what `check` finds, which makes it unsound on this machine
        whoever made it; of a sound one, what is `outside`. A plan that was just found to be sound is not
        judged again: of a million ops that takes seconds."""
        if plan.hash == self._sound:
            return []
        found = self.judge(plan) or self.outside(plan)
        self._sound = None if found else plan.hash
        return found

    def judge(self, plan: Plan) -> list[Violation]:
        """What `check` finds."""
        return check(self.program, self.machine, plan)

    def outside(self, plan: Plan) -> list[Violation]:
        """What a sound plan decides that this problem does not: pins that it moves, parts that are left
        open here. Bounds and proofs are about the plans inside."""
        return []

    @abstractmethod
    def bound(self) -> Bound:
        """A lower bound that is quick to have."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load_problem` needs to make this problem again, beside program and machine."""

    def recall(self, decision: Decision, value: int) -> None:  # noqa: B027
        """Where values are not `repeatable`: a legal decision that a search submits, or that an earlier
        session had as its best, with its measured value."""

    def take_notes(self) -> list[Note]:
        """What was measured since the last call, for the log of a run."""
        return []


def decided_elsewhere(plan: Plan, kind: str, decides: tuple[str, ...]) -> list[Violation]:
    """One `outside` row for every part of a plan that is decided and not among what `kind` decides."""
    parts = {
        "device": plan.device is not None,
        "order": plan.order is not None,
        "queue": plan.queue != "order",
        "priority": plan.priority is not None,
        "fusion": plan.fusion is not None,
        "residencies": plan.residencies is not None and len(plan.residencies) > 0,
        "copies": plan.copies is not None and len(plan.copies) > 0,
        "transfers": plan.transfers is not None,
    }
    return [
        Violation(kind, f"'{part}' is not decided by a plan of this kind ({kind}): leave it out")
        for part, decided in parts.items()
        if decided and part not in decides
    ]


def refuse_first_alone(machine: Machine, kind: str) -> None:
    """Problems that let ops work in every memory of their device need a machine that does too."""
    if machine.first_alone:
        first = machine.memories[machine.reach[0][0]].name
        raise BadMachine(
            f"ops of machine '{machine.name}' work in '{first}' alone (reach = \"first\"), and plans of "
            f"the kind {kind} let them work in other memories",
            object=machine.name,
            number=len(machine.memories),
            remedy="give --problem offload, or a machine such as h200-zero-copy",
        )


@contextmanager
def within_core(program: Program, machine: Machine) -> Iterator[None]:
    """Times or sizes beyond what the core's integers hold are the machine's or the program's to mend."""
    try:
        yield
    except ValueError as error:
        raise BadMachine(
            f"'{program.name}' on '{machine.name}' can't be timed: {error}",
            object=machine.name,
            remedy="check its rates, latencies and capacities",
        ) from None


@dataclass(frozen=True)
class Scores:
    """Values and rewards of a batch of decisions."""

    value: npt.NDArray[np.int64]
    """[B] smaller is better; -1: not legal."""
    reward: npt.NDArray[np.float64]
    """[B] larger is better, for decisions that are not legal too."""
    failed: npt.NDArray[np.bool_] | None = None
    """[B] a measurement failed: there is nothing to learn from it."""


class BatchProblem(Problem):
    """A problem that scores many decisions at once."""

    @abstractmethod
    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Scores of decisions [B, ...]; `first` numbers the first of them within a run."""


@dataclass(frozen=True)
class Note:
    """What a measurement was, for the log of a run."""

    evaluation: int
    what: str
    """'map' or 'baseline'"""
    seconds: tuple[float, ...]
    """Every value that was measured."""
    message: str | None = None
    """Why it failed, or what is odd about it."""


def keys(problem: Problem) -> dict[str, Any]:
    """Results are compared only where all of these are equal."""
    return {
        "program": problem.program.hash,
        "machine": problem.machine.hash,
        "cost_model": COST_MODEL,
        "problem": {"kind": problem.kind, **problem.options()},
    }


# Lower bounds of Mapping problems and MallocGames that were proven once, with the solver that
# proved them.
#
# `recorded_bounds.json` is written by `benchmarks/record_bounds.py`; a bound counts only for the
# very same program, machine and cost model. Those of a MallocGame are about its first fast memory.


def bound_key(program: Program, machine: Machine, kind: str = "mapping") -> str:
    """What a recorded bound is about; `kind` is the problem's."""
    of_kind = "" if kind == "mapping" else f"{kind}/"
    return f"{of_kind}{COST_MODEL}/{program.hash}/{machine.hash}"


def recorded_bound(program: Program, machine: Machine, kind: str = "mapping") -> Bound | None:
    """The bound on record, if there is one."""
    row = _table().get(bound_key(program, machine, kind))
    return None if row is None else Bound(int(row["bound"]), f"{row['method']}, on record")


def recorded_row(program: Program, machine: Machine) -> dict[str, Any] | None:
    """The whole record: 'bound', 'best' (the value of the best map known), 'proven', 'method'."""
    return _table().get(bound_key(program, machine))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    file = resources.files("loadmaster.search") / "recorded_bounds.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
