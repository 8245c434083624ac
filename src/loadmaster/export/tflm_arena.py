"""The arena of TFLite Micro, planned: offsets around the scratch of its kernels, as metadata of a file.

The metadata `OfflineMemoryAllocation` has whole numbers of 32 bits: a version, how many graphs, how many
tensors (those of all graphs, constants too), and for each an offset from the head's start, or -1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.allocation.auto import make_auto
from loadmaster.allocation.problem import ProgramAllocation
from loadmaster.export.rules import NotExported, check_sound
from loadmaster.export.tflm_file import ALIGNMENT, with_plan
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import load_machine
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.tflite.importer import Imported, import_with_places
from loadmaster.program.importers.tflite.read import TfliteModel, read_tflite
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.search.pins import Pins
from loadmaster.search.solver import Budget, solve
from loadmaster.units import UNLIMITED

METADATA = "OfflineMemoryAllocation"
VERSION = 1
BY_RUNTIME = -1
"""As an offset: the runtime places the tensor."""
SECONDS = 10.0


@dataclass(frozen=True)
class ArenaPlan:
    """One model's arena, planned."""

    model: TfliteModel
    imported: Imported
    """The program with the scratch of its kernels."""
    scratch: Mapping[int, int]
    """Operator -> bytes."""
    machine: Machine
    plan: Plan
    head: int
    """Bytes of the arena's planned part."""

    @property
    def program(self) -> Program:
        return self.imported.program

    def offsets(self) -> list[int]:
        """Of every tensor of the file, in the file's numbering."""
        arena = self.machine.home[0]
        placed = {r.tensor: r.offset for r in self.plan.residency_rows if r.memory == arena}
        first, *others = self.model.graphs
        offsets = []
        for number in range(len(first.tensors)):
            tensor = self.imported.tensors.get(number)
            root = -1 if tensor is None else int(self.program.tensor_alias[tensor])
            offsets.append(placed.get(root, BY_RUNTIME))
        return offsets + [BY_RUNTIME] * sum(len(graph.tensors) for graph in others)

    def operators(self) -> list[int]:
        """The operators in the plan's order. Those that are no ops of the program (handles of variables,
        weights stored smaller) come directly before the first that needs them; those without results,
        which prepare something, come first."""
        operators, source = self.model.graphs[0].operators, self.program.op_source.tolist()
        if self.plan.order is None:
            return list(range(len(operators)))
        maker = {n: i for i, operator in enumerate(operators) for n in operator.outputs}
        extra = set(range(len(operators))) - set(source)
        found = [number for number in sorted(extra) if not operators[number].outputs]
        done = set(found)
        planned = [source[op] for op in self.plan.order.tolist() if source[op] >= 0]
        for first in [*planned, *sorted(extra)]:
            waiting = [first]
            while waiting:
                number = waiting[-1]
                makers = {maker.get(n, -1) for n in operators[number].inputs} & extra - done
                if number not in done and makers - {number}:
                    waiting += sorted(makers - {number})
                    continue
                waiting.pop()
                if number not in done:
                    done.add(number)
                    found.append(number)
        return found

    def file(self) -> bytes:
        """The model with the plan in it."""
        offsets, order = self.offsets(), self.operators()
        if self.head >= 2**31:
            raise NotExported(
                f"the arena has {self.head:,} bytes, above 2 GiB",
                object="arena",
                number=self.head,
                remedy="give a smaller model",
            )
        if sorted(order) != list(range(len(self.model.graphs[0].operators))):
            raise NotExported(
                "the program has not all operators of the model",
                object="model",
                number=len(order),
                remedy="plan the file itself",
            )
        table = [VERSION, len(self.model.graphs), len(offsets), *offsets]
        moved = None if self.plan.order is None else order
        return with_plan(self.model, moved, {METADATA: struct.pack(f"<{len(table)}i", *table)})

    def check_read_back(self, written: bytes) -> None:
        """Read a file as a stranger would, and check the plan that it carries."""
        model = read_tflite(written, "exported")
        offsets, order = read_offsets(model), self.operators()
        ours, theirs = self.model.graphs[0].operators, model.graphs[0].operators
        same = len(ours) == len(theirs) and all(
            (ours[a].name, ours[a].inputs, ours[a].outputs) == (b.name, b.inputs, b.outputs)
            for a, b in zip(order, theirs, strict=True)
        )
        if not same or offsets != self.offsets():
            raise NotExported(
                "the written file does not hold the plan", object="exported", remedy="report this as a bug"
            )
        moved = {order.index(number): count for number, count in self.scratch.items()}
        again = import_with_places(written, scratch=moved)
        root, arena = again.program.tensor_alias, self.machine.home[0]
        pins = {
            int(root[t]): (arena, offsets[n]) for n, t in again.tensors.items() if offsets[n] != BY_RUNTIME
        }
        problem = ProgramAllocation(again.program, self.machine, pins=Pins(pins))
        found = _placed(problem)
        check_sound(again.program, self.machine, problem.plan(found[0]))
        if found[1] > self.head:
            raise NotExported(
                f"the written file needs {found[1]:,} bytes of arena, not {self.head:,}",
                object="exported",
                number=found[1],
                remedy="report this as a bug",
            )


