"""`loadmaster allocate`: offsets for buffers with fixed lifetimes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.bank import BankOption, BankStartsOption, known_answers, recalled_text
from loadmaster.cli.model import Model, takes_model
from loadmaster.cli.plan import SetOption, parse_settings
from loadmaster.cli.progress import LiveLine
from loadmaster.files import writing
from loadmaster.units import parse_bytes, parse_time, show_bytes

if TYPE_CHECKING:
    from loadmaster.allocation.auto import Blame
    from loadmaster.allocation.problem import Allocation
    from loadmaster.allocation.several import Filled, Space
    from loadmaster.errors import LoadmasterError
    from loadmaster.planner.fitting import Placement
    from loadmaster.program import Program
    from loadmaster.search.solver import Solution

_MOST_ROWS = 12
"""Buffers to blame."""
_STOPS = {
    "time": "the time limit ended the search: with a larger --time-limit it goes on",
    "budget": "the budget ended the search: with a larger --budget it goes on",
    "done": "the search has come to its own end without a proof: another --seed or --solver may find less",
}
"""Why a search ended that has proven nothing -> what to say."""


@takes_model
def command(
    model: Annotated[Model, typer.Argument(metavar="FILE", help="MiniMalloc's CSV, or a model.")],
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
    bank: BankOption = None,
    bank_starts: BankStartsOption = False,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Fit a capacity (exit 0, 1: proven impossible, 4: unknown), or find the least one.

    Without --capacity and --minimize, the capacity in the file's name (NAME.CAPACITY.csv) counts,
    else the least is sought. Every placement is checked before it is shown or written.

    Example: loadmaster allocate buffers.csv --capacity 1MiB --plot buffers.svg --out placed.csv
    """
    from loadmaster.allocation.auto import offset_solver, read_problem, replan_offsets
    from loadmaster.allocation.buffers import PinsClash, check_pins
    from loadmaster.allocation.several import fill_banks, fill_memories
    from loadmaster.export.picture import check_picture
    from loadmaster.planner.fitting import judge_placement
    from loadmaster.runs.session import solve_with_bank
    from loadmaster.search.solver import Budget

    file = model.source
    for path in (plot, out, plan):
        if path is not None:
            check_free(path, overwrite, file)
    if plot is not None:
        check_picture(plot)
    seconds, answers = _seconds(time_limit), known_answers(bank, bank_starts)
    limit = None if capacity is None else _size(capacity, "--capacity")
    problem = read_problem(_buffers_or_model(model), limit, minimize=minimize, pairs=pairs)
    if plot is not None:
        check_picture(plot, problem.buffers)
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
        return _render_filled(fill_memories(problem, _memories(memory), seconds, seed), out)
    if banks:
        return _render_filled(fill_banks(problem, banks, seconds, seed), out)
    try:
        check_pins(problem.buffers, problem.capacity)
    except PinsClash as clash:
        row = {
            "what": "infeasible",
            "status": "infeasible",
            "capacity_bytes": problem.capacity,
            "blamed": clash.ids,
        }
        return Answer([row], error=clash)
    if previous is not None:
        solution = replan_offsets(problem, previous, seconds, seed)
    else:
        solution = solve_with_bank(
            answers,
            offset_solver(solver, off or (), threads, parse_settings(settings or [])),
            problem,
            Budget(budget, seconds),
            seed,
            folder=run,
            resume=resume,
            display=LiveLine(),
        )
    found = judge_placement(problem, solution, seconds, seed)
    if found.blame is not None:
        return render_blame(problem, solution, found.blame, found.error)
    if found.plan is None:
        row = {"what": "ours", "status": str(solution.status), "bound": solution.bound.value}
        return Answer([row], error=found.error)
    _write(found, plot, out, plan)
    return _with_arena(_render(found, [path for path in (plot, out, plan) if path is not None]), found, file)


def _buffers_or_model(model: Model) -> str | Program:
    """A CSV's name, or the model."""
    if not model.source.lower().endswith(".csv"):
        return model.load()
    if len(words := model.typed()) > 1:
        raise Usage(
            f"{words[1]} says how a model is read, and '{model.source}' has buffers",
            object=words[1],
            remedy="leave it out",
        )
    return model.source


def _with_arena(answer: Answer, found: Placement, file: str) -> Answer:
    """What TFLite Micro needs beside the tensors of a .tflite file: one least for a model, not two."""
    if not file.lower().endswith(".tflite") or found.solution.value is None:
        return answer
    from loadmaster.export.tflm_measure import read_arena
    from loadmaster.program.importers.tflite.read import read_bytes

    arena = read_arena(read_bytes(file), name=file).with_planned(found.solution.value)
    row = {
        "what": "arena",
        "bytes": arena.total,
        "planned_bytes": arena.planned,
        "persistent_bytes": arena.persistent,
        "startup_bytes": arena.startup,
    }
    text = (
        f"TFLite Micro's arena: {arena.total:,} bytes ({arena.planned:,} planned + {arena.persistent:,} for good; "
        f"start-up needs {arena.startup:,}): 'loadmaster fits {file}' measures it"
    )
    return replace(answer, rows=[*answer.rows, row], blocks=[*answer.blocks, text])


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


def _memories(texts: list[str]) -> list[Space]:
    from loadmaster.allocation.several import Space

    memories: list[Space] = []
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not name:
            raise Usage(
                f"--memory '{text}' has no size", object="--memory", number=text, remedy="write fast=256KiB"
            )
        if any(name == memory.name for memory in memories):
            raise Usage(
                f"two memories are named '{name}'", object="--memory", number=text, remedy="give each its own"
            )
        memories.append(Space(name, _size(size, "--memory")))
    return memories


