"""What TFLite Micro's kernels keep and ask for: the reference kernels, and Arm's.

Sources are files of github.com/tensorflow/tflite-micro, under tensorflow/lite. Read for it: `micro/kernels/conv.h`,
`fully_connected.h`, `transpose_conv.cc`, `reduce.h`, and SoftmaxParams and TfLiteReducerParams. The other entries name
where their structs lie; those files were not read, and their sizes are what the interpreter showed, which it rounds up
to 16 bytes. Structs of 32-bit numbers alone have one size on all targets.

Arm's CMSIS-NN kernels ask for scratch and keep more. Read for it, in github.com/ARM-software/CMSIS-NN under Source:
`arm_convolve_get_buffer_sizes_s8.c` (V2.3.0, of March
2026) and `_s16.c` (V1.0.0), `arm_depthwise_conv_get_buffer_sizes_s8.c` (V1.3.0) and `_s16.c` (V1.0.0),
`arm_transpose_conv_get_buffer_sizes_s8.c` (V2.1.0), `arm_fully_connected_get_buffer_sizes_s8.c`,
`arm_avgpool_get_buffer_sizes_s8.c`; and in github.com/tensorflow/tflite-micro, under
tensorflow/lite/micro/kernels/cmsis_nn: `conv.cc`, `depthwise_conv.cc`, `transpose_conv.cc`, `fully_connected.cc`, `pooling.cc`,
`batch_matmul.cc`, `add.cc`, `svdf.cc`, `unidirectional_sequence_lstm.cc`. Where two compilers or two branches differ,
the larger counts. Operators that are in no table are guessed, and the arena names them as unknown.

`benchmarks/tflm_sizes.py` compiles the headers of TFLite Micro that a package carries for Cortex-M and compares.
"""

from __future__ import annotations

from typing import NamedTuple

from loadmaster.program.importers.tflite.read import ABSENT, Graph, Operator, Tensor

REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN")
LSTM = "UNIDIRECTIONAL_SEQUENCE_LSTM"
WEIGHT_OPS = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "TRANSPOSE_CONV": 0}
"""Convolution -> the axis of its weights that has the output's channels."""


class Kernel(NamedTuple):
    """What an operator keeps: its options (c/builtin_op_data.h), and its kernel's data (micro/kernels)."""

    options: str = ""
    data: str = ""
    known: bool = True


