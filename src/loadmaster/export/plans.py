"""`export_plan`: one call that gives a plan to a runtime or a viewer, and what holds for every target.

Only sound plans are written, the model is never written over, and a note beside the file says what was
requested, what was written and how it was proven.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from loadmaster import __version__
from loadmaster.errors import LoadmasterError, Refused, nearest
from loadmaster.export.targets import TARGETS
from loadmaster.files import replacing, same_file
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import Violation, check
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.search.problem import COST_MODEL

Figure = int | float | str | bool | None


class NotExported(LoadmasterError):
    """The model or the plan can't be written as request."""


@dataclass(frozen=True)
class ExportRequest:
    """One plan for one target."""

    model: str
    """What the user named: a file, or module:function."""
    program: Program
    machine: Machine
    plan: Plan
    out: Path
    verify: bool = True
    """Run what was written, where a runtime can."""
    force: bool = False
    """Write also what is no better than the runtime's own plan."""
    mem_id: Mapping[str, int] = field(default_factory=dict)
    """ExecuTorch: memory -> number, over what the machine's file says."""
    scratch: Path | None = None
    """TFLite Micro: bytes of scratch by operator, from another build of its kernels."""


@dataclass(frozen=True)
class Exported:
    """What came of it."""

    verdict: str
    """'verified', 'unverified', 'already optimal', 'already as good'."""
    files: tuple[Path, ...] = ()
    """Empty if there was nothing to win, hence nothing was written."""
    expressed: tuple[str, ...] = ()
    """Parts of the plan that the target follows."""
    left_out: tuple[str, ...] = ()
    """Parts of the plan that it can't express."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Numbers of the plan as the target has it, measured ones named so."""
    notes: tuple[str, ...] = ()
    """Further lines for the user."""
    note: Path | None = None
    """The file beside what was written that says all this."""


def check_sound(program: Program, machine: Machine, plan: Plan) -> None:
    """Refuse a plan with violations. Runtimes do not look: a wrong plan gives wrong numbers."""
    refuse_violations(program, check(program, machine, plan))


def refuse_violations(program: Program, violations: list[Violation]) -> None:
    """Raise `Refused` if the checker found any."""
    if violations:
        raise Refused(
            f"the checker refuses the plan: {violations[0].message}",
            object=program.name,
            number=len(violations),
            remedy="give a plan that 'loadmaster check' accepts",
        )


def check_other_file(read: str | Path, out: Path, what: str = "model") -> None:
    """Refuse to write over what was read, also through links."""
    if same_file(out, read):
        raise NotExported(
            f"'{out}' is the {what} itself", object=str(out), remedy="give another file to write"
        )


def list_left_out(
    plan: Plan, *, memory: bool, offset: bool, order: bool, device: bool = False
) -> tuple[str, ...]:
    """The decisions of a plan that a target of these abilities does not follow, counted."""
    rows = [] if plan.residencies is None else plan.residencies.tolist()
    placed = sum(row[2] >= 0 for row in rows)
    parts = [
        (not memory and bool(rows), f"{len(rows):,} residencies in a memory"),
        (not offset and placed > 0, f"{placed:,} offsets"),
        (not order and plan.order is not None, "the order"),
        (not device and plan.device is not None and len(set(plan.device.tolist())) > 1, "devices"),
        (plan.fusion is not None and bool((plan.fusion >= 0).any()), "fusion"),
        (plan.copies is not None, f"{0 if plan.copies is None else len(plan.copies):,} copies"),
    ]
    return tuple(text for lost, text in parts if lost)


def note_path(out: Path, is_folder: bool) -> Path:
    """Where the note about an export is written: inside a folder, beside a file."""
    return out / "export.json" if is_folder else out.with_name(f"{out.name}.json")


def write_note(request: ExportRequest, target: str, done: Exported) -> Path:
    """Write `OUT.json`, the note beside an exported file; in a folder, `export.json`."""
    path = note_path(request.out, request.out.is_dir())
    document = {
        "loadmaster": __version__,
        "target": target,
        "model": Path(request.model).name,
        "program": {"name": request.program.name, "hash": request.program.hash},
        "machine": {"name": request.machine.name, "hash": request.machine.hash},
        "plan": {"hash": request.plan.hash},
        "cost_model": COST_MODEL,
        **{key: value for key, value in asdict(done).items() if key not in ("files", "note")},
        "files": [file.name for file in done.files],
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def export_plan(
    target: str,
    model: str | Path,
    program: Program,
    machine: Machine,
    plan: Plan,
    out: str | Path,
    *,
    verify: bool = True,
    force: bool = False,
    overwrite: bool = False,
    mem_id: Mapping[str, int] | None = None,
    scratch: Path | None = None,
) -> Exported:
    """Write a plan for a target ('ort', 'tflm', 'trace', 'csv', …: see `loadmaster export --help`).

    Args:
      target: its name.
      model: what `program` was loaded from; it is never written over.
      program, machine: what the plan is about.
      plan: it is checked first.
      out: the file or folder to write.
      verify: run what was written, where a runtime can.
      force: write also what is no better than the runtime's own plan.
      overwrite: replace files that are there.
      mem_id: ExecuTorch's number of each memory, over what the machine's file says.
      scratch: for TFLite Micro, a file with the bytes of scratch by operator.

    Returns:
      what was written and how it was proven; a note beside the files says the same.
    """
    if target not in TARGETS:
        raise NotExported(
            f"there is no target '{target}'{nearest(target, list(TARGETS))}",
            object=target,
            remedy=f"use {', '.join(TARGETS)}",
        )
    path = Path(out)
    for file in TARGETS[target].files(path) if TARGETS[target].ending else (path,):
        check_other_file(model, file)
        if file.exists() and not overwrite:
            raise NotExported(
                f"'{file}' is there already", object=str(file), remedy="give another name, or overwrite=True"
            )
    request = ExportRequest(str(model), program, machine, plan, path, verify, force, mem_id or {}, scratch)
    done = TARGETS[target].export(request)
    return replace(done, note=write_note(request, target, done)) if done.files else done
