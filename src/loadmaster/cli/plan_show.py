"""What `plan` shows of a Result: the plans beside each other, where tensors live, and what to do next.

One layout a kind of problem says which columns there are and how a row is called in JSON; all else is the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.cli.allocate import render_blame
from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.bank import recalled_text
from loadmaster.cli.model import Model
from loadmaster.cli.progress import gap_text, value_text
from loadmaster.errors import LoadmasterError
from loadmaster.export.tflm_arena import Arena
from loadmaster.machine import Machine
from loadmaster.planner import KINDS, Result, Row
from loadmaster.planner.fitting import Fits
from loadmaster.program import Program
from loadmaster.runs.folder import RunFolder, is_run
from loadmaster.runs.resume import BANK
from loadmaster.units import UNLIMITED, show_bytes, show_time

Cell = Callable[[Row, Result], str]
NONE = "–"


def _time(row: Row, result: Result) -> str:
    return NONE if row.value is None else show_time(row.value)


def _speedup(row: Row, result: Result) -> str:
    return NONE if row.speedup is None else f"{row.speedup:.3f} ×"


def _saved_time(row: Row, result: Result) -> str:
    return NONE if row.speedup is None else f"{100 * (1 - 1 / row.speedup):.1f} %"


def _over_ops(row: Row, result: Result) -> str:
    over = row.extra.get("over_ops")
    return NONE if over is None else f"{over:.3f} ×"


def _saved_bytes(row: Row, result: Result) -> str:
    saved = row.extra.get("saved")
    return NONE if saved is None else f"{100 * saved:.1f} %"


def _simulated(row: Row, result: Result) -> str:
    seconds = row.extra.get("seconds")
    return NONE if seconds is None else show_time(round(seconds * 10**12))


def _box(row: Row, result: Result) -> str:
    if row.role == "bound" or row.name == BANK:
        return ""
    if row.white_box:
        return "white box"
    return "grey box" if row.name in KINDS[result.problem.kind].grey_box else "black box"


def _gap(row: Row, result: Result) -> str:
    return "none" if result.measured and result.problem.kind == "mapping" else gap_text(row.gap)


def _bytes(row: Row, result: Result) -> str:
    return NONE if row.value is None else f"{row.value:,}"


def _size(row: Row, result: Result) -> str:
    return NONE if row.value is None else show_bytes(row.value)


def _evaluations(row: Row, result: Result) -> str:
    counted = row.evaluations and (not row.white_box or result.problem.kind == "graph")
    return f"{row.evaluations:,}" if counted else NONE


def _took(row: Row, result: Result) -> str:
    return f"{row.seconds:.1f} s" if row.seconds >= 0.05 else NONE


@dataclass(frozen=True)
class Layout:
    """How results of one kind are laid out."""

    columns: tuple[tuple[str, Cell], ...]
    """Headings and cells between the name and how long it took; '{}' in a heading: see `_heading`."""
    first: str = "plan"
    title: str = "{source} on {machine}"
    value: str = "picoseconds"
    """What the value is called in JSON."""
    roles: tuple[str, str, str] = ("baseline", "result", "bound")
    """What the rows are called in JSON."""
    next_steps: tuple[str, ...] = ("see", "page", "run", "draw", "again")


TIMED = (("gap to bound", _gap), ("evaluations", _evaluations))
LAYOUTS = {
    "mapping": Layout((("kind", _box), ("{timed}", _time), ("over {before}", _speedup), *TIMED)),
    "malloc-game": Layout((("{timed}", _time), ("over {before}", _speedup), *TIMED)),
    "offload": Layout(
        (("{timed}", _time), ("over {before}", _speedup), ("of the ops' time", _over_ops), *TIMED),
        next_steps=("see", "page", "run", "again"),  # `figures` draws maps and games
    ),
    "graph": Layout(
        (("{timed}", _time), ("saved over {before}", _saved_time), *TIMED),
        title="{source} on {machine}, simulated",
        next_steps=("see", "page", "again"),  # `figures` draws where tensors live, which is not decided here
    ),
    "allocation": Layout(
        (("bytes", _bytes), ("gap to bound", _gap)),
        "placement",
        "{source}",
        "bytes",
        ("bytes-baseline", "bytes-result", "bytes-bound"),
        ("see", "page", "ship", "again"),
    ),
    "order": Layout(
        (("peak bytes", _bytes), ("", _size), ("saved", _saved_bytes), ("gap to bound", _gap)),
        "order",
        "{source}, one device, weights not counted",
        "peak_bytes",
        ("order-baseline", "order", "order-bound"),
        ("see", "page", "again"),
    ),
}
BYTES_MOVED = Layout(
    (("bytes through {home}", _bytes), ("", _size), ("gap to bound", _gap), ("simulated time", _simulated)),
    value="bytes",
    roles=("bytes-baseline", "bytes-result", "bytes-bound"),
    next_steps=("see",),
)


def render(result: Result, model: Model, about_machine: Sequence[str] = ()) -> Answer:
    """The answer of `plan`. `model`: as the user named it; `about_machine`: the options that named the machine."""
    source = model.source
    if result.blame is not None:
        assert isinstance(result.problem, Allocation)
        return render_blame(result.problem, result.solution, result.blame, result.error)
    layout = _layout(result)
    blocks: list[str | Table] = [_table(layout, result, source)]
    if result.remeasured is not None:
        blocks.append(result.remeasured)
    if result.places:
        blocks.append(_places_table(result.places, result.before))
    if result.plan is not None and result.origin != result.solver:
        blocks.append(_origin_text(result))
    if result.recalled is not None:
        blocks.append(recalled_text(result.recalled, result.problem.unit))
    if any(row.status.startswith("optimal") for row in result.rows):
        word = "optimal" if result.gap == 0 else "the optimum is"
        blocks.append(f"{word} among {result.space}; not sought: {result.left_out}")
    blocks += result.notes
    if result.plan is not None:
        blocks.append(_next_steps(layout, result, model, about_machine))
    more = {
        "model": source,
        "machine": result.machine.name,
        **result.facts,
        "run": None if result.run is None else str(result.run),
        "plan": None if result.kept is None else str(result.kept),
        "before": result.before,
        "space": result.space,
        "origin": result.origin if result.plan is not None else None,
        "stop": result.solution.stop,
    }
    if result.recalled is not None:
        more["bank"] = result.recalled.as_json()
    rows = [_json_row(layout, row) for row in result.rows]
    return Answer(rows + result.places, blocks, tuple(result.warnings), result.error, more=more)


def _layout(result: Result) -> Layout:
    moved = result.problem.kind == "mapping" and result.unit == "bytes"
    return BYTES_MOVED if moved else LAYOUTS[result.problem.kind]


def _json_row(layout: Layout, row: Row) -> dict[str, Any]:
    baseline, result, bound = layout.roles
    named = {"baseline": baseline, "result": result, "bound": bound}
    content: dict[str, Any] = {"what": named.get(row.role, row.role), "name": row.name}
    if layout.value == "picoseconds":
        content |= {"white_box": row.white_box, "speedup": row.speedup}
        content["seconds"] = None if row.value is None else row.value / 10**12
    return {
        **content,
        layout.value: row.value,
        "gap": row.gap,
        "evaluations": row.evaluations,
        "took_seconds": row.seconds,
        "status": row.status,
        **row.extra,
    }


def _table(layout: Layout, result: Result, source: str) -> Table:
    words = {
        "timed": "measured time" if result.measured else "simulated time",
        "before": result.before or "before",
        "home": result.machine.memories[result.machine.home[0]].name,
    }
    columns = [heading.format(**words) for heading, _ in layout.columns]
    cells = [
        (row.name, *(cell(row, result) for _, cell in layout.columns), _took(row, result), row.status)
        for row in result.rows
    ]
    title = layout.title.format(source=source, machine=result.machine.name)
    return Table((layout.first, *columns, "took", ""), cells, title)


def _origin_text(result: Result) -> str:
    """Why the plan is not the solver's."""
    found = next(row.value for row in result.rows if row.role == "result")
    ours = "nothing" if found is None else value_text(found, result.unit)
    return f"the plan is that of '{result.origin}': {value_text(result.value, result.unit)}; '{result.solver}' found {ours}"