_KEEP_NOTHING = """
READ_VARIABLE TRANSPOSE EXPAND_DIMS NEG SQRT SQUARE LOG SIN COS FLOOR CEIL ROUND MAXIMUM MINIMUM SLICE
BROADCAST_TO BROADCAST_ARGS REVERSE_V2 FLOOR_DIV FLOOR_MOD DYNAMIC_UPDATE_SLICE EMBEDDING_LOOKUP ZEROS_LIKE FILL EXP LOGICAL_AND LOGICAL_OR LOGICAL_NOT SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND GATHER_ND
"""
COPY_SHAPE = ("GATHER", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "BATCH_MATMUL")
"""Operators that keep a copy of their output's shape, which they may change; measured."""
UNKNOWN = Kernel("12i", "32i", False)
KERNELS: dict[str, Kernel] = {
    "CONV_2D": Kernel("e2ie2ie", "9i2P3i"),  # kernels/conv.h, OpDataConv; TfLiteConvParams
    "DEPTHWISE_CONV_2D": Kernel("e3ie2i", "9i2P3i"),
    "TRANSPOSE_CONV": Kernel("e2i2e", "16i2P"),  # kernels/transpose_conv.cc, OpData
    "FULLY_CONNECTED": Kernel("2e2Be", "9i2PB"),  # kernels/fully_connected.h, OpDataFullyConnected
    "ADD": Kernel("eB", "15i"),  # kernels/add.h, OpDataAdd
    "SUB": Kernel("eB", "13i"),  # kernels/sub.h, OpDataSub
    "MUL": Kernel("e", "9i"),  # kernels/mul.h, OpDataMul
    "DIV": Kernel("e", "7i"),  # kernels/div.cc, OpDataDiv
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"), Kernel("e4ie4i", "8i")),  # pooling.h
    "SOFTMAX": Kernel("i", "9i5P"),  # kernels/internal/types.h, SoftmaxParams
    "CONCATENATION": Kernel("ie", "B2P3i"),  # kernels/concatenation.cc: ConcatenationParams
    "RESHAPE": Kernel("9i"),
    "SQUEEZE": Kernel("9i"),
    "STRIDED_SLICE": Kernel("5iB", "21i"),  # kernels/strided_slice.h, StridedSliceParams
    "PAD": Kernel("", "14i"),  # kernels/pad.cc, OpData
    "PADV2": Kernel("", "14i"),
    "MIRROR_PAD": Kernel("e", "5i"),  # kernels/mirror_pad.cc
    **dict.fromkeys(REDUCTIONS, Kernel("B", "10i")),  # kernels/reduce.h, OpDataReduce; TfLiteReducerParams
    **dict.fromkeys(("LOGISTIC", "TANH"), Kernel("", "4i")),  # kernels/logistic.h, kernels/tanh.cc
    **dict.fromkeys(("QUANTIZE", "DEQUANTIZE"), Kernel("", "8i")),  # kernels/quantize.h, dequantize.h
    "PRELU": Kernel("", "7i"),  # kernels/prelu.h, PreluParams
    "LEAKY_RELU": Kernel("i", "6i"),  # kernels/leaky_relu.h
    "RSQRT": Kernel("", "4iBie"),  # kernels/elementwise.cc, OpDataAbsRsqrt
    "ABS": Kernel("", "4iBie"),
    **dict.fromkeys(
        ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"), Kernel("", "8i")
    ),  # kernels/comparisons.cc, OpData
    "SELECT_V2": Kernel("", "B"),  # kernels/select.cc, OpData
    "RELU": Kernel("", "e6i"),  # kernels/activations.h, ReluOpData and Relu6OpData
    "RELU6": Kernel("", "2B"),
    "HARD_SWISH": Kernel("", "5i"),  # kernels/internal/types.h, HardSwishParams
    "ELU": Kernel("", "B"),  # these to LOG_SOFTMAX: measured
    "L2_NORMALIZATION": Kernel("e", "i"),
    "SQUARED_DIFFERENCE": Kernel("", "26i"),
    "SPACE_TO_DEPTH": Kernel("i"),
    "DEPTH_TO_SPACE": Kernel("i"),
    "LOG_SOFTMAX": Kernel(),
    "PACK": Kernel("2i"),
    "UNPACK": Kernel("2i"),
    "SHAPE": Kernel("e"),
    "SPLIT": Kernel("i"),
    "SPLIT_V": Kernel("i"),
    "GATHER": Kernel("2i"),
    "CAST": Kernel("2e"),
    "ARG_MAX": Kernel("e"),
    "ARG_MIN": Kernel("e"),
    "RESIZE_NEAREST_NEIGHBOR": Kernel("2B"),
    "RESIZE_BILINEAR": Kernel("2B"),
    "BATCH_MATMUL": Kernel("3B", "3P3B"),  # kernels/batch_matmul.h, OpDataBatchMatmul
    "VAR_HANDLE": Kernel("2P", "i"),  # kernels/var_handle.cc
    "ASSIGN_VARIABLE": Kernel(),
    "CUMSUM": Kernel("2B", "8i"),  # measured; TfLiteCumsumParams
    "ADD_N": Kernel("", "8i"),  # measured
    "SVDF": Kernel("ieB", "9i"),  # kernels/svdf.h, OpDataSvdf; TfLiteSVDFParams
    LSTM: Kernel(
        "e2i3B", "172i"
    ),  # kernels/lstm_shared.h, OpDataLSTM; TfLiteUnidirectionalSequenceLSTMParams
    "CALL_ONCE": Kernel("i", "iB"),  # kernels/call_once.cc
    "IF": Kernel("2i", "2i"),  # kernels/if.cc
    "WHILE": Kernel("2i", "2i"),  # kernels/while.cc
    **dict.fromkeys(_KEEP_NOTHING.split(), Kernel()),
}
"""Operator -> what it keeps; checked against the interpreter by tests where it is installed."""


RECENT_OPTIONS = {"FULLY_CONNECTED": "4i"}
"""Operator -> what its options have grown by: the Python package of October 2026 shows it, an image of March 2026 does not."""
DECOMPRESSION = {
    **dict.fromkeys((*WEIGHT_OPS, "FULLY_CONNECTED"), "2i"),
    "CONCATENATION": "10i",
    "ASSIGN_VARIABLE": "i",
}
"""Operator -> what its data have more where the runtime is built with USE_TFLM_COMPRESSION: indices of scratch; measured."""


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


