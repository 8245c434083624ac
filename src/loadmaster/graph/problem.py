"""`GraphOptimization`: which ops are fused, where they run, and who goes first.

A *node* is an op that is no view, in program order; a *group* is a set of nodes with one placement
decision. A decision is float64[V]: the parts of the decided tasks one after another, in the order
`fusion` [n] (keys in [0, 1]; below 1/16: never fuse its results), `device` [G] (whole numbers),
`schedule` [n] (keys in [0, 1]; the largest first). The base plan gives what is not decided. The value
is the simulated time; one that does not fit has a value from `UNFIT` on, by bytes over, then time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadMachine, LoadmasterError
from loadmaster.graph import bounds, explicit
from loadmaster.graph.base import Base, check_base
from loadmaster.graph.core import Core, Parts, base_schedule_keys, check_runs, make_climb, make_core, run_base
from loadmaster.graph.groups import SOFT
from loadmaster.graph.rules import FusionRules
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.program.storage import load
from loadmaster.search.pins import Pins
from loadmaster.search.problem import BatchProblem, Bound, Decision, Scores, refuse_first_alone
from loadmaster.simulate.simulator import Simulator, explain

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

TASKS = ("placement", "fusion", "schedule")
PROFILES = {"loadmaster": ("critical_path", "graded"), "paper": ("fifo", "fixed")}
"""Rule for equal keys, and reward of plans that do not fit."""
UNFIT = 1 << 61
"""Values from here on belong to plans that do not fit."""
_MOST_OVER = (1 << 40) - 1
_MOST_TIME = (1 << 20) - 1
WORST_REWARD = -10.0


class GraphOptimization(BatchProblem):
    """`tasks`: what is decided. `groups`: 'op', 'scope', 'coplace' or 'auto' (scopes where there are
    any). `tie`: who goes first among equal schedule keys, 'fifo' or 'critical_path'. `readers`: fuse
    a result into 'each' reader that the rules allow, or into 'all' or none. `profile`: 'loadmaster',
    or 'paper' (ties by 'fifo', a fixed reward for plans that do not fit, a base without fusion). Ops
    that `pins` fix are where they are, whatever a vector says."""

    kind = "graph"
    invertible = False
    unit = "ps"

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        tasks: Sequence[str] = TASKS,
        base: Base | None = None,
        groups: str = "auto",
        profile: str = "loadmaster",
        tie: str | None = None,
        readers: str = "each",
        pins: Pins | None = None,
    ) -> None:
        _known("task", tasks, TASKS)
        _known("profile", [profile], tuple(PROFILES))
        _known("kind of groups", [groups], SOFT)
        _known("tie", [tie or "fifo"], ("fifo", "critical_path"))
        _known("choice of readers", [readers], ("each", "all"))
        if machine.rules.copies == "idle":
            raise BadMachine(
                f"machine '{machine.name}' copies in idle time, which knows one order alone",
                object=machine.name,
                remedy="use a machine such as p100x4",
            )
        refuse_first_alone(machine, self.kind)
        self.program, self.machine, self.profile, self.readers = program, machine, profile, readers
        self.tasks = tuple(task for task in TASKS if task in tasks)
        self.tie, self.invalid = tie or PROFILES[profile][0], PROFILES[profile][1]
        self.soft, self.pins = groups, pins or Pins()
        given = base or Base()
        check_base(given)
        self.base = Base(
            given.fusion or ("none" if profile == "paper" else "fixed"),
            given.placement,
            given.schedule or "fifo",
        )
        self._core: Core = make_core(
            program, machine, self.base, self.tasks, groups, self.tie, readers, self.pins
        )
        self.base = self._core.base
        if self.pins:
            check_runs(program, machine, self.node_op, self.durations, self.pins)

    @property
    def simulator(self) -> Simulator:
        """Times plans of this program on this machine."""
        return self._core.simulator

    @property
    def rules(self) -> FusionRules:
        """What may be fused."""
        return self._core.rules

    @property
    def hard(self) -> Int32:
        """[n_ops] ops with one number must be on one device; -1: the op is free."""
        return self._core.component

    @property
    def base_clusters(self) -> Int32:
        """[n_ops] the base plan's clusters, each by its smallest op; -1: alone."""
        return self._core.base_fusion

    # --- sizes and parts ---------------------------------------------------------------------

    @property
    def node_op(self) -> Int32:
        """[n] the op of each node."""
        return self._core.node_op

    @property
    def node_group(self) -> Int32:
        """[n] the placement group of each node."""
        return self._core.node_group

    @property
    def nodes(self) -> int:
        """n"""
        return len(self._core.node_op)

    @property
    def groups(self) -> int:
        """G"""
        return len(self._core.base_device)

    @property
    def devices(self) -> int:
        """D"""
        return len(self.machine.devices)

    @property
    def width(self) -> int:
        """V"""
        return self._core.parts.width

    def part(self, name: str) -> slice:
        """Where 'fusion', 'device' or 'schedule' is in a vector; empty if it is not decided."""
        return self._core.parts.slice(name)

    def vector(
        self,
        fusion: npt.ArrayLike | None = None,
        device: npt.ArrayLike | None = None,
        schedule: npt.ArrayLike | None = None,
    ) -> Float64:
        """float64[V] of its parts; what is not given is the base plan's. Equal schedule keys (zeros)
        leave the order to `tie`. Parts that are not decided are left out."""
        vector = np.empty(self.width)
        for name, given in (("fusion", fusion), ("device", device), ("schedule", schedule)):
            at = self.part(name)
            if at.stop > at.start:
                vector[at] = self._base_part(name) if given is None else given
        return vector

    def split(self, vectors: Decision) -> tuple[Float64, Int32, Float64]:
        """(fusion [..., n], device [..., G], schedule [..., n]) of vectors [..., V], with the base
        plan's where a task is not decided."""
        vectors = np.asarray(vectors, dtype=np.float64)
        found = []
        for name in Parts.NAMES:
            at = self.part(name)
            if at.stop > at.start:
                found.append(vectors[..., at])
            else:
                base = self._base_part(name)
                found.append(np.broadcast_to(base, (*vectors.shape[:-1], len(base))))
        return found[0], found[1].astype(np.int32), found[2]

    def _base_part(self, name: str) -> npt.NDArray[Any]:
        if name == "fusion":
            return self._core.base_keys[self.node_op]
        return self._core.base_device if name == "device" else self._base_schedule

    @cached_property
    def _base_schedule(self) -> Float64:
        return base_schedule_keys(self._core, self.tie)

    # --- scoring -----------------------------------------------------------------------------

    @cached_property
    def reference_ps(self) -> int:
        """The time of the base plan, whether it fits or not; where it can't run (a missing link, an
        op that its device does not know), that of all ops one after another."""
        total, _, fault = run_base(self._core)
        if fault[0]:
            cost = np.minimum(np.where(self.durations < 0, 2**40, self.durations), 2**40)
            return int((cost.min(axis=1) * self.program.op_repeat[self.node_op]).sum())
        return total

    def measure(self, decisions: Decision, threads: int | None = None) -> tuple[Int64, Int64, Int64]:
        """(time_ps [B], bytes over [B, memories], faults [B, 3]) of vectors [B, V]."""
        vectors = np.ascontiguousarray(decisions, dtype=np.float64)
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise ValueError(f"vectors must be [B, {self.width}], not {list(vectors.shape)}")
        return self._core.batch.evaluate(vectors, threads or cores())

    def climb(self) -> _core.GraphClimb:
        """An evaluator for searches that change a few places of a vector at a time: the same results,
        and only what comes after the first difference is run again."""
        return make_climb(self._core, self.tie, self.reference_ps)

    def score(self, decisions: Decision, first: int = 0, threads: int | None = None) -> Scores:
        """Values and rewards of vectors float64[B, V]; `first` plays no part."""
        total, over, fault = self.measure(decisions, threads)
        return Scores(self.values(total, over, fault), self.rewards(total, over, fault))

    def values(self, total: Int64, over: Int64, fault: Int64) -> Int64:
        """[B] time where a plan fits, a value above all times where it does not, -1 where it can't
        run at all."""
        bytes_over = np.minimum(over.sum(axis=1), _MOST_OVER)
        share = np.minimum(total / max(1, self.reference_ps) * 1024, _MOST_TIME).astype(np.int64)
        unfit = UNFIT + (bytes_over << 20) + share
        value = np.where(bytes_over > 0, unfit, np.minimum(total, UNFIT - 1))
        return np.where(fault[:, 0] != 0, -1, value)

    def rewards(self, total: Int64, over: Int64, fault: Int64) -> Float64:
        """[B] -sqrt(time / reference), less where a plan does not fit."""
        capacity = np.array([max(1, memory.capacity) for memory in self.machine.memories])
        share = (over / capacity).sum(axis=1)
        fits = -np.sqrt(total / max(1, self.reference_ps))
        graded = np.maximum(WORST_REWARD, fits - 2 - 8 * np.minimum(1, share))
        unfit = graded if self.invalid == "graded" else np.full_like(fits, WORST_REWARD)
        reward = np.where(share > 0, unfit, fits)
        return np.where(fault[:, 0] != 0, WORST_REWARD, reward)

    def evaluate(self, decision: Decision) -> int | None:
        value = int(self.score(np.asarray(decision)[None], threads=1).value[0])
        return None if value < 0 else value

    def admits(self, decision: Decision) -> bool:
        """Whether the plan fits."""
        # It measures for itself: `evaluate` is what a meter counts.
        _, over, fault = self.measure(np.asarray(decision)[None], 1)
        return not fault[0, 0] and not over.any()

    # --- plans -------------------------------------------------------------------------------

    def plan(self, decision: Decision) -> Plan:
        """Clusters, devices and the order in which steps start, all explicit."""
        vector = np.ascontiguousarray(decision, dtype=np.float64)
        fusion, device, start, fault = self._core.batch.decode(vector)
        if fault[0]:
            raise explain(fault, self.program, self.machine)
        return explicit.plan_of(self.program, fusion, device, start)

    def value_of(self, plan: Plan) -> int | None:
        """The time of a plan of this problem, or None: keys can't express the clusters of every plan."""
        return None if self.violations(plan) else self.simulator.run(plan).total_ps

    def decision(self, plan: Plan) -> Decision:
        """The vector of a plan whose clusters and devices keys can express; raises otherwise."""
        return explicit.decision_of(self, plan)

    def fuse(self, keys: npt.ArrayLike) -> Int32:
        """[n_ops] the clusters that fusion keys [n] give, each by its smallest op; -1: alone."""
        by_op = np.zeros(self.program.n_ops)
        by_op[self.node_op] = keys
        return self._core.fusion.fuse(by_op)

    def cost_model_keys(self, device: int = 0) -> Float64:
        """[n] fusion keys that do what a cost model would: the largest gain first, none at a loss."""
        return self._core.fusion.cost_model(device)[self.node_op]

    def violations(self, plan: Plan) -> list[Violation]:
        return explicit.violations(self, plan) or self.outside(plan)

    def outside(self, plan: Plan) -> list[Violation]:
        """Residencies, copies and lists of transfers; clusters that the rules of fusion never make;
        what is not among the tasks and differs from the base plan; pins."""
        broken = [
            Violation("pin", f"{what} {number} is not where it is pinned")
            for what, number in self.pins.broken(plan)
        ]
        return explicit.outside(self, plan) + broken

    # --- bounds ------------------------------------------------------------------------------

    @cached_property
    def durations(self) -> Int64:
        """[n, D] ps of each node as a step of its own on each device; -1: it can't run there."""
        return self.step_durations(np.full(self.program.n_ops, -1, dtype=np.int32))[self.node_op]

    def step_durations(self, clusters: Int32) -> Int64:
        """[n_ops, D] ps of the step whose smallest op this is; -1: none, or it can't run there."""
        return self._core.fusion.durations(np.ascontiguousarray(clusters, dtype=np.int32))

    @cached_property
    def touched(self) -> npt.NDArray[np.int8]:
        """[n_ops] whether an op can be in a cluster with another, whatever the keys."""
        return self._core.fusion.touched()

    @cached_property
    def edges(self) -> Int32:
        """[2, E] pairs (producer, reader) of nodes, views seen through; each once, sorted."""
        return bounds.node_edges(self.program, self.node_op)

    @cached_property
    def no_plan(self) -> str | None:
        """Why no plan fits, where that is proved."""
        return bounds.memory_proof(self)

    @cached_property
    def _bound(self) -> Bound:
        return bounds.time_bound(self)

    def bound(self) -> Bound:
        """The critical path or the work of the least costs, no transfer awaited."""
        return self._bound

    # --- files -------------------------------------------------------------------------------

    def options(self) -> dict[str, Any]:
        pins = {"pins": self.pins.as_json()} if self.pins else {}
        return {
            "tasks": list(self.tasks),
            "base": self.base.named(),
            "groups": self.soft,
            "profile": self.profile,
            "tie": self.tie,
            "readers": self.readers,
            **pins,
        }

    def save(self, folder: Path) -> None:
        (folder / "problem.json").write_text(json.dumps(self.options()), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> GraphOptimization:
        """What `save` wrote."""
        about = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
        base, pins = Base.of(**about.pop("base")), Pins.of_json(about.pop("pins", None))
        program, machine = load(folder / "program.npz"), read_machine(folder / "machine.toml")
        return cls(program, machine, base=base, pins=pins, **about)


def _known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise LoadmasterError(
                f"there is no {what} '{name}'", object=name, remedy=f"use {', '.join(known)}"
            )
    if not names:
        raise LoadmasterError(f"no {what} is given", object=what, remedy=f"use {', '.join(known)}")
