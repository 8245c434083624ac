"""`PeakOrder`: the order of the ops on one device, for the least peak of memory.

A decision is int32[n]: the n ops that are no views (nodes, by their place in the program) in the
order in which they run. Its value is the largest number of bytes that are alive at one time, weights
and state left out: these are always there (`resident`), and no order changes that. An order in which
an op runs before something that it needs is not legal.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, Refused
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import load_machine, read_machine
from loadmaster.order.graph import OrderGraph, order_graph
from loadmaster.plan.check import Violation, check
from loadmaster.plan.live_ranges import place_weights, resident_bytes
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.kind import Facts, Found, Known, ProblemKind, solve_known
from loadmaster.search.problem import (
    BatchProblem,
    Bound,
    Decision,
    Scores,
    decided_elsewhere,
    refuse_first_alone,
)
from loadmaster.search.request import BadRequest, PlanRequest
from loadmaster.search.solver import Solution
from loadmaster.simulate.simulator import simulate
from loadmaster.units import UNLIMITED, show_bytes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
OP_BOUND = "what one op reads and writes"


class PeakOrder(BatchProblem):
    """`machine`: its first device runs everything; by default one without a limit on memory."""

    kind = "order"
    unit = "bytes"

    def __init__(self, program: Program, machine: Machine | None = None) -> None:
        self.program = program
        self.machine = machine or load_machine(f"arena:{UNLIMITED}")
        refuse_first_alone(self.machine, self.kind)
        if program.costs is not None:  # an op that the device can't run
            simulate(program, replace(self.machine, devices=self.machine.devices[:1], text=""))
        home = self.machine.memories[self.machine.home[0]]
        self.graph: OrderGraph = order_graph(program, home.alignment)
        self.native = self.graph.native()
        self.capacity = home.capacity
        roomy = [m for m in self.machine.reach[0] if self.machine.memories[m].capacity >= UNLIMITED]
        self._weights = roomy[0] if roomy and home.capacity < UNLIMITED else None
        """Where weights lie, if memory is short at home and another has room for all of them."""

    @property
    def nodes(self) -> int:
        """n"""
        return len(self.graph.node_op)

    @cached_property
    def resident(self) -> int:
        """Bytes of weights and state at home, which come on top of every value."""
        if self._weights is None:
            return self.graph.resident
        home = self.machine.memories[self.machine.home[0]]
        rows = place_weights(self.program, self._weights)
        return resident_bytes(self.program, home.alignment, rows)

    @cached_property
    def program_order(self) -> Int32:
        """The order that the program came with."""
        return np.arange(self.nodes, dtype=np.int32)

    @cached_property
    def reference(self) -> int:
        """Its peak."""
        return self._peak(self.program_order)

    def options(self) -> dict[str, Any]:
        return {}

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """Peaks of orders int32[B, n], on all cores; the reward is -sqrt(peak / the program's)."""
        orders = np.ascontiguousarray(decisions, dtype=np.int32)
        if orders.ndim != 2 or orders.shape[1] != self.nodes:
            raise ValueError(f"orders must be [B, {self.nodes}], not {list(orders.shape)}")
        value = self.native.peaks(orders, cores())
        reward = -np.sqrt(np.maximum(value, 0) / max(1, self.reference))
        return Scores(value, np.where(value < 0, -10.0, reward))

    def evaluate(self, decision: Decision) -> int | None:
        order = np.asarray(decision)
        if order.shape != (self.nodes,):
            return None
        value = self._peak(order)
        return None if value < 0 else value

    def _peak(self, order: Decision) -> int:
        return int(self.native.peaks(np.ascontiguousarray(order[None], dtype=np.int32), 1)[0])

    def admits(self, decision: Decision) -> bool:
        """Whether an order fits the device's memory, weights included."""
        return 0 <= self._peak(np.asarray(decision)) <= self.capacity - self.resident

    def from_keys(self, keys: npt.NDArray[np.float64]) -> Int32:
        """Orders int32[B, n] from keys [B, n]: always the ready op with the largest key."""
        return self.native.by_keys(np.ascontiguousarray(keys, dtype=np.float64), cores())

    def plan(self, decision: Decision) -> Plan:
        """The order of all ops: a view follows what it shows."""
        program, order = self.program, []
        views: dict[int, list[int]] = {}
        for op in np.flatnonzero(program.op_view).tolist():
            maker = int(program.producer[program.read_tensor[program.read_start[op]]])
            views.setdefault(maker, []).append(op)
        waiting = [*reversed(views.get(-1, []))]
        for op in [-1, *self.graph.node_op[np.asarray(decision)].tolist()]:
            if op >= 0:
                waiting = [op]
            while waiting:
                next_op = waiting.pop()
                order.append(next_op)
                waiting += reversed(views.get(next_op, []))
        whole = np.array(order, dtype=np.int32)
        elsewhere = [] if self._weights is None else place_weights(program, self._weights, whole)
        return Plan.of(order=whole, residencies=elsewhere)

    def decision(self, plan: Plan) -> Decision:
        if plan.order is None:
            return self.program_order
        node = np.full(self.program.n_ops, -1, dtype=np.int32)
        node[self.graph.node_op] = self.program_order
        chosen = node[plan.order]
        return np.ascontiguousarray(chosen[chosen >= 0])

    def violations(self, plan: Plan) -> list[Violation]:
        # Everything runs on the first device; that others might hold more does not matter.
        machine = replace(self.machine, devices=self.machine.devices[:1], text="")
        return check(self.program, machine, plan) or self.outside(plan)

    def outside(self, plan: Plan) -> list[Violation]:
        """Anything but the order; weights lie where this problem has them."""
        found = decided_elsewhere(plan, self.kind, ("order", "residencies"))
        order = np.arange(self.program.n_ops, dtype=np.int32) if plan.order is None else plan.order
        weights = self._weights
        rows = [] if weights is None else list(place_weights(self.program, weights, order))
        if sorted(rows) != sorted(plan.residency_rows):
            found.append(
                Violation(
                    self.kind,
                    f"the plan has {len(plan.residency_rows):,} residencies where an order has "
                    f"{len(rows):,}, those of its weights: decide the order alone",
                    number=len(plan.residency_rows),
                )
            )
        return found

    @cached_property
    def op_bytes(self) -> Int64:
        """[n] what each op opens and uses: all that is there while it runs."""
        held = np.zeros(self.nodes, dtype=np.int64)
        graph = self.graph
        for size, opener, users in zip(graph.size, graph.opener, graph.users, strict=True):
            held[users] += size
            if opener >= 0:
                held[opener] += size
        return held

    @cached_property
    def _bound(self) -> int:
        graph = self.graph
        given = sum(s for s, opener in zip(graph.size, graph.opener, strict=True) if opener < 0)
        kept = sum(s for s, keep in zip(graph.size, graph.kept, strict=True) if keep)
        return max(int(self.op_bytes.max(initial=0)), given, kept)

    def bound(self) -> Bound:
        return Bound(self._bound, OP_BOUND)

    def save(self, folder: Path) -> None:
        (folder / "problem.json").write_text(json.dumps({"of": "program"}), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> PeakOrder:
        """What `save` wrote."""
        return cls(load(folder / "program.npz"), read_machine(folder / "machine.toml"))


KNOWN = ("program-order", "peak-greedy", "depth-first", "reverse-post-order")


class OrderKind(ProblemKind[PeakOrder]):
    """The problem as the planner sees it."""

    name = "order"
    accepts = frozenset()
    by_clock = ("auto", "peak-cut", "peak-dp", "peak-beam")
    settles = ("baseline", "result")
    before = KNOWN
    space = "orders of the ops on one device"
    left_out = "recomputing, tiles, results written over what dies"
    bound_row = "always"

    def make(self, request: PlanRequest) -> PeakOrder:
        program = request.load_program(None)
        if request.machine is not None:
            return PeakOrder(program, request.own_machine)
        if request.capacity:
            memory, size = next(iter(request.capacity.items()))
            raise BadRequest(
                "--capacity needs a machine that has that memory",
                object="--capacity",
                number=f"{memory}={size}",
                remedy="give --machine",
            )
        return PeakOrder(program)

    def describe(self, problem: PeakOrder, source: str) -> str:
        return (
            f"{source}: the order of {problem.nodes:,} ops, with {show_bytes(problem.graph.resident)} of weights "
            "that are always there and are not counted"
        )

    def known(self, problem: PeakOrder, source: str, seconds: float = math.inf) -> list[Known]:
        return solve_known(problem, KNOWN, seconds)

    def facts(self, problem: PeakOrder, found: Found) -> Facts:
        """What the order saves."""
        value, bound = found.value, found.solution.bound.value
        facts = Facts(
            {
                "ops": problem.nodes,
                "resident_bytes": problem.graph.resident,
                "before_bytes": problem.reference,
                "after_bytes": value,
                "bound_bytes": bound,
            }
        )
        if value is not None:
            proof = "proven the least" if value <= bound else f"at least {bound:,} whatever the order"
            facts.notes.append(f"before {problem.reference:,} bytes, after {value:,}: {proof}")
        return facts

    def row_figures(self, problem: PeakOrder, value: int | None) -> dict[str, Any]:
        return {"saved": None if value is None else 1 - value / max(1, problem.reference)}

    def explain(
        self, problem: PeakOrder, solution: Solution, seconds: float, seed: int
    ) -> LoadmasterError | None:
        need, room = solution.bound.value + problem.resident, problem.capacity
        if solution.decision is not None or need <= room:
            return None
        memory = problem.machine.memories[problem.machine.home[0]].name
        return Refused(
            f"'{memory}' needs {need:,} bytes and has {room:,}: {need - room:,} too many, whatever the order",
            object=memory,
            number=need,
            remedy=f"a capacity of {need:,} bytes at least",
        )


KIND = OrderKind()