# CMSIS-NN.

DSP = "cmsis-nn"
"""The DSP extension: Cortex-M4, M7, M33."""
HELIUM = "cmsis-nn-mve"
"""The vector extension: Cortex-M52, M55, M85."""
_BLOCK = 124
"""Channels at once in a depthwise convolution with Helium: arm_nnsupportfunctions.h, CH_IN_BLOCK_MVE."""
_CELL = 19
"""The input of an LSTM that is its cell's state: kernels/lstm_shared.h, kLstmCellStateTensor."""
_REVERSED = 16
"""More input channels than this are convolved in reverse: arm_nnsupportfunctions.h, REVERSE_TCOL_EFFICIENT_THRESHOLD."""
MORE_DATA = {
    "CONV_2D": "i",  # conv.cc, OpData: an index of scratch behind the reference kernel's data
    "DEPTHWISE_CONV_2D": "i",  # depthwise_conv.cc, OpData: the same
    "TRANSPOSE_CONV": "i",  # transpose_conv.cc, OpData: a second index
    "FULLY_CONNECTED": "2iP3i",  # fully_connected.cc, OpData
    "AVERAGE_POOL_2D": "i",  # pooling.cc, OpData
    "MAX_POOL_2D": "i",
    "SOFTMAX": "2i",  # softmax.cc, CMSISNNSoftmaxParams
    "BATCH_MATMUL": "5i",  # batch_matmul.cc, OpData: the output's shape and an index
    "SVDF": "P",  # svdf.cc, CmsisNnOpDataSvdf: sums of the weights
    LSTM: "15i" + 4 * "2i2P2i3Pi",  # arm_nn_types.h, cmsis_nn_lstm_params with four cmsis_nn_lstm_gate
}
"""Operator -> what its data have more than the reference kernel's."""


