"""Costs of ATen ops and what becomes of a graph of calls: no PyTorch needed."""

from __future__ import annotations

import pytest

from loadmaster.errors import BadProgram
from loadmaster.program.importers.torch.costs import Call, Type, cost_of
from loadmaster.program.importers.torch.graph import Graph, Step, Value, emit, made
from loadmaster.program.program import Program, TensorKind, TieKind


def f32(*shape: int) -> Type:
    return Type(shape, "f32")


def call(op: str, *results: Type, **args: object) -> Call:
    return Call(op, args, list(results))


@pytest.mark.parametrize(
    ("made_call", "kind", "flops"),
    [
        (call("mm", f32(4, 8), self=f32(4, 16), mat2=f32(16, 8)), "matmul", (1024, 0, 0)),
        (call("addmm", f32(4, 8), self=f32(8), mat1=f32(4, 16), mat2=f32(16, 8)), "matmul", (1024, 32, 0)),
        (
            call("addbmm", f32(4, 8), self=f32(8), batch1=f32(3, 4, 16), batch2=f32(3, 16, 8)),
            "matmul",
            (3072, 32, 0),
        ),
        (call("linear", f32(2, 8), input=f32(2, 4), weight=f32(8, 4), bias=f32(8)), "matmul", (128, 16, 0)),
        (
            call(
                "conv2d", f32(1, 8, 5, 5), input=f32(1, 4, 5, 5), weight=f32(8, 2, 3, 3), bias=None, groups=2
            ),
            "conv",
            (2 * 200 * 18, 0, 0),
        ),
        (
            call(
                "convolution",
                f32(1, 4, 8, 8),
                input=f32(1, 8, 4, 4),
                weight=f32(8, 4, 2, 2),
                bias=None,
                transposed=True,
            ),
            "conv",
            (2 * 128 * 16, 0, 0),
        ),
        (
            call(
                "scaled_dot_product_attention",
                f32(2, 3, 5, 8),
                query=f32(2, 3, 5, 8),
                key=f32(2, 3, 7, 8),
                value=f32(2, 3, 7, 8),
            ),
            "attention",
            (2 * 2 * 3 * 5 * 7 * 16, 5 * 210, 210),
        ),
        (call("max_pool2d", f32(1, 2, 4, 4), self=f32(1, 2, 8, 8), kernel_size=[2]), "pool", (0, 128, 0)),
        (call("_softmax", f32(3, 5), self=f32(3, 5), dim=-1), "softmax", (0, 45, 15)),
        (call("layer_norm", f32(3, 5), input=f32(3, 5), normalized_shape=[5]), "layernorm", (0, 105, 3)),
        (
            call("_native_batch_norm_legit_no_training", f32(1, 4, 2, 2), input=f32(1, 4, 2, 2)),
            "batchnorm",
            (0, 32, 0),
        ),
        (call("mean", f32(3), self=f32(3, 7), dim=[1]), "reduce_sum", (0, 24, 0)),
        (call("max", f32(3), self=f32(3, 7), dim=1), "reduce_max", (0, 21, 0)),
        (call("max", f32(3), self=f32(3), other=f32(3)), "max", (0, 3, 0)),
        (call("pow", f32(6), self=f32(6), exponent=2), "mul", (0, 6, 0)),
        (call("pow", f32(6), self=f32(6), exponent=0.3), "pow", (0, 0, 6)),
        (call("permute_copy", f32(6), self=f32(6)), "transpose", (0, 0, 0)),
        (call("gelu", f32(6), self=f32(6)), "gelu", (0, 0, 6)),
        (call("topk", f32(2), self=f32(8), k=2), "topk", (0, 8, 0)),
        (
            call(
                "convolution_backward",
                f32(1, 4, 5, 5),
                f32(8, 4, 3, 3),
                f32(8),
                grad_output=f32(1, 8, 5, 5),
                input=f32(1, 4, 5, 5),
                weight=f32(8, 4, 3, 3),
                output_mask=[True, True, True],
            ),
            "conv_backward",
            (2 * 2 * 200 * 36, 200, 0),
        ),
        (
            call(
                "_scaled_dot_product_flash_attention_backward",
                f32(1, 2, 5, 8),
                grad_out=f32(1, 2, 5, 8),
                query=f32(1, 2, 5, 8),
                key=f32(1, 2, 7, 8),
                value=f32(1, 2, 7, 8),
            ),
            "attention_backward",
            (5 * 2 * 70 * 8, 9 * 70, 70),
        ),
        (
            call("native_layer_norm_backward", f32(3, 5), grad_out=f32(3, 5), input=f32(3, 5)),
            "layernorm_backward",
            (0, 195, 0),
        ),
        (call("gelu_backward", f32(6), grad_output=f32(6), self=f32(6)), "gelu_backward", (0, 36, 12)),
        (
            call("embedding_dense_backward", f32(9, 4), grad_output=f32(3, 4), indices=f32(3)),
            "scatter",
            (0, 12, 0),
        ),
        (
            call("nll_loss_backward", f32(3, 5), grad_output=f32(), self=f32(3, 5), target=f32(3)),
            "scatter",
            (0, 3, 0),
        ),
        (
            call(
                "avg_pool2d_backward",
                f32(1, 1, 4, 4),
                grad_output=f32(1, 1, 2, 2),
                self=f32(1, 1, 4, 4),
                kernel_size=[2],
            ),
            "avg_pool2d_backward",
            (0, 16, 0),
        ),
        (
            call("einsum", f32(2, 4), equation="ab,bc->ac", tensors=[f32(2, 3), f32(3, 4)]),
            "matmul",
            (48, 0, 0),
        ),
    ],
)
def test_costs(made_call: Call, kind: str, flops: tuple[int, int, int]) -> None:
    cost = cost_of(made_call)
    assert cost is not None
    assert (cost.kind, (cost.matrix, cost.vector, cost.transcendental)) == (kind, flops)


