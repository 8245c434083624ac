"""The builder makes what it is given, and refuses nonsense by name."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from generate import random_program
from loadmaster.errors import BadProgram
from loadmaster.program import CANNOT_RUN, COMPUTED, Builder, Program, TensorKind, TieKind


def chain() -> Builder:
    build = Builder("chain")
    x = build.tensor("x", shape=(4, 8), dtype="f32", kind="input")
    w = build.tensor("w", shape=(8, 2), dtype="f32", kind="weight")
    y = build.tensor("y", shape=(4, 2), dtype="f32")
    z = build.tensor("z", shape=(4, 2), dtype="f32", kind="output")
    build.op("product", "matmul", reads=[x, w], writes=[y], matrix=2 * 4 * 8 * 2)
    build.op("exponent", "exp", reads=[(y, 16)], writes=[z], transcendental=8)
    return build


def test_columns() -> None:
    program = chain().build()
    assert (program.n_ops, program.n_tensors) == (2, 4)
    assert program.tensor_bytes.tolist() == [128, 64, 32, 32]
    assert program.reads(0).tolist() == [0, 1] and program.writes(1).tolist() == [3]
    assert program.read_bytes.tolist() == [128, 64, 16]
    assert program.producer.tolist() == [-1, -1, 0, 1]
    assert program.op_flops.tolist() == [[128, 0, 0], [0, 0, 8]]
    assert list(program.op_kind) == ["matmul", "exp"] and program.op_kind.rows("exp").tolist() == [
        False,
        True,
    ]
    assert program.shape(1) == (8, 2)
    start, readers = program.readers
    assert [readers[a:b].tolist() for a, b in itertools.pairwise(start)] == [[0], [0], [1], []]


def test_it_is_immutable() -> None:
    program = chain().build()
    with pytest.raises(ValueError, match="read-only"):
        program.tensor_bytes[0] = 7
    with pytest.raises(AttributeError):
        program.name = "other"  # type: ignore[misc]


def test_sub_byte_types_are_packed() -> None:
    build = Builder("packed")
    build.tensor("w", shape=(3,), dtype="i4", kind="weight")
    assert build.build().tensor_bytes.tolist() == [2]


def test_sort_and_cycles() -> None:
    build = Builder("late")
    a, b = build.tensor("a"), build.tensor("b", kind="output")
    build.op("second", "copy", reads=[a], writes=[b])
    build.op("first", "iota", writes=[a])
    with pytest.raises(BadProgram, match="op 'second' reads 'a' before op 'first' writes it"):
        build.build()
    program = build.build(sort=True)
    assert program.op_name == ("first", "second") and program.order_source == "topological"

    ring = Builder("ring")
    x, y = ring.tensor("x"), ring.tensor("y")
    ring.op("there", "copy", reads=[x], writes=[y])
    ring.op("back", "copy", reads=[y], writes=[x])
    with pytest.raises(BadProgram, match=r"cycle of 2: .*there.*back"):
        ring.build(sort=True)


def test_in_place_ties_move_with_the_sort() -> None:
    build = Builder("tied")
    w = build.tensor("w", kind="state")
    g, new = build.tensor("g"), build.tensor("new", kind="output")
    update = build.op("update", "sub", reads=[w, g], writes=[new])
    build.op("gradient", "iota", writes=[g])
    build.tie(TieKind.INPLACE, w, new, update)
    program = build.build(sort=True)
    assert program.tie_at.tolist() == [1]


def test_loops_multiply() -> None:
    build = Builder("loops")
    outer = build.loop(10)
    inner = build.loop(3, outer)
    for i, loop in enumerate((-1, outer, inner, outer, -1)):
        build.op(f"op{i}", "iota", loop=loop)
    assert build.build().op_repeat.tolist() == [1, 10, 30, 10, 1]


def test_cost_table() -> None:
    program = chain().build(costs=[[1e-6, None], [math.inf, 0.0]])
    assert program.costs is not None
    assert program.costs.tolist() == [[10**6, COMPUTED], [CANNOT_RUN, 0]]


NONSENSE = {
    "nan flops": (lambda b: b.op("bad", "add", vector=math.nan), "op 'bad' has nan flops"),
    "infinite flops": (lambda b: b.op("bad", "add", vector=math.inf), "op 'bad' has inf flops"),
    "negative flops": (lambda b: b.op("bad", "add", vector=-1), "op 'bad' has -1 flops"),
    "negative bytes": (lambda b: b.tensor("bad", bytes=-5), "tensor 'bad' has -5 bytes"),
    "beyond 2^63": (lambda b: b.tensor("bad", shape=(2**40, 2**40)), f"tensor 'bad' has {2**80} bytes"),
    "unknown tensor": (lambda b: b.op("bad", "add", reads=[99]), "'bad' refers to tensor 99"),
    "duplicate op": (lambda b: b.op("product", "add"), "two ops are named 'product'"),
    "duplicate tensor": (lambda b: b.tensor("x"), "two tensors are named 'x'"),
    "unknown type": (lambda b: b.tensor("bad", dtype="f31"), "unknown element type 'f31'"),
    "unknown kind": (lambda b: b.tensor("bad", kind="bias"), "unknown kind 'bias'"),
    "no name": (lambda b: b.tensor(""), "a tensor has no name"),
    "nan attribute": (
        lambda b: b.op("bad", "add", attributes={"a": math.nan}),
        "attribute that JSON can't hold",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_at_once(case: str) -> None:
    spoil, message = NONSENSE[case]
    with pytest.raises(BadProgram, match=message.replace("^", r"\^")) as caught:
        spoil(chain())
    assert caught.value.remedy


LATER = {
    "read before any write": (
        lambda b: b.op("bad", "copy", reads=[b.tensor("ghost")]),
        "'ghost' is read before any write",
    ),
    "two writers": (lambda b: b.op("bad", "copy", writes=[2]), "tensor 'y' is written by 2 ops"),
    "written weight": (lambda b: b.op("bad", "copy", writes=[1]), "writes 'w', which is weight"),
    "overflowing sum": (
        lambda b: [b.tensor(f"t{i}", bytes=2**61, kind="weight") for i in range(3)],
        "add up to",
    ),
    "view without op": (lambda b: b.tensor("v", alias=0, kind="input"), "is a view that no op makes"),
    "filled view": (
        lambda b: b.op("bad", "add", writes=[b.tensor("v", alias=0)]),
        "is a view that an op fills",
    ),
    "view with storage": (
        lambda b: b.op("bad", "reshape", reads=[0], writes=[b.tensor("v")], view=True),
        "storage of its own",
    ),
    "view of two": (
        lambda b: b.op("bad", "reshape", reads=[0, 1], writes=[b.tensor("v", alias=0)], view=True),
        "must read exactly one",
    ),
    "zero trips": (lambda b: b.op("bad", "add", loop=b.loop(0)), "loop 0 has 0 trips"),
    "unknown loop": (lambda b: b.op("bad", "add", loop=3), "a loop that does not exist"),
    "tie out of range": (lambda b: b.tie(TieKind.INPLACE, 0, 77, 0), "tie 0 is out of range"),
    "tie at the wrong op": (lambda b: b.tie(TieKind.INPLACE, 0, 3, 0), "'z' is not written by op 0"),
}


@pytest.mark.parametrize("case", LATER)
def test_nonsense_is_refused_when_built(case: str) -> None:
    spoil, message = LATER[case]
    build = chain()
    spoil(build)
    with pytest.raises(BadProgram, match=message) as caught:
        build.build()
    assert caught.value.remedy and caught.value.object


def test_interrupted_loop() -> None:
    build = Builder("broken")
    loop = build.loop(2)
    for name, where in (("a", loop), ("between", -1), ("b", loop)):
        build.op(name, "iota", loop=where)
    with pytest.raises(BadProgram, match="loop 0 is interrupted by op 'between'"):
        build.build()


@pytest.mark.parametrize("seconds", [math.nan, -1.0, -math.inf])
def test_bad_costs(seconds: float) -> None:
    with pytest.raises(BadProgram, match="op 'product' costs"):
        chain().build(costs=[[seconds], [0.0]])


def test_hostile_names_are_escaped() -> None:
    build = Builder("x\x00\n")
    build.tensor("a\x1b[31m\u202egnp", kind="input")
    program = build.build()
    assert program.name == r"x\x00\n"
    assert program.tensor_name == ("a\\x1b[31m\\u202egnp",)


def test_hash_sees_content_and_not_names() -> None:
    def program(name: str, size: int) -> Program:
        build = Builder(name)
        build.op("op", "add", reads=[build.tensor(f"{name}.x", bytes=size, kind="input")])
        return build.build()

    assert program("a", 8).hash == program("b", 8).hash
    assert program("a", 8).named_hash != program("b", 8).named_hash
    assert program("a", 8).hash != program("a", 9).hash


def test_random_programs_obey_their_order() -> None:
    for seed in range(50):
        program = random_program(np.random.default_rng(seed))
        for op in range(program.n_ops):
            assert all(program.producer[t] <= op for t in program.reads(op))
        assert (program.tensor_alias[program.tensor_alias] == program.tensor_alias).all()
        given = np.isin(program.tensor_kind, [TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE])
        assert ((program.producer < 0) == given).all()
