"""The ONNX importer: golden values of nine real graphs, the rules one by one, and wrong input."""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import BadProgram
from loadmaster.program import Program, TensorKind, TieKind, load, save
from loadmaster.program.importers.onnx import plan
from loadmaster.program.importers.onnx.importer import import_onnx

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# nodes, ops, weights, weight bytes, multiply-adds, peak bytes, op of the peak; found without our importer
GOLDEN = {
    "bvlc_alexnet": (40, 24, 16, 243_860_896, 654_560_384, 2_239_488, 1),
    "densenet121": (1_746, 668, 848, 32_584_608, 2_834_161_664, 8_429_568, 62),
    "inception_v1": (237, 143, 116, 27_994_208, 1_431_556_352, 6_422_528, 1),
    "inception_v2": (916, 371, 485, 44_939_168, 2_018_851_840, 6_422_528, 1),
    "resnet50": (415, 176, 267, 102_440_608, 4_089_184_256, 9_633_792, 13),
    "shufflenet": (446, 203, 248, 5_680_608, 124_664_528, 3_110_912, 5),
    "squeezenet": (105, 66, 52, 4_941_984, 349_151_936, 6_308_352, 1),
    "vgg19": (82, 46, 38, 574_668_960, 19_632_062_464, 25_690_112, 1),
    "zfnet512": (38, 22, 16, 349_002_144, 1_481_727_008, 9_124_608, 1),
}


def info(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """'x,,w' has an optional operand in the middle that is not there."""
    return helper.make_node(op, inputs.split(",") if inputs else [], outputs.split(","), **attributes)


def numbers(name: str, values: Any, dtype: Any = np.int64) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(values, dtype=dtype), name)


def weight(name: str, *shape: int) -> Any:
    """A weight whose numbers are in another file that does not exist: it must never be opened."""
    tensor = onnx.TensorProto(name=name, data_type=FLOAT, dims=shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    opset: int = 21,
    values: Sequence[Any] = (),
) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights, value_info=values)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def imported(
    nodes: Sequence[Any], shape: Sequence[int] = (2, 8), *, outputs: str = "y", **options: Any
) -> Program:
    """One float input x; outputs without declared shapes; weights in `weights`."""
    made = {key: options.pop(key) for key in ("weights", "opset", "values") if key in options}
    results = [info(name, None) for name in outputs.split(",")]
    return import_onnx(model(nodes, [info("x", shape)], results, **made), **options)


def op_named(program: Program, name: str) -> int:
    return program.op_name.index(name)


def tensor_named(program: Program, name: str) -> int:
    return program.tensor_name.index(name)


def read_bytes(program: Program, op: int) -> dict[str, int]:
    rows = range(program.read_start[op], program.read_start[op + 1])
    return {program.tensor_name[program.read_tensor[row]]: int(program.read_bytes[row]) for row in rows}


