"""`loadmaster fits`: does a model fit, what has to be reserved, and what would help."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import MachineOption, Model
from loadmaster.cli.progress import say

if TYPE_CHECKING:
    from loadmaster.export.tflm_fits import MicroFit


def command(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="A .tflite file.")],
    machine: MachineOption = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="TARGET",
            help="Whose structs count: host (64 bits, measured if tflite-micro is installed), cortex-m "
            "(CMSIS-NN on M4, M7, M33), cortex-m55 (CMSIS-NN with Helium), 32-bit. [default: the machine's, else host]",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="A limit of your own below the memory's: over it the answer is no."
        ),
    ] = None,
    keep_order: Annotated[bool, typer.Option("--keep-order", help="Leave the operators in order.")] = False,
    no_rewrite: Annotated[
        bool, typer.Option("--no-rewrite", help="Share no places and split nothing: order and offsets alone.")
    ] = False,
    as_it_is: Annotated[
        bool, typer.Option("--as-it-is", help="Only the file as it is, with the runtime's own planner.")
    ] = False,
    all_ways: Annotated[bool, typer.Option("--all", help="Try every way, even where one fits.")] = False,
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Compute; don't ask the interpreter.")
    ] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="For the search of an order.")] = "20s",
    out: Annotated[
        Path | None, typer.Option(metavar="TFLITE", help="Write the model that fits, verified.")
    ] = None,
    header: Annotated[
        Path | None, typer.Option(metavar="H", help="Write a C header with sizes and sections.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Say whether a .tflite model fits: exit 0 yes, 1 no, 4 not known.

    The whole arena of TFLite Micro counts: planned tensors, what stays for good, and what start-up needs.
    Where the file as it is does not fit, other orders, shared places and bands of rows are tried; --out
    writes the model that fits, after it has run bit for bit like the original.

    Example: loadmaster fits model.tflite --machine stm32h743

    Example: loadmaster fits model.tflite -m arena:64KiB --out smaller.tflite

    Example: loadmaster fits model.tflite -m nrf5340 --budget 100KiB --json
    """
    from dataclasses import replace

    from loadmaster.cli.plan import seconds_of
    from loadmaster.export.tflm_fits import fit_micro, write_smaller
    from loadmaster.files import writing

    model = Model(source)
    if not model.source.lower().endswith(".tflite"):
        raise Usage(
            f"'{model.source}' is no .tflite file",
            object=model.source,
            remedy=f"ask {shlex.join(['loadmaster', 'plan', source, '--machine', machine or 'MACHINE', '--fits'])}",
        )
    for path in (out, header):
        if path is not None:
            check_free(path, overwrite, model.source)
    if out is not None and header is not None and out.resolve() == header.resolve():
        raise Usage(f"'{out}' would be the model and the header", object=str(out), remedy="give two names")
    if machine is None:
        raise Usage(
            f"'{model.source}' needs a machine to fit",
            object=model.source,
            remedy="give --machine arena:256KiB, or a chip such as --machine stm32h743 (see 'loadmaster machines')",
        )
    chosen = model.machine(machine)
    found = fit_micro(
        model.source,
        chosen,
        target=target,
        budget=_budget(budget),
        keep_order=keep_order or as_it_is,
        rewrite=not (no_rewrite or as_it_is),
        everything=all_ways,
        seconds=seconds_of(time_limit, "--time-limit") or 1e9,
        measure=False if no_measure else None,
        say=say,
    )
    if header is not None and out is None and found.answer and found.way is not found.ways[0]:
        raise Usage(
            f"as it is the model needs {found.ways[0].arena.total:,} bytes and {found.room}: the header would be "
            f"that of another file, which fits by {found.way.name}",
            object=str(header),
            number=found.ways[0].arena.total,
            remedy="give --out FILE too and build with that file, or --as-it-is",
        )
    if out is not None and found.answer:
        with writing(out):
            found = write_smaller(found, out, verify=not no_measure)
    if header is not None and found.answer:
        from loadmaster.cli.answer import write_text

        write_text(header, header_text(found, chosen.export.get("tflm", {})))
        found = replace(found, files=(*found.files, header))
    answer = render(found)
    unwritten = [str(file) for file in (out, header) if file is not None and not found.answer]
    if unwritten:
        answer.blocks.append(f"wrote no {' and no '.join(unwritten)}: no way was found that fits")
    return answer


def _budget(text: str | None) -> int | None:
    from loadmaster.units import parse_bytes

    if text is None:
        return None
    try:
        return parse_bytes(text, "--budget")
    except ValueError as error:
        raise Usage(str(error), object="--budget", number=text, remedy="write 100KiB or 65536") from None