def recurrent_scratch(graph: Graph, operator: Operator, kernels: str = "reference") -> list[int]:
    """Bytes of scratch of SVDF and LSTM: kernels/svdf_common.cc and unidirectional_sequence_lstm.cc, Prepare."""
    tensors = [graph.tensors[number] for number in operator.inputs if number != ABSENT]
    if operator.name == "SVDF":
        batches, filters = tensors[0].shape[0], tensors[1].shape[0]
        rank = 1 if operator.options is None else max(1, operator.options.number(0, "i"))
        sums = [4 * batches * filters]
        return sums if tensors[0].dtype == "f32" else [*sums, 4 * batches * (filters // rank)]
    cell = graph.tensors[operator.inputs[_CELL]]
    return [cell.bytes] * (3 if kernels != "reference" and cell.dtype == "i16" else 4)


def cmsis_scratch(graph: Graph, operator: Operator, kernels: str) -> list[int]:
    """Bytes of scratch that a kernel asks for, one number a request."""
    x, weights, out = _ends(graph, operator)
    if x is None or out is None or x.dtype not in ("i8", "i16"):
        return []
    helium, wide = kernels == HELIUM, x.dtype == "i16"
    name = operator.name
    if name == "AVERAGE_POOL_2D":  # sums of a pixel's channels
        return [] if helium else [4 * x.shape[-1]]
    if name == "BATCH_MATMUL":
        return [4 * out.shape[-1]] if helium and not wide else []
    if weights is None:
        return []
    if name == "FULLY_CONNECTED":
        if wide:
            return []
        if _as_convolution(out, weights):
            return _one_by_one(weights.shape[-1], helium)
        return [4 * out.shape[-1]] if helium and not weights.constant else []
    if len(weights.shape) != 4 or len(x.shape) != 4:
        return []
    if name == "CONV_2D":
        return _convolution(operator, x, weights, helium)
    if name == "DEPTHWISE_CONV_2D":
        return _depthwise(operator, x, weights, out, helium)
    if name == "TRANSPOSE_CONV":
        return [8 * out.elements] if wide else _transposed(operator, x, weights, out, helium)
    return []


def cmsis_kept(graph: Graph, operator: Operator, kernels: str) -> list[int]:
    """Bytes that a kernel keeps besides what the reference kernel does."""
    x, weights, out = _ends(graph, operator)
    if operator.name == LSTM and x is not None and x.dtype in ("i8", "i16"):
        hidden = graph.tensors[operator.inputs[_CELL]].shape[-1]
        return [(4 if x.dtype == "i8" else 8) * hidden] * 8  # sums of every gate's two weights
    if operator.name == "SVDF" and kernels == HELIUM and weights is not None and weights.dtype == "i8":
        return [4 * weights.shape[0]]
    if operator.name != "FULLY_CONNECTED" or x is None or weights is None or out is None or x.dtype != "i8":
        return []
    channels = out.shape[-1] if out.shape else 1
    if _as_convolution(out, weights):
        return [4 * channels, 4 * channels]  # multipliers and shifts
    return [4 * channels] if kernels == HELIUM and weights.constant else []  # sums of the weights


def _ends(graph: Graph, operator: Operator) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """(input, weights, output)."""
    numbers = list(operator.inputs)
    if operator.name == "TRANSPOSE_CONV" and len(numbers) > 2:  # its first input is the output's shape
        numbers[0] = numbers[2]
    first, second = (
        graph.tensors[numbers[i]] if len(numbers) > i and numbers[i] != ABSENT else None for i in (0, 1)
    )
    is_made = operator.outputs and operator.outputs[0] != ABSENT
    return first, second, graph.tensors[operator.outputs[0]] if is_made else None


def _as_convolution(out: Tensor, weights: Tensor) -> bool:
    return len(out.shape) > 2 and len(weights.shape) > 0 and weights.shape[-1] % 4 == 0


def _one_by_one(channels: int, helium: bool) -> list[int]:
    """Arm's compiler, from 6.10 on, has two columns of 16 bits; others have none."""
    return [] if helium else [4 * channels]


def _columns(count: int, helium: bool) -> int:
    """Windows side by side: two of 16 bits, padded to 4 elements; with Helium four of 8 bits, padded to 16."""
    return 4 * (count + -count % 16) if helium else 4 * (count + -count % 4)


def _convolution(operator: Operator, x: Tensor, weights: Tensor, helium: bool) -> list[int]:
    rows, columns = weights.shape[1:3]
    steps, spread = _numbers(operator, 1, 2), _numbers(operator, 4, 5)
    window = rows * columns * x.shape[3]
    if x.dtype == "i16":
        return [4 * window] if not helium and window < 512 and spread == (1, 1) else []
    if (rows, columns) == spread == (1, 1) and x.shape[3] == weights.shape[3]:
        return _one_by_one(x.shape[3], helium) if steps == (1, 1) else []
    return [_columns(window, helium)]


def _depthwise(operator: Operator, x: Tensor, weights: Tensor, out: Tensor, helium: bool) -> list[int]:
    rows, columns = weights.shape[1:3]
    window = rows * columns
    if helium and x.dtype == "i8" and x.shape[3] == 1 < out.shape[3]:
        return [_columns(window, helium) + weights.elements]  # as a convolution, with its weights transposed
    if x.shape[3] != out.shape[3] or _numbers(operator, 5, 6) != (1, 1):
        return []
    if x.dtype == "i16":
        if window >= 512:
            return []
        return [8 * window * x.shape[3] + 8] if helium else [2 * window * x.shape[3]]
    if x.shape[0] != 1:
        return []
    if helium:
        return [4 * _BLOCK * window]
    return [] if (rows, columns) == (3, 3) else [2 * window * x.shape[3]]


def _transposed(operator: Operator, x: Tensor, weights: Tensor, out: Tensor, helium: bool) -> list[int]:
    rows, columns = weights.shape[1:3]
    across, down = _numbers(operator, 1, 2)
    if max(across, down) <= 2 and x.shape[3] > _REVERSED:
        window = rows * columns * x.shape[3]
        return [_columns(window, helium), window * weights.shape[0]]
    wide = (x.shape[2] - 1) * across + max(columns, down)
    return [4 * wide * out.shape[3] * max(rows, down), 0]


def _numbers(operator: Operator, first: int, second: int) -> tuple[int, int]:
    """Two fields of an operator's options; 1 where they are not there."""
    if operator.options is None:
        return 1, 1
    return operator.options.number(first, "i", 1), operator.options.number(second, "i", 1)