def peak(program: Program) -> tuple[int, int]:
    """Bytes alive at the worst op and that op, by a slow and obvious sweep."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for tensor, kind in enumerate(program.tensor_kind):
        if kind == TensorKind.INPUT:
            first[tensor] = 0
    for op in range(program.n_ops):
        for tensor in [*program.reads(op), *program.writes(op)]:
            root = int(program.tensor_alias[tensor])
            first.setdefault(root, op)
            last[root] = op
    for tensor, kind in enumerate(program.tensor_kind):
        if kind == TensorKind.OUTPUT:
            last[int(program.tensor_alias[tensor])] = program.n_ops - 1
    lives = [
        (first[root], last[root], int(program.storage_bytes[root]))
        for root in last
        if program.tensor_kind[root] != TensorKind.WEIGHT
    ]
    sums = [sum(size for begin, end, size in lives if begin <= op <= end) for op in range(program.n_ops)]
    return max(sums), sums.index(max(sums))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, tmp_path: Path) -> None:
    nodes, ops, weights, weight_bytes, multiply_adds, peak_bytes, at = GOLDEN[name]
    path = LIGHT / f"light_{name}.onnx"
    program = import_onnx(path)
    is_weight = program.tensor_kind == TensorKind.WEIGHT
    assert len(onnx.load(path).graph.node) == nodes
    assert program.n_ops == ops
    assert int(is_weight.sum()) == weights
    assert int(program.tensor_bytes[is_weight].sum()) == weight_bytes
    assert int(program.op_flops[:, 0].sum()) == 2 * multiply_adds
    assert peak(program) == (peak_bytes, at)
    assert program.order_source == "file"
    assert program.warnings == (f"{nodes - ops} of {nodes} nodes are constant and were folded away",)
    assert not any(kind.startswith("unknown:") for kind in program.op_kind.values)
    save(program, tmp_path / "p.npz")
    assert load(tmp_path / "p.npz").named_hash == program.named_hash


# One node each: attributes, shapes of x and of the weights w, v; kind, matrix, vector, transcendental
COSTS = [
    (
        "Conv",
        "x,w,v",
        {"group": 2, "kernel_shape": [3, 3]},
        (1, 4, 8, 8),
        [(6, 2, 3, 3), (6,)],
        ("conv", 2 * 216 * 18, 216, 0),
    ),
    ("ConvTranspose", "x,w", {}, (1, 4, 8, 8), [(4, 6, 3, 3)], ("conv", 2 * 256 * 54, 0, 0)),
    ("Gemm", "x,w,v", {"transA": 1}, (8, 2), [(8, 5), (5,)], ("matmul", 2 * 2 * 5 * 8, 10, 0)),
    ("MatMul", "x,w", {}, (3, 2, 8), [(8, 5)], ("matmul", 2 * 3 * 2 * 5 * 8, 0, 0)),
    (
        "Einsum",
        "x,w",
        {"equation": "bij,bjk->bik"},
        (3, 2, 8),
        [(3, 8, 5)],
        ("matmul", 2 * 3 * 2 * 5 * 8, 0, 0),
    ),
    (
        "Einsum",
        "x,w",
        {"equation": "...ij,jk->...ik"},
        (3, 2, 8),
        [(8, 5)],
        ("matmul", 2 * 3 * 2 * 5 * 8, 0, 0),
    ),
    ("Einsum", "x", {"equation": "ij->ji"}, (2, 8), [], ("transpose", 0, 0, 0)),
    ("Einsum", "x", {"equation": "ij->i"}, (2, 8), [], ("reduce_sum", 0, 16, 0)),
    (
        "LSTM",
        "x,w,v",
        {"hidden_size": 3},
        (5, 2, 8),
        [(1, 12, 8), (1, 12, 3)],
        ("lstm", 2 * 10 * (96 + 36), 4 * 30, 5 * 30),
    ),
    (
        "Attention",
        "x,w,v",
        {"q_num_heads": 4, "kv_num_heads": 2},
        (2, 6, 32),
        [(2, 10, 16), (2, 10, 16)],
        ("attention", 2 * (2 * 2 * 4 * 6 * 10 * 8), 5 * 480, 480),
    ),
    ("MaxPool", "x", {"kernel_shape": [2, 2]}, (1, 4, 8, 8), [], ("pool", 0, 4 * 196, 0)),
    ("GlobalAveragePool", "x", {}, (1, 4, 8, 8), [], ("pool", 0, 64 * 4, 0)),
    ("BatchNormalization", "x,w,v,w,v", {}, (1, 4, 8, 8), [(4,), (4,)], ("batchnorm", 0, 512, 0)),
    ("LayerNormalization", "x,w", {}, (2, 8), [(8,)], ("layernorm", 0, 7 * 16, 2)),
    ("LRN", "x", {"size": 5}, (1, 4, 8, 8), [], ("lrn", 0, 9 * 256, 256)),
    ("Softmax", "x", {}, (2, 8), [], ("softmax", 0, 48, 16)),
    ("Gelu", "x", {}, (2, 8), [], ("gelu", 0, 0, 16)),
    ("Sigmoid", "x", {}, (2, 8), [], ("logistic", 0, 0, 16)),
    ("HardSwish", "x", {}, (2, 8), [], ("hardswish", 0, 80, 0)),
    ("Add", "x,w", {}, (2, 8), [(4, 1, 1)], ("add", 0, 64, 0)),
    ("Sum", "x,w,v", {}, (2, 8), [(2, 8), (8,)], ("add", 0, 32, 0)),
    ("Greater", "x,w", {}, (2, 8), [(8,)], ("compare", 0, 16, 0)),
    ("Cast", "x", {"to": onnx.TensorProto.FLOAT16}, (2, 8), [], ("convert", 0, 16, 0)),
    ("ReduceMean", "x", {}, (2, 8), [], ("reduce_sum", 0, 17, 0)),
    ("ArgMax", "x", {"axis": 1}, (2, 8), [], ("argmax", 0, 16, 0)),
    ("Transpose", "x", {}, (2, 8), [], ("transpose", 0, 0, 0)),
    ("DepthToSpace", "x", {"blocksize": 2}, (1, 4, 8, 8), [], ("depthtospace", 0, 0, 0)),
    ("GridSample", "x,w", {}, (1, 4, 8, 8), [(1, 3, 3, 2)], ("gridsample", 0, 8 * 36, 0)),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "x", "weights", "expected"), COSTS)
def test_costs(op: str, inputs: str, attributes: Any, x: Any, weights: Any, expected: Any) -> None:
    stubs = [weight(name, *shape) for name, shape in zip("wv", weights, strict=False)]
    program = imported([node(op, inputs, "y", **attributes)], x, weights=stubs, opset=23, strict=True)
    assert (program.op_kind[0], *program.op_flops[0].tolist()) == expected
    assert program.attributes(0)["onnx"] == op


def test_quantized_ops_compute_in_the_type_they_read() -> None:
    nodes = [
        node("QuantizeLinear", "x,scale,zero", "q"),
        node("QLinearMatMul", "q,scale,zero,w,scale,zero,scale,zero", "r"),
        node("MatMulInteger", "q,w", "s"),
        node("DequantizeLinear", "r,scale,zero", "y"),
    ]
    weights = [
        numbers("scale", 0.5, np.float32),
        numbers("zero", 3, np.uint8),
        numbers("w", np.ones((8, 4)), np.uint8),
    ]
    program = imported(nodes, weights=weights, outputs="y,s")
    assert list(program.op_kind) == ["quantize", "matmul", "matmul", "dequantizelinear"]
    assert list(program.op_dtype) == ["f32", "u8", "u8", "f32"]
    assert program.op_flops[:, 0].tolist() == [0, 128, 128, 0]
    assert program.tensor_bytes[tensor_named(program, "s")] == 4 * 8


def test_bytes_really_accessed() -> None:
    nodes = [
        node("Gather", "table,ids", "rows", name="gather"),
        node("Slice", "rows,from,to", "part", name="slice"),
        node("Split", "x", "a,b,c,d", name="split", axis=1, num_outputs=4),
        node("Expand", "part,wide", "y", name="expand"),
        node("Add", "a,c", "z", name="add"),
    ]
    weights = [weight("table", 1000, 8), numbers("from", [0]), numbers("to", [1]), numbers("wide", [6, 8])]
    inputs = [info("x", (2, 8)), info("ids", (3,), INT64)]
    program = import_onnx(model(nodes, inputs, [info("y", None), info("z", None)], weights))
    assert read_bytes(program, op_named(program, "gather")) == {"table": 3 * 32, "ids": 3 * 8}
    assert read_bytes(program, op_named(program, "slice")) == {"rows": 32}
    assert read_bytes(program, op_named(program, "split")) == {"x": 2 * 2 * 2 * 4}  # two of the four parts
    assert read_bytes(program, op_named(program, "expand")) == {"part": 32}
    assert "b" not in program.tensor_name
    assert "wide" not in program.tensor_name


def test_views_share_storage() -> None:
    nodes = [
        node("Reshape", "x,shape", "a"),
        node("Flatten", "a", "b"),
        node("Unsqueeze", "b,axes", "c"),
        node("Squeeze", "c,axes", "d"),
        node("Identity", "d", "e"),
        node("Dropout", "e", "y"),
    ]
    weights = [numbers("shape", [4, -1]), numbers("axes", [0])]
    program = imported(nodes, weights=weights)
    assert list(program.op_kind) == ["reshape", "flatten", "unsqueeze", "squeeze", "identity", "identity"]
    assert program.op_view.all()
    assert program.tensor_alias.tolist() == [tensor_named(program, "x")] * 7
    assert program.read_bytes.sum() == program.write_bytes.sum() == program.op_flops.sum() == 0
    assert program.tensor_kind[tensor_named(program, "y")] == TensorKind.OUTPUT
    assert program.shape(tensor_named(program, "c")) == (1, 4, 4)


def test_a_dropout_that_trains_or_whose_mask_is_read_is_no_view() -> None:
    nodes = [node("Dropout", "x,,on", "y"), node("Dropout", "x", "z,mask")]
    program = imported(nodes, outputs="y,z,mask", weights=[numbers("on", True, np.bool_)])
    assert list(program.op_kind) == ["dropout", "dropout"]
    assert not program.op_view.any()


def test_constants_are_folded_into_weights_and_attributes() -> None:
    nodes = [
        node("ConstantOfShape", "size", "w"),
        node("Unsqueeze", "w,axes", "wide"),
        node("Mul", "wide,two", "twice"),
        node("Add", "x,twice", "y", name="add"),
    ]
    weights = [numbers("size", [8]), numbers("axes", [0]), numbers("two", 2, np.float32)]
    program = imported(nodes, weights=weights)
    assert program.op_name == ("add",)
    assert sorted(program.tensor_name) == ["twice", "x", "y"]
    assert program.tensor_kind[tensor_named(program, "twice")] == TensorKind.WEIGHT
    assert program.warnings == ("3 of 4 nodes are constant and were folded away",)


def test_sizes_computed_by_the_graph_itself() -> None:
    """The idiom of exporters: take a shape apart, put it together, choose by comparison."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape,zero", "batch"),
        node("Unsqueeze", "batch,zero1", "batch1"),
        node("Concat", "batch1,minus", "target", axis=0),
        node("Equal", "target,minus", "free"),
        node("ConstantOfShape", "two", "ones", value=numbers("v", [4])),
        node("Where", "free,ones,target", "final"),
        node("Expand", "column,final", "y", name="expand"),
        node("Range", "zero,batch,one", "count"),
        node("Reshape", "x,target", "z"),
    ]
    weights = [
        numbers("zero", 0),
        numbers("zero1", [0]),
        numbers("one", 1),
        numbers("minus", [-1]),
        numbers("two", [2]),
    ]
    inputs = [info("x", ("batch", 8)), info("column", ("batch", 1))]
    outputs = [info("y", None), info("z", None), info("count", None, INT64)]
    program = import_onnx(model(nodes, inputs, outputs, weights), shapes={"x": (3, 8)})
    assert program.shape(tensor_named(program, "y")) == (3, 4)
    assert program.shape(tensor_named(program, "z")) == (3, 8)
    assert program.shape(tensor_named(program, "count")) == (3,)  # constant: copied from a weight
    assert program.op_kind[op_named(program, "copy_count")] == "copy"
    assert program.tensor_kind[tensor_named(program, "column")] == TensorKind.INPUT


