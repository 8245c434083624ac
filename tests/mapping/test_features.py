"""What agents see of a Mapping problem: golden rows, edges, and any imported program."""

from __future__ import annotations

import json
from math import log2
from pathlib import Path

import numpy as np
import pytest

from generate import random_program
from loadmaster.machine import load_machine
from loadmaster.mapping.features import COLUMNS, OPS, PLACED, edges, machine_features, node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.program.models import load_model

EDGES = {"resnet50": 72, "resnet101": 140, "bert": 447}


def named(problem: Mapping, op: str) -> dict[str, float]:
    node = int(np.flatnonzero(problem.entries.node_op == problem.program.op_name.index(op))[0])
    return dict(zip(COLUMNS, node_features(problem)[node].tolist(), strict=True))


@pytest.fixture(scope="module")
def problems() -> dict[str, Mapping]:
    return {name: Mapping(load_model(name), load_machine("nnp-i")) for name in EDGES}


@pytest.mark.parametrize("name", EDGES)
def test_edges_of_the_zoo(problems: dict[str, Mapping], name: str) -> None:
    found = edges(problems[name])
    assert found.shape == (2, EDGES[name]) and found.dtype == np.int32
    assert (found[0] < found[1]).all() and found.max() < problems[name].nodes
    assert len(set(zip(*found.tolist(), strict=True))) == EDGES[name]


def test_a_convolution(problems: dict[str, Mapping]) -> None:
    # conv2 of the first block of stage 2: 56x56x128 -> 28x28x128, kernel 3, stride 2; node 13 of 57
    row = named(problems["resnet50"], "stage2.block1.conv2")
    weight = 9 * 128 * 128 + 4 * 128
    nodes, program = problems["resnet50"].nodes, problems["resnet50"].program
    later = program.tensor_bytes[program.tensor_kind == 0].sum() - sum(
        int(program.tensor_bytes[program.tensor_name.index(f"{op}.w")])
        for op in program.op_name[:14]
        if f"{op}.w" in program.tensor_name
    )
    assert row == pytest.approx(
        {
            "op_id": OPS.index("conv"),
            "weight_size": log2(1 + weight) / 32,
            "ifm_x": log2(57) / 16,
            "ifm_y": log2(57) / 16,
            "ifm_z": log2(129) / 16,
            "ofm_x": log2(29) / 16,
            "ofm_y": log2(29) / 16,
            "ofm_z": log2(129) / 16,
            "ifm_size": log2(1 + 56 * 56 * 128) / 32,
            "ofm_size": log2(1 + 28 * 28 * 128) / 32,
            "n_ops_left": (nodes - 1 - 13) / nodes,
            "n_w_left": log2(1 + later) / 32,
            "groups": 1 / 16,
            "kernel_x": 3 / 8,
            "kernel_y": 3 / 8,
            "stride": 2 / 4,
            "pad": 1 / 4,
            "dilation": 1 / 4,
            "batch": 1 / 8,
            "placed_activation": 2,
            "placed_weight": 2,
        },
        rel=1e-6,
    )


def test_the_parts_of_bert(problems: dict[str, Mapping]) -> None:
    bert = problems["bert"]
    lookup = named(bert, "embed.lookup")
    assert lookup["op_id"] == OPS.index("gather")
    assert [lookup[f"ifm_{x}"] * 16 for x in "xyz"] == pytest.approx([log2(129), 1, 1])
    assert lookup["weight_size"] * 32 == pytest.approx(log2(1 + 31_036 * 768))
    assert lookup["ifm_size"] * 32 == pytest.approx(log2(1 + 3 * 128 * 4))
    scores, context = named(bert, "layer3.scores"), named(bert, "layer3.context")
    assert scores["op_id"] == context["op_id"] == OPS.index("bmm")
    assert [scores[f"ifm_{x}"] * 16 for x in "xyz"] == pytest.approx([log2(129), 1, log2(769)])
    assert [context[f"ifm_{x}"] * 16 for x in "xyz"] == pytest.approx([log2(129), log2(129), log2(13)])
    assert named(bert, "layer3.q.matmul")["op_id"] == OPS.index("matmul")
    assert named(bert, "classifier")["n_ops_left"] == named(bert, "classifier")["n_w_left"] == 0
    assert named(bert, "layer0.ln1.moments")["op_id"] == OPS.index("layernorm")
    counts = np.bincount(node_features(bert)[:, 0].astype(int), minlength=len(OPS))
    assert dict(zip(OPS, counts.tolist(), strict=True)) == {
        "conv": 0,
        "matmul": 74,
        "bmm": 24,
        "pool": 0,
        "softmax": 24,
        "gather": 1,
        "layernorm": 49,
        "add": 108,
        "mul": 36,
        "layout": 48,
        "gelu": 12,
        "other": 0,
    }


