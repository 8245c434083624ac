"""The table of op costs: counts by hand, and one count for one op whoever imports it."""

from __future__ import annotations

import pytest

from loadmaster.program import kinds, op_costs
from loadmaster.program.importers.hlo.costs import EACH
from loadmaster.program.importers.jax import costs as jax_costs
from loadmaster.program.importers.onnx import costs as onnx_costs
from loadmaster.program.importers.onnx.values import Value
from loadmaster.program.importers.tflite import costs as tflite_costs
from loadmaster.program.importers.tflite.read import Tensor
from loadmaster.program.importers.torch import costs as torch_costs
from loadmaster.program.op_costs import Cost

SHAPE = (2, 3)


def onnx_cost(op: str) -> Cost | None:
    value = Value("x", "f32", SHAPE)
    return onnx_costs.cost(onnx_costs.Site(op, [value], [value], {}))


def tflite_cost(op: str) -> Cost | None:
    tensor = Tensor("x", "f32", SHAPE, buffer=0, stored=None, variable=False, open=False)
    return tflite_costs.cost(tflite_costs.Site(op, [tensor], [tensor], None))


def torch_cost(op: str) -> Cost | None:
    tensor = torch_costs.Type(SHAPE, "f32")
    return torch_costs.cost_of(torch_costs.Call(op, {"self": tensor}, [tensor]))


def jax_cost(op: str) -> Cost | None:
    array = jax_costs.Type(SHAPE, "f32", 24, 6)
    return jax_costs.cost_of(op, {}, [array], [array])


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("hardswish", [onnx_cost("HardSwish"), tflite_cost("HARD_SWISH"), torch_cost("hardswish")]),
        ("elu", [onnx_cost("Elu"), tflite_cost("ELU"), torch_cost("elu")]),
        ("softmax", [onnx_cost("Softmax"), tflite_cost("LOG_SOFTMAX"), torch_cost("_softmax")]),
        (
            "logistic",
            [onnx_cost("Sigmoid"), tflite_cost("LOGISTIC"), torch_cost("sigmoid"), jax_cost("logistic")],
        ),
        ("max", [tflite_cost("MAXIMUM"), torch_cost("maximum"), jax_cost("max")]),
    ],
)
def test_importers_agree(word: str, found: list[Cost | None]) -> None:
    expected = op_costs.each(word, elements=6)
    for cost in found:
        assert cost is not None
        assert cost._replace(elementwise=False) == expected


def test_hlo_counts_elements_by_the_same_table() -> None:
    assert EACH["multiply"] == op_costs.PER_ELEMENT["mul"] == (1, 0)
    assert EACH["exponential"] == op_costs.PER_ELEMENT["exp"] == (0, 1)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (op_costs.each("hardswish", 10), Cost("hardswish", vector=50)),
        (op_costs.each("cross_entropy_loss", 10), Cost("loss", vector=30, transcendental=10)),
        (op_costs.integer_power(3, 10), Cost("mul", vector=20)),
        (op_costs.integer_power(-1, 10), Cost("div", vector=10)),
        (op_costs.reduction("mean", 10, 2), Cost("reduce_sum", vector=12)),
        (op_costs.reduction("log_sum_exp", 10, 2), Cost("reduce_sum", vector=20, transcendental=12)),
        (op_costs.move("transpose"), Cost("transpose")),
        (op_costs.move("reshape"), Cost("reshape", view=True)),
        (op_costs.move("gather", operand=1), Cost("gather", partial=1)),
        (op_costs.scatter(10, 40), Cost("scatter", over=(0, 40))),
        (op_costs.scatter(10, 40, combines=True), Cost("scatter", vector=10, over=(40, 40))),
        (op_costs.matmul(4 * 8, 16, op_costs.epilogue(32, bias=True)), Cost("matmul", 1024, 32)),
        (op_costs.convolution(100, 27, op_costs.epilogue(100, requantized=True)), Cost("conv", 5400, 200)),
        (op_costs.pool(10, 9, powers=True), Cost("pool", vector=180, transcendental=10)),
        (op_costs.normalization("layernorm", 10, rows=2), Cost("layernorm", vector=70, transcendental=2)),
        (op_costs.local_response(10, window=5), Cost("lrn", vector=90, transcendental=10)),
        (op_costs.resample("resize", 10, op_costs.TAPS["linear"], axes=2), Cost("resize", vector=80)),
        (op_costs.resample("resize", 10, op_costs.TAPS["nearest"], axes=2), Cost("resize")),
        (op_costs.attention(scores=10, products=70), Cost("attention", 140, 50, 10)),
        (op_costs.recurrent("lstm", 3, 100, cells=6, biases=2), Cost("lstm", 600, 72, 30)),
        (op_costs.estimate("frobnicate", 10), Cost("unknown:frobnicate", vector=10)),
    ],
)
def test_by_hand(cost: Cost, expected: Cost) -> None:
    assert cost == expected


@pytest.mark.parametrize(
    ("depth", "whole", "fractional"), [(1, 12, 0), (2, 12, 12), (5, 36, 28), (8, 36, 36)]
)
def test_comparisons(depth: int, whole: int, fractional: int) -> None:
    assert op_costs.comparisons(12, depth) == whole
    assert op_costs.fractional_comparisons(12, depth) == fractional


def test_the_table_has_every_kind_that_is_counted_per_element() -> None:
    assert {*kinds.ELEMENTWISE, *kinds.TRANSCENDENTAL} <= op_costs.PER_ELEMENT.keys()
    assert set(kinds.REDUCTIONS) <= op_costs.REDUCTIONS.keys()
    assert op_costs.PER_ELEMENT.keys().isdisjoint(op_costs.REDUCTIONS)