def _places_table(places: list[dict[str, Any]], before: str | None) -> Table:
    """How full memories get, or how busy devices are, beside the plan that one would have otherwise."""
    if places[0]["what"] == "memory":
        cells: list[tuple[str, ...]] = [
            (
                place["name"],
                *(show_bytes(place[key]) for key in ("peak_bytes", "before_peak_bytes", "capacity_bytes")),
            )
            for place in places
        ]
        return Table(("memory", "peak", f"peak of {before}", "capacity"), cells)
    cells = [
        (
            place["name"],
            f"{100 * place['busy_share']:.1f} %",
            place["memory"],
            show_bytes(place["peak_bytes"]),
            NONE if place["base_peak_bytes"] is None else show_bytes(place["base_peak_bytes"]),
            "unlimited" if place["capacity_bytes"] is None else show_bytes(place["capacity_bytes"]),
        )
        for place in places
    ]
    return Table(("device", "busy", "memory", "peak", "base's peak", "capacity"), cells)


def _next_steps(layout: Layout, result: Result, model: Model, about_machine: Sequence[str]) -> str:
    """Where the plan is, and what can be done with it: each line works as it is printed."""
    kept, run = result.kept, result.run
    if kept is None:
        to_keep = "give --out plan.json to keep a plan for the machine itself"
        if layout is not BYTES_MOVED:
            to_keep = "no plan was written: give --out plan.json"
        return f"checked: ok; {to_keep}"
    lines, problem = [f"checked: ok, plan {kept}"], result.problem
    own = model
    if is_run(model.source):  # what can be done with a model is in the run that it comes from
        own = Model.recorded(RunFolder.open(Path(model.source)).about) or model
    has_ops = not isinstance(problem, Allocation) or isinstance(problem, ProgramAllocation)
    whole = run is not None and layout is not BYTES_MOVED
    nameable = whole or bool(about_machine) or _has_own(model, result.machine)
    plan = [str(run)] if whole else [*model.typed(), str(kept), *about_machine]
    steps = {
        "see": (["simulate", *plan], has_ops and nameable),
        "page": (["report", str(run)], run is not None),
        "ship": (["export", "tflm", *_run_words(own, run)], run is not None and _is_micro(own)),
        "run": (["run", *_run_words(own, run)], run is not None and _can_run(own)),
        "draw": (["figures", str(run), "--out", "pictures"], run is not None and _has("matplotlib")),
        "again": (["replay", str(run)], run is not None),
    }
    for step, (words, possible) in steps.items():
        if possible and step in layout.next_steps:
            lines.append(f"{_STEPS[step]:9}{shlex.join(['loadmaster', *words])}")
    return "\n".join(lines)


