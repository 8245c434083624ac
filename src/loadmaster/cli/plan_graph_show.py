"""What `plan` tells of a plan for several devices: times, gap, peaks, bytes over links."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.plan_show import ending
from loadmaster.cli.progress import gap_text
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.auto import CONSTRUCTIVE
from loadmaster.plan import Plan
from loadmaster.search.problem import Decision
from loadmaster.search.solver import Solution
from loadmaster.simulate import Timeline
from loadmaster.units import UNLIMITED, show_bytes, show_time


@dataclass(frozen=True, eq=False)
class Before:
    """A plan that was known before. `value` is None where it can't run at all."""

    name: str
    vector: Decision
    value: int | None
    over: int
    """Bytes above the capacities."""
    made: str
    """How, in a few words."""

    @property
    def status(self) -> str:
        if self.value is None:
            return "can't run on these devices"
        return f"does not fit: {show_bytes(self.over)} too many" if self.over else self.made


@dataclass(frozen=True, eq=False)
class Compared:
    """All that there is to tell."""

    problem: GraphOptimization
    source: str
    solver: str
    solution: Solution
    before: list[Before]
    """The base plan first."""
    plan: Plan | None
    out: Path | None


def shown(told: Compared) -> Answer:
    """Rows and tables."""
    problem, solution = told.problem, told.solution
    bound = solution.bound
    rows = [_row(told, "baseline", each.name, each.value, status=each.status) for each in told.before]
    rows.append(
        _row(
            told,
            "result",
            told.solver,
            solution.value,
            solution.evaluations,
            solution.seconds,
            str(solution.status),
        )
    )
    if bound.value > 0:
        rows.append(_row(told, "bound", "bound", bound.value, status=bound.method))
    blocks: list[str | Table] = [_table(rows, f"{told.source} on {problem.machine.name}, simulated")]
    run = solution.extra.get("run")
    kept = told.out or (None if run is None else Path(run) / "best.json")
    devices: list[dict[str, Any]] = []
    more: dict[str, Any] = {
        "model": told.source,
        "machine": problem.machine.name,
        "nodes": problem.nodes,
        "groups": problem.groups,
        "tasks": list(problem.tasks),
        "base": told.before[0].made,
        "run": run,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
    }
    if told.plan is not None:
        after, first = problem.simulator.run(told.plan), _timeline(problem, told.before[0])
        devices = _devices(problem, after, first)
        moved, moved_before = _moved(after), None if first is None else _moved(first)
        more |= {"link_bytes": moved, "base_link_bytes": moved_before, "clusters": _clusters(told.plan)}
        blocks += [_device_table(devices), _moves(more), _ending(problem, told.source, kept, run)]
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows + devices, blocks, tuple(map(str, warnings)), more=more)


def _row(
    told: Compared,
    what: str,
    name: str,
    value: int | None,
    evaluations: int = 0,
    seconds: float = 0.0,
    status: str = "",
) -> dict[str, Any]:
    base, bound = told.before[0].value, told.solution.bound.value
    return {
        "what": what,
        "name": name,
        "white_box": what != "result" or name in (*CONSTRUCTIVE, "auto", "cp-sat"),
        "picoseconds": value,
        "seconds": None if value is None else value / 10**12,
        "speedup": base / value if base and value else None,
        "gap": value / bound - 1 if value is not None and bound > 0 else None,
        "evaluations": evaluations,
        "took_seconds": seconds,
        "status": status,
    }


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    cells = [
        (
            row["name"],
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            "–" if row["speedup"] is None else f"{100 * (1 - 1 / row['speedup']):.1f} %",
            "–" if row["what"] == "bound" else gap_text(row["gap"]),
            f"{row['evaluations']:,}" if row["evaluations"] else "–",
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    columns = ("plan", "simulated time", "saved over base", "gap to bound", "evaluations", "took", "")
    return Table(columns, cells, title)


def _timeline(problem: GraphOptimization, before: Before) -> Timeline | None:
    if before.value is None:
        return None
    try:
        return problem.simulator.run(problem.plan(before.vector))
    except LoadmasterError:
        return None


def _devices(problem: GraphOptimization, after: Timeline, first: Timeline | None) -> list[dict[str, Any]]:
    machine = problem.machine
    rows = []
    for number, device in enumerate(machine.devices):
        memory = machine.home[number]
        capacity = machine.memories[memory].capacity
        rows.append(
            {
                "what": "device",
                "name": device.name,
                "memory": machine.memories[memory].name,
                "busy_seconds": int(after.device_busy[number]) / 10**12,
                "busy_share": int(after.device_busy[number]) / max(1, after.total_ps),
                "peak_bytes": int(after.memory_peak[memory]),
                "base_peak_bytes": None if first is None else int(first.memory_peak[memory]),
                "capacity_bytes": None if capacity >= UNLIMITED else capacity,
            }
        )
    return rows


def _device_table(rows: list[dict[str, Any]]) -> Table:
    cells = [
        (
            row["name"],
            f"{100 * row['busy_share']:.1f} %",
            row["memory"],
            show_bytes(row["peak_bytes"]),
            "–" if row["base_peak_bytes"] is None else show_bytes(row["base_peak_bytes"]),
            "unlimited" if row["capacity_bytes"] is None else show_bytes(row["capacity_bytes"]),
        )
        for row in rows
    ]
    return Table(("device", "busy", "memory", "peak", "base's peak", "capacity"), cells)


def _moved(timeline: Timeline) -> int:
    return int(timeline.link_bytes.sum())


def _clusters(plan: Plan) -> int:
    return 0 if plan.fusion is None else len(set(plan.fusion[plan.fusion >= 0].tolist()))


def _moves(more: dict[str, Any]) -> str:
    before = more["base_link_bytes"]
    beside = "" if before is None else f" (base {show_bytes(before)})"
    return f"{show_bytes(more['link_bytes'])} over links{beside}; {more['clusters']:,} fused clusters"


def _ending(problem: GraphOptimization, source: str, kept: Path | None, run: str | None) -> str:
    # `figures` draws where tensors live, which is not decided here.
    lines = ending(problem.machine, source, kept, run).splitlines()
    return "\n".join(line for line in lines if not line.startswith("draw it"))