def render(found: MicroFit) -> Answer:
    """The answer for people and for programs."""
    way, first = found.way, found.ways[0]
    row: dict[str, Any] = {
        "what": "fits",
        "fits": found.answer,
        "model": found.source,
        "machine": found.machine,
        "target": found.target,
        "memory": found.memory,
        "capacity_bytes": found.capacity,
        "kTensorArenaSize": way.arena.total,
        "way": way.name,
        "excess_bytes": found.excess,
        "need_bytes": found.need or None,
        "flash_bytes": found.flash_bytes,
        "flash_capacity_bytes": found.flash_capacity,
        "blame": found.blame,
        "advice": list(found.advice),
        "guessed_kernels": list(way.arena.unknown),
        "hindrance": found.hindrance or None,
        "files": [str(file) for file in found.files],
    }
    word = {True: "YES", False: "NO", None: "?"}[found.answer]
    how = "" if way is first else f", by {way.name}"
    lines = [f"{found.room} and the arena needs {way.arena.total:,}{how}."]
    error = found.error()
    if found.flash_capacity is not None and found.flash_bytes > found.flash_capacity and error is not None:
        lines.insert(0 if not found.excess else 1, f"{error.message}.")
    lines = [f"{word:5}{lines[0]}", *(f"     {line[0].upper()}{line[1:]}" for line in lines[1:])]
    if found.answer:
        file = "" if way is first or found.files else ", with the model that --out FILE writes"
        lines.append(f"     Set kTensorArenaSize to {way.arena.total}{file}.")
    elif found.excess:
        lines.append(f"     {found.excess:,} too many. To blame: {found.blame}.")
        if found.need > found.capacity:
            lines.append(f"     Proven: every order of the operators needs {found.need:,} or more.")
    lines += [f"     {line}" for line in describe_parts(found)]
    lines.append(f"     The file takes {found.flash_bytes:,} bytes of flash: weights are read from there.")
    if not found.answer:
        lines += [f"     Advice: {text}." for text in found.advice]
    if found.hindrance:
        lines.append(f"     But TFLite Micro, as it is installed here, does not run it: {found.hindrance}")
    if way.arena.unknown:
        names = ", ".join(way.arena.unknown)
        lines.append(f"     Kernels' own data are guessed for {names}.")
    cells = [
        (
            each.name,
            f"{each.arena.total:,}",
            "computed" if each.arena.measured is None else "measured",
            f"{each.arena.total / first.arena.total - 1:+.1%}",
            "yes" if each.arena.total <= found.capacity else "no",
            each.text,
        )
        for each in found.ways
    ]
    blocks: list[str | Table] = ["\n".join(lines)]
    if len(cells) > 1:
        blocks.append(Table(("way", "arena bytes", "", "change", "fits", "how"), cells))
    if found.files:
        blocks.append(f"wrote {', '.join(map(str, found.files))}")
    return Answer([row, *(each.row for each in found.ways)], blocks, error=error, error_in_blocks=True)


def describe_parts(found: MicroFit) -> list[str]:
    """What the arena is made of, and whether a number was measured or computed. The parts add up."""
    arena = found.way.arena.account()
    is_measured = arena.measured is not None
    mark = " (computed)" if is_measured else ""
    planned = f"{arena.planned:,} of planned tensors{mark}"
    if arena.is_startups:
        parts = f"{arena.total:,} = what start-up needs at once; then {planned} and {arena.persistent:,} that stay for good{mark}"
    else:
        rest = " (the rest)" if is_measured else ""
        parts = f"{arena.total:,} = {planned} + {arena.persistent:,} that stay for good{rest}; start-up needs {arena.startup:,}{mark}"
    source = (
        f"Measured: the interpreter starts and runs in {arena.total:,} bytes."
        if is_measured
        else f"Computed for target '{found.target}'."
    )
    return [source, f"{parts}."]


def header_text(found: MicroFit, about: dict[str, Any]) -> str:
    """A C header with what to reserve, and where."""
    section = dict(about.get("section", {})).get(found.memory, "")
    where = f' __attribute__((section("{section}")))' if section else ""
    arena = found.way.arena.account()
    source = "computed" if arena.measured is None else "bytes measured, parts computed"
    lines = [
        "/* Made by Loadmaster: what TFLite Micro's arena needs.",
        f" * way: {found.way.name}; memory: {found.memory}; target: {found.target}; {source}. */",
        "#ifndef LOADMASTER_ARENA_H",
        "#define LOADMASTER_ARENA_H",
        f"#define LOADMASTER_ARENA_BYTES {arena.total}",
        f"#define LOADMASTER_ARENA_PLANNED_BYTES {arena.planned}",
        f"#define LOADMASTER_ARENA_PERSISTENT_BYTES {arena.persistent}",
        f"#define LOADMASTER_ARENA_STARTUP_BYTES {arena.startup}",
        f"#define LOADMASTER_MODEL_BYTES {found.flash_bytes}",
        f"#define LOADMASTER_ARENA_ATTRIBUTES __attribute__((aligned(16))){where}",
        "#endif",
    ]
    return "\n".join(lines) + "\n"
