"""Rows of the least-peak order."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.suites.mapping_cells import load_cell_model, onnx_file
from benchmarks.suites.order import cells, run_order
from benchmarks.suites.order_runtime import RUNTIME, OtherNodes, make_runtime_plan, store_weights
from loadmaster.export.onnx_order import Ran, run_model
from loadmaster.program.importers.onnx.read import read_model


def test_every_graph_has_a_cell_and_a_row_tells_all() -> None:
    names = [cell.case for cell in cells()]
    assert len(names) == len(set(names)) == 23
    row = run_order("order/light_shufflenet", "auto")
    assert (row.value, row.bound, row.baseline, row.status) == (2_885_120, 2_885_120, 3_110_912, "optimal")
    worse = run_order("order/light_shufflenet", "anneal", budget=20)
    assert worse.evaluations == 20 and worse.gap == pytest.approx(worse.value / worse.bound - 1)


def test_the_runtimes_own_order_is_a_row_and_never_better_than_ours() -> None:
    pytest.importorskip("onnxruntime")
    row = run_order("order/light_shufflenet", RUNTIME)
    assert row.solver == RUNTIME and row.status == "feasible" and row.baseline == 3_110_912
    assert row.bound is not None and row.bound <= 2_885_120 <= row.value < row.baseline
    counted = row.extra["counted"]
    assert counted["ours"] <= counted["default"] and counted["ours"] < counted["file"]
    assert counted["ours"] == pytest.approx(row.extra["modelled"], rel=0.005)


def test_without_the_runtime_the_row_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    row = run_order("order/light_shufflenet", RUNTIME)
    assert row.status == "skipped" and "pip install 'loadmaster[onnx]'" in row.extra["reason"]
    assert all(RUNTIME in cell.solvers for cell in cells() if "light_" in cell.case)


def test_an_order_of_other_nodes_is_refused() -> None:
    path = onnx_file("onnx:light_shufflenet")
    program = load_cell_model("onnx:light_shufflenet")
    with pytest.raises(OtherNodes, match="0 of its 446 nodes"):
        make_runtime_plan(path, program, Ran(["fused_1", "fused_2"], 0, []))
    nodes = read_model(path)[0].graph.node
    backwards = [node.name or f"{node.op_type}_{place}" for place, node in enumerate(nodes)][::-1]
    plan = make_runtime_plan(path, program, Ran(backwards, 0, []))
    assert plan.order is not None and plan.order.tolist() == [*range(program.n_ops)][::-1]


def test_weights_are_stored_and_the_model_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = onnx_file("onnx:light_squeezenet")
    stored = store_weights(path, tmp_path / "stored.onnx")
    kinds = {node.op_type for node in read_model(stored)[0].graph.node}
    assert "ConstantOfShape" not in kinds and "Conv" in kinds
    before, after = run_model(path), run_model(stored)
    assert np.array_equal(before.outputs[0], after.outputs[0])


def test_recorded_orders_of_inductor_are_never_better_than_ours() -> None:
    recorded = Path(__file__).parents[2] / "benchmarks" / "results" / "inductor_order.json"
    rows = json.loads(recorded.read_text(encoding="utf-8"))["rows"]
    ours = {row["case"]: row for row in rows if row["solver"] == "auto"}
    assert len(ours) == 8 and all(row["bound"] <= row["value"] for row in ours.values())
    assert all(ours[row["case"]]["value"] <= row["value"] for row in rows)