def _write(found: Placement, plot: Path | None, out: Path | None, plan: Path | None) -> None:
    from loadmaster.allocation.buffers_csv import write_buffers
    from loadmaster.export.picture import draw
    from loadmaster.plan import save_plan

    problem, solution = found.problem, found.solution
    assert found.plan is not None and solution.decision is not None
    if out is not None:
        with writing(out):
            write_buffers(problem.buffers, solution.decision, out)
    if plan is not None:
        with writing(plan):
            save_plan(found.plan, problem.program, problem.machine, plan)
    if plot is not None:
        title = f"{problem.name}: {len(problem.buffers):,} buffers in {show_bytes(solution.value or 0)}"
        with writing(plot):
            draw(problem.buffers, solution.decision, problem.capacity, plot, title)


def _render(found: Placement, files: list[Path]) -> Answer:
    """The answer beside size-ordered first fit and the bound."""
    from loadmaster.planner.fitting import ARENA

    problem, solution, baseline = found.problem, found.solution, found.baseline
    assert baseline is not None
    rows = [
        {
            "what": "first-fit",
            "bytes": baseline.value,
            "gap": baseline.gap,
            "status": str(baseline.status),
            "seconds": baseline.seconds,
        },
        {
            "what": "ours",
            "bytes": solution.value,
            "gap": solution.gap,
            "status": str(solution.status),
            "seconds": solution.seconds,
            "evaluations": solution.evaluations,
            "capacity_bytes": problem.capacity,
            "fits": None if problem.capacity is None else True,
            **solution.metrics,
            **_about_run(solution),
            **({} if solution.recalled is None else {"bank": solution.recalled.as_json()}),
        },
        {
            "what": "bound",
            "bytes": solution.bound.value,
            "gap": 0.0,
            "status": solution.bound.method,
            "seconds": 0.0,
        },
    ]
    cells = [
        (
            str(r["what"]),
            "–" if r["bytes"] is None else f"{r['bytes']:,}",
            "–" if r["gap"] is None else f"{r['gap']:.2%}",
            f"{r['seconds']:.3f}",
            str(r["status"]),
        )
        for r in rows
    ]
    head = f"{problem.name}: {len(problem.buffers):,} buffers"
    if problem.capacity is not None:
        head += f" fit into {problem.capacity:,} bytes"
    blocks: list[str | Table] = [
        head,
        Table(("placement", "bytes", "gap to bound", "seconds", "status"), cells),
    ]
    if "moved" in solution.metrics:
        moved, size = solution.metrics["moved"], solution.metrics["moved_bytes"]
        blocks.append(f"moved {len(moved)} unchanged buffers, {size:,} bytes")
    if solution.recalled is not None:
        blocks.append(recalled_text(solution.recalled, "bytes"))
    files += [] if solution.run is None else [solution.run]
    if problem.capacity is None and solution.stop in _STOPS:
        blocks.append(_STOPS[solution.stop])
    if any(row["status"] == "optimal" for row in rows):
        blocks.append(f"optimal among {ARENA.space}; not sought: {ARENA.left_out}")
    blocks.append("checked: ok" + "".join(f", wrote {path}" for path in files))
    warnings = (*problem.program.warnings, *solution.warnings, *solution.refused)
    return Answer(rows, blocks, warnings, found.error)


def _about_run(solution: Solution) -> dict[str, Any]:
    """How the search ended, as far as there is something to say."""
    said = {
        "stop": solution.stop,
        "run": None if solution.run is None else str(solution.run),
        "interrupted": solution.interrupted,
        "warnings": solution.warnings,
        "refused": solution.refused,
    }
    return {name: content for name, content in said.items() if content}


def render_blame(
    problem: Allocation, solution: Solution, blame: Blame, error: LoadmasterError | None
) -> Answer:
    """Why buffers do not fit, and which of them are to blame."""
    buffers, blamed = problem.buffers, blame.buffers.tolist()
    blocks: list[str | Table] = []
    if blamed:
        cells = [
            (
                buffers.ids[b],
                f"{int(buffers.size[b]):,}",
                f"{int(buffers.lower[b])} to {int(buffers.upper[b])}",
            )
            for b in blamed[:_MOST_ROWS]
        ]
        title = f"{len(blamed)} buffers that do not fit together, and would without any one of them"
        if len(blamed) == 1:
            title = "one buffer that does not fit by itself"
        blocks.append(Table(("to blame", "bytes", "alive"), cells, title))
    row = {
        "what": "infeasible",
        "status": "infeasible",
        "bound": solution.bound.value,
        "capacity_bytes": problem.capacity,
        "excess_bytes": blame.excess,
        "instant": blame.instant,
        "blamed": [buffers.ids[b] for b in blamed],
        "blamed_bytes": int(buffers.size[blame.buffers].sum()),
    }
    return Answer([row], blocks, problem.program.warnings, error)


def _render_filled(found: Filled, out: Path | None) -> Answer:
    """What lies in each memory, or bank."""
    uses = found.uses()
    rows = [
        {
            "memory": use.space.name,
            "buffers": use.buffers,
            "used_bytes": use.used,
            "capacity_bytes": use.space.size,
            "worth": use.benefit,
        }
        for use in uses
    ]
    cells = [
        (
            use.space.name,
            f"{use.buffers:,}",
            show_bytes(use.used),
            show_bytes(use.space.size),
            f"{use.benefit:,.0f}",
        )
        for use in uses
    ]
    blocks: list[str | Table] = [Table(("memory", "buffers", "used", "capacity", "worth"), cells)]
    if found.error is None and out is not None:
        with writing(out):
            found.write(out)
        blocks.append(f"wrote {out}")
    return Answer(rows, blocks, error=found.error)
