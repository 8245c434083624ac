"""TFLite Micro: an offset for every tensor of the arena, and the order of the operators.

The offsets travel in the file itself, as metadata that the runtime reads when it plans its arena. It
checks none of them: overlapping ones run and give wrong numbers. So the plan is checked before it is
written, the file is read back and checked again, and both files are run on the same inputs.

Kernels ask for scratch memory that the file does not mention. It is probed (or given by the user) and
planned like tensors, else the runtime would stack it on top.

The metadata `OfflineMemoryAllocation` has whole numbers of 32 bits: a version, how many graphs, how many
tensors (those of all graphs, constants too), and for each an offset from the head's start, or -1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.allocation.auto import make_auto as make_allocation_auto
from loadmaster.allocation.problem import ProgramAllocation
from loadmaster.errors import Refused
from loadmaster.export.plans import (
    Exported,
    ExportRequest,
    Figure,
    NotExported,
    check_other_file,
    check_sound,
    list_left_out,
)
from loadmaster.export.tflm_arena import damaged
from loadmaster.export.tflm_file import ALIGNMENT, BY_RUNTIME, METADATA, VERSION, with_plan
from loadmaster.export.tflm_measure import check_survives, read_arena
from loadmaster.files import read_regular, replacing
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import load_machine
from loadmaster.order.problem import PeakOrder
from loadmaster.order.search import make_auto
from loadmaster.plan.plan import Plan, Residency
from loadmaster.program.hazards import places
from loadmaster.program.importers.tflite.importer import Imported, import_tflite, import_with_places
from loadmaster.program.importers.tflite.read import TfliteModel, read_bytes, read_tflite
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.search.pins import Pins
from loadmaster.search.solver import Budget, solve
from loadmaster.units import UNLIMITED

SEEDS = range(5)
PROOF_SECONDS = 5.0
MOST_SCRATCH = 2**24
"""Bytes of a scratch file."""
PACK_SECONDS = 10.0


def export(request: ExportRequest) -> Exported:
    """The target `tflm`."""
    from loadmaster.export.tflm_file import Micro, are_identical

    check_other_file(request.model, request.out)
    check_sound(request.program, request.machine, request.plan)
    model = _read(request)
    room = sum(tensor.bytes for tensor in model.graphs[0].tensors if not tensor.constant)
    if request.verify:
        check_survives(model.root.data, room, request.model)
    scratch, source = _scratch(request, model)
    planned = plan_arena(model, scratch, request.plan)
    _check_room(request, planned.head)
    bound = _bound(planned)
    written = planned.file()
    planned.check_read_back(written)
    ours_arena = read_arena(written)
    figures: dict[str, Figure] = {
        "head_bytes": planned.head,
        "bound_bytes": bound,
        "gap": planned.head / max(1, bound) - 1,
        "scratch_bytes": sum(scratch.values()),
        "scratch": source,
        "measured_head_bytes": None,
        "runtime_head_bytes": None,
        "runtime_arena_bytes": read_arena(model.root.data).total,
        "arena_bytes": ours_arena.total,
        "persistent_bytes": ours_arena.persistent,
        "startup_bytes": ours_arena.startup,
        "file_bytes": len(written),
    }
    one = _one_memory(request.program, request.plan)
    done = Exported(
        "unverified",
        (),
        ("order", "offsets in one arena"),
        list_left_out(request.plan, memory=one, offset=True, order=True),
        figures,
    )
    if request.verify:
        theirs, ours = Micro(model.root.data, room), Micro(written, room + planned.head)
        before, after = theirs.arena().head, ours.arena().head
        figures |= {"runtime_head_bytes": before, "measured_head_bytes": after}
        least = [
            read_arena(data, measure=True, name=request.model).total for data in (model.root.data, written)
        ]
        figures |= {"runtime_arena_bytes": least[0], "arena_bytes": least[1]}
        verdict = None if request.force else _no_better(least, before, after, bound)
        if verdict is not None:
            said = (
                f"the runtime's own arena has {before:,} bytes, the plan's {after:,}, the bound is {bound:,}; "
                f"the whole arena {least[0]:,} and {least[1]:,}"
            )
            return replace(done, verdict=verdict, notes=(said,))
        ends = len(model.graphs[0].inputs), len(model.graphs[0].outputs)
        first, second = ({seed: micro.run(seed, *ends) for seed in SEEDS} for micro in (theirs, ours))
        if not are_identical(first, second):
            raise Refused(
                "the exported model computes other numbers than the model",
                object=request.model,
                remedy="report this as a bug",
            )
        said = f"arena {least[0]:,} -> {least[1]:,} bytes ({least[1] / max(1, least[0]) - 1:+.1%})"
        parts = f"planned part {before:,} -> {after:,}, bound {bound:,}"
        done = replace(
            done,
            verdict="verified",
            notes=(
                f"{said}: set kTensorArenaSize to {least[1]}",
                f"{parts}; outputs bit-identical on {len(SEEDS)} inputs",
            ),
        )
    with replacing(request.out) as temporary:
        temporary.write_bytes(written)
    return replace(done, files=(request.out,))


def _bound(planned: ArenaPlan) -> int:
    """Bytes that no order and no offsets can do without."""
    problem = PeakOrder(planned.program, planned.machine)
    bound = problem.bound().value
    if planned.head > bound:
        bound = max(bound, solve(make_auto(), problem, Budget(seconds=PROOF_SECONDS)).bound.value)
    return bound


def read_scratch(path: Path, operators: int) -> dict[int, int]:
    """Bytes of scratch by operator, from lines 'operator,bytes'; a line of words on top is skipped."""
    found: dict[int, int] = {}
    try:
        lines = read_regular(path, MOST_SCRATCH).decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise NotExported(
            f"scratch file '{path}' can't be read: {reason}",
            object=str(path),
            remedy="give lines of operator,bytes",
        ) from None
    for number, line in enumerate(lines, 1):
        parts = [part.strip() for part in line.split(",")]
        if not line.strip() or (number == 1 and parts == ["operator", "bytes"]):
            continue
        whole = len(parts) == 2 and all(
            part.isascii() and part.isdecimal() and len(part) <= 9 for part in parts
        )
        if not whole or int(parts[0]) >= operators:
            raise NotExported(
                f"scratch file '{path}', line {number}: '{line[:40]}'",
                object=str(path),
                number=number,
                remedy=f"give an operator from 0 to {operators - 1}, a comma and bytes",
            )
        found[int(parts[0])] = int(parts[1])
    return found


def _read(request: ExportRequest) -> TfliteModel:
    data = read_bytes(request.model)
    model = read_tflite(data, request.model)
    nested = sorted({op.name for op in model.graphs[0].operators} & {"IF", "WHILE", "CALL"})
    if nested:
        raise NotExported(
            f"'{request.model}' has {' and '.join(nested)}, whose tensors the runtime places itself",
            object=request.model,
            remedy="give a model of one graph",
        )
    if import_tflite(data).hash != request.program.hash:
        raise NotExported(
            f"the plan's program is not what '{request.model}' holds",
            object=request.model,
            remedy="plan the file itself",
        )
    return model


def _scratch(request: ExportRequest, model: TfliteModel) -> tuple[dict[int, int], str]:
    """Bytes of scratch by operator, and where they are known from."""
    if request.scratch is not None:
        return read_scratch(request.scratch, len(model.graphs[0].operators)), "given"
    if not request.verify:
        return {}, "not known"
    from loadmaster.export.tflm_file import probe_scratch

    with damaged(request.model):
        return probe_scratch(model), "probed with reference kernels"


def _check_room(request: ExportRequest, head: int) -> None:
    memory = request.machine.memories[request.machine.home[0]]
    if head > memory.capacity:
        raise Refused(
            f"with the kernels' scratch the arena needs {head:,} bytes and '{memory.name}' has "
            f"{memory.capacity:,}",
            object=memory.name,
            number=head,
            remedy="give it more",
        )


def _one_memory(program: Program, plan: Plan) -> bool:
    return len({row.memory for row in _arena_rows(program, plan.residency_rows)}) <= 1


def _arena_rows(program: Program, rows: Sequence[Residency]) -> list[Residency]:
    """Of these residencies those of what the runtime plans: weights, variables and what is written over them lie elsewhere."""
    place = places(program)
    roots = np.flatnonzero(program.tensor_alias == np.arange(program.n_tensors))
    kept = np.isin(program.tensor_kind[roots], [int(kind) for kind in PERSISTENT])
    elsewhere = set(place[roots[kept]].tolist())
    return [row for row in rows if place[row.tensor] not in elsewhere]


def _no_better(least: list[int], before: int, after: int, bound: int) -> str | None:
    """Why there is nothing to write, if so; an error where the runtime's own plan is better. `least`: of the whole
    arena, before and after: what start-up needs may leave nothing to win."""
    if after > before or least[1] > least[0]:
        raise Refused(
            f"the runtime's own arena has {least[0]:,} bytes and the plan's {least[1]:,}",
            object="arena",
            number=least[1],
            remedy="keep the model as it is, or give --force",
        )
    if least[1] < least[0]:
        return None
    return "already optimal" if before <= bound else "already as good"


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
        found = _pack(problem)
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
    decision, head = _pack(problem)
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


def _pack(problem: ProgramAllocation) -> tuple[np.ndarray, int]:
    solution = solve(make_allocation_auto(), problem, Budget(seconds=PACK_SECONDS))
    if solution.decision is None or solution.value is None:
        raise NotExported(
            "no offsets were found around the plan's own",
            object=problem.program.name,
            remedy="give a plan without offsets",
        )
    return solution.decision, int(solution.value)


def _pins(imported: Imported, machine: Machine, plan: Plan) -> Pins:
    """The plan's offsets, if they put everything but weights into one memory, and weights into another."""
    program, added = imported.program, set(imported.scratch.values())
    # The plan's program has no scratch: its tensors are the others, in the same order.
    number = [tensor for tensor in range(program.n_tensors) if tensor not in added]
    every = [row._replace(tensor=number[row.tensor]) for row in plan.residency_rows]
    rows = _arena_rows(program, every)
    memories = {row.memory for row in rows}
    whole = len({row.tensor for row in rows}) == len(rows) and len(memories) == 1
    shared = sum(row.memory in memories for row in every) > len(rows)
    if not whole or shared or any(row.offset < 0 or row.offset % ALIGNMENT for row in rows):
        return Pins()
    return Pins({row.tensor: (machine.home[0], row.offset) for row in rows})
