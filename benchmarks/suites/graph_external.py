"""Graphs of msr-fiddle/dnn-partitioning beside their human experts; generated ones where there are none.

The files are read from `--data DIR` or `$LOADMASTER_DATA`: a checkout of that public repository as it
is, or as the folder `dnn-partitioning`. They are not ours to ship.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suites import Options, Row
from benchmarks.suites.dnn_partitioning_splits import read_split
from benchmarks.suites.graph_cells import GraphCell, placement_cell
from benchmarks.suites.graph_run import loaded, moved, solver_rows
from loadmaster.errors import LoadmasterError
from loadmaster.machine import Machine
from loadmaster.machine.dnn_partitioning import read_dnn_machine
from loadmaster.program import Program
from loadmaster.program.importers.dnn_partitioning import import_dnn_partitioning

WHERE = "https://github.com/msr-fiddle/dnn-partitioning"
UNITS = {"latency-inputs": "ms", "throughput-inputs": "s"}
"""Folder of the repository -> unit of its edges."""
GENERATED = 4
_BUDGET, _QUICK_BUDGET = 1_000, 100


def data_folder(options: Options) -> Path | None:
    """The folder with the published files, if there is one."""
    given = options.data or os.environ.get("LOADMASTER_DATA")
    for folder in () if not given else (Path(given) / "dnn-partitioning", Path(given)):
        if any((folder / name).is_dir() for name in UNITS):
            return folder
    return None


def external_cells(folder: Path) -> list[tuple[GraphCell, Path | None]]:
    """A cell for each published graph, and the file of its expert's split if there is one."""
    found: list[tuple[GraphCell, Path | None]] = []
    for part, unit in UNITS.items():
        for path in sorted((folder / part).rglob("*.json")):
            layers = path.parent.name == "LayerGraphs"
            case = f"external/{part.partition('-')[0]}/{'layers' if layers else 'ops'}/{path.stem}"
            split = folder / "human-experts" / f"{path.stem}_expert.json"
            cell = placement_cell(case, partial(_read, path, unit), "its own", budget=_BUDGET)
            found.append((_without_hdp(cell), split if layers and split.exists() else None))
    return found


def external(options: Options, seed: int) -> Iterator[Row]:
    """Every published graph; a row says where they are if there are none."""
    folder = data_folder(options)
    if folder is None:
        yield Row(
            "external",
            0.0,
            "ps",
            "skipped",
            seed=seed,
            extra={"reason": f"no files: give --data with a checkout of {WHERE}"},
        )
        return
    for cell, split in external_cells(folder):
        if split is not None and not seed:
            yield expert_row(cell, split)
        yield from solver_rows(cell, options, seed, _QUICK_BUDGET)


def expert_row(cell: GraphCell, split: Path) -> Row:
    """The published expert's split, timed by our simulator."""
    problem, base = loaded(cell)
    extra: dict[str, Any] = {"model": problem.program.name, "ops": problem.program.n_ops, **base}
    try:
        plan = read_split(split, problem.program, problem.machine)
        timeline = problem.simulator.run(plan)
    except LoadmasterError as error:
        return Row(
            cell.case,
            0.0,
            "ps",
            "skipped",
            machine=cell.machine,
            solver="published-expert",
            extra={"reason": error.message},
        )
    bound = problem.bound().value
    over = int(timeline.memory_over.sum())
    value = float(timeline.total_ps) if timeline.fits else -1.0
    return Row(
        cell.case,
        value,
        "ps",
        "feasible" if timeline.fits else "does not fit",
        machine=cell.machine,
        solver="published-expert",
        evaluations=1,
        baseline=float(problem.reference_ps),
        bound=float(bound),
        gap=value / bound - 1 if bound and timeline.fits else None,
        extra=extra | {"over": over} | moved(problem, plan),
    )


def generated(options: Options, seed: int) -> Iterator[Row]:
    """Graphs of our own in that format, through the same importer."""
    for number in range(1 if options.quick else GENERATED):
        case = f"external/generated-{number}"
        cell = placement_cell(case, partial(_generated, number), "its own", budget=_BUDGET)
        yield from solver_rows(_without_hdp(cell), options, seed, _QUICK_BUDGET)


def _without_hdp(cell: GraphCell) -> GraphCell:
    return replace(cell, solvers=tuple(name for name in cell.solvers if name != "hdp"))


def _read(path: Path, unit: str) -> tuple[Program, Machine]:
    return import_dnn_partitioning(path, edge_unit=unit), read_dnn_machine(path)


def _generated(number: int) -> tuple[Program, Machine]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"generated-{number}.json"
        path.write_text(json.dumps(generated_content(number)), encoding="utf-8")
        return _read(path, "ms")


def generated_content(number: int, layers: int = 24, width: int = 3) -> dict[str, Any]:
    """A training graph in layers: backward nodes mirror the forward ones and share their colour."""
    rng = np.random.default_rng([41_000, number])
    count = layers * width
    times = rng.lognormal(0.0, 1.0, count)
    sizes = rng.integers(1, 64, count) * 2**20
    pairs = [
        (above, below)
        for layer in range(1, layers)
        for below in range(layer * width, (layer + 1) * width)
        for above in rng.choice(np.arange((layer - 1) * width, layer * width), 2, replace=False).tolist()
    ]
    costs = rng.uniform(0.05, 1.0, len(pairs))
    nodes = [_node(i, float(times[i]), int(sizes[i]), i) for i in range(count)]
    nodes += [_node(2 * count - 1 - i, 2 * float(times[i]), 0, i, backward=True) for i in range(count)]
    mirror = 2 * count - 1
    edges = [_edge(a, b, float(cost)) for (a, b), cost in zip(pairs, costs, strict=True)]
    edges += [_edge(mirror - b, mirror - a, float(cost)) for (a, b), cost in zip(pairs, costs, strict=True)]
    edges += [_edge(i, mirror - i, 0.1) for i in range(count)]
    return {
        "maxFPGAs": 4,
        "maxCPUs": 1,
        "maxSizePerFPGA": int(0.45 * sizes.sum()),
        "nodes": nodes,
        "edges": edges,
    }


def _node(number: int, time: float, size: int, color: int, backward: bool = False) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"node{number}",
        "supportedOnFpga": 1,
        "fpgaLatency": time,
        "cpuLatency": 12 * time,
        "isBackwardNode": int(backward),
        "colorClass": color,
        "size": size,
    }


def _edge(source: int, target: int, cost: float) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}
