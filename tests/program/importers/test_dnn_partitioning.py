"""The importer of dnn-partitioning's graphs and splits, on files of our own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.suites.dnn_partitioning_splits import read_split
from loadmaster.cli.main import app
from loadmaster.errors import BadPlan, BadProgram
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.dnn_partitioning import read_dnn_machine
from loadmaster.machine.presets import standalone_text
from loadmaster.machine.toml import parse_machine
from loadmaster.plan.check import check
from loadmaster.program import Program, TensorKind
from loadmaster.program.importers import ImportOptions
from loadmaster.program.importers.dnn_partitioning import NOMINAL, import_dnn_partitioning
from loadmaster.program.models import load_model
from loadmaster.program.program import CANNOT_RUN
from loadmaster.simulate import simulate

MS = 10**9
ROUNDED = 100_000
"""Picoseconds: tensors have whole bytes."""
Content = dict[str, Any]


def node(number: int, time: float = 1.0, **more: Any) -> Content:
    return {
        "id": number,
        "supportedOnFpga": 1,
        "cpuLatency": 10 * time,
        "fpgaLatency": time,
        "isBackwardNode": False,
        "colorClass": number,
        "size": 100.0,
        **more,
    }


def edge(source: int, target: int, cost: float = 0.5) -> Content:
    return {"sourceId": source, "destId": target, "cost": cost}


def diamond() -> Content:
    """1 -> (2, 3) -> 4, listed from its end."""
    return {
        "maxSizePerFPGA": 1e9,
        "maxFPGAs": 2,
        "maxCPUs": 2,
        "nodes": [node(4), node(3, 3.0), node(2, 2.0), node(1)],
        "edges": [edge(1, 2), edge(1, 3), edge(2, 4, 0.25), edge(3, 4)],
    }


def training() -> Content:
    """Two layers, forward and backward, each pair with one colour."""
    back = [node(11, 2.0, isBackwardNode=True, colorClass=1), node(12, 2.0, isBackwardNode=1, colorClass=2)]
    return diamond() | {
        "nodes": [node(1), node(2), *back],
        "edges": [edge(1, 2), edge(2, 12), edge(12, 11), edge(1, 11)],
    }


Written = Callable[[Any], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(content: Any) -> Path:
        path = tmp_path / f"file{len(list(tmp_path.iterdir()))}.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def both(path: Path, edge_unit: str = "ms") -> tuple[Program, Machine]:
    return import_dnn_partitioning(path, edge_unit=edge_unit), read_dnn_machine(path)


def split(*accelerators: list[int], cpus: tuple[list[int], ...] = ([],)) -> Content:
    return {
        "fpgas": [{"load": -1, "nodes": nodes} for nodes in accelerators],
        "cpus": [{"load": 0.0, "nodes": nodes} for nodes in cpus],
        "maxLoad": -1,
    }


def test_a_node_is_an_op_with_the_files_times(written: Written) -> None:
    program, machine = both(written(diamond()))
    assert program.op_name == ("node1", "node3", "node2", "node4")  # sorted, ties as in the file
    assert program.op_source.tolist() == [1, 3, 2, 4]
    assert len(machine.devices) == 4
    assert program.costs is not None
    assert program.costs.tolist() == [
        [time * MS, time * MS, 10 * time * MS, 10 * time * MS] for time in (1, 3, 2, 1)
    ]
    weights = program.tensor_kind == TensorKind.WEIGHT
    assert program.tensor_bytes[weights].tolist() == [100] * 4
    assert sorted(set(program.op_group.tolist())) == [0, 1, 2, 3]
    assert (program.tensor_kind == TensorKind.OUTPUT).sum() == 1


def test_times_of_plans_are_those_of_the_format(written: Written) -> None:
    program, machine = both(written(diamond()))
    one = read_split(written(split([1, 2, 3, 4])), program, machine)
    assert simulate(program, machine, one).total_ps == 7 * MS
    # Node 3 goes elsewhere: its input takes 2 x 0.5 ms there, its result 2 x 0.5 ms back.
    two = read_split(written(split([1, 2, 4], [3])), program, machine)
    assert simulate(program, machine, two).total_ps == pytest.approx((1 + 1 + 3 + 1 + 1) * MS, abs=ROUNDED)
    # On a processor it takes ten times as long, and each way 0.5 ms.
    host = read_split(written(split([1, 2, 4], cpus=([3],))), program, machine)
    assert simulate(program, machine, host).total_ps == pytest.approx((1 + 30 + 1 + 1) * MS, abs=ROUNDED)
    # Processors share their memory: nothing moves between them.
    hosts = read_split(written(split([], cpus=([1, 2, 4], [3]))), program, machine)
    assert simulate(program, machine, hosts).total_ps == (10 + 30 + 10) * MS
    for plan in (one, two, host, hosts):
        assert not check(program, machine, plan, simulate(program, machine, plan))


def test_the_unit_of_edges_scales_tensors_alone(written: Written) -> None:
    path = written(diamond())
    sizes = {
        unit: import_dnn_partitioning(path, edge_unit=unit).tensor_bytes.max() for unit in ("s", "ms", "us")
    }
    assert sizes["s"] == NOMINAL // 2
    assert sizes["ms"] == -(-NOMINAL // 2000)
    costs = [import_dnn_partitioning(path, edge_unit=unit).costs for unit in ("s", "us")]
    assert np.array_equal(*costs)  # type: ignore[arg-type]
    assert read_dnn_machine(path).hash == load_machine(str(path)).hash


def test_the_unit_of_edges_must_be_given(written: Written) -> None:
    path = written(diamond())
    with pytest.raises(BadProgram, match="--edge-unit s, ms, us or ns"):
        load_model(str(path))
    with pytest.raises(BadProgram, match="can't be in 'h'"):
        import_dnn_partitioning(path, edge_unit="h")
    options = ImportOptions(edge_unit="ms")
    assert load_model(str(path), options=options).hash == both(path)[0].hash


def test_capacity_is_that_of_an_accelerator(written: Written) -> None:
    small = diamond() | {"maxSizePerFPGA": 400.0, "edges": []}
    program, machine = both(written(small))
    plan = read_split(written(split([1, 2, 3, 4])), program, machine)
    assert simulate(program, machine, plan).fits
    program, machine = both(written(small | {"maxSizePerFPGA": 399.0}))
    timeline = simulate(program, machine, plan)
    assert timeline.memory_over.tolist() == [1, 0, 0]
    host = read_split(written(split([], cpus=([1, 2, 3, 4],))), program, machine)
    assert simulate(program, machine, host).fits  # host memory has no limit


def test_the_machine_survives_its_text(written: Written) -> None:
    machine = read_dnn_machine(written(diamond()))
    again = parse_machine(standalone_text(machine), "again", lambda name: "")
    assert again.hash == machine.hash


def test_what_an_accelerator_does_not_support_runs_on_processors(written: Written) -> None:
    content = diamond()
    content["nodes"][1]["supportedOnFpga"] = False
    program, machine = both(written(content))
    assert program.costs is not None
    assert (program.costs[1, :2] == CANNOT_RUN).all()
    with pytest.raises(BadPlan, match="node 3 on 'accelerator1', which can't run it"):
        read_split(written(split([1, 2, 4], [3])), program, machine)
    read_split(written(split([1, 2, 4], cpus=([3],))), program, machine)


def test_colour_classes_stay_together_and_splits_for_inference_serve_training(written: Written) -> None:
    program, machine = both(written(training()))
    assert program.op_backward.tolist() == [False, False, True, True]
    forward_only = read_split(written(split([1], [2])), program, machine)
    whole = read_split(written(split([1, 11], [2, 12])), program, machine)
    assert forward_only.device is not None and whole.device is not None
    assert forward_only.device.tolist() == whole.device.tolist() == [0, 1, 1, 0]
    with pytest.raises(BadPlan, match="separates node"):
        read_split(written(split([1, 12], [2, 11])), program, machine)


def test_a_node_without_colour_is_free(written: Written) -> None:
    content = diamond()
    del content["nodes"][0]["colorClass"]
    program, machine = both(written(content))
    assert program.op_group[3] == -1
    with pytest.raises(BadPlan, match=r"leaves out node 4 \('node4'\)"):
        read_split(written(split([1, 2, 3])), program, machine)


def test_different_costs_of_one_source_are_different_tensors(written: Written) -> None:
    content = diamond() | {"edges": [edge(1, 2, 0.5), edge(1, 3, 0.125), edge(1, 4, 0.5)]}
    program, _ = both(written(content))
    assert len(program.writes(0)) == 2
    assert sorted(program.tensor_bytes[program.writes(0)].tolist()) == [
        -(-NOMINAL // 8000),
        -(-NOMINAL // 2000),
    ]


def changed(**fields: Any) -> Content:
    return diamond() | fields


def with_node(**fields: Any) -> Content:
    return diamond() | {"nodes": [*diamond()["nodes"], node(9, **fields)]}


def without(field: str, part: str) -> Content:
    content = diamond()
    del content[part][0][field]
    return content


BAD: dict[str, tuple[Any, str]] = {
    "truncated": (json.dumps(diamond())[:-40], "is no JSON"),
    "a list": ("[]", "holds no JSON object"),
    "deep": ("[" * 100_000, "is no JSON"),
    "nan": (json.dumps(with_node(cpuLatency=float("nan"))), "the number NaN, which is not finite"),
    "infinity": (json.dumps(with_node(size=float("inf"))), "the number Infinity, which is not finite"),
    "huge": (with_node(size=1e300), r"node 9 has size = 1e\+300.*2\^62"),
    "negative time": (with_node(cpuLatency=-1), "node 9 has cpuLatency = -1: give a number from 0"),
    "negative size": (with_node(size=-5.0), "node 9 has size = -5.0"),
    "negative cost": (changed(edges=[edge(1, 2, -0.5)]), "the edge from 1 to 2 has cost = -0.5"),
    "text": (with_node(cpuLatency="fast"), "node 9 has cpuLatency = 'fast': give a number"),
    "half an id": (with_node(id=1.5), "has id = 1.5: give a whole number"),
    "flag": (with_node(supportedOnFpga=2), "supportedOnFpga = 2: give true or false"),
    "duplicate": (changed(nodes=[node(1), node(1)]), "two nodes have the id 1"),
    "no nodes": (changed(nodes=[], edges=[]), "give at least one node"),
    "stranger": (changed(edges=[edge(1, 7)]), "names node 7, which is not there"),
    "itself": (changed(edges=[edge(2, 2)]), "node 2 reads its own result"),
    "cycle": (changed(edges=[edge(1, 2), edge(2, 3), edge(3, 1)]), "form a cycle of 3"),
    "no time": (without("fpgaLatency", "nodes"), "node 4 has no field 'fpgaLatency'"),
    "no id": (without("id", "nodes"), "node number 0 has no field 'id'"),
    "no cost": (without("cost", "edges"), "the edge from 1 to 2 has no field 'cost'"),
    "no edges": ({k: v for k, v in diamond().items() if k != "edges"}, "has no field 'edges'"),
    "edges": (changed(edges={}), "has edges = {}: give a list"),
    "an edge": (changed(edges=[3]), "edge number 0 is no JSON object"),
    "no devices": (changed(maxFPGAs=0, maxCPUs=0), "has 0 devices"),
    "many devices": (changed(maxFPGAs=10**9), "has 1000000002 devices: give 1 to 256"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_with_a_remedy(written: Written, case: str) -> None:
    content, message = BAD[case]
    with pytest.raises(BadProgram, match=message) as refused:
        import_dnn_partitioning(written(content), edge_unit="ms")
    assert refused.value.remedy and refused.value.object


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ({"fpgas": [[1]]}, "has no lists of nodes in 'fpgas'"),
        (split([1, 2, 3, 4, 5]), "places node 5, which"),
        (split([1, 2], [2, 3, 4]), "places node 2 twice"),
        (split([[1]], []), r"places node \[1\]"),  # type: ignore[list-item]
        (split([1], [2], [3, 4]), "uses 3 accelerators and machine .* has 2"),
        (split([1, 2, 3]), "leaves out node 4"),
    ],
)
def test_bad_splits_are_refused(written: Written, content: Any, message: str) -> None:
    program, machine = both(written(diamond()))
    with pytest.raises(BadPlan, match=message):
        read_split(written(content), program, machine)


def test_random_files_come_through(written: Written) -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        count = int(rng.integers(1, 40))
        ids = rng.permutation(1000)[:count].tolist()
        pairs = {tuple(sorted(rng.integers(0, count, 2).tolist())) for _ in range(2 * count)}
        cost = rng.choice([0.0, 0.001, 3.5], count)
        content = {
            "maxSizePerFPGA": 1e12,
            "maxFPGAs": int(rng.integers(1, 5)),
            "maxCPUs": int(rng.integers(0, 3)),
            "nodes": [node(i, float(rng.random()), colorClass=int(rng.integers(0, 9))) for i in ids],
            "edges": [edge(ids[a], ids[b], float(cost[a])) for a, b in pairs if a < b],
        }
        program, machine = both(written(content))
        assert program.n_ops == count
        group_device = rng.integers(0, content["maxFPGAs"], 9)
        parts: list[list[int]] = [[] for _ in range(content["maxFPGAs"])]
        for each in content["nodes"]:
            parts[group_device[each["colorClass"]]].append(each["id"])
        plan = read_split(written(split(*parts)), program, machine)
        assert not check(program, machine, plan, simulate(program, machine, plan))


def test_commands_take_such_files(written: Written, tmp_path: Path) -> None:
    path, out = written(diamond()), tmp_path / "graph.npz"
    runner = CliRunner()
    done = runner.invoke(app, ["import", str(path), "--edge-unit", "ms", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert load_model(str(out)).hash == both(path)[0].hash
    timed = runner.invoke(app, ["simulate", str(path), "--edge-unit", "ms", "--json"])
    assert timed.exit_code == 0, timed.output
    assert "0.007" in timed.output  # the file names its own machine; all on accelerator 0
    refused = runner.invoke(app, ["import", str(path)])
    assert refused.exit_code != 0
    toml = tmp_path / "machine.toml"
    written = runner.invoke(app, ["machines", str(path), "--out", str(toml)])
    assert written.exit_code == 0 and load_machine(str(toml)).hash == read_dnn_machine(path).hash