def test_random_numbers_are_not_constant_and_dead_ops_are_dropped() -> None:
    nodes = [node("RandomNormal", "", "r", shape=[2, 8]), node("Add", "x,r", "y"), node("Exp", "x", "nobody")]
    program = imported(nodes)
    assert list(program.op_kind) == ["random", "add"]


def test_outputs_that_no_op_makes() -> None:
    graph = model(
        [node("Relu", "x", "y")], [info("x", (2, 8))], [info("y", None), info("x", (2, 8)), info("y", None)]
    )
    program = import_onnx(graph)
    assert list(program.op_kind) == ["relu", "copy", "copy"]
    assert (program.tensor_kind == TensorKind.OUTPUT).sum() == 3


def test_old_files_list_weights_as_inputs() -> None:
    graph = model(
        [node("MatMul", "x,w", "y")],
        [info("x", (2, 8)), info("w", (8, 4))],
        [info("y", None)],
        [weight("w", 8, 4)],
    )
    program = import_onnx(graph)
    assert program.tensor_kind[tensor_named(program, "w")] == TensorKind.WEIGHT


def test_inplace_ties_only_inputs_that_die() -> None:
    nodes = [
        node("Exp", "x", "a"),
        node("Relu", "a", "b"),  # a dies here
        node("Relu", "b", "c"),  # b is read again
        node("Add", "b,c", "d"),
        node("Relu", "x", "e"),  # x is an input
        node("Reshape", "d,shape", "f"),
        node("Relu", "d", "g"),  # d lives on in its view f
        node("Add", "f,g", "h"),
        node("Add", "h,e", "y"),
        node("Relu", "y", "z"),  # y is an output
    ]
    options: dict[str, Any] = {"weights": [numbers("shape", [2, 8])], "outputs": "y,z"}
    assert len(imported(nodes, **options).tie_kind) == 0
    program = imported(nodes, inplace=["relu"], **options)
    assert program.tie_kind.tolist() == [TieKind.INPLACE]
    assert [program.tensor_name[t] for t in (program.tie_source[0], program.tie_target[0])] == ["a", "b"]
    assert program.tie_at.tolist() == [1]
    with pytest.raises(BadProgram, match=r"'rellu' is no elementwise op \(did you mean 'relu'\?\)"):
        imported(nodes, inplace=["rellu"], **options)


