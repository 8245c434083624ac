"""Flops and bytes of imported JAX functions, by hand and against XLA's own count."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from loadmaster.program import Program
from loadmaster.program.importers.jax.importer import import_jax

KIB = 1024


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "int32")


def flops(program: Program) -> list[int]:
    return [int(n) for n in (program.op_flops * program.op_repeat[:, None]).sum(axis=0)]


def xla_flops(function: Any, *args: Any) -> float:
    return float(jax.jit(function).lower(*args).cost_analysis()["flops"])


def only_op(function: Any, *args: Any, kind: str) -> tuple[Program, int]:
    program = import_jax(function, args, name="one")
    (op,) = [i for i in range(program.n_ops) if program.op_kind[i] == kind]
    return program, op


def accesses(program: Program, op: int) -> tuple[dict[str, int], list[int]]:
    """Bytes read by tensor name, and bytes written."""
    start, end = program.read_start[op : op + 2]
    names = [program.tensor_name[t] for t in program.reads(op)]
    reads = dict(zip(names, (int(n) for n in program.read_bytes[start:end]), strict=True))
    start, end = program.write_start[op : op + 2]
    return reads, [int(n) for n in program.write_bytes[start:end]]


def conv(x: Any, w: Any, stride: int = 1, padding: str = "VALID", **options: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), padding, dimension_numbers=layout, **options)


@pytest.mark.parametrize(
    ("function", "args", "expected"),
    [
        (jnp.matmul, (f32(8, 16), f32(16, 32)), 2 * 8 * 16 * 32),
        (jnp.matmul, (f32(3, 8, 16), f32(3, 16, 32)), 2 * 3 * 8 * 16 * 32),
        (lambda x, y: jnp.einsum("abc,cbd->ad", x, y), (f32(5, 6, 7), f32(7, 6, 2)), 2 * 5 * 2 * 42),
        (jnp.dot, (f32(9), f32(9)), 2 * 9),
        (conv, (f32(2, 16, 16, 8), f32(3, 3, 8, 16)), 2 * (2 * 14 * 14 * 16) * 9 * 8),
        (
            lambda x, w: conv(x, w, feature_group_count=4),
            (f32(2, 16, 16, 8), f32(3, 3, 2, 16)),
            2 * (2 * 14 * 14 * 16) * 9 * 2,
        ),
    ],
)
def test_multiply_adds_are_those_of_xla(function: Any, args: Any, expected: int) -> None:
    assert flops(import_jax(function, args, name="dot"))[0] == expected == xla_flops(function, *args)


def test_gradient_of_strided_convolution_counts_no_zeros() -> None:
    def input_gradient(x: Any, w: Any) -> Any:
        return jax.grad(lambda x: conv(x, w, 2).sum())(x)

    args = (f32(2, 65, 65, 8), f32(3, 3, 8, 16))
    matrix = flops(import_jax(input_gradient, args, name="g"))[0]
    assert matrix == 2 * (2 * 65 * 65 * 8) * 9 * 16 // 4
    assert matrix == pytest.approx(xla_flops(input_gradient, *args), rel=0.05)


def mlp(params: Any, x: Any) -> Any:
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return (x**2).mean()


def attention(params: Any, x: Any) -> Any:
    q, k, v = (x @ params[name] for name in "qkv")
    scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) / 8.0)
    return ((scores @ v) @ params["o"]).sum()


def convnet(params: Any, x: Any) -> Any:
    for w in params:
        x = jax.nn.relu(conv(x, w, 2))
    return x.sum()


@pytest.mark.parametrize(
    ("model", "params", "x"),
    [
        (mlp, [(f32(64, 64), f32(64))] * 4, f32(32, 64)),
        (attention, {name: f32(64, 64) for name in "qkvo"}, f32(4, 32, 64)),
        (convnet, [f32(3, 3, 8, 16), f32(3, 3, 16, 16)], f32(2, 63, 63, 8)),
    ],
)
def test_models_are_within_5_percent_of_xla(model: Any, params: Any, x: Any) -> None:
    step = jax.value_and_grad(model)
    matrix, vector, transcendental = flops(import_jax(step, (params, x), name="step"))
    cost = jax.jit(step).lower(params, x).cost_analysis()
    assert matrix + vector == pytest.approx(cost["flops"], rel=0.05)
    assert transcendental == cost.get("transcendentals", 0)


@pytest.mark.parametrize(
    ("function", "args", "kind", "expected"),
    [
        (lambda x: x + x, (f32(4, 8),), "add", [0, 32, 0]),
        (lambda x: x > 0, (f32(4, 8),), "compare", [0, 32, 0]),
        (jnp.tanh, (f32(4, 8),), "tanh", [0, 0, 32]),
        (lambda x: x.sum(axis=1), (f32(4, 8),), "reduce_sum", [0, 32, 0]),
        (lambda x: x**3, (f32(4, 8),), "mul", [0, 64, 0]),
        (lambda x: x**-1, (f32(4, 8),), "div", [0, 32, 0]),
        (lambda x: x**2.5, (f32(4, 8),), "pow", [0, 0, 32]),
        (jnp.square, (f32(4, 8),), "mul", [0, 32, 0]),
        (lambda x: lax.cumsum(x, 1), (f32(4, 8),), "cumsum", [0, 32, 0]),
        (lambda x: lax.sort(x), (f32(1024),), "sort", [0, 1024 * 10, 0]),
        (lambda x: jnp.argmax(x, axis=1), (f32(4, 8),), "argmax", [0, 32, 0]),
        (lambda x: x.astype("bfloat16"), (f32(4, 8),), "convert", [0, 32, 0]),
        (lambda x: jnp.transpose(x), (f32(4, 8),), "transpose", [0, 0, 0]),
        (lambda x: lax.top_k(x, 4), (f32(4, 8),), "topk", [0, 64, 0]),
        (
            lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 4), (2, 4), "VALID"),
            (f32(4, 8),),
            "pool",
            [0, 32, 0],
        ),
    ],
)
def test_flops_by_hand(function: Any, args: Any, kind: str, expected: list[int]) -> None:
    program, op = only_op(function, *args, kind=kind)
    assert [int(n) for n in program.op_flops[op]] == expected == flops(program)


def test_type_that_an_op_computes_in() -> None:
    half = jax.ShapeDtypeStruct((8, 8), "bfloat16")
    wide = lambda x: jnp.matmul(x, x, preferred_element_type="float32")  # noqa: E731
    program, op = only_op(wide, half, kind="matmul")
    assert program.op_dtype[op] == "bf16"
    assert program.tensor_dtype[program.writes(op)[0]] == "f32"
    program, op = only_op(lambda x: x > 1, half, kind="compare")
    assert program.op_dtype[op] == "bf16"


@pytest.mark.parametrize(
    ("function", "args", "kind", "reads", "writes"),
    [
        (lambda x: x[2:4], (f32(256),), "slice", {"x": 8}, [8]),
        (
            lambda x, i: lax.dynamic_slice(x, (i,), (64,), allow_negative_indices=False),
            (f32(256), i32()),
            "dynamic_slice",
            {"x": 256, "i": 4},
            [256],
        ),
        (lambda x: lax.split(x, (64, 192)), (f32(256),), "split", {"x": KIB}, [256, 768]),
        (lambda x, y: jnp.concatenate([x, y]), (f32(64), f32(192)), "concat", {"x": 256, "y": 768}, [KIB]),
        (lambda x: jnp.broadcast_to(x, (8, 64)), (f32(64),), "broadcast", {"x": 256}, [8 * 256]),
        (lambda: lax.iota("int32", 256), (), "iota", {}, [KIB]),
        (lambda: jnp.zeros((256,)), (), "broadcast", {}, [KIB]),
        (lambda x: lax.pad(x, 0.0, [(1, 1, 0)]), (f32(254),), "pad", {"x": 1016}, [KIB]),
        (lambda x, y: x * y, (f32(4, 8), f32(4, 8)), "mul", {"x": 128, "y": 128}, [128]),
        (lambda x: x * x, (f32(4, 8),), "mul", {"x": 128}, [128]),
    ],
)
def test_bytes_by_hand(function: Any, args: Any, kind: str, reads: dict[str, int], writes: list[int]) -> None:
    assert accesses(*only_op(function, *args, kind=kind)) == (reads, writes)


def test_gather_reads_the_rows_it_takes() -> None:
    def rows(table: Any, at: Any) -> Any:
        numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
        return lax.gather(table, at, numbers, (1, 64), mode="promise_in_bounds")

    program, op = only_op(rows, f32(1000, 64), i32(5, 1), kind="gather")
    assert accesses(program, op) == ({"table": 5 * 256, "at": 20}, [5 * 256])


def test_update_of_an_argument_copies_it_and_of_a_dying_value_does_not() -> None:
    def update(x: Any, part: Any, i: Any) -> Any:
        return lax.dynamic_update_slice(x, part, (i,), allow_negative_indices=False)

    program, op = only_op(update, f32(256), f32(16), i32(), kind="dynamic_update_slice")
    assert accesses(program, op) == ({"x": KIB, "part": 64, "i": 4}, [KIB])
    assert len(program.tie_kind) == 0

    args = (f32(256), f32(16), i32())
    program, op = only_op(lambda x, p, i: update(jnp.sin(x), p, i), *args, kind="dynamic_update_slice")
    assert accesses(program, op) == ({"sin.0": 0, "p": 64, "i": 4}, [64])
    assert [program.tensor_name[t] for t in program.tie_source] == ["sin.0"]
    assert list(program.tie_at) == [op]


def test_scatter_add_in_place_touches_the_updates() -> None:
    def gradient(table: Any, at: Any) -> Any:
        return jax.grad(lambda table: (table[at] ** 2).sum())(table)

    program, op = only_op(gradient, f32(1000, 64), i32(5), kind="scatter")
    reads, writes = accesses(program, op)
    assert sum(reads.values()) == 2 * 5 * 256 + 20
    assert writes == [5 * 256]
    assert int(program.op_flops[op].sum()) == 5 * 64

    program, op = only_op(lambda x, at, y: x.at[at].add(y), f32(1000, 64), i32(5), f32(5, 64), kind="scatter")
    reads, writes = accesses(program, op)
    assert reads["x"] == 1000 * 256 and reads["y"] == 5 * 256 and writes == [1000 * 256]


def test_random_words() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    program, op = only_op(lambda key: jax.random.bits(key, (100,)), key, kind="random")
    assert accesses(program, op) == ({"key": 8}, [400])
    assert program.op_flops[op, 1] >= 20 * 100
