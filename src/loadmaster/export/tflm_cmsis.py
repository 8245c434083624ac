"""What Arm's CMSIS-NN kernels add to TFLite Micro's arena: scratch, and what they keep.

Read for it, in github.com/ARM-software/CMSIS-NN under Source: `arm_convolve_get_buffer_sizes_s8.c` (V2.3.0, of March
2026) and `_s16.c` (V1.0.0), `arm_depthwise_conv_get_buffer_sizes_s8.c` (V1.1.0) and `_s16.c` (V1.0.0),
`arm_transpose_conv_get_buffer_sizes_s8.c` (V2.1.0), `arm_fully_connected_get_buffer_sizes_s8.c`,
`arm_avgpool_get_buffer_sizes_s8.c`; and in github.com/tensorflow/tflite-micro, under
tensorflow/lite/micro/kernels/cmsis_nn: `conv.cc`, `transpose_conv.cc`, `fully_connected.cc`, `pooling.cc`,
`batch_matmul.cc`, `add.cc`. Where two compilers or two branches differ, the larger counts. SVDF and LSTM kernels are
not computed: the arena names them as unknown.
"""

from __future__ import annotations

from loadmaster.program.importers.tflite.read import ABSENT, Graph, Operator, Tensor

DSP = "cmsis-nn"
"""The DSP extension: Cortex-M4, M7, M33."""
HELIUM = "cmsis-nn-mve"
"""The vector extension: Cortex-M52, M55, M85."""
_BLOCK = 124
"""Channels at once in a depthwise convolution with Helium: arm_nnsupportfunctions.h, CH_IN_BLOCK_MVE."""
_REVERSED = 16
"""More input channels than this are convolved in reverse; not verified: the header that has it was not read."""
MORE_DATA = {
    "CONV_2D": "i",  # conv.cc, OpData: an index of scratch behind the reference kernel's data
    "DEPTHWISE_CONV_2D": "i",  # not verified: depthwise_conv.cc was not read, taken to be like conv.cc
    "TRANSPOSE_CONV": "i",  # transpose_conv.cc, OpData: a second index
    "FULLY_CONNECTED": "2PiP3i",  # fully_connected.cc, OpData
    "AVERAGE_POOL_2D": "i",  # pooling.cc, OpData
    "MAX_POOL_2D": "i",
    "SOFTMAX": "2i",  # softmax.cc, CMSISNNSoftmaxParams
    "BATCH_MATMUL": "5i",  # batch_matmul.cc, OpData: the output's shape and an index
}
"""Operator -> what its data have more than the reference kernel's."""


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
    if x.shape[3] != out.shape[3] or _numbers(operator, 5, 6) != (1, 1):
        return []
    window = rows * columns
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