def test_local_functions_are_inlined() -> None:
    body = [node("Exp", "a", "t"), node("Neg", "t", "b")]
    function = helper.make_function("custom", "F", ["a"], ["b"], body, [helper.make_opsetid("", 21)])
    graph = model(
        [helper.make_node("F", ["x"], ["y"], domain="custom")], [info("x", (2,))], [info("y", None)]
    )
    graph.functions.append(function)
    assert list(import_onnx(graph).op_kind) == ["exp", "neg"]


def test_functions_that_would_explode_are_refused() -> None:
    graph = model(
        [helper.make_node("F0", ["x"], ["y"], domain="custom")], [info("x", (2,))], [info("y", None)]
    )
    for level in range(60):
        calls = [helper.make_node(f"F{level + 1}", ["a"], [f"b{i}"], domain="custom") for i in range(4)]
        opsets = [helper.make_opsetid("custom", 1)]
        graph.functions.append(helper.make_function("custom", f"F{level}", ["a"], ["b0"], calls, opsets))
    with pytest.raises(BadProgram, match="stand for more than 1000000 nodes"):
        import_onnx(graph)
    graph.functions[0].node[0].op_type = "F0"
    del graph.functions[1:]
    with pytest.raises(BadProgram, match="functions call each other more than 64 deep"):
        import_onnx(graph)


def test_an_unsorted_graph_is_sorted_and_a_cycle_refused() -> None:
    program = imported([node("Relu", "a", "y"), node("Exp", "x", "a")])
    assert list(program.op_kind) == ["exp", "relu"]
    assert program.op_source.tolist() == [1, 0]
    assert program.order_source == "topological"
    with pytest.raises(BadProgram, match="cycle of 2"):
        imported([node("Add", "x,b", "a"), node("Relu", "a", "b"), node("Exp", "b", "y")])


# Control flow


def branch(op: str, name: str) -> Any:
    return helper.make_graph([node(op, "x", name)], name, [], [info(name, None)])


def test_if_takes_the_branch_with_most_flops() -> None:
    nodes = [
        node("ReduceMax", "x", "top", keepdims=0),
        node("Cast", "top", "cond", to=BOOL),
        node(
            "If",
            "cond",
            "y",
            name="choose",
            then_branch=branch("Neg", "t"),
            else_branch=branch("Softmax", "e"),
        ),
    ]
    program = imported(nodes)
    assert "softmax" in program.op_kind.values
    assert "neg" not in program.op_kind.values
    assert program.warnings == ("1 branches: the one with most flops is taken at choose",)
    assert program.op_name[-1] == "softmax_0"  # the condition decides nothing any more
    nodes[:2] = [node("Constant", "", "cond", value=numbers("v", True, np.bool_))]
    program = imported(nodes)
    assert list(program.op_kind) == ["neg"]
    assert program.warnings == ("1 of 2 nodes are constant and were folded away",)


def loop_body(*extra: Any, keeps_on: str = "go") -> Any:
    """state' = tanh(state + x); gives state' for stacking too. x comes from around the loop."""
    nodes = [
        node("Add", "state,x", "sum", name="add"),
        node("Tanh", "sum", "next", name="tanh"),
        node("Identity", keeps_on, "on"),
        node("Identity", "next", "each"),
        *extra,
    ]
    inputs = [info("i", (), INT64), info("go", (), BOOL), info("state", None)]
    return helper.make_graph(
        nodes, "body", inputs, [info("on", (), BOOL), info("next", None), info("each", None)]
    )


def loop(limit: int, body: Any | None = None, **options: Any) -> Program:
    nodes = [
        node("Exp", "x", "start"),
        node("Loop", "m,,start", "y,all", name="rnn", body=body or loop_body()),
    ]
    return imported(nodes, outputs="y,all", weights=[numbers("m", limit)], **options)


def test_a_short_loop_is_unrolled() -> None:
    program = loop(3)
    assert list(program.op_kind) == ["exp", *["add", "tanh", "identity"] * 3, "concat"]
    assert program.n_loops == 0
    assert program.op_name[1] == "rnn/t0/add"
    assert program.op_scope[4] == "rnn/t1"
    assert program.op_source.tolist() == [0] + [1] * 10
    assert program.shape(tensor_named(program, "all")) == (3, 2, 8)
    assert program.warnings == ()