def test_an_op_that_nobody_described_has_no_cost() -> None:
    assert cost_of(call("frobnicate", f32(3))) is None


def given(type: Type, name: str, kind: TensorKind) -> Value:
    return Value(type, name, type.bytes, given=kind)


def cache_graph(*, read_later: bool) -> Graph:
    """state -> slice_scatter(state, update) -> new state; perhaps the old one is read once more."""
    state = given(f32(8, 4), "cache", TensorKind.STATE)
    update = given(f32(1, 4), "x", TensorKind.INPUT)
    new = made(f32(8, 4), "new")
    total = made(f32(), "total")
    later = state if read_later else new
    steps = [
        Step(
            "put", call("slice_scatter", new.type, self=state.type, src=update.type), [state, update], [new]
        ),
        Step("sum", call("sum", total.type, self=later.type), [later], [total]),
    ]
    return Graph([state, update], steps, [total], [(state, new)])


def accesses(program: Program, op: str) -> tuple[dict[str, int], dict[str, int]]:
    row = program.op_name.index(op)
    sides = []
    for start, tensors, sizes in (
        (program.read_start, program.read_tensor, program.read_bytes),
        (program.write_start, program.write_tensor, program.write_bytes),
    ):
        rows = range(int(start[row]), int(start[row + 1]))
        sides.append({program.tensor_name[tensors[i]]: int(sizes[i]) for i in rows})
    return sides[0], sides[1]


def test_state_is_written_in_place_where_nobody_reads_it_later() -> None:
    program = emit(cache_graph(read_later=False), "cache")
    assert program.tie_kind.tolist() == [TieKind.INPLACE]
    assert accesses(program, "put") == ({"cache": 0, "x": 16}, {"new": 16})
    program = emit(cache_graph(read_later=True), "cache")
    assert program.tie_kind.tolist() == [TieKind.DONATED]
    assert accesses(program, "put") == ({"cache": 128, "x": 16}, {"new": 128})


def test_views_share_storage_and_expand_has_the_bytes_of_its_base() -> None:
    x = given(f32(1, 4), "x", TensorKind.INPUT)
    wide = made(f32(100, 4), "wide", x)
    y = made(f32(100, 4), "y")
    steps = [
        Step("expand", call("expand", wide.type, self=x.type), [x], [wide], view=True),
        Step("exp", call("exp", y.type, self=wide.type), [wide], [y]),
    ]
    program = emit(Graph([x], steps, [y]), "expand")
    assert program.op_view.tolist() == [True, False]
    assert accesses(program, "exp") == ({"wide": 16}, {"y": 1600})
    assert program.tensor_alias[program.tensor_name.index("wide")] == 0


def test_what_nobody_needs_is_dropped_unless_memory_is_planned_for_it() -> None:
    def graph() -> Graph:
        x = given(f32(4), "x", TensorKind.INPUT)
        unused = given(f32(9), "unused", TensorKind.WEIGHT)
        top, where = made(f32(2), "top"), made(Type((2,), "i64"), "where")
        dead = made(f32(4), "dead")
        steps = [
            Step("topk", call("topk", top.type, where.type, self=x.type, k=2), [x], [top, where]),
            Step("neg", call("neg", dead.type, self=x.type), [x], [dead]),
        ]
        return Graph([x, unused], steps, [top])

    program = emit(graph(), "pruned")
    assert program.op_name == ("topk",)
    assert program.tensor_name == ("x", "top")
    program = emit(graph(), "whole", fixed=True)
    assert program.op_name == ("topk", "neg")
    assert program.tensor_name == ("x", "top", "where", "dead")


def test_unknown_ops_are_counted_or_refused() -> None:
    def graph() -> Graph:
        x = given(f32(4), "x", TensorKind.INPUT)
        y = made(f32(4), "y")
        return Graph([x], [Step("f", call("frobnicate", y.type, self=x.type), [x], [y])], [y], folded=2)

    program = emit(graph(), "odd")
    assert program.op_kind[0] == "unknown:frobnicate"
    assert program.warnings == (
        "1 ops of 1 unknown kinds got an estimate: frobnicate ×1",
        "2 nodes compute nothing and were folded away",
    )
    with pytest.raises(BadProgram, match="frobnicate ×1"):
        emit(graph(), "odd", strict=True)
