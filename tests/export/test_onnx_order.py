"""Orders in ONNX files: the runtime follows them, counts the bytes we count, computes the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from loadmaster.errors import Refused
from loadmaster.export.onnx_order import NotExported, export, export_onnx_order, run_model
from loadmaster.export.plans import ExportRequest
from loadmaster.order.problem import PeakOrder
from loadmaster.program.importers.onnx import import_onnx
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

pytest.importorskip("onnxruntime")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
IR, OPSET = 10, 17
"""Older than what the runtime knows, whichever it is."""


def branches(path: Path, rng: np.random.Generator, count: int = 6, rows: int | str = 32) -> Path:
    """Products of matrices in branches of different widths, written in the worst order: all the wide
    ones first."""
    nodes, inits = [], []
    for i in range(count):
        wide = int(rng.integers(64, 512))
        up = rng.standard_normal((8, wide)).astype(np.float32)
        down = rng.standard_normal((wide, 8)).astype(np.float32)
        inits += [onnx.numpy_helper.from_array(up, f"up{i}"), onnx.numpy_helper.from_array(down, f"down{i}")]
        nodes.append(helper.make_node("MatMul", ["x", f"up{i}"], [f"wide{i}"], name=f"widen{i}"))
    nodes += [
        helper.make_node("MatMul", [f"wide{i}", f"down{i}"], [f"thin{i}"], name=f"narrow{i}")
        for i in range(count)
    ]
    nodes.append(helper.make_node("Sum", [f"thin{i}" for i in range(count)], ["y"], name="sum"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 8]) for name in "xy")
    graph = helper.make_graph(nodes, "branches", [x], [y], inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.save(model, path)
    return path


def planned(model: Path, **options: Any) -> tuple[PeakOrder, np.ndarray]:
    problem = PeakOrder(import_onnx(model, **options))
    solution = solve(make_labelled("order", "auto"), problem, Budget())
    assert solution.decision is not None and solution.value == solution.bound.value
    return problem, solution.decision


@pytest.mark.parametrize("seed", range(4))
def test_the_runtime_follows_any_order_and_counts_the_same_bytes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = branches(tmp_path / "m.onnx", rng)
    problem, best = planned(model)
    inputs = 32 * 8 * 4  # the caller's own memory, which the runtime does not count
    peaks = {}
    for number, order in enumerate(
        [best, problem.program_order, *problem.from_keys(rng.random((2, problem.nodes)))]
    ):
        out = tmp_path / f"{number}.onnx"
        export_onnx_order(model, problem.program, problem.machine, problem.plan(order), out)
        ran = run_model(out)
        assert ran.nodes == [problem.program.op_name[op] for op in problem.graph.node_op[order]]
        peaks[number] = ran.peak_bytes
        alive = problem.native.profile(np.ascontiguousarray(order, dtype=np.int32))
        # x lives until the last branch has begun: outside the runtime's count.
        last = max(at for at, op in enumerate(ran.nodes) if op.startswith("widen"))
        counted = [bytes_ - inputs * (at <= last) for at, bytes_ in enumerate(alive.tolist())]
        resident = ran.peak_bytes - max(counted)
        assert resident in (0, problem.resident)  # weights are counted or not, and nothing else
        assert np.array_equal(ran.outputs[0], run_model(model).outputs[0])
    assert peaks[0] == min(peaks.values()) < peaks[1]
    assert peaks[0] <= run_model(model, file_order=False).peak_bytes


@pytest.mark.parametrize("name", ["shufflenet", "densenet121", "squeezenet"])
def test_real_graphs_need_no_more_than_under_the_runtimes_own_order(tmp_path: Path, name: str) -> None:
    model, out = LIGHT / f"light_{name}.onnx", tmp_path / "ordered.onnx"
    problem, best = planned(model, inplace=("relu",))
    moved = export_onnx_order(model, problem.program, problem.machine, problem.plan(best), out)
    ours, default = run_model(out), run_model(model, file_order=False)
    assert moved > 0 and ours.peak_bytes <= default.peak_bytes
    if name == "densenet121":
        assert ours.peak_bytes < default.peak_bytes
    value = problem.evaluate(best)
    assert value is not None and abs(ours.peak_bytes / value - 1) < 0.005
    assert all(np.array_equal(a, b) for a, b in zip(ours.outputs, default.outputs, strict=True))
    before, after = onnx.load(model), onnx.load(out)
    key = lambda node: node.SerializeToString()  # noqa: E731
    assert sorted(map(key, before.graph.node)) == sorted(map(key, after.graph.node))
    assert (before.ir_version, before.opset_import) == (after.ir_version, after.opset_import)


def test_large_weights_are_written_as_they_were(tmp_path: Path) -> None:
    """Importing reads their sizes alone; a model that is written needs all of them."""
    weight = (
        np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    )  # above what is read slim
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"y{i}"], name=f"n{i}") for i in range(2)]
    x, *ys = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 256]) for name in ("x", "y0", "y1"))
    graph = helper.make_graph(nodes, "wide", [x], ys, [onnx.numpy_helper.from_array(weight, "w")])
    model, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR), model)
    problem, best = planned(model)
    export_onnx_order(model, problem.program, problem.machine, problem.plan(best), out)
    assert np.array_equal(onnx.numpy_helper.to_array(onnx.load(out).graph.initializer[0]), weight)


def test_what_must_not_be_written_is_refused(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx", np.random.default_rng(0))
    problem, best = planned(model)
    before = model.read_bytes()
    with pytest.raises(NotExported, match="the model itself"):
        export_onnx_order(model, problem.program, problem.machine, problem.plan(best), model)
    backwards = problem.plan(best).changed(order=problem.plan(best).order[::-1].copy())
    with pytest.raises(Refused, match="checker refuses"):
        export_onnx_order(model, problem.program, problem.machine, backwards, tmp_path / "o.onnx")
    assert model.read_bytes() == before and not (tmp_path / "o.onnx").exists()


def test_what_is_exported_is_run_and_measured(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx", np.random.default_rng(1))
    problem, best = planned(model)
    out = tmp_path / "out.onnx"
    request = ExportRequest(str(model), problem.program, problem.machine, problem.plan(best), out)
    # Depth first, as the runtime goes, is the best way through branches: nothing to win.
    assert export(request).verdict == "already as good" and not out.exists()
    done = export(replace(request, force=True))
    assert done.verdict == "verified" and done.files == (out, tmp_path / "out.py")
    before, after = done.figures["runtime_peak_bytes"], done.figures["measured_peak_bytes"]
    assert after == run_model(out).peak_bytes and after <= before  # type: ignore[operator]
    keys = np.random.default_rng(0).random((200, problem.nodes))
    orders = problem.from_keys(keys)
    worst = problem.plan(orders[int(problem.score(orders).value.argmax())])
    bad = ExportRequest(str(model), problem.program, problem.machine, worst, tmp_path / "bad.onnx")
    with pytest.raises(Refused, match="runtime's own order"):
        export(bad)
    assert not (tmp_path / "bad.onnx").exists() and not (tmp_path / "bad.py").exists()
    assert export(replace(bad, force=True)).verdict == "verified"
    assert export(replace(bad, verify=False, out=tmp_path / "unseen.onnx")).verdict == "unverified"


def test_a_model_with_open_sizes_is_measured_with_those_that_were_planned(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx", np.random.default_rng(0), rows="batch")
    peaks = {}
    for batch in (1, 64):
        problem, decision = planned(model, shapes={"batch": (batch,)})
        out = tmp_path / f"{batch}.onnx"
        request = ExportRequest(
            str(model), problem.program, problem.machine, problem.plan(decision), out, force=True
        )
        peaks[batch] = export(request).figures["measured_peak_bytes"]
        assert peaks[batch] == run_model(out, shapes={"x": (batch, 8)}).peak_bytes
    assert peaks[64] > 32 * peaks[1]
