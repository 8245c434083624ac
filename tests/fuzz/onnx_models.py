"""ONNX: fields of the protobuf through the onnx package, the graph's structure, and raw bytes."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from . import mutate
from .use import use_program


def _models() -> list[Any]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    def whole(nodes: Any, inputs: Any, outputs: Any, weights: Any = (), functions: Any = ()) -> Any:
        graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("custom", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))

    node = helper.make_node
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    outside = onnx.TensorProto(name="v", data_type=TensorProto.FLOAT, dims=(64, 10))
    outside.data_location = TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="weights.bin")
    shape = numpy_helper.from_array(np.array([1, 64], np.int64), "shape")
    conv = whole(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2], name="conv"),
            node("Relu", ["a"], ["b"]),
            node("Reshape", ["b", "shape"], ["c"]),
            node("MatMul", ["c", "v"], ["d"]),
            node("Softmax", ["d"], ["y"], axis=-1),
        ],
        [info("x", [1, 3, 8, 8])],
        [info("y", [1, 10])],
        [weight, shape, outside],
    )
    sizes = whole(
        [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "axes"], ["n1"]),
            node("Concat", ["n1", "minus"], ["to"], axis=0),
            node("Reshape", ["x", "to"], ["r"]),
            node("Slice", ["r", "axes", "n1"], ["t"]),
            node("Concat", ["t", "t"], ["u"], axis=1),
            node("Einsum", ["u", "u"], ["z"], equation="ij,kj->ik"),
            node("Split", ["z"], ["p", "q"], num_outputs=2, axis=0),
            node("Expand", ["p", "to2"], ["y"]),
        ],
        [info("x", [4, 2, 3])],
        [info("y", None), info("q", None)],
        [
            numpy_helper.from_array(np.array(0, np.int64), "zero"),
            numpy_helper.from_array(np.array([0], np.int64), "axes"),
            numpy_helper.from_array(np.array([-1], np.int64), "minus"),
            numpy_helper.from_array(np.array([2, 4], np.int64), "to2"),
        ],
    )
    then = helper.make_graph([node("Add", ["x", "x"], ["t"])], "then", [], [info("t", [4])])
    other = helper.make_graph([node("Mul", ["x", "k"], ["e"])], "else", [], [info("e", [4])])
    body = helper.make_graph(
        [node("Add", ["h", "x"], ["h2"]), node("Identity", ["c"], ["c2"]), node("Exp", ["h2"], ["scan"])],
        "body",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL), info("h", [4])],
        [info("c2", [], TensorProto.BOOL), info("h2", [4]), info("scan", [4])],
    )
    control = whole(
        [
            node("If", ["flag"], ["b"], then_branch=then, else_branch=other, name="if"),
            node("Loop", ["trips", "", "b"], ["h_out", "scans"], body=body, name="loop"),
            node("ReduceSum", ["scans"], ["y"], keepdims=0),
        ],
        [info("x", [4]), info("flag", [], TensorProto.BOOL)],
        [info("y", None), info("h_out", None)],
        [
            numpy_helper.from_array(np.array(5, np.int64), "trips"),
            numpy_helper.from_array(np.ones(4, np.float32), "k"),
        ],
    )
    twice = helper.make_function(
        "custom", "Twice", ["p"], ["q"], [node("Add", ["p", "p"], ["q"])], [helper.make_opsetid("", 21)]
    )
    calls = whole(
        [
            node("Twice", ["x"], ["a"], domain="custom"),
            node("Gelu", ["a"], ["y"]),
            node("Odd", ["y"], ["z"], domain="o"),
        ],
        [info("x", ["batch", 4])],
        [info("y", ["batch", 4])],
        functions=[twice],
    )
    calls.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    return [conv, sizes, control, calls]


@cache
def seeds(place: Path) -> list[bytes]:
    return [model.SerializeToString() for model in _models()]


def changed(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.12:
        return mutate.octets(rng, data)
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(ValueError):  # a number that an enumeration does not have
            (_change_graph if rng.random() < 0.3 else _change_field)(rng, model)
    return bytes(model.SerializeToString())


def _change_graph(rng: Random, model: Any) -> None:
    """Edges, repeats, cycles, bodies inside bodies."""
    graph = model.graph
    nodes = list(graph.node)
    if not nodes:
        return
    one, other = rng.choice(nodes), rng.choice(nodes)
    names = [name for node in nodes for name in (*node.input, *node.output)] + [
        w.name for w in graph.initializer
    ]
    kind = rng.randrange(8)
    if kind == 0 and one.input:
        one.input[rng.randrange(len(one.input))] = rng.choice(names or [""])  # perhaps a cycle
    elif kind == 1 and one.output:
        one.output[rng.randrange(len(one.output))] = rng.choice(names or [""])
    elif kind == 2:
        graph.node.add().CopyFrom(one)
    elif kind == 3:
        one.op_type = other.op_type
    elif kind == 4:
        del graph.node[rng.randrange(len(nodes))]
    elif kind == 5 and one.attribute:
        other.attribute.add().CopyFrom(rng.choice(list(one.attribute)))
    elif kind == 6:
        bodies = [a for node in nodes for a in node.attribute if a.HasField("g")]
        if bodies:
            attribute = rng.choice(bodies)
            for _ in range(rng.choice((1, 3, 70))):
                inner = attribute.g.node.add()
                inner.op_type, inner.name = "If", "inner"
                inner.input.append("flag")
                inner.output.append("t")
                branch = inner.attribute.add()
                branch.name, branch.type = "then_branch", attribute.type
                branch.g.name = "g"
                attribute = branch
    else:
        (rng.choice((one.input, one.output))).append(rng.choice([*names, "", "new"]))


def _change_field(rng: Random, message: Any) -> None:
    """Walk down to a field, each as likely as its neighbours, and change it."""
    while True:
        present = [field for field, _ in message.ListFields()]
        if not present:
            return
        field = rng.choice(present)
        value = getattr(message, field.name)
        many = _repeated(field)
        if field.message_type is not None:
            if many and rng.random() < 0.1:
                _change_list(rng, value)
                return
            if rng.random() < 0.05:
                message.ClearField(field.name)
                return
            message = rng.choice(list(value)) if many else value
            continue
        if many and (not len(value) or rng.random() < 0.3):
            _change_list(rng, value, field)
        elif many:
            value[rng.randrange(len(value))] = _scalar(rng, field, value[0])
        elif rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(rng, field, value))
        return


def _repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(
        found() if callable(found) else found if found is not None else field.label == field.LABEL_REPEATED
    )


def _change_list(rng: Random, value: Any, field: Any = None) -> None:
    if len(value) and rng.random() < 0.4:
        del value[rng.randrange(len(value))]
    elif field is None and len(value):
        value.add().CopyFrom(rng.choice(list(value)))
    elif field is not None:
        like = value[0] if len(value) else None
        value.extend([_scalar(rng, field, like) for _ in range(rng.choice((1, 1, 2, 70)))])


def _scalar(rng: Random, field: Any, like: Any) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64):
        value = mutate.int64(rng)
        return abs(value) if kind == field.CPPTYPE_UINT64 else value
    if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32):
        value = max(-(2**31), min(2**31 - 1, mutate.whole(rng)))
        return abs(value) if kind == field.CPPTYPE_UINT32 else value
    if kind == field.CPPTYPE_ENUM:
        return rng.randrange(0, 30)
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(mutate.FLOATS)
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_BYTES:
        return mutate.octets(rng, like or b"x")
    return mutate.text(rng, like or "").encode("utf-8", "replace").decode()


def read(data: bytes, place: Path) -> None:
    from loadmaster.program.importers.onnx.importer import import_onnx

    path = place / "model.onnx"
    path.write_bytes(data)
    use_program(import_onnx(path), place)
