"""`loadmaster allocate`: offsets for buffers with fixed lifetimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Usage, check_free, writing
from loadmaster.cli.plan import SetOption, parse_settings
from loadmaster.cli.progress import LiveLine
from loadmaster.errors import Refused
from loadmaster.units import parse_bytes, parse_time, show_bytes

if TYPE_CHECKING:
    from loadmaster.allocation.buffers import Buffers
    from loadmaster.allocation.problem import Allocation
    from loadmaster.allocation.several import Assignment
    from loadmaster.search.solver import Solution


def command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="MiniMalloc's CSV, or a model.")],
    capacity: Annotated[str | None, typer.Option(metavar="SIZE", help="Fit into this, such as 1MiB.")] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Find the least capacity.")] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop after this long.")] = "10s",
    budget: Annotated[int | None, typer.Option(min=1, help="Most placements to evaluate.")] = None,
    solver: Annotated[str, typer.Option(help="A solver of 'loadmaster solvers', or auto.")] = "auto",
    settings: SetOption = None,
    off: Annotated[
        list[str] | None, typer.Option(metavar="TECHNIQUE", help="Turn a technique of 'exact' off.")
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
    from loadmaster.cli.allocate_show import assigned, explained, placed
    from loadmaster.planner.fitting import offset_solver, replan_offsets
    from loadmaster.runs import run_solver
    from loadmaster.search.solver import Budget

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
        return assigned(problem, *_in_memories(problem, memory, seconds, seed), out)
    if banks:
        found, spaces = _in_banks(problem, banks, seconds, seed)
        return assigned(problem, found, spaces, out, stride=spaces[0][1])
    if previous is not None:
        solution = replan_offsets(problem, _earlier(previous), seconds, seed)
    else:
        solution = run_solver(
            offset_solver(solver, off or (), threads, parse_settings(settings or [])),
            problem,
            Budget(budget, seconds),
            seed,
            folder=run,
            resume=resume,
            display=LiveLine(),
        )
    if solution.decision is None:
        return explained(problem, solution, seconds, seed)
    _write(problem, solution, plot, out, plan)
    return placed(problem, solution, [path for path in (plot, out, plan) if path is not None])


Spaces = list[tuple[str, int]]
"""Names and sizes of memories, or of banks."""


def _in_memories(
    problem: Allocation, texts: list[str], seconds: float | None, seed: int
) -> tuple[Assignment, Spaces]:
    """Fill the fast ones with what gains most."""
    from loadmaster.allocation.several import spill

    spaces = _memories(texts)
    sizes = [size for _, size in spaces]
    return spill(problem.buffers, sizes, seconds=seconds or 60.0, seed=seed), spaces


def _in_banks(problem: Allocation, count: int, seconds: float | None, seed: int) -> tuple[Assignment, Spaces]:
    """Equal banks that no buffer crosses; offsets count from the first one."""
    from loadmaster.allocation.several import banks

    if problem.capacity is None:
        raise Usage("--banks needs a capacity", object="--banks", remedy="give --capacity")
    size = problem.capacity // count
    free, different = problem.buffers.changed(apart=()), problem.buffers.apart
    found = banks(free, count, size, different=different, seconds=seconds or 60.0, seed=seed)
    return found, [(f"bank{i}", size) for i in range(count)]


def _earlier(path: Path) -> Buffers:
    """An earlier answer, with an offset for every buffer."""
    from loadmaster.allocation.buffers_csv import read_buffers

    before, _ = read_buffers(path)
    if (before.pinned < 0).any():
        raise Usage(
            f"'{path}' has no offset for every buffer", object=str(path), remedy="give an answer of --out"
        )
    return before


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
