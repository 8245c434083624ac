"""TFLite Micro: an offset for every tensor of the arena, and the order of the operators.

The offsets travel in the file itself, as metadata that the runtime reads when it plans its arena. It
checks none of them: overlapping ones run and give wrong numbers. So the plan is checked before it is
written, the file is read back and checked again, and both files are run on the same inputs.

Kernels ask for scratch memory that the file does not mention. It is probed (or given by the user) and
planned like tensors, else the runtime would stack it on top.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from loadmaster.errors import Refused
from loadmaster.export.rules import (
    Asked,
    Exported,
    Figure,
    NotExported,
    check_other_file,
    check_sound,
    left_out,
)
from loadmaster.export.tflm_arena import ArenaPlan, plan_arena
from loadmaster.files import read_regular, replacing
from loadmaster.order.auto import make_auto
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.tflite.importer import import_tflite
from loadmaster.program.importers.tflite.read import TfliteModel, read_bytes, read_tflite
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.search.solver import Budget, solve

SEEDS = range(5)
PROOF_SECONDS = 5.0
MOST_SCRATCH = 2**24
"""Bytes of a scratch file."""


def export(asked: Asked) -> Exported:
    """The target `tflm`."""
    from loadmaster.export.tflm_runtime import Micro, identical

    check_other_file(asked.model, asked.out)
    check_sound(asked.program, asked.machine, asked.plan)
    model = _read(asked)
    scratch, source = _scratch(asked, model)
    planned = plan_arena(model, scratch, asked.plan)
    _check_room(asked, planned.head)
    bound = _bound(planned)
    written = planned.file()
    planned.check_read_back(written)
    figures: dict[str, Figure] = {
        "head_bytes": planned.head,
        "bound_bytes": bound,
        "gap": planned.head / max(1, bound) - 1,
        "scratch_bytes": sum(scratch.values()),
        "scratch": source,
        "measured_head_bytes": None,
        "runtime_head_bytes": None,
        "file_bytes": len(written),
    }
    one = _one_memory(asked.program, asked.plan)
    done = Exported(
        "unverified",
        (),
        ("order", "offsets in one arena"),
        left_out(asked.plan, memory=one, offset=True, order=True),
        figures,
    )
    if asked.verify:
        room = sum(tensor.bytes for tensor in model.graphs[0].tensors if not tensor.constant)
        theirs, ours = Micro(model.root.data, room), Micro(written, room + planned.head)
        before, after = theirs.arena().head, ours.arena().head
        figures |= {"runtime_head_bytes": before, "measured_head_bytes": after}
        verdict = None if asked.force else _no_better(before, after, bound)
        if verdict is not None:
            said = (
                f"the runtime's own arena has {before:,} bytes, the plan's {after:,}, the bound is {bound:,}"
            )
            return replace(done, verdict=verdict, notes=(said,))
        ends = len(model.graphs[0].inputs), len(model.graphs[0].outputs)
        first, second = ({seed: micro.run(seed, *ends) for seed in SEEDS} for micro in (theirs, ours))
        if not identical(first, second):
            raise Refused(
                "the exported model computes other numbers than the model",
                object=asked.model,
                remedy="report this as a bug",
            )
        said = f"arena {before:,} -> {after:,} bytes ({after / max(1, before) - 1:+.1%}), bound {bound:,}"
        done = replace(
            done, verdict="verified", notes=(f"{said}; outputs bit-identical on {len(SEEDS)} inputs",)
        )
    with replacing(asked.out) as temporary:
        temporary.write_bytes(written)
    return replace(done, files=(asked.out,))


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


def _read(asked: Asked) -> TfliteModel:
    data = read_bytes(asked.model)
    model = read_tflite(data, asked.model)
    nested = sorted({op.name for op in model.graphs[0].operators} & {"IF", "WHILE", "CALL"})
    if nested:
        raise NotExported(
            f"'{asked.model}' has {' and '.join(nested)}, whose tensors the runtime places itself",
            object=asked.model,
            remedy="give a model of one graph",
        )
    if import_tflite(data).hash != asked.program.hash:
        raise NotExported(
            f"the plan's program is not what '{asked.model}' holds",
            object=asked.model,
            remedy="plan the file itself",
        )
    return model


def _scratch(asked: Asked, model: TfliteModel) -> tuple[dict[int, int], str]:
    """Bytes of scratch by operator, and where they are known from."""
    if asked.scratch is not None:
        return read_scratch(asked.scratch, len(model.graphs[0].operators)), "given"
    if not asked.verify:
        return {}, "not known"
    from loadmaster.export.tflm_runtime import probe_scratch

    return probe_scratch(model), "probed with reference kernels"


def _check_room(asked: Asked, head: int) -> None:
    memory = asked.machine.memories[asked.machine.home[0]]
    if head > memory.capacity:
        raise Refused(
            f"with the kernels' scratch the arena needs {head:,} bytes and '{memory.name}' has "
            f"{memory.capacity:,}",
            object=memory.name,
            number=head,
            remedy="give it more",
        )


def _one_memory(program: Program, plan: Plan) -> bool:
    kept = [int(kind) for kind in PERSISTENT]
    return len({r.memory for r in plan.residency_rows if program.tensor_kind[r.tensor] not in kept}) <= 1


def _no_better(before: int, after: int, bound: int) -> str | None:
    """Why there is nothing to write, if so; an error where the runtime's own plan is better."""
    if after > before:
        raise Refused(
            f"the runtime's own arena has {before:,} bytes and the plan's {after:,}",
            object="arena",
            number=after,
            remedy="keep the model as it is, or give --force",
        )
    if after < before:
        return None
    return "already optimal" if before <= bound else "already as good"