def test_a_long_loop_is_one_body() -> None:
    program = loop(100_000)
    assert program.loop_trips.tolist() == [100_000]
    assert list(program.op_kind) == ["exp", "copy", "add", "tanh", "identity", "dynamic_update_slice"]
    assert program.op_loop.tolist() == [-1, -1, 0, 0, 0, 0]
    assert program.tie_kind.tolist() == [TieKind.CARRIED]
    assert program.tensor_name[program.tie_target[0]] == "y"
    assert program.op_repeat.tolist() == [1, 1] + [100_000] * 4
    assert program.shape(tensor_named(program, "all")) == (100_000, 2, 8)
    row = program.write_start[op_named(program, "rnn/stack0")]
    assert program.write_bytes[row] == 2 * 8 * 4  # one slice a trip


def test_a_long_loop_keeps_what_only_the_next_trip_needs() -> None:
    body = helper.make_graph(
        [node("Add", "a,b", "a2"), node("Tanh", "b", "b2"), node("Neg", "c", "c2")],
        "body",
        [info("i", (), INT64), info("go", (), BOOL), info("a", None), info("b", None), info("c", None)],
        [info("go", (), BOOL), info("a2", None), info("b2", None), info("c2", None)],
    )
    program = imported([node("Loop", "m,,x,x,x", "y,,", body=body)], weights=[numbers("m", 50_000)])
    assert list(program.op_kind) == ["copy", "copy", "add", "tanh"]
    assert program.tie_kind.tolist() == [TieKind.CARRIED] * 2


def test_a_long_scan_slices_its_weights_in_each_trip() -> None:
    body = helper.make_graph(
        [node("Add", "state,part", "next")],
        "body",
        [info("state", (8,)), info("part", (8,))],
        [info("next", (8,))],
    )
    nodes = [node("Scan", "x,rows", "y", body=body, num_scan_inputs=1)]
    program = imported(nodes, (8,), weights=[weight("rows", 50_000, 8)])
    assert list(program.op_kind) == ["copy", "slice", "add"]
    assert read_bytes(program, 1) == {"rows": 32}


def test_trip_counts() -> None:
    unknown = "loop 'rnn' has an unknown trip count, 1 is taken: give --trip rnn=N"
    assert loop(2**63 - 1).warnings == (unknown,)
    assert loop(2**63 - 1, trips={"rnn": 2}).n_ops == 1 + 2 * 3 + 1
    assert list(loop(0).op_kind) == ["exp", "copy"]  # the state as it enters, and an empty stack
    dynamic = loop_body(
        node("ReduceMax", "next", "top", keepdims=0), node("Cast", "top", "stop", to=BOOL), keeps_on="stop"
    )
    assert loop(4, dynamic).warnings == (
        "loop 'rnn' may stop before its 4 trips: give --trip rnn=N if it does",
    )
    counted = loop_body(
        node("Constant", "", "two", value=numbers("v", 2)), node("Less", "i,two", "more"), keeps_on="more"
    )
    assert loop(10, counted).n_ops == 1 + 3 * 3 + 1  # i = 0, 1, 2
    with pytest.raises(BadProgram, match=r"no loop 'run' .did you mean 'rnn'"):
        loop(4, trips={"run": 2})
    with pytest.raises(BadProgram, match="loop 'rnn' has 0 trips"):
        loop(4, trips={"rnn": 0})


@pytest.mark.parametrize("length", [3, 30_000])
def test_scan(length: int) -> None:
    body = helper.make_graph(
        [node("Add", "state,part", "next"), node("Neg", "next", "each")],
        "body",
        [info("state", (8,)), info("part", (8,))],
        [info("next", (8,)), info("each", (8,))],
    )
    nodes = [
        node(
            "Scan",
            "init,x",
            "y,all",
            name="scan",
            body=body,
            num_scan_inputs=1,
            scan_input_axes=[1],
            scan_output_axes=[-1],
        )
    ]
    program = imported(nodes, (8, length), weights=[weight("init", 8)], outputs="y,all")
    assert program.shape(tensor_named(program, "all")) == (8, length)
    once = ["slice", "add", "neg"]
    if length == 3:
        assert list(program.op_kind) == [*once * 3, "concat"]
    else:
        assert list(program.op_kind) == ["copy", *once, "dynamic_update_slice"]
        assert program.loop_trips.tolist() == [length]
    assert read_bytes(program, op_named(program, next(n for n in program.op_name if "slice0" in n))) == {
        "x": 32
    }


def test_deeply_nested_loops_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MOST_VISITS", 10_000)
    body = loop_body()
    for _ in range(20):
        inner = node("Loop", "m,,state", "next,each", body=body)
        inputs = [info("i", (), INT64), info("go", (), BOOL), info("state", None)]
        outputs = [info("go", (), BOOL), info("next", None), info("each", None)]
        body = helper.make_graph([inner], "body", inputs, outputs)
    with pytest.raises(BadProgram, match="stand for more than 10000 nodes: give fewer trips"):
        loop(1000, body)


# Unknown ops, sizes and types


def test_unknown_ops_get_one_warning_or_an_error() -> None:
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="custom"),
        helper.make_node("Foo", ["a"], ["b"], domain="custom"),
        node("Det", "b", "y"),
    ]
    values = [info("a", (2, 8)), info("b", (4, 4))]
    program = imported(nodes, values=values)
    assert list(program.op_kind) == ["unknown:Foo", "unknown:Foo", "unknown:Det"]
    assert program.op_flops[:, 1].tolist() == [16, 16, 1]
    assert program.warnings == ("3 ops of 2 unknown kinds got an estimate: Foo ×2, Det ×1",)
    with pytest.raises(BadProgram, match="3 ops of 2 unknown kinds: Foo ×2, Det ×1"):
        imported(nodes, values=values, strict=True)
    with pytest.raises(BadProgram, match="tensor 'a' has an unknown number of dimensions: give --shape a="):
        imported(nodes)
    assert imported(nodes, shapes={"a": (2, 8), "b": (4, 4)}).hash == program.hash


