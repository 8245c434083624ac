"""`Offload`: a device that works in its first memory alone, which can't hold everything.

A decision is either int8[G + 2]: for each gap whether it is kept (see `OffloadModel`), then how early
copies are issued (a number of `LEADS`) and which share of the memory is left unused to make packing
easier (in 128ths); or the rows int64[m, 7] of any plan (`malloc_game.placement.encode`). Its value is the
simulated time. Gaps that can't be kept are given up; so every vector is legal.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import BadMachine, BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine
from loadmaster.malloc_game.games import DECIDES, decode, encode
from loadmaster.offload.bounds import quick_bound, traffic
from loadmaster.offload.model import Bool, Int8, Int64, Kernels, OffloadModel, offload_model
from loadmaster.offload.residencies import (
    Scheduled,
    occupied,
    offsets_of,
    plan_of,
    repaired,
    residencies_of,
    schedule,
    schedule_placed,
    settled,
)
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program.program import Program, TensorKind
from loadmaster.program.storage import load
from loadmaster.search.pins import BadPin, Pins
from loadmaster.search.problem import Bound, Decision, Problem, decided_elsewhere, within_core
from loadmaster.simulate.simulator import get_simulator
from loadmaster.units import show_bytes

LEADS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0, 1e6)
"""How much earlier than needed copies in are issued, in times of the longest copy."""
GENES = 2
SQUEEZES = (0, 2, 5, 10, 16, 24, 32)
"""128ths of the memory that are left unused, one after another, until offsets are found."""
_NO_LIMIT = 2**62


class Offload(Problem):
    """Which tensors stay in fast memory between which uses, and when the others come and go. `reserve`
    bytes of it are left to what kernels need for themselves. With `kernels`, what they take and keep has its
    room too, beside `reserve`."""

    kind = "offload"
    unit = "ps"

    def __init__(
        self,
        program: Program,
        machine: Machine,
        *,
        reserve: int = 0,
        kernels: Kernels | None = None,
        pins: Pins | None = None,
    ) -> None:
        if pins:
            raise BadPin(
                "an offload plan has no pins: what stays in fast memory is decided use by use",
                object="pins",
                remedy="leave them out",
            )
        # Whatever the machine allows: here ops work in its first memory alone, and `check` holds it.
        self.machine = machine if machine.rules.reach == "first" else machine.with_reach("first")
        self.program, self.reserve, self.kernels = program, reserve, kernels
        model = offload_model(program, machine, self.for_kernels)
        if kernels is not None:
            model = replace(model, taken=kernels.room(model.step_op))
        with within_core(program, machine):
            self.duration = self._durations(model)
        """[S] picoseconds of each step with all it uses in fast memory."""
        self.clock = np.concatenate([[0], np.cumsum(self.duration)]).astype(np.int64)
        """[S + 1] the start of each step if nothing waits."""
        self.model: OffloadModel = replace(model, clock=self.clock)
        self._check_room()
        self._check_all()
        self._bound = quick_bound(program, machine, self.model, self.duration)
        self._packed: tuple[bytes, Plan | None] = (b"", None)
        self.rule_seconds = 0.0
        """What the slowest of the rules took that were followed so far."""

    @property
    def gaps(self) -> int:
        return self.model.gaps

    @property
    def for_kernels(self) -> int:
        """Bytes of fast memory that no tensor ever has."""
        kernels = self.kernels
        return self.reserve + (0 if kernels is None else kernels.kept + kernels.spare)

    @property
    def limit_ps(self) -> int:
        """Time of the ops alone."""
        return int(self.clock[-1])

    def options(self) -> dict[str, Any]:
        chosen: dict[str, Any] = {"reserve": self.reserve} if self.reserve else {}
        if self.kernels is not None:
            chosen["kernels"] = self.kernels.as_json()
        return chosen

    def vector(self, keep: Bool, lead: int = 3, squeeze: int = 0) -> Int8:
        """A decision from its parts."""
        return np.append(np.asarray(keep, dtype=np.int8), np.array([lead, squeeze], dtype=np.int8))

    def capacity_of(self, squeeze: int) -> int:
        """The room that is used of fast memory; never less than what some step needs."""
        return max(self.least, self.model.capacity - self.model.capacity * squeeze // 128)

    def scheduled(self, decision: Decision) -> Scheduled:
        """The stays and copies of a vector, with offsets if they are easily found."""
        genes = np.asarray(decision)
        lead, squeeze = int(genes[-2]) % len(LEADS), int(genes[-1]) % 128
        capacity = self.capacity_of(squeeze)
        keep = repaired(self.model, genes[:-GENES] != 0, capacity)
        longest = int(self.model.copy_in.max(initial=0))
        ahead = min(int(LEADS[lead] * longest), _NO_LIMIT)
        residencies = residencies_of(self.model, keep)
        return schedule_placed(self.model, residencies, ahead) or schedule(
            self.model, residencies, capacity, ahead
        )

    def time_of(self, made: Scheduled) -> int:
        plan = plan_of(self.model, self.program.n_ops, made)
        return int(get_simulator(self.program, self.machine).run(plan).total_ps)

    def evaluate(self, decision: Decision) -> int | None:
        if is_vector(decision):
            return self.time_of(self.scheduled(decision))
        try:
            plan = decode(decision)
            total = int(get_simulator(self.program, self.machine).run(plan).total_ps)
        except BadPlan:
            return None
        return None if self.violations(plan) else total

    def admits(self, decision: Decision) -> bool:
        if is_vector(decision):
            return self._with_offsets(decision) is not None
        return not self.violations(decode(decision))

    def plan(self, decision: Decision) -> Plan:
        if not is_vector(decision):
            return decode(decision)
        plan = self._with_offsets(decision)
        return plan or plan_of(self.model, self.program.n_ops, self.scheduled(decision))

    def with_offsets(self, made: Scheduled, seconds: float = 0.0) -> Plan | None:
        """The plan of a schedule with offsets, or None if none are found."""
        offset = made.offset
        if offset is None:
            offset = offsets_of(self.model, made.residencies, self.model.capacity, seconds)
        return None if offset is None else plan_of(self.model, self.program.n_ops, made, offset)

    def _with_offsets(self, decision: Decision) -> Plan | None:
        key = np.ascontiguousarray(decision).tobytes()
        if self._packed[0] != key:
            self._packed = (key, self.with_offsets(self.scheduled(decision)))
        return self._packed[1]

    def decision(self, plan: Plan) -> Decision:
        return encode(plan)

    def adapt(self, plan: Plan) -> Decision:
        """The gaps over which the plan keeps a tensor in fast memory; with as much room left unused as it takes to
        find offsets."""
        model, last = self.model, self.program.n_ops - 1
        before, after = np.append(model.step_op, BEFORE), np.append(model.step_op, last)
        gap_first, gap_last = before[model.gap_from], after[model.gap_to]  # of -1 and S, what was appended
        root = model.root[model.gap_item]
        keep = np.zeros(model.gaps, dtype=bool)
        for row in plan.residency_rows:
            if row.memory == model.fast:
                keep |= (root == row.tensor) & (row.first <= gap_first) & (gap_last <= row.last)
        vector = self.vector(keep)
        roomy = with_room(self, vector)
        return vector if roomy is None else roomy

    def outside(self, plan: Plan) -> list[Violation]:
        """What reaches into the room that is left to kernels; what leaves within a loop."""
        found = decided_elsewhere(plan, self.kind, DECIDES)
        left = self.machine.memories[self.model.fast].capacity - self.model.capacity
        table = np.empty((0, 5), dtype=np.int64) if plan.residencies is None or not left else plan.residencies
        beyond = table[:, 2] + self.program.storage_bytes[table[:, 0]] - self.model.capacity
        for row in np.flatnonzero((table[:, 1] == self.model.fast) & (beyond > 0)).tolist():
            over = int(beyond[row])
            found.append(
                Violation(
                    "offload",
                    f"residency {row} reaches {over:,} bytes into the {left:,} that are left to kernels",
                    int(table[row, 0]),
                    None,
                    over,
                )
            )
        return found if found or not self.program.n_loops else self._away(plan)

    def _away(self, plan: Plan) -> list[Violation]:
        """What a loop touches and is not in fast memory for all of it: a loop is one long step here."""
        model = self.model
        served = np.zeros(len(model.use_step), dtype=bool)
        rank = np.searchsorted(model.step_op, np.arange(self.program.n_ops))
        item_of = {int(root): item for item, root in enumerate(model.root.tolist())}
        brought: dict[int, list[tuple[int, int]]] = {}
        for copy in plan.copy_rows:
            if copy.target == model.fast:
                brought.setdefault(copy.tensor, []).append((copy.issued_after, copy.needed_by))
        for row in plan.residency_rows:
            item = item_of.get(row.tensor)
            if item is None or row.memory != model.fast:
                continue
            since = max(
                [
                    row.first,
                    *(
                        needed
                        for issued, needed in brought.get(row.tensor, ())
                        if row.first - 1 <= issued and needed <= row.last
                    ),
                ]
            )
            uses = slice(int(model.use_start[item]), int(model.use_start[item + 1]))
            begin = -1 if row.first == BEFORE else int(rank[since])
            step = model.use_step[uses]
            served[uses] |= (step >= begin) & (model.step_op[step] <= row.last)
        found = []
        for use in np.flatnonzero(~served)[:10].tolist():
            tensor, op = (int(model.root[model.use_item[use]]), int(model.step_op[model.use_step[use]]))
            name, where = self.program.op_name[op], self.machine.memories[model.fast].name
            found.append(
                Violation(
                    "offload",
                    f"op '{name}' uses '{self.program.tensor_name[tensor]}', which is not "
                    f"in '{where}' then: copy it there before",
                    tensor,
                    op,
                    None,
                )
            )
        return found

    def bound(self) -> Bound:
        return self._bound

    def traffic_bound(self) -> tuple[int, int]:
        """Bytes that must come in and go out, at least."""
        return traffic(self.program, self.model)

    def _durations(self, model: OffloadModel) -> Int64:
        residencies = residencies_of(model, settled(model, np.ones(model.gaps, dtype=bool)))
        plan = plan_of(model, self.program.n_ops, schedule(model, residencies, _NO_LIMIT, 0))
        line = get_simulator(self.program, self.machine).run(plan)
        duration: Int64 = (line.op_end - line.op_start)[model.step_op]
        return duration

    def _check_room(self) -> None:
        """Every step has room for what it reads and writes, or there is no plan."""
        model = self.model
        nothing = settled(model, np.zeros(model.gaps, dtype=bool))
        room = occupied(model, residencies_of(model, nothing))
        self.least = int(room.max(initial=0))
        """Bytes without which some step can't run."""
        if self.least > model.capacity:
            op = int(model.step_op[int(room.argmax())])
            name, memory = self.program.op_name[op], self.machine.memories[model.fast]
            kernels = self.for_kernels
            left = f", of which kernels have {show_bytes(kernels)}" if kernels else ""
            raise BadMachine(
                f"op '{name}' reads and writes {show_bytes(self.least)} at once and '{memory.name}' has "
                f"{show_bytes(memory.capacity)}{left}",
                object=name,
                number=self.least,
                remedy=f"give --capacity {memory.name}={self.least + memory.capacity - model.capacity} or more, or "
                f"{self._smaller(op)}",
            )

    def _check_all(self) -> None:
        """What is there before the program starts has room somewhere, or there is no plan."""
        program, memories = self.program, self.machine.memories
        roots = np.unique(program.tensor_alias[program.read_tensor])
        there = np.isin(program.tensor_kind[roots], (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE))
        needed, room = int(program.storage_bytes[roots[there]].sum()), sum(each.capacity for each in memories)
        if needed > room:
            home = memories[self.model.home]
            raise BadMachine(
                f"weights, inputs and state of '{program.name}' take {show_bytes(needed)} and the memories of "
                f"'{self.machine.name}' have {show_bytes(room)} together",
                object=home.name,
                number=needed,
                remedy=f"give --capacity {home.name}={needed} or more, or a smaller model",
            )

    def _smaller(self, op: int) -> str:
        """What makes an op need less: slices of weights, if they or their gradients are much of it."""
        program = self.program
        used = program.tensor_alias[np.concatenate([program.reads(op), program.writes(op)])]
        size, kind = program.storage_bytes[used], program.tensor_kind[used]
        weight = kind == TensorKind.WEIGHT
        if program.op_backward[op]:
            sizes = program.storage_bytes[program.tensor_kind == TensorKind.WEIGHT]
            weight |= (kind == TensorKind.OUTPUT) & np.isin(size, sizes)
        if 2 * size[weight].max(initial=0) >= size.max(initial=1):
            return "cut its weights into slices with --split"
        return "take a smaller batch"

    def save(self, folder: Path) -> None:
        (folder / "problem.json").write_text(json.dumps(self.options()), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Offload:
        """What `save` wrote."""
        about = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
        if "measured" in about:
            from loadmaster.offload.measured import measured_again

            return measured_again(folder, about)
        program = load(folder / "program.npz")
        if "kernels" in about:
            about["kernels"] = Kernels.of_json(about["kernels"], program.n_ops)
        return cls(program, read_machine(folder / "machine.toml"), **about)


def is_vector(decision: Decision) -> bool:
    """Whether it is a vector over gaps, and not the rows of a plan."""
    return np.asarray(decision).ndim == 1


def with_room(problem: Offload, decision: Decision) -> Decision | None:
    """The vector with as little memory left unused as lets offsets be found; None: none were."""
    for squeeze in SQUEEZES:
        tried = np.array(decision)
        tried[-1] = max(squeeze, int(tried[-1]))
        if problem.admits(tried):
            return tried
    return None


def options_of(problem: Offload) -> dict[str, Any]:
    """What makes another problem about the same decisions."""
    return {"reserve": problem.reserve, "kernels": problem.kernels}
