"""`loadmaster export`: give a plan to a runtime, or to a viewer."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import MachineOption, Model, refuse_for_run, takes_model
from loadmaster.errors import nearest
from loadmaster.export.targets import TARGETS, Target
from loadmaster.files import writing

_LIST = "; ".join(f"{name}: {target.summary}" for name, target in TARGETS.items())


@takes_model
def command(
    model: Annotated[Model, typer.Argument(metavar="TARGET", help=f"{_LIST}.")],
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN | MODEL PLAN", help="A run, or the model and its plan's file or run."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What to write. [default: STEM.loadmaster.ENDING]")
    ] = None,
    machine: MachineOption = None,
    to: Annotated[str, typer.Option("--to", help="The target, where TARGET is left out.")] = "ort",
    mem_id: Annotated[
        list[str] | None, typer.Option(metavar="MEMORY=N", help="executorch: the number of a memory.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(metavar="CSV", help="tflm: operator,bytes of your kernels' scratch.")
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't run what was written.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write also what is no better than without a plan.")
    ] = False,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Write a plan for a runtime that follows it, or for a viewer that shows it.

    The plan is checked first, the model is never written over, and a note beside the file (FILE.json)
    says what was expressed and how it was verified. Where the runtime's own plan is as good, nothing
    is written. The machine is the plan's; by default one without limits.

    Example: loadmaster export tflm runs/A

    Example: loadmaster export ort model.onnx plan.json --out ordered.onnx

    Example: loadmaster export executorch net:build plan.json -m ethos-u65

    Example: loadmaster export tflm model.tflite plan.json -m arena:256KiB

    Example: loadmaster export trace resnet50 plan.json -m nnp-i
    """
    from loadmaster.runs.folder import RunFolder, is_run

    of_run = len(words) == 1 and is_run(words[0]) and not is_run(model.source)
    named = model.source if of_run or len(words) > 1 else to
    source, plan = (model.source, words[0]) if len(words) == 1 else (words[0], words[-1])
    if len(words) > 2:
        raise Usage(
            f"'{words[2]}' is one argument too many",
            object=words[2],
            remedy="write loadmaster export TARGET MODEL PLAN",
        )
    target = _target(named)
    if is_run(plan):
        run = Path(plan)
        refuse_for_run(run, machine, None)
        machine, plan = str(run / "machine.toml"), str(RunFolder.open(run).plan_file)
        if of_run:
            name_it = f"go where it is, or name it: loadmaster export {named} MODEL {shlex.quote(str(run))}"
            model = Model.of_run(run, name_it) if target.reads_model else replace(model, source=str(run))
            source = model.source
    path = _out(out, source, target)
    from loadmaster.export.plans import check_other_file, export_plan
    from loadmaster.plan import load_planned

    for written in target.files(path) if target.ending else (path / "export.json",):
        check_other_file(source, written)
        check_other_file(plan, written, "plan")
    _check_free(path, target, overwrite)
    if model.format is None and not source.lower().endswith(target.model_ending):
        others = ", ".join(name for name, each in TARGETS.items() if not each.reads_model)
        raise Usage(
            f"'{named}' takes a {target.model_ending} model, and '{source}' is none",
            object="TARGET",
            number=named,
            remedy=f"use {others}, which take any",
        )
    model = replace(model, source=source, format=model.format or target.format)
    chosen = model.spec.machine_or_unlimited(machine)
    program, decided = load_planned(plan, model.load(chosen), chosen)
    with writing(path):
        done = export_plan(
            named,
            source,
            program,
            chosen,
            decided,
            path,
            verify=not no_verify,
            force=force,
            overwrite=True,  # what is there was looked at above, before anything was loaded
            mem_id=dict(_mem_id(text) for text in mem_id or ()),
            scratch=scratch,
        )
    files = [*done.files, *([] if done.note is None else [done.note])]
    row = {
        "target": named,
        "model": source,
        "verdict": done.verdict,
        "files": [str(f) for f in files],
        "expressed": list(done.expressed),
        "left_out": list(done.left_out),
        **done.figures,
    }
    cells = [*((part, "yes") for part in done.expressed), *((part, "no") for part in done.left_out)]
    wrote = f"checked: ok, {done.verdict}; " + (
        f"wrote {', '.join(map(str, files))}" if files else "nothing was written"
    )
    return Answer(
        [row], [Table(("of the plan", "expressed"), cells, named), *done.notes, wrote], program.warnings
    )


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise Usage(
            f"there is no target '{name}'{nearest(name, list(TARGETS))}",
            object="TARGET",
            number=name,
            remedy=f"use {', '.join(TARGETS)}",
        )
    return TARGETS[name]


def _out(out: Path | None, source: str, target: Target) -> Path:
    """Where to write: beside the current work, never beside a package's model."""
    if out is not None:
        return out
    stem = Path(source).stem if Path(source).is_file() else source.replace(":", ".").rpartition("/")[2]
    return Path(f"{stem}.loadmaster{target.ending}")


def _check_free(path: Path, target: Target, overwrite: bool) -> None:
    if target.ending:
        for each in target.files(path):
            check_free(each, overwrite)
    elif path.exists() and not (path.is_dir() and overwrite):
        raise Usage(
            f"'{path}' is there already", object=str(path), remedy="give another name, or --overwrite"
        )


def _mem_id(text: str) -> tuple[str, int]:
    name, equals, number = text.rpartition("=")
    if not equals or not name or not (number.isascii() and number.isdecimal() and len(number) <= 9):
        raise Usage(
            f"--mem-id can't take '{text}'", object="--mem-id", number=text, remedy="write --mem-id sram=2"
        )
    return name, int(number)