def test_unknown_dimensions_are_never_guessed() -> None:
    def graph(*shape: int | str) -> Any:
        return model([node("Relu", "data", "y")], [info("data", shape)], [info("y", None)])

    with pytest.raises(BadProgram) as error:
        import_onnx(graph("batch", 3, 224, 224))
    assert str(error.value) == "tensor 'data' has unknown dimension 'batch': give --shape data=1,3,224,224"
    assert import_onnx(graph("batch", 3), shapes={"data": (5, 3)}).tensor_bytes.tolist() == [60, 60]
    assert import_onnx(graph(1, 3), shapes={"data": (5, 3)}).tensor_bytes.tolist() == [60, 60]
    with pytest.raises(BadProgram, match=r"no tensor 'dat' .did you mean 'data'"):
        import_onnx(graph(1, 3), shapes={"dat": (5, 3)})
    with pytest.raises(BadProgram, match="has 2 dimensions and --shape gives 1"):
        import_onnx(graph(1, 3), shapes={"data": (5,)})
    with pytest.raises(BadProgram, match="give whole numbers from 0 up"):
        import_onnx(graph(1, 3), shapes={"data": (-5, 3)})
    with pytest.raises(BadProgram, match="dimension 'n' of input 'data' is 4 here and 3 elsewhere"):
        import_onnx(graph("n", "n"), shapes={"data": (3, 4)})
    with pytest.raises(BadProgram, match=r"tensor 'i' has unknown dimension '.': give --shape i=2,1"):
        imported([node("NonZero", "x", "i"), node("Cast", "i", "y", to=FLOAT)])
    found = imported([node("NonZero", "x", "i"), node("Cast", "i", "y", to=FLOAT)], shapes={"i": (2, 7)})
    assert found.tensor_bytes[tensor_named(found, "y")] == 2 * 7 * 4


def test_sizes_stated_for_another_shape_are_not_used() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["y"], domain="custom")]
    graph = model(nodes, [info("x", (1, 8))], [info("y", (1, 8))])
    assert import_onnx(graph).tensor_bytes.tolist() == [32, 32]
    with pytest.raises(BadProgram, match="tensor 'y' has an unknown number of dimensions"):
        import_onnx(graph, shapes={"x": (5, 8)})


def test_texts_sequences_and_misfits_are_named() -> None:
    with pytest.raises(BadProgram, match="tensor 's' has elements of type STRING"):
        import_onnx(
            model([node("Identity", "s", "y")], [info("s", (2,), onnx.TensorProto.STRING)], [info("y", None)])
        )
    with pytest.raises(BadProgram, match="tensor 's' is of type 'sequence'"):
        imported([node("SequenceConstruct", "x", "s"), node("ConcatFromSequence", "s", "y", axis=0)])
    with pytest.raises(BadProgram, match=r"node 'y' \(MatMul\) does not fit its operands"):
        imported([node("MatMul", "x,x", "y")])
    with pytest.raises(BadProgram, match=r"node 'y' \(Relu\) reads 'ghost', which nothing makes"):
        imported([node("Relu", "ghost", "y")])
    with pytest.raises(BadProgram, match="tensor 'y' is written by two nodes"):
        imported([node("Relu", "x", "y"), node("Relu", "x", "y")])


# Hostile and broken input


def test_what_shape_inference_would_not_survive() -> None:
    """onnx 1.23.2 hangs on the first and crashes on the second."""
    with pytest.raises(BadProgram, match=r"node 'y' \(Einsum\) has the equation 'ij,ij..->ij'"):
        imported([node("Einsum", "x,x", "y", equation="ij,ij..->ij")])
    with pytest.raises(
        BadProgram, match="has the axis 9223372036854775807, and its operands have 2 dimensions"
    ):
        imported([node("LayerNormalization", "x,x", "y,mean", axis=2**63 - 1)], outputs="y,mean")


def test_hostile_names() -> None:
    evil = "a\n\x1b[31m\u202eb"
    nodes = [
        helper.make_node("Relu", ["x"], [evil], name=evil),
        helper.make_node("Relu", [evil], ["m"], name=evil),
        helper.make_node("Relu", ["m"], ["y"]),
    ]
    program = imported(nodes)
    assert all(name.isprintable() for name in (*program.op_name, *program.tensor_name))
    assert len(set(program.op_name)) == 3
    assert program.op_name[1] == program.op_name[0] + "#2"
    assert program.op_name[2] == "relu_2"
    data = model(nodes, [info("x", (2,))], [info("y", None)]).SerializeToString()
    broken = onnx.ModelProto.FromString(data.replace(b"\x1b[31m", b"\xff\xfe\xff\xfe\xff"))
    with pytest.raises(BadProgram, match="is not UTF-8"):
        import_onnx(broken)


@pytest.mark.parametrize("sizes", [(2**62, 4), (2**31, 2**31, 2**31), (2**63 - 1,)])
def test_sizes_beyond_the_limit(sizes: tuple[int, ...]) -> None:
    with pytest.raises(BadProgram, match=r"2\^62"):
        imported([node("Relu", "x", "y")], sizes)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    rng = random.Random(0)
    for cut in [0, 1, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:cut])
        with pytest.raises(BadProgram, match="export or copy it again"):
            import_onnx(path)