def plan_arena(model: TfliteModel, scratch: Mapping[int, int], plan: Plan) -> ArenaPlan:
    """Offsets in one arena for the plan's order; its own offsets are kept if it has them for all."""
    imported = import_with_places(model.root.data, scratch=scratch)
    machine = load_machine(f"arena:{UNLIMITED}")
    memories = tuple(replace(memory, alignment=ALIGNMENT) for memory in machine.memories)
    machine = replace(machine, memories=memories, text="")
    pins = _pins(imported, machine, plan)
    problem = ProgramAllocation(imported.program, machine, order=plan.order, pins=pins)
    decision, head = _placed(problem)
    found = problem.plan(decision)
    check_sound(imported.program, machine, found)
    return ArenaPlan(model, imported, scratch, machine, found, head)


def read_offsets(model: TfliteModel) -> list[int]:
    """The offsets that a file carries."""
    data = model.metadata.get(METADATA, b"")
    table: list[int] = np.frombuffer(data[: len(data) // 4 * 4], "<i4").tolist()
    if len(table) < 3 or table[0] != VERSION or len(table) != 3 + table[2]:
        raise NotExported(
            "the file has no memory plan, or a damaged one",
            object=METADATA,
            number=len(table),
            remedy="export it again",
        )
    return table[3:]


def _placed(problem: ProgramAllocation) -> tuple[np.ndarray, int]:
    solution = solve(make_auto(), problem, Budget(seconds=SECONDS))
    if solution.decision is None or solution.value is None:
        raise NotExported(
            "no offsets were found around the plan's own",
            object=problem.program.name,
            remedy="give a plan without offsets",
        )
    return solution.decision, int(solution.value)


def _pins(imported: Imported, machine: Machine, plan: Plan) -> Pins:
    """The plan's offsets, if they put everything but weights into one memory."""
    program, added = imported.program, set(imported.scratch.values())
    # The plan's program has no scratch: its tensors are the others, in the same order.
    number = [tensor for tensor in range(program.n_tensors) if tensor not in added]
    kept = [int(kind) for kind in PERSISTENT]
    rows = [row._replace(tensor=number[row.tensor]) for row in plan.residency_rows]
    rows = [row for row in rows if program.tensor_kind[row.tensor] not in kept]
    whole = len({row.tensor for row in rows}) == len(rows) and len({r.memory for r in rows}) == 1
    if not whole or any(row.offset < 0 or row.offset % ALIGNMENT for row in rows):
        return Pins()
    return Pins({row.tensor: (machine.home[0], row.offset) for row in rows})
