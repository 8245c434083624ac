"""What TFLite Micro's reference kernels keep, operator by operator.

Sources are files of github.com/tensorflow/tflite-micro, under tensorflow/lite. Read for it: `micro/kernels/conv.h`,
`fully_connected.h`, `transpose_conv.cc`, `reduce.h`, and SoftmaxParams and TfLiteReducerParams. The other entries name
where their structs lie; those files were not read, and their sizes are what the interpreter showed, which it rounds up
to 16 bytes. Structs of 32-bit numbers alone have one size on all targets.
"""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.program.importers.tflite.read import ABSENT, Graph, Operator

REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")
WEIGHT_OPS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 0}
"""Convolution -> the axis of its weights that has the output's channels."""


class Kernel(NamedTuple):
    """What an operator keeps: its options (c/builtin_op_data.h), and its kernel's data (micro/kernels)."""

    options: str = ""
    data: str = ""
    known: bool = True


_KEEP_NOTHING = """
READ_VARIABLE TRANSPOSE EXPAND_DIMS NEG SQRT SQUARE LOG SIN COS FLOOR CEIL ROUND MAXIMUM MINIMUM SLICE
BROADCAST_TO ZEROS_LIKE FILL EXP LOGICAL_AND LOGICAL_OR LOGICAL_NOT SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND GATHER_ND
"""
COPY_SHAPE = ("GATHER", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
"""Operators that keep a copy of their output's shape, which they may change; measured."""
UNKNOWN = Kernel("12i", "32i", False)
KERNELS: dict[str, Kernel] = {
    "CONV_2D": Kernel("7i", "9i2P3i"),  # kernels/conv.h, OpDataConv; TfLiteConvParams
    "DEPTHWISE_CONV_2D": Kernel("7i", "9i2P3i"),
    "TRANSPOSE_CONV": Kernel("5i", "16i2P"),  # kernels/transpose_conv.cc, OpData
    "FULLY_CONNECTED": Kernel("8i", "9i2PB"),  # kernels/fully_connected.h, OpDataFullyConnected
    "ADD": Kernel("iB", "15i"),  # kernels/add.h, OpDataAdd
    "SUB": Kernel("iB", "13i"),  # kernels/sub.h, OpDataSub
    "MUL": Kernel("i", "9i"),  # kernels/mul.h, OpDataMul
    "DIV": Kernel("i", "7i"),  # kernels/div.cc, OpDataDiv
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"), Kernel("10i", "8i")),  # pooling.h
    "SOFTMAX": Kernel("i", "10i5P"),  # kernels/internal/types.h, SoftmaxParams
    "CONCATENATION": Kernel("2i", "20i"),  # kernels/concatenation.cc: ConcatenationParams
    "RESHAPE": Kernel("9i"),
    "SQUEEZE": Kernel("9i"),
    "STRIDED_SLICE": Kernel("5iB", "21i"),  # kernels/strided_slice.h, StridedSliceParams
    "PAD": Kernel("", "14i"),  # kernels/pad.cc, OpData
    "PADV2": Kernel("", "14i"),
    "MIRROR_PAD": Kernel("i", "5i"),  # kernels/mirror_pad.cc
    **dict.fromkeys(REDUCTIONS, Kernel("B", "10i")),  # kernels/reduce.h, OpDataReduce; TfLiteReducerParams
    **dict.fromkeys(("LOGISTIC", "TANH"), Kernel("", "4i")),  # kernels/logistic.h, kernels/tanh.cc
    **dict.fromkeys(("QUANTIZE", "DEQUANTIZE"), Kernel("", "8i")),  # kernels/quantize.h, dequantize.h
    "PRELU": Kernel("", "7i"),  # kernels/prelu.h, PreluParams
    "LEAKY_RELU": Kernel("i", "6i"),  # kernels/leaky_relu.h
    "RSQRT": Kernel("", "7i"),  # kernels/elementwise.cc, OpDataAbsRsqrt
    "ABS": Kernel("", "7i"),
    **dict.fromkeys(
        ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), Kernel("", "8i")
    ),  # kernels/comparisons.cc, OpData
    "SELECT_V2": Kernel("", "B"),  # kernels/select.cc, OpData
    "RELU": Kernel("", "8i"),  # these to LOG_SOFTMAX: measured
    "RELU6": Kernel("", "B"),
    "HARD_SWISH": Kernel("", "5i"),
    "ELU": Kernel("", "B"),
    "L2_NORMALIZATION": Kernel("i", "B"),
    "SQUARED_DIFFERENCE": Kernel("", "26i"),
    "SPACE_TO_DEPTH": Kernel("i"),
    "DEPTH_TO_SPACE": Kernel("i"),
    "LOG_SOFTMAX": Kernel(),
    "PACK": Kernel("2i"),
    "UNPACK": Kernel("2i"),
    "SHAPE": Kernel("i"),
    "SPLIT": Kernel("i"),
    "SPLIT_V": Kernel("i"),
    "GATHER": Kernel("2i"),
    "CAST": Kernel("2i"),
    "ARG_MAX": Kernel("i"),
    "ARG_MIN": Kernel("i"),
    "RESIZE_NEAREST_NEIGHBOR": Kernel("2B"),
    "RESIZE_BILINEAR": Kernel("2B"),
    "BATCH_MATMUL": Kernel("4i3B", "3P3B"),  # kernels/batch_matmul.h, OpDataBatchMatmul
    "VAR_HANDLE": Kernel("2P", "i"),  # kernels/var_handle.cc
    "ASSIGN_VARIABLE": Kernel("", "i"),  # measured: up to 16 bytes for every operator that writes
    "CALL_ONCE": Kernel("i", "iB"),  # kernels/call_once.cc
    "IF": Kernel("2i", "2i"),  # kernels/if.cc
    "WHILE": Kernel("2i", "2i"),  # kernels/while.cc
    **dict.fromkeys(_KEEP_NOTHING.split(), Kernel()),
}
"""Operator -> what it keeps; checked against the interpreter by tests where it is installed."""


def asked_again(graph: Graph, operator: Operator) -> list[int]:
    """Tensors whose structs a kernel asks for once more while it prepares; measured on models of one operator."""
    ends = [n for n in (*operator.inputs[:1], *operator.outputs[:1]) if n != ABSENT]
    if len(ends) < 2:
        return []
    is_integer = graph.tensors[ends[0]].dtype != "f32"
    if operator.name in REDUCTIONS:
        return [ends[0], *ends] if is_integer else ends
    if operator.name in ("TANH", "LOGISTIC") or (operator.name == "CONCATENATION" and is_integer):
        return ends[1:]
    return []
