"""`PlanView`: a checked plan with its times, as the files for viewers tell it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.export.plans import ExportRequest, refuse_violations
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.occupancy import Occupancy
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan, Residency
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.simulate import Timeline, simulate


@dataclass(frozen=True, eq=False)
class PlanView:
    """One plan, its timeline, and look-ups by op and tensor."""

    program: Program
    machine: Machine
    plan: Plan
    timeline: Timeline

    @classmethod
    def of(cls, request: ExportRequest) -> PlanView:
        """Time the plan and check it, times included; a plan with violations is refused."""
        program, machine, plan = request.program, request.machine, request.plan
        timeline = simulate(program, machine, plan)
        refuse_violations(program, check(program, machine, plan, timeline))
        return cls(program, machine, plan, timeline)

    @cached_property
    def occupancy(self) -> Occupancy:
        return Occupancy(self.program, self.machine, self.plan, self.timeline)

    @cached_property
    def memory_names(self) -> list[str]:
        return [memory.name for memory in self.machine.memories]

    def device(self, op: int) -> int:
        """The device that runs an op."""
        return 0 if self.plan.device is None else int(self.plan.device[op])

    @cached_property
    def position(self) -> list[int]:
        """[ops] when it is its turn"""
        return [int(position) for position in self.occupancy.steps.position_of]

    @cached_property
    def residencies(self) -> list[Residency]:
        """Every root's, by root; what the plan leaves open is at home for its whole life."""
        program, rows = self.program, self.plan.residency_rows
        found: dict[int, list[Residency]] = {}
        for row in rows:
            found.setdefault(row.tensor, []).append(row)
        # Views that an op makes or reads count as uses of their root.
        op = np.concatenate([program.write_op, program.read_op])
        root = program.tensor_alias[np.concatenate([program.write_tensor, program.read_tensor])]
        turn = self.occupancy.steps.position_of[op]
        first, last = np.full(program.n_tensors, program.n_ops), np.full(program.n_tensors, -1)
        np.minimum.at(first, root, turn)
        np.maximum.at(last, root, turn)
        order = np.argsort(self.occupancy.steps.position_of)
        home = self.occupancy.home[self.occupancy.home_device]
        open_ = self.occupancy.is_root & (last >= 0)
        open_[[row.tensor for row in rows]] = False
        for tensor in np.flatnonzero(open_).tolist():
            begin = BEFORE if program.producer[tensor] < 0 else int(order[first[tensor]])
            kept = program.tensor_kind[tensor] in PERSISTENT
            end = program.n_ops - 1 if kept else int(order[last[tensor]])
            found[tensor] = [Residency(tensor, int(home[tensor]), NO_OFFSET, begin, end)]
        return [row for tensor in sorted(found) for row in found[tensor] if self.occupancy.is_root[tensor]]

    def find_result(self, op: int, tensor: int) -> Residency | None:
        """Where an op's result is put, or None if nobody holds it."""
        own = self._residencies_of.get(int(self.program.tensor_alias[tensor]), [])
        turn = self.position[op]
        for row in own:
            begins = -1 if row.first == BEFORE else self.position[row.first]
            if begins <= turn <= self.position[row.last]:
                return row
        return own[0] if own else None

    @cached_property
    def _residencies_of(self) -> dict[int, list[Residency]]:
        found: dict[int, list[Residency]] = {}
        for row in self.residencies:
            found.setdefault(row.tensor, []).append(row)
        return found


def make_file_name(text: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80].lstrip(".") or "plan"
