"""A plan as a C header, for an allocator of one's own: memory, offset and size of every tensor.

Several memories on one chip are what most runtimes can't be told; a table that the firmware's own
code reads can. Plain C99, no code, constants only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster import __version__
from loadmaster.errors import Refused
from loadmaster.export.plans import Exported, ExportRequest, NotExported, check_sound
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan, Residency, lifetimes
from loadmaster.program.program import PERSISTENT, Program, TensorKind
from loadmaster.units import UNLIMITED

_KINDS = tuple(kind.name for kind in TensorKind)


@dataclass(frozen=True)
class Row:
    """One tensor of the header."""

    index: int
    name: str
    kind: int
    memory: int
    offset: int
    bytes: int
    first: int
    last: int


def export(request: ExportRequest) -> Exported:
    """The target `header`."""
    plan = complete(request.program, request.machine, request.plan)
    check_sound(request.program, request.machine, plan)
    numbers = _file_numbers(request)
    rows = _rows(request.program, plan, numbers)
    tops = _tops(request.program, request.machine, plan)
    text = _text(request, plan, rows, tops, numbers is not None)
    with replacing(request.out) as temporary:
        temporary.write_text(text, encoding="ascii")
    if read_rows(request.out.read_text(encoding="ascii")) != [_numbers(row) for row in rows]:
        raise NotExported(
            f"header '{request.out}' does not read back",
            object=str(request.out),
            remedy="report this as a bug",
        )
    copies = 0 if request.plan.copies is None else len(request.plan.copies)
    more = () if not copies else (f"{copies:,} copies",)
    added = len(plan.residency_rows) - len(request.plan.residency_rows)
    notes = [f"{added:,} tensors that the plan leaves at home got offsets there"] if added else []
    still = len(plan.residency_rows) - len(_placed(plan))
    if still:
        notes.append(f"{still:,} tensors stay where the image has them and are not in the table")
    figures = {
        f"{memory.name}_bytes": top for memory, top in zip(request.machine.memories, tops, strict=True)
    }
    return Exported(
        "verified",
        (request.out,),
        ("memories", "offsets", "order"),
        more,
        {"tensors": len(rows), **figures},
        tuple(notes),
    )


def complete(program: Program, machine: Machine, plan: Plan) -> Plan:
    """The plan with an offset for every tensor: what it leaves at home lies above all else there."""
    # A memory without limits is no area to reserve, it is where the image lies: nothing moves there.
    bare = next(
        (
            row
            for row in plan.residency_rows
            if row.offset == NO_OFFSET and machine.memories[row.memory].capacity < UNLIMITED
        ),
        None,
    )
    if bare is not None:
        raise Refused(
            f"the plan has no offset for '{program.tensor_name[bare.tensor]}'",
            object=program.tensor_name[bare.tensor],
            remedy="give a plan with offsets, such as that of --problem mapping",
        )
    if len(machine.devices) > 1:
        raise NotExported(
            f"machine '{machine.name}' has {len(machine.devices)} devices",
            object=machine.name,
            number=len(machine.devices),
            remedy="give a machine of one device",
        )
    placed = {row.tensor for row in plan.residency_rows}
    home, order = machine.home[0], plan.order
    first, last = lifetimes(program, order)
    turn = list(range(program.n_ops)) if order is None else order.tolist()
    top = _tops(program, machine, plan)[home]
    align, rows = machine.memories[home].alignment, [*plan.residency_rows]
    for tensor in range(program.n_tensors):
        if program.tensor_alias[tensor] != tensor or tensor in placed or last[tensor] < first[tensor]:
            continue
        begin = BEFORE if program.tensor_kind[tensor] in PERSISTENT else turn[int(first[tensor])]
        rows.append(Residency(tensor, home, top, begin, turn[int(last[tensor])]))
        top += -(-int(program.storage_bytes[tensor]) // align) * align
    if top > machine.memories[home].capacity:
        name, capacity = machine.memories[home].name, machine.memories[home].capacity
        raise Refused(
            f"what the plan leaves at home needs {top:,} bytes of '{name}', which has {capacity:,}",
            object=name,
            number=top,
            remedy="plan with a smaller capacity, so that there is room",
        )
    return plan.changed(residencies=Plan.of(residencies=rows).residencies)


def _placed(plan: Plan) -> list[Residency]:
    return [row for row in plan.residency_rows if row.offset != NO_OFFSET]


def _tops(program: Program, machine: Machine, plan: Plan) -> list[int]:
    """The highest address used in each memory."""
    tops = [0] * len(machine.memories)
    for row in _placed(plan):
        align = machine.memories[row.memory].alignment
        end = row.offset + -(-int(program.storage_bytes[row.tensor]) // align) * align
        tops[row.memory] = max(tops[row.memory], end)
    return tops


def _file_numbers(request: ExportRequest) -> dict[int, list[int]] | None:
    """Program tensor -> tensors of the TFLite file, where the model is one."""
    if Path(request.model).suffix.lower() != ".tflite":
        return None
    from loadmaster.program.importers.tflite.importer import import_with_places

    numbers: dict[int, list[int]] = {}
    for number, tensor in sorted(import_with_places(request.model).tensors.items()):
        numbers.setdefault(tensor, []).append(number)
    return numbers


def _rows(program: Program, plan: Plan, numbers: dict[int, list[int]] | None) -> list[Row]:
    """Views have the rows of their roots; weights that a file lists twice appear twice."""
    placed: dict[int, list[Residency]] = {}
    for residency in _placed(plan):
        placed.setdefault(residency.tensor, []).append(residency)
    rows = [
        Row(
            number,
            program.tensor_name[tensor],
            int(program.tensor_kind[tensor]),
            row.memory,
            row.offset,
            int(program.tensor_bytes[tensor]),
            row.first,
            row.last,
        )
        for tensor in range(program.n_tensors)
        for row in placed.get(int(program.tensor_alias[tensor]), [])
        for number in ([tensor] if numbers is None else numbers.get(tensor, [-1]))
    ]
    return sorted(rows, key=lambda row: (row.index < 0, row.index, row.first))


def _text(request: ExportRequest, plan: Plan, rows: Sequence[Row], tops: Sequence[int], of_file: bool) -> str:
    machine, program = request.machine, request.program
    words = _words([memory.name for memory in machine.memories])
    order = range(program.n_ops) if plan.order is None else plan.order.tolist()
    sources = [int(program.op_source[op]) for op in order if program.op_source[op] >= 0]
    whose = "tensor of the .tflite file, -1: none" if of_file else "tensor of the program"
    lines = [
        f"/* Made by Loadmaster {__version__}. Program {program.hash[:16]}, machine {machine.hash[:16]}, plan",
        f" * {request.plan.hash[:16]}. Offsets are bytes from the start of each memory's area. */",
        "#ifndef LOADMASTER_PLAN_H",
        "#define LOADMASTER_PLAN_H",
        "",
        "#include <stdint.h>",
        "",
        "enum loadmaster_memory {",
        *(f"  LOADMASTER_{word} = {number}," for number, word in enumerate(words)),
        "};",
        "/* What to reserve in each memory. */",
        *(f"#define LOADMASTER_{word}_BYTES UINT32_C({top})" for word, top in zip(words, tops, strict=True)),
        *(
            f"#define LOADMASTER_{word}_ALIGNMENT {memory.alignment}"
            for word, memory in zip(words, machine.memories, strict=True)
        ),
        "",
        "enum loadmaster_kind {",
        *(f"  LOADMASTER_{kind} = {number}," for number, kind in enumerate(_KINDS)),
        "};",
        "",
        "struct loadmaster_tensor {",
        f"  int32_t index;   /* {whose} */",
        "  uint8_t kind;    /* enum loadmaster_kind */",
        "  uint8_t memory;  /* enum loadmaster_memory */",
        "  uint32_t offset;",
        "  uint32_t bytes;",
        "  int32_t first;   /* op from which it is there, -1: before the first run */",
        "  int32_t last;    /* op until whose end it is there */",
        "};",
        "",
        f"#define LOADMASTER_TENSORS {len(rows)}",
        "static const struct loadmaster_tensor loadmaster_tensors[LOADMASTER_TENSORS ? LOADMASTER_TENSORS : 1] = {",
        *(f"  {{{', '.join(map(str, _numbers(row)))}}}, /* {_comment(row.name)} */" for row in rows),
        "};",
        "",
        "/* The operators in the order in which they are to run, by their places in the model. */",
        f"#define LOADMASTER_OPERATORS {len(sources)}",
        "static const uint32_t loadmaster_order[LOADMASTER_OPERATORS ? LOADMASTER_OPERATORS : 1] = {",
        *(f"  {', '.join(map(str, sources[at : at + 16]))}," for at in range(0, len(sources), 16)),
        "};",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def _numbers(row: Row) -> tuple[int, ...]:
    return (row.index, row.kind, row.memory, row.offset, row.bytes, row.first, row.last)


def read_rows(text: str) -> list[tuple[int, ...]]:
    """The numbers of `loadmaster_tensors` in a header."""
    found = re.findall(r"^  \{(-?\d+(?:, -?\d+){6})\}, /\*", text, re.MULTILINE)
    return [tuple(int(part) for part in row.split(", ")) for row in found]


def _words(names: Sequence[str]) -> list[str]:
    """Memories' names as parts of C names, no two alike."""
    words = [re.sub(r"[^A-Z0-9]", "_", name.upper()) for name in names]
    return [word if words.count(word) == 1 else f"{word}_{i}" for i, word in enumerate(words)]


def _comment(name: str) -> str:
    """A name that can neither end a comment nor continue a line, whoever chose it."""
    plain = name.encode("ascii", "backslashreplace").decode()
    return re.sub(r"[*/\\?]", lambda match: "/" if match[0] == "/" else "_", plain)[:80]