def test_the_memories_of_a_machine(problems: dict[str, Mapping]) -> None:
    expected = [22 / 40, log2(24 * 2**20) / 40, 34 / 40]
    expected += [log2(bandwidth) / 50 for bandwidth in (6.8e12, 680e9, 67.2e9)]
    assert machine_features(problems["bert"]) == pytest.approx(expected, rel=1e-6)


def test_views_are_looked_through() -> None:
    build = Builder("views")
    x = build.tensor("x", shape=(2, 3), kind="input")
    a = build.tensor("a", shape=(2, 3))
    flat = build.tensor("flat", shape=(6,), alias=a)
    b = build.tensor("b", shape=(6,), kind="output")
    build.op("make", "relu", reads=[x], writes=[a], vector=6)
    build.op("look", "reshape", reads=[(a, 0)], writes=[(flat, 0)], view=True)
    build.op("use", "add", reads=[flat, flat], writes=[b], vector=6)
    problem = Mapping(build.build(), load_machine("nnp-i"))
    assert edges(problem).tolist() == [[0], [1]]
    assert node_features(problem)[:, 0].tolist() == [OPS.index("gelu"), OPS.index("add")]


def test_an_onnx_convolution_has_its_channels_first(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1, 2, 1, 2], group=2),
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 3]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6, 20, 30])],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [8, 3, 3, 5], bytes(4 * 8 * 3 * 15), raw=True)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "small.onnx")
    problem = Mapping(load_model(str(tmp_path / "small.onnx")), load_machine("nnp-i"))
    conv, pool = node_features(problem)
    sizes = [2 ** (16 * v) - 1 for v in conv[2:8]]
    assert sizes == pytest.approx([30, 20, 6, 15, 10, 8], rel=1e-4)
    assert conv[12:19] * [16, 8, 8, 4, 4, 4, 8] == pytest.approx([log2(3), 5, 3, 2, 2, 1, log2(5)], rel=1e-5)
    assert pool[12:18] * [16, 8, 8, 4, 4, 4] == pytest.approx([0, 3, 2, 1, 0, 1])


@pytest.mark.parametrize("seed", range(25))
def test_any_program_has_finite_bounded_features(seed: int) -> None:
    problem = Mapping(random_program(np.random.default_rng(seed)), load_machine("nnp-i"))
    rows, pairs = node_features(problem), edges(problem)
    assert rows.shape == (problem.nodes, 21) and rows.dtype == np.float32
    assert np.isfinite(rows).all() and (rows >= 0).all() and (rows[:, 1:] <= 16).all()
    assert (rows[:, 0] < len(OPS)).all() and (rows[:, PLACED] == problem.slowest).all()
    assert pairs.size == 0 or (pairs[0] < pairs[1]).all()


def test_attributes_that_mean_something_else_are_ignored() -> None:
    build = Builder("odd")
    x = build.tensor("x", shape=(1, 8, 8, 3), kind="input")
    y = build.tensor("y", shape=(1, 8, 8, 3), kind="output")
    odd = {"kernel": "big", "ifm": 7, "ofm": [1, 2], "stride": [], "pad": None, "dilation": 1e9}
    build.op("op", "pool", reads=[x], writes=[y], vector=1, attributes=json.loads(json.dumps(odd)))
    row = node_features(Mapping(build.build(), load_machine("nnp-i")))[0]
    assert 2 ** (16 * row[2:8]) - 1 == pytest.approx([8, 8, 3] * 2, rel=1e-4)
    assert row[13:18].tolist() == [0, 0, 0, 0, 16]
