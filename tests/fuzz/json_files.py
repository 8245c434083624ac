"""JSON of other tools and of our own: dnn-partitioning's graphs with their splits, and cost tables."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.suites.dnn_partitioning_splits import read_split
from loadmaster.machine.dnn_partitioning import read_dnn_machine
from loadmaster.program.importers.dnn_partitioning import import_dnn_partitioning
from loadmaster.program.measured_costs import apply_costs, costless_hash, read_costs

from . import mutate
from .use import may_refuse, small_program, use_machine, use_plan, use_program


def _node(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "supportedOnFpga": 1,
        "cpuLatency": 10.0,
        "fpgaLatency": 1.0,
        "isBackwardNode": False,
        "colorClass": number,
        "size": 100.0,
        **more,
    }


def graph_seeds(place: Path) -> list[bytes]:
    """A graph and a split of it, in one object."""
    ends = ((1, 2), (1, 3), (2, 4), (3, 4))
    edges = [{"sourceId": a, "destId": b, "cost": 0.25 * a} for a, b in ends]
    graph = {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": 2,
        "maxCPUs": 2,
        "edges": edges,
        "nodes": [_node(4), _node(3, supportedOnFpga=0), _node(2), _node(1, isBackwardNode=True)],
    }
    split = {
        "fpgas": [{"load": -1, "nodes": [1, 2]}, {"load": -1, "nodes": [4]}],
        "cpus": [{"load": 0.0, "nodes": [3]}],
        "maxLoad": -1,
    }
    return [json.dumps({"graph": graph, "split": split}).encode()]


def graph_file(data: bytes, place: Path) -> None:
    try:
        both = json.loads(data)
        texts = [json.dumps(both["graph"]).encode(), json.dumps(both["split"]).encode()]
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = [data, data]
    path, split = place / "graph.json", place / "split.json"
    path.write_bytes(texts[0])
    split.write_bytes(texts[1])
    program, machine = import_dnn_partitioning(path, edge_unit="ms"), read_dnn_machine(path)
    use_program(program, place)
    use_machine(machine)
    with may_refuse():
        use_plan(program, machine, read_split(split, program, machine))


def cost_seeds(place: Path) -> list[bytes]:
    program = small_program()
    table = {
        "loadmaster_costs": 1,
        "program": costless_hash(program),
        "device": "gpu",
        "picoseconds": [12_000, None, 7, 0, 1],
        "workspace_bytes": 4096,
        "kept_bytes": 0,
        "op_workspace": [0, 0, 4096, 0, 0],
    }
    return [json.dumps(table).encode()]


def cost_file(data: bytes, place: Path) -> None:
    path = place / "costs.json"
    path.write_bytes(data)
    use_program(apply_costs(small_program(), read_costs(path)), place)


def changed(rng: Random, data: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.06:
        return mutate.octets(rng, data)
    if kind < 0.12:
        return mutate.encoded(
            rng, mutate.lines(rng, data.decode("utf-8", "replace"), tokens=("1e400", "NaN", "-0.0"))
        )
    if kind < 0.14:
        return b'{"graph": ' + b"[" * rng.choice((900, 100_000))
    return json.dumps(mutate.tree(rng, json.loads(data))).encode()
