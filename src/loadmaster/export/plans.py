"""`export_plan`: one call that gives a plan to a runtime or a viewer."""

from __future__ import annotations

from pathlib import Path

from loadmaster.errors import nearest
from loadmaster.export.rules import Asked, Exported, NotExported, check_other_file, write_note
from loadmaster.export.targets import TARGETS
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program


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
) -> Exported:
    """Write a plan for a target ('ort', 'tflm', 'trace', 'csv', …: see `loadmaster export --help`).

    `model` is what `program` was loaded from; it is never written over, and other files only with
    `overwrite`. The plan is checked first. `verify`: run what was written, where a runtime can.
    `force`: write also what is no better than the runtime's own plan.
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
    asked = Asked(str(model), program, machine, plan, path, verify, force)
    done = TARGETS[target].export(asked)
    if done.files:
        write_note(asked, target, done)
    return done