def test_damaged_files_give_an_error_or_a_program(tmp_path: Path) -> None:
    whole = model(
        [node("Conv", "x,w", "a"), node("Reshape", "a,s", "b"), node("Gemm", "b,v", "y")],
        [info("x", (1, 4, 8, 8))],
        [info("y", None)],
        [weight("w", 6, 4, 3, 3), numbers("s", [1, -1]), weight("v", 216, 5)],
    ).SerializeToString()
    path = tmp_path / "damaged.onnx"
    rng = random.Random(1)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            assert isinstance(import_onnx(path), Program)
        except BadProgram as error:
            assert "\n" not in str(error)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(BadProgram, match="there is no file"):
        import_onnx(tmp_path / "none.onnx")
    with pytest.raises(BadProgram, match="can't be read"):
        import_onnx(tmp_path)
    with pytest.raises(BadProgram, match="can't be read"):
        import_onnx("a\0b.onnx")
    (tmp_path / "text.onnx").write_text("a model of a ship\n" * 100)
    with pytest.raises(BadProgram, match="is not an ONNX model"):
        import_onnx(tmp_path / "text.onnx")
    with pytest.raises(BadProgram, match="has no outputs"):
        import_onnx(model([], [], []))


@pytest.mark.parametrize(
    "location",
    ["", "/etc/passwd", "../w.bin", "a/../../w.bin", "C:\\w.bin", "..\\w.bin", "link/w.bin", "self", "a\0b"],
)
def test_external_data_stays_in_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    (folder / "self").symlink_to(folder / "self")
    graph = model([node("MatMul", "x,w", "y")], [info("x", (2, 8))], [info("y", None)], [weight("w", 8, 4)])
    (folder / "m.onnx").write_bytes(graph.SerializeToString())
    assert import_onnx(folder / "m.onnx").n_ops == 1  # and the file is never opened: it is not there
    graph.graph.initializer[0].external_data[0].value = location
    (folder / "m.onnx").write_bytes(graph.SerializeToString())
    with pytest.raises(BadProgram, match="the data of weight 'w' is outside the model's folder"):
        import_onnx(folder / "m.onnx")


def test_weights_that_are_not_there_are_told(tmp_path: Path) -> None:
    graph = model([node("MatMul", "x,w", "y")], [info("x", (2, 8))], [info("y", None)], [weight("w", 8, 4)])
    (tmp_path / "m.onnx").write_bytes(graph.SerializeToString())
    missing = import_onnx(tmp_path / "m.onnx")
    assert missing.warnings == (
        "the numbers of weights 'w' are not there ('weights.bin'): only their sizes are used",
    )
    (tmp_path / "weights.bin").write_bytes(b"")  # that it is there is enough: it is never opened
    there = import_onnx(tmp_path / "m.onnx")
    assert there.warnings == import_onnx(graph).warnings == () and there.hash == missing.hash


def test_a_sparse_weight_takes_the_bytes_that_are_stored() -> None:
    graph = model([node("MatMul", "x,w", "y")], [info("x", (2, 8))], [info("y", None)])
    sparse = helper.make_sparse_tensor(numbers("w", [1, 2, 3], np.float32), numbers("", [0, 9, 17]), [8, 4])
    graph.graph.sparse_initializer.append(sparse)
    program = import_onnx(graph)
    assert program.tensor_bytes[tensor_named(program, "w")] == 3 * 4 + 3 * 8
    assert program.op_flops[0, 0] == 2 * 2 * 4 * 8


def test_open_shapes_are_proposed_as_the_graph_allows_them() -> None:
    """A classifier whose last layer takes 7 x 7 maps of a stride of 32: 224 and no other size fits it."""
    wide = [helper.make_tensor("w", FLOAT, (4, 3, 32, 32), [0.0] * 12288)]
    wide += [helper.make_tensor("v", FLOAT, (196, 2), [0.0] * 392)]
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], strides=[32, 32]),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]

    def graph(*shape: int | str, **metadata: str) -> Any:
        made = model(nodes, [info("image", shape)], [info("y", None)], wide)
        helper.set_model_props(made, metadata)
        return made

    with pytest.raises(BadProgram, match=r"unknown dimension 'n': give --shape image=1,3,224,224$"):
        import_onnx(graph("n", 3, "height", "width"))
    small = [helper.make_node("Relu", ["image"], ["y"])]
    yolo = model(small, [info("image", ("n", 3, "h", "w"))], [info("y", None)])
    helper.set_model_props(yolo, {"imgsz": "[480, 480]", "names": "{0: '123'}"})
    with pytest.raises(BadProgram, match=r"give --shape image=1,3,480,480$"):
        import_onnx(yolo)
    # By the names of the dimensions, also where several inputs share them.
    assert import_onnx(yolo, shapes={"n": (2,), "h": (8,), "w": (4,)}).tensor_bytes.tolist() == [768, 768]
    two = [info(name, ("batch", "tokens"), onnx.TensorProto.INT64) for name in ("ids", "mask")]
    both = model([helper.make_node("Mul", ["ids", "mask"], ["y"])], two, [info("y", None)])
    with pytest.raises(BadProgram, match=r"give --shape batch=1 --shape tokens=128$"):
        import_onnx(both)
    assert import_onnx(both, shapes={"batch": (1,), "tokens": (128,)}).n_ops == 1
    with pytest.raises(
        BadProgram,
        match=r"no tensor 'batches' .did you mean 'batch'.*ids, mask, or a dimension: batch, tokens",
    ):
        import_onnx(both, shapes={"batches": (1,), "batch": (1,), "tokens": (4,)})
    # A name that is none is refused before sizes are proposed that nobody asked for.
    with pytest.raises(BadProgram, match=r"no tensor 'batches'.*ids, mask, or a dimension: batch, tokens"):
        import_onnx(both, shapes={"batches": (1,)})
    with pytest.raises(BadProgram, match=r"--shape 'an image=1,3,224,224'$"):
        import_onnx(
            model(
                [helper.make_node("Relu", ["an image"], ["y"])],
                [info("an image", ("?", 3, "", ""))],
                [info("y", None)],
            )
        )


