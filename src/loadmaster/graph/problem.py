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
from loadmaster.arrays import Float64, Int8, Int32, Int64
from loadmaster.errors import BadMachine, LoadmasterError
from loadmaster.graph import bounds, plans
from loadmaster.graph.base import Base, check_base, fixed_keys, place_base
from loadmaster.graph.fusion import FusionRules, fusion_rules
from loadmaster.graph.groups import (
    SOFT,
    check_runs,
    find_groups,
    hard_components,
    pinned_components,
    pinned_groups,
)
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

TASKS = ("placement", "fusion", "schedule")
PARTS = ("fusion", "device", "schedule")
"""Of a vector, in this order."""
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
        given = Base(
            given.fusion or ("none" if profile == "paper" else "fixed"),
            given.placement,
            given.schedule or "fifo",
        )
        self.simulator = Simulator(program, machine)
        self.node_op: Int32 = np.flatnonzero(~program.op_view).astype(np.int32)
        """[n] the op of each node."""
        self._group(given)
        self._fuse_base()
        if self.pins:
            check_runs(program, machine, self.node_op, self.durations, self.pins)

    def _group(self, base: Base) -> None:
        """Groups, and where the base plan has them."""
        program, machine = self.program, self.machine
        self.hard, chosen = pinned_components(program, machine, hard_components(program), self.pins)
        """[n_ops] ops with one number must be on one device; -1: the op is free."""
        soft = find_groups(program, self.hard, self.soft, program.op_flops.sum(axis=1))
        self.op_group, self._pinned = pinned_groups(soft, self.hard, chosen)
        """[n_ops] the placement group of each op, -1 for views; [G] the device of a pinned group or -1."""
        self.node_group: Int32 = self.op_group[self.node_op]
        """[n] the placement group of each node."""
        self.base, placed = place_base(program, base, self.op_group, self.groups, self.devices)
        self._base_device = np.where(self._pinned >= 0, self._pinned, placed)
        sizes = {"fusion": self.nodes, "placement": self.groups, "schedule": self.nodes}
        self._sizes = [sizes[task] if task in self.tasks else 0 for task in sizes]

    def _fuse_base(self) -> None:
        """The fusion pass, the base plan's clusters, and what evaluates vectors."""
        program = self.program
        self.rules: FusionRules = fusion_rules(program)
        """What may be fused."""
        given = np.zeros(0, dtype=np.int32)
        if "placement" not in self.tasks:
            given = np.append(self._base_device, np.int32(0))[self.op_group]  # views, group -1, take the last
        self._fusion = _core.Fusion(self.simulator.native, self._fusion_columns(given))
        self._base_keys = np.zeros(program.n_ops)
        if self.base.fusion == "fixed":
            self._base_keys[self.node_op] = fixed_keys(self.nodes)
        elif self.base.fusion == "cost_model":
            self._base_keys = self._fusion.cost_model(0)
        self.base_clusters: Int32 = self._fusion.fuse(self._base_keys)
        """[n_ops] the base plan's clusters, each by its smallest op; -1: alone."""
        self._batch = _core.GraphBatch(self._fusion, self._decision_columns())

    def _fusion_columns(self, device: Int32) -> dict[str, Any]:
        # The native accesses are the reads, then the writes of each op; views have none.
        program, rules = self.program, self.rules
        op = np.concatenate([program.read_op, program.write_op])
        repeats = np.concatenate([rules.repeats, np.zeros(len(program.write_op), dtype=np.int8)])
        kept = np.flatnonzero(~program.op_view[op])
        kept = kept[np.argsort(op[kept], kind="stable")]
        return {
            "fusible": rules.fusible,
            "big_reduction": rules.big_reduction,
            "cheap": rules.cheap,
            "loop_size": rules.loop_size,
            "repeats": repeats[kept],
            "component": self.hard,
            "device": device,
            "all_readers": self.readers == "all",
        }

    def _decision_columns(self, decided: bool = True) -> dict[str, Any]:
        """What the core needs to decode vectors; not `decided`: of width 0, the base plan alone."""
        parts = [self.part(name) for name in PARTS]
        starts = [part.start if decided and part.stop > part.start else -1 for part in parts]
        width, tie = (self.width, self.tie) if decided else (0, "fifo")
        by_path = [self.base.schedule == "critical_path", tie == "critical_path"]
        return {
            "parts": np.array([width, *starts, *by_path], dtype=np.int64),
            "node_op": self.node_op,
            "group": self.op_group,
            "base_fusion": self.base_clusters,
            "base_device": self._base_device,
            "pinned": self._pinned,
        }

    # --- sizes and parts ---------------------------------------------------------------------

    @property
    def nodes(self) -> int:
        """n"""
        return len(self.node_op)

    @property
    def groups(self) -> int:
        """G"""
        return len(self._pinned)

    @property
    def devices(self) -> int:
        """D"""
        return len(self.machine.devices)

    @property
    def width(self) -> int:
        """V"""
        return sum(self._sizes)

    @property
    def pinned(self) -> Int32:
        """[G] the device of a group that is pinned; -1: it is free."""
        return self._pinned

    def part(self, name: str) -> slice:
        """Where 'fusion', 'device' or 'schedule' is in a vector; empty if it is not decided."""
        at = PARTS.index(name)
        start = sum(self._sizes[:at])
        return slice(start, start + self._sizes[at])

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
        for name in PARTS:
            at = self.part(name)
            if at.stop > at.start:
                found.append(vectors[..., at])
            else:
                base = self._base_part(name)
                found.append(np.broadcast_to(base, (*vectors.shape[:-1], len(base))))
        return found[0], found[1].astype(np.int32), found[2]

    def _base_part(self, name: str) -> npt.NDArray[Any]:
        if name == "fusion":
            return self._base_keys[self.node_op]
        return self._base_device if name == "device" else self._base_schedule

    @cached_property
    def _base_schedule(self) -> Float64:
        """[n] keys with which the base plan's clusters on its devices run as they do in the base plan.

        Where the rule for ties is its own schedule, equal keys; else the order in which it starts: what
        is ready and started first there has the largest key here.
        """
        if self.base.schedule == self.tie:
            return np.zeros(self.nodes)
        _, _, start, _ = self._base_batch.decode(np.zeros(0))
        if len(start) == 0:  # the base plan can't run: there is nothing to repeat
            return np.zeros(self.nodes)
        first, rank = np.unique(start[self.node_op], return_inverse=True)
        return 1.0 - rank / max(1, len(first))

    @cached_property
    def _base_batch(self) -> _core.GraphBatch:
        """Evaluates the base plan, a vector of width 0."""
        return _core.GraphBatch(self._fusion, self._decision_columns(decided=False))

    # --- scoring -----------------------------------------------------------------------------

    @cached_property
    def reference_ps(self) -> int:
        """The time of the base plan, whether it fits or not; where it can't run (a missing link, an
        op that its device does not know), that of all ops one after another."""
        total, _, fault = self._base_batch.evaluate(np.zeros((1, 0)), 1)
        if fault[0, 0]:
            cost = np.minimum(np.where(self.durations < 0, 2**40, self.durations), 2**40)
            return int((cost.min(axis=1) * self.program.op_repeat[self.node_op]).sum())
        return int(total[0])

    def measure(self, decisions: Decision, threads: int | None = None) -> tuple[Int64, Int64, Int64]:
        """(time_ps [B], bytes over [B, memories], faults [B, 3]) of vectors [B, V]."""
        vectors = np.ascontiguousarray(decisions, dtype=np.float64)
        if vectors.ndim != 2 or vectors.shape[1] != self.width:
            raise ValueError(f"vectors must be [B, {self.width}], not {list(vectors.shape)}")
        return self._batch.evaluate(vectors, threads or cores())

    def climb(self) -> _core.GraphClimb:
        """An evaluator for searches that change a few places of a vector at a time: the same results,
        and only what comes after the first difference is run again."""
        return _core.GraphClimb(self._fusion, self._decision_columns(), float(max(1, self.reference_ps)))

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
        """Clusters, devices and the order in which steps start, all plans."""
        vector = np.ascontiguousarray(decision, dtype=np.float64)
        fusion, device, start, fault = self._batch.decode(vector)
        if fault[0]:
            raise explain(fault, self.program, self.machine)
        return plans.make_plan(self.program, fusion, device, start)

    def value_of(self, plan: Plan) -> int | None:
        """The time of a plan of this problem, or None: keys can't express the clusters of every plan."""
        return None if self.violations(plan) else self.simulator.run(plan).total_ps

    def decision(self, plan: Plan) -> Decision:
        """The vector of a plan whose clusters and devices keys can express; raises otherwise."""
        return plans.make_decision(self, plan)

    def adapt(self, plan: Plan) -> Decision:
        """The plan's devices and order, and its clusters as far as keys can express them."""
        return plans.make_near(self, plan)

    def fuse(self, keys: npt.ArrayLike) -> Int32:
        """[n_ops] the clusters that fusion keys [n] give, each by its smallest op; -1: alone."""
        by_op = np.zeros(self.program.n_ops)
        by_op[self.node_op] = keys
        return self._fusion.fuse(by_op)

    def cost_model_keys(self, device: int = 0) -> Float64:
        """[n] fusion keys that do what a cost model would: the largest gain first, none at a loss."""
        return self._fusion.cost_model(device)[self.node_op]

    def judge(self, plan: Plan) -> list[Violation]:
        return plans.violations(self, plan)

    def outside(self, plan: Plan) -> list[Violation]:
        """Residencies, copies and lists of transfers; clusters that the rules of fusion never make;
        what is not among the tasks and differs from the base plan; pins."""
        return plans.outside(self, plan) + self.pins.violations(plan)

    # --- bounds ------------------------------------------------------------------------------

    @cached_property
    def durations(self) -> Int64:
        """[n, D] ps of each node as a step of its own on each device; -1: it can't run there."""
        return self.step_durations(np.full(self.program.n_ops, -1, dtype=np.int32))[self.node_op]

    def step_durations(self, clusters: Int32) -> Int64:
        """[n_ops, D] ps of the step whose smallest op this is; -1: none, or it can't run there."""
        return self._fusion.durations(np.ascontiguousarray(clusters, dtype=np.int32))

    @cached_property
    def touched(self) -> Int8:
        """[n_ops] whether an op can be in a cluster with another, whatever the keys."""
        return self._fusion.touched()

    @cached_property
    def forced(self) -> dict[str, Any]:
        """What no fusion avoids, columns by op: `alone`, bytes `read` and `write` on its account in how
        many `reads` and `writes`, and the ops before it with whether the two are never fused (`cut`)."""
        return self._fusion.forced()

    @cached_property
    def edges(self) -> Int32:
        """[2, E] pairs (producer, reader) of nodes, views seen through; each once, sorted."""
        return bounds.find_edges(self.program, self.node_op)

    @cached_property
    def no_plan(self) -> str | None:
        """Why no plan fits, where that is proved."""
        return bounds.prove_no_fit(self)

    @cached_property
    def _bound(self) -> Bound:
        return bounds.time_bound(self)

    def bound(self) -> Bound:
        """What no plan beats (`loadmaster.graph.bounds.time_bound`)."""
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
