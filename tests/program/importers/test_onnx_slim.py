"""Weights are left out of an ONNX file as it is read: what is imported does not change, and broken files are refused."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.program.importers.onnx import import_onnx
from loadmaster.program.importers.onnx.read import LARGE, read_slim

onnx = pytest.importorskip("onnx")


def _model(side: int = 256) -> bytes:
    """A product with a large weight, another with a small one, and a reshape whose shape is a constant."""
    helper, numbers = onnx.helper, onnx.numpy_helper
    weights = [
        numbers.from_array(np.ones((side, side), dtype=np.float32), "large"),
        numbers.from_array(np.ones((side, 4), dtype=np.float32), "small"),
        numbers.from_array(np.array([2, -1], dtype=np.int64), "shape"),
        helper.make_tensor("floats", onnx.TensorProto.FLOAT, (side, side), [1.0] * (side * side)),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "large"], ["a"]),
        helper.make_node("MatMul", ["a", "floats"], ["b"]),
        helper.make_node("MatMul", ["b", "small"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (8, side)), ("y", (2, 16)))
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    made: bytes = helper.make_model(graph).SerializeToString()
    return made


def _slim(data: bytes, path: Path) -> bytes:
    path.write_bytes(data)
    with path.open("rb") as file:
        return read_slim(file)


def test_the_program_is_the_same_and_the_numbers_are_gone(tmp_path: Path) -> None:
    data, path = _model(), tmp_path / "g.onnx"
    slim = onnx.ModelProto.FromString(_slim(data, path))
    kept = {tensor.name: tensor.ByteSize() for tensor in slim.graph.initializer}
    assert max(kept["large"], kept["floats"]) < 100 and kept["small"] > 4_000 and kept["shape"] > 16
    whole = onnx.ModelProto.FromString(data)
    assert import_onnx(path).hash == import_onnx(whole).hash


def test_files_of_small_weights_pass_byte_for_byte(tmp_path: Path) -> None:
    data = _model(side=64)
    assert len(data) > LARGE // 4 and _slim(data, tmp_path / "m.onnx") == data


def test_what_is_cut_off_or_changed_is_read_as_protobuf_reads_it(tmp_path: Path) -> None:
    """Whatever protobuf accepts, the slim bytes are accepted too, with the same nodes; and what it refuses, they are."""
    data, path, dice = _model(), tmp_path / "m.onnx", random.Random(0)
    for _ in range(200):
        changed = bytearray(data[: dice.randrange(len(data))] if dice.random() < 0.5 else data)
        for _ in range(dice.randrange(3)):
            if changed:
                changed[dice.randrange(min(len(changed), 200))] = dice.randrange(256)
        slim = _slim(bytes(changed), path)
        try:
            expected = onnx.ModelProto.FromString(bytes(changed))
        except Exception:
            with pytest.raises(LoadmasterError):
                import_onnx(path)
            continue
        found = onnx.ModelProto.FromString(slim)
        assert [node.op_type for node in found.graph.node] == [node.op_type for node in expected.graph.node]


def test_memory_does_not_grow_with_the_weights(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(_model(side=4096))  # 128 MiB and more
    code = (
        "import resource, sys; from loadmaster.program.importers.onnx import import_onnx; import onnx\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "import_onnx(sys.argv[1])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m.onnx"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 32 * 1024