def test_a_state_between_layers_and_width_has_a_batch_of_one() -> None:
    """As of recurrent nets: [layers, batch, width]. One name has one size, wherever it stands."""
    for batch, words in (
        ("batch", "--shape batch=1 --shape time=128"),
        ("", "--shape input=1,128 --shape state=2,1,8"),
    ):
        inputs = [info("input", (batch, "time" if batch else "")), info("state", (2, batch, 8))]
        nodes = [node("Relu", "input", "y"), node("Relu", "state", "z")]
        with pytest.raises(BadProgram) as error:
            import_onnx(model(nodes, inputs, [info("y", None), info("z", None)]))
        assert str(error.value).endswith(f"give {words}")


def test_a_window_larger_than_what_it_moves_over_is_refused() -> None:
    """Shape inference gives it a result, a runtime none: sizes that were proposed by it would not run."""
    taps = [weight("w", 1, 1, 256)]
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[128], name="stft")
    for length, fits in ((192, False), (255, False), (256, True)):
        made = model([conv], [info("x", (1, 1, length))], [info("y", None)], taps)
        if fits:
            assert import_onnx(made).n_ops == 1
            continue
        with pytest.raises(BadProgram, match=f"its window has 256 elements and there are {length}"):
            import_onnx(made)
    open_ended = model([conv], [info("x", (1, 1, "time"))], [info("y", None)], taps)
    with pytest.raises(BadProgram, match=r"give --shape x=1,1,512$"):
        import_onnx(open_ended)


def test_a_size_that_is_a_scalar_for_a_while_is_known() -> None:
    """As exporters of Paddle write it: the reference has no Unsqueeze with an attribute of a scalar."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Slice", ["s", "one", "two"], ["part"]),
        helper.make_node("Squeeze", ["part"], ["scalar"], axes=[0]),
        helper.make_node("Unsqueeze", ["scalar"], ["again"], axes=[0]),
        helper.make_node("Concat", ["again", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = [numbers("one", [1]), numbers("two", [2]), numbers("rest", [-1])]
    made = model(nodes, [info("x", (2, 6))], [info("y", None)], constants, opset=11)
    program = import_onnx(made)
    assert program.shape(program.n_tensors - 1) == (6, 2)


def test_a_branch_made_for_other_inputs_does_not_refuse_the_model() -> None:
    """As in voice detectors: one model for two sampling rates, whose branches take windows of other lengths."""

    def branch(length: int) -> Any:
        weights = helper.make_tensor("w", FLOAT, (length, 2), [0.0] * (2 * length))
        return helper.make_graph(
            [node("MatMul", "x,w", "out")], f"for{length}", [], [info("out", None)], [weights]
        )

    choose = helper.make_node(
        "If", ["rate"], ["y"], then_branch=branch(512), else_branch=branch(256), name="by rate"
    )
    inputs = [info("x", (1, 256)), info("rate", (), onnx.TensorProto.BOOL)]
    program = import_onnx(model([choose], inputs, [info("y", None)]))
    assert program.op_flops[:, 0].sum() == 2 * 256 * 2
    assert any("a branch of 'by rate' can't be taken with these inputs" in text for text in program.warnings)
    inputs[0] = info("x", (1, 100))
    with pytest.raises(BadProgram, match="does not fit its operands"):
        import_onnx(model([choose], inputs, [info("y", None)]))


@pytest.mark.parametrize(("sides", "bins"), [({}, 9), ({"onesided": 1}, 9), ({"onesided": 0}, 16)])
def test_frames_of_a_transform_are_one_sided_unless_the_node_says_otherwise(
    sides: dict[str, int], bins: int
) -> None:
    """Shape inference of onnx takes another default than the op's own schema, and all runtimes."""
    constants = [numbers("hop", 4), numbers("window", np.ones(16), np.float32)]
    stft = node("STFT", "x,hop,window", "y", **sides)
    made = model([stft], [info("x", (2, 64, 1))], [info("y", None)], constants, opset=17)
    program = import_onnx(made, strict=True)
    reference = importlib.import_module("onnx.reference")
    (run,) = reference.ReferenceEvaluator(made).run(None, {"x": np.ones((2, 64, 1), np.float32)})
    assert program.shape(tensor_named(program, "y")) == run.shape == (2, 13, bins, 2)
    frames = 2 * 13 * 16
    assert program.op_kind[0] == "dft" and program.op_flops[0].tolist() == [0, frames + 5 * 4 * frames, 0]


def test_a_transform_of_frames_longer_than_the_signal_is_refused() -> None:
    constants = [numbers("hop", 4), numbers("window", np.ones(16), np.float32)]
    made = model(
        [node("STFT", "x,hop,window", "y")], [info("x", (1, 15, 1))], [info("y", None)], constants, opset=17
    )
    with pytest.raises(BadProgram, match="its window has 16 elements and there are 15"):
        import_onnx(made)
