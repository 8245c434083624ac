"""`loadmaster allocate`: offsets for buffers with fixed lifetimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.files import OverwriteOption, check_free, writing
from loadmaster.errors import Refused
from loadmaster.units import parse_bytes, parse_time, show_bytes

if TYPE_CHECKING:
    from loadmaster.allocation.problem import Allocation
    from loadmaster.search.solver import Solution


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="MiniMalloc's CSV, or a model.")],
    capacity: Annotated[str | None, typer.Option(metavar="SIZE", help="Fit into this, such as 1MiB.")] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Find the least capacity.")] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop after this long.")] = "10s",
    budget: Annotated[int | None, typer.Option(min=1, help="Most placements to evaluate.")] = None,
    solver: Annotated[str, typer.Option(help="A solver of 'loadmaster solvers', or auto.")] = "auto",
    off: Annotated[
        list[str] | None, typer.Option(metavar="SWITCH", help="Turn a technique of 'exact' off.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores to use; all by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same placement.")] = 0,
    previous: Annotated[
        Path | None, typer.Option(metavar="CSV", help="An earlier answer: move little of it.")
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option(metavar="NAME=SIZE", help="Several memories, fastest first.")
    ] = None,
    banks: Annotated[int | None, typer.Option(min=2, help="Cut the capacity into equal banks.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(metavar="CSV", help="Columns a,b: ids that never share a byte (or a bank).")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="PICTURE", help="Address over time, .svg or .png.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="CSV", help="Write the offsets.")] = None,
    plan: Annotated[Path | None, typer.Option(metavar="JSON", help="Write the plan.")] = None,
    run: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep a run folder in this folder.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with a run.")] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Fit a capacity (exit 0, 1: proven impossible, 4: unknown), or find the least one.

    Without --capacity and --minimize, the capacity in the file's name (NAME.CAPACITY.csv) counts,
    else the least is sought. Every placement is checked before it is shown or written.

    Example: loadmaster allocate buffers.csv --capacity 1MiB --plot buffers.svg --out placed.csv
    """
    from loadmaster.cli.allocate_show import explained, result
    from loadmaster.cli.allocate_ways import in_banks, in_memories, moving_little, searched

    for path in (plot, out, plan):
        if path is not None:
            check_free(path, overwrite, file)
    seconds = _seconds(time_limit)
    problem = _problem(file, capacity, minimize, pairs)
    ways = [
        name for name, value in (("--previous", previous), ("--memory", memory), ("--banks", banks)) if value
    ]
    if len(ways) > 1 or (ways and (run or resume or solver != "auto")):
        raise Usage(
            f"{' and '.join(ways)} can't be combined with other ways to solve",
            object=ways[0],
            remedy="give one of --solver, --previous, --memory, --banks",
        )
    if memory:
        return in_memories(problem, _memories(memory), seconds, seed, out)
    if banks:
        return in_banks(problem, banks, seconds, seed, out)
    if previous is not None:
        solution: Solution = moving_little(problem, previous, seconds, seed)
    else:
        options = dict.fromkeys(off or (), False)
        solution = searched(problem, solver, options, threads, budget, seconds, seed, run, resume)
    if solution.decision is None:
        return explained(problem, solution, seconds, seed)
    _write(problem, solution, plot, out, plan)
    return result(problem, solution, [path for path in (plot, out, plan) if path is not None])


def _seconds(text: str) -> float | None:
    if text in ("none", "unlimited"):
        return None
    try:
        return parse_time(text, "--time-limit") / 10**12
    except ValueError as error:
        raise Usage(
            str(error), object="--time-limit", number=text, remedy="write 10s, 500ms or none"
        ) from None


def _size(text: str, option: str) -> int:
    try:
        return parse_bytes(text, option)
    except ValueError as error:
        raise Usage(str(error), object=option, number=text, remedy="write 4096, 512KiB or 1MiB") from None


def _problem(file: str, capacity: str | None, minimize: bool, pairs: Path | None) -> Allocation:
    from loadmaster.allocation.buffers_csv import read_buffers, read_pairs
    from loadmaster.allocation.problem import Allocation, ProgramAllocation

    if capacity is not None and minimize:
        raise Usage("--capacity and --minimize exclude each other", object="--minimize", remedy="give one")
    limit = None if capacity is None else _size(capacity, "--capacity")
    if file.lower().endswith(".csv"):
        buffers, stated = read_buffers(file)
        if pairs is not None:
            buffers = buffers.changed(apart=read_pairs(pairs, buffers))
        return Allocation(buffers, None if minimize else stated if limit is None else limit, Path(file).stem)
    if pairs is not None:
        raise Usage("--pairs needs a CSV of buffers", object="--pairs", remedy="give a CSV file")
    from loadmaster.machine import load_machine
    from loadmaster.program.models import load_model

    machine = load_machine(f"arena:{'unlimited' if limit is None else limit}")
    return ProgramAllocation(load_model(file), machine)


def _memories(texts: list[str]) -> list[tuple[str, int]]:
    memories = []
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not name:
            raise Usage(
                f"--memory '{text}' has no size", object="--memory", number=text, remedy="write fast=256KiB"
            )
        memories.append((name, _size(size, "--memory")))
    return memories


def _write(
    problem: Allocation, solution: Solution, plot: Path | None, out: Path | None, plan: Path | None
) -> None:
    from loadmaster.allocation.buffers_csv import write_buffers
    from loadmaster.export.picture import draw
    from loadmaster.plan import save_plan

    assert solution.decision is not None
    decided = problem.plan(solution.decision)
    violations = problem.violations(decided)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(
            f"the checker refuses the placement: {violations[0].message}",
            object=problem.name,
            number=len(violations),
            remedy="report this as a bug",
        )
    if out is not None:
        with writing(out):
            write_buffers(problem.buffers, solution.decision, out)
    if plan is not None:
        with writing(plan):
            save_plan(decided, problem.program, problem.machine, plan)
    if plot is not None:
        title = f"{problem.name}: {len(problem.buffers):,} buffers in {show_bytes(solution.value or 0)}"
        with writing(plot):
            draw(problem.buffers, solution.decision, problem.capacity, plot, title)