_STEPS = {
    "see": "see it:",
    "page": "page:",
    "ship": "ship it:",
    "run": "run it:",
    "draw": "draw it:",
    "again": "again:",
}


def _run_words(model: Model, run: Path | None) -> list[str]:
    """A model that its run will find again need not be named."""
    found = model.file is not None and not model.file.is_absolute()
    return [str(run)] if found else [model.source, str(run)]


def _has_own(model: Model, machine: Machine) -> bool:
    """Whether the model is meant for this machine, so that it need not be named."""
    try:
        return model.spec.machine(None).hash == machine.hash
    except LoadmasterError:
        return False


def _can_run(model: Model) -> bool:
    return model.spec.is_function and _has("torch")


def _is_micro(model: Model) -> bool:
    return model.source.lower().endswith(".tflite") and _has("tflite_micro")


def _has(package: str) -> bool:
    return find_spec(package) is not None


def render_fit(found: Fits, program: Program, out: Path | None, arena: Arena | None = None) -> Answer:
    """The answer of `plan --fits`: exit 0: yes, with a checked plan; 1: proven no; 4: not known. `arena`: of TFLite
    Micro, whose own needs are in the numbers."""
    row: dict[str, Any] = {
        "what": "fits",
        "fits": found.answer,
        "memory": found.memory,
        "capacity_bytes": _limit(found.capacity),
        "need_bytes": found.need,
        "enough_bytes": found.enough,
        "excess_bytes": found.excess,
        "any_order": found.any_order,
        "proof": found.proof,
        "op": None if found.op is None else program.op_name[found.op],
        "blamed": [name for name, _ in found.tensors],
        "plan": None if out is None else str(out),
    }
    parts = ""
    if arena is not None:
        size, planned = found.enough or found.need, int(found.extra["planned_bytes"])
        row |= {
            "kTensorArenaSize": size,
            "planned_bytes": planned,
            "persistent_bytes": arena.persistent,
            "startup_bytes": arena.startup,
            "as_it_is_bytes": arena.total,
        }
        parts = (
            f"\n     {planned:,} planned + {arena.persistent:,} for good; start-up needs "
            f"{arena.startup:,}. As it is: {arena.total:,}."
        )
        if found.answer:
            parts += f"\n     After 'export tflm': set kTensorArenaSize to {size}."
    if found.answer:
        return Answer([row], [_yes(found, out) + parts], program.warnings)
    blocks: list[str | Table] = [_no(found, program) + parts]
    return Answer([row], blocks, program.warnings, found.error(program), error_in_blocks=True)


def _limit(capacity: int) -> int | None:
    return None if capacity >= UNLIMITED - 1 else capacity


def _yes(found: Fits, out: Path | None) -> str:
    size = "no limit" if _limit(found.capacity) is None else f"{found.capacity:,} bytes"
    lines = [f"YES  {found.place} {'have' if ',' in found.memory else 'has'} {size}"]
    if found.enough is not None:
        order = "" if found.plan is None or found.plan.order is None else ", in another order of the ops"
        lines[0] += f" and the plan needs {found.enough:,}{order}; {found.need:,} are needed at least."
    lines.append("     checked: ok" + (f", plan {out}" if out else "; give --out plan.json to keep the plan"))
    return "\n".join(lines)


def _no(found: Fits, program: Program) -> str:
    lines = [*found.reasons(program), f"Remedy: {found.remedy}."]
    return "\n     ".join([f"{'?' if found.answer is None else 'NO':5}{lines[0]}", *lines[1:]])
