"""What an agent sees of a Mapping problem: 21 numbers per node, the edges, and the memories.

Attributes are read where an importer keeps them (those of the zoo, or ONNX's own names); sizes
come from the shapes otherwise. What is unknown is 0. Nothing here depends on a map but the last
two columns, so it is made once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadmaster.arrays import Float32, Int32, Int64
from loadmaster.mapping.problem import Mapping
from loadmaster.program.program import Program, TensorKind

Size = tuple[int, int, int]
"""Width, height and channels; (tokens, 1, channels) or (tokens, tokens, heads) in a transformer."""

OPS = (
    "conv",
    "matmul",
    "bmm",
    "pool",
    "softmax",
    "gather",
    "layernorm",
    "add",
    "mul",
    "layout",
    "gelu",
    "other",
)
"""Column `op_id` counts in this list, which is frozen: trained networks know its order."""

COLUMNS = (
    "op_id",
    "weight_size",
    "ifm_x",
    "ifm_y",
    "ifm_z",
    "ofm_x",
    "ofm_y",
    "ofm_z",
    "ifm_size",
    "ofm_size",
    "n_ops_left",
    "n_w_left",
    "groups",
    "kernel_x",
    "kernel_y",
    "stride",
    "pad",
    "dilation",
    "batch",
    "placed_activation",
    "placed_weight",
)
PLACED = slice(19, 21)
"""The columns that hold the current map."""

_MEMBERS = {
    "softmax": "softmax exp log hardmax",
    "gather": "gather scatter onehot",
    # Sources that keep no whole normalisation make it of reductions and inverse roots.
    "layernorm": "layernorm batchnorm lrn rmsnormalization instancenormalization groupnormalization "
    "lpnormalization meanvariancenormalization mean rsqrt sqrt reduce_and reduce_max reduce_min "
    "reduce_mul reduce_or reduce_sum",
    "add": "add sub neg",
    "mul": "mul div",
    "layout": "transpose broadcast concat slice dynamic_slice dynamic_update_slice split pad reverse "
    "tile depthtospace spacetodepth centercroppad iota copy convert quantize dequantizelinear",
    # One name for all functions that come after a layer.
    "gelu": "gelu erf relu tanh logistic softplus celu elu selu leakyrelu prelu thresholdedrelu "
    "hardsigmoid hardswish mish swish swiglu softsign",
}
_OP_OF_KIND = {"conv": "conv", "pool": "pool"} | {
    kind: op for op, kinds in _MEMBERS.items() for kind in kinds.split()
}
_LARGEST = 64
"""Kernels, strides, pads and dilations count no further: their columns are not logarithms."""


def node_features(problem: Mapping) -> Float32:
    """[N, 21] as in `COLUMNS`; the placed columns say that everything is in the slowest memory."""
    program, n = problem.program, problem.nodes
    weights = _weight_bytes(problem)
    left = weights.sum() - np.cumsum(weights)
    rows = np.zeros((n, len(COLUMNS)))
    reader = _Nodes(program)
    for i, op in enumerate(problem.entries.node_op.tolist()):
        read, written = reader.bytes(op)
        rows[i, :19] = (
            OPS.index(reader.op_name(op)),
            _log(weights[i], 32),
            *(_log(v, 16) for v in (*reader.ifm(op), *reader.ofm(op))),
            _log(read, 32),
            _log(written, 32),
            (n - 1 - i) / n,
            _log(left[i], 32),
            *reader.window(op),
            _log(reader.batch(op), 8),
        )
    rows[:, PLACED] = problem.slowest
    return rows.astype(np.float32)


def op_kinds(problem: Mapping) -> Int64:
    """[N] the place in `OPS` of each node's op; a product of two activations is a 'bmm'."""
    program, nodes = problem.program, problem.entries.node_op
    weighted = np.zeros(program.n_ops, dtype=np.bool_)
    weighted[program.read_op[program.is_persistent[program.tensor_alias[program.read_tensor]]]] = True
    kinds = [program.op_kind[op] for op in nodes.tolist()]
    found = np.array([OPS.index(_OP_OF_KIND.get(kind, "other")) for kind in kinds], dtype=np.int64)
    products = np.array([kind == "matmul" for kind in kinds], dtype=np.bool_)
    with_weights = np.where(weighted[nodes], OPS.index("matmul"), OPS.index("bmm"))
    return np.where(products, with_weights, found)


def edges(problem: Mapping) -> Int32:
    """[2, E] (producer, consumer) nodes, each pair once, in order; views are looked through."""
    program = problem.program
    node = np.cumsum(~program.op_view) - 1
    real = ~program.op_view[program.read_op]
    source = program.producer[program.tensor_alias[program.read_tensor[real]]]
    made = source >= 0
    pairs = np.stack([node[source[made]], node[program.read_op[real][made]]])
    pairs = pairs[:, pairs[0] != pairs[1]]  # an op may read what it writes itself
    return np.unique(pairs, axis=1).astype(np.int32)


def machine_features(problem: Mapping) -> Float32:
    """[2M] log2 capacity / 40 of each memory, fastest first, then log2 read bandwidth / 50."""
    memories = [problem.machine.memories[number] for number in problem.memories]
    capacity = [math.log2(max(1, memory.capacity)) / 40 for memory in memories]
    bandwidth = [math.log2(max(1, memory.read)) / 50 for memory in memories]
    return np.array(capacity + bandwidth, dtype=np.float32)


def _log(value: float, scale: int) -> float:
    return math.log2(1 + max(0, value)) / scale


def _weight_bytes(problem: Mapping) -> Int64:
    """[N] bytes of the weights and state that each node owns."""
    program, entry = problem.program, problem.entries.of_tensor
    kept = program.is_persistent
    owned = np.flatnonzero(kept & (entry >= problem.nodes))
    total = np.zeros(problem.nodes, dtype=np.int64)
    np.add.at(total, entry[owned] - problem.nodes, program.storage_bytes[owned])
    return total


class _Nodes:
    """Reads ops: attributes first, shapes where there are none."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.is_weight = program.is_persistent[program.tensor_alias]
        # Every importer repeats itself: each distinct text is parsed once.
        self._parsed: dict[str, dict[str, Any]] = {}

    def attributes(self, op: int) -> dict[str, Any]:
        text = self.program.op_attributes[op]
        if text not in self._parsed:
            self._parsed[text] = self.program.attributes(op)
        return self._parsed[text]

    def op_name(self, op: int) -> str:
        """Which of `OPS` it is; a product of two activations is a 'bmm'."""
        kind = self.program.op_kind[op]
        if kind == "matmul":
            return "matmul" if self.is_weight[self.program.reads(op)].any() else "bmm"
        return _OP_OF_KIND.get(kind, "other")

    def bytes(self, op: int) -> tuple[int, int]:
        """Bytes that it reads of its inputs (not its weights), and bytes of its results."""
        program = self.program
        span = slice(program.read_start[op], program.read_start[op + 1])
        inputs = ~self.is_weight[program.read_tensor[span]]
        read = int(program.read_bytes[span][inputs].sum())
        return read, int(program.tensor_bytes[program.writes(op)].sum())

    def ofm(self, op: int) -> Size:
        given = _numbers(self.attributes(op), ("ofm",))
        if len(given) == 3:
            return (given[0], given[1], given[2])
        written = self.program.writes(op)
        return self._of_shape(op, int(written[0])) if len(written) else (0, 0, 0)

    def ifm(self, op: int) -> Size:
        given = _numbers(self.attributes(op), ("ifm",))
        if len(given) == 3:
            return (given[0], given[1], given[2])
        first = self._first_input(op)
        if first is None:
            return (0, 0, 0)
        if self.program.shape(first):
            return self._of_shape(op, first)
        root = int(self.program.tensor_alias[first])
        producer = int(self.program.producer[root])
        if producer >= 0:
            return self.ofm(producer)
        if self.op_name(op) == "gather" and self.program.tensor_kind[root] == TensorKind.INPUT:
            return (*self.ofm(op)[:2], 1)  # one index for each row of the result
        return (0, 0, 0)

    def batch(self, op: int) -> int:
        given = _numbers(self.attributes(op), ("batch",))
        if given:
            return given[0]
        written = self.program.writes(op)
        shape = self.program.shape(int(written[0])) if len(written) else ()
        return shape[0] if len(shape) > 1 else len(shape)

    def window(self, op: int) -> tuple[float, float, float, float, float, float]:
        """Groups, kernel_x, kernel_y, stride, pad and dilation as features; 0 unless it has some."""
        if self.program.op_kind[op] not in ("conv", "pool"):
            return (0.0,) * 6
        about = self.attributes(op)
        standard = int("onnx" in about)  # ONNX leaves defaults out: 1, and no pad
        kernel = _numbers(about, ("kernel", "kernel_shape")) or self._kernel_of_weights(op)
        stride = _numbers(about, ("stride", "strides")) or [standard]
        dilation = _numbers(about, ("dilation", "dilations")) or [standard]
        pad = _numbers(about, ("pad", "pads")) or [0]
        conv = self.program.op_kind[op] == "conv"
        groups = _numbers(about, ("groups", "group")) or [standard if conv else 0]
        y, x = [*([1] if "kernel" not in about else kernel), *kernel][-2:] if kernel else (0, 0)
        return (
            _log(groups[0], 16),
            _capped(x) / 8,
            _capped(y) / 8,
            _capped(max(stride)) / 4,
            _capped(max(pad)) / 4,
            _capped(max(dilation)) / 4,
        )

    def _kernel_of_weights(self, op: int) -> list[int]:
        """The window of a convolution, from the shape of its second operand."""
        reads = self.program.reads(op)
        if self.program.op_kind[op] != "conv" or len(reads) < 2:
            return []
        shape = self.program.shape(int(reads[1]))
        return list(shape[2:] if "onnx" in self.attributes(op) else shape[:-2])

    def _first_input(self, op: int) -> int | None:
        return next((int(t) for t in self.program.reads(op) if not self.is_weight[t]), None)

    def _of_shape(self, op: int, tensor: int) -> Size:
        """ONNX puts the channels of images first; everything else ends with them."""
        shape = self.program.shape(tensor)
        if not shape:
            return (0, 0, 0)
        inner = list(shape[1:] or shape)  # the first is the batch
        image = len(inner) > 2 or self.program.op_kind[op] in ("conv", "pool")
        if image and "onnx" in self.attributes(op):
            inner = [*inner[1:], inner[0]]
        *spatial, channels = inner
        return (spatial[-1] if spatial else 1, math.prod(spatial[:-1]), channels)


def _capped(value: int) -> int:
    return min(max(value, 0), _LARGEST)


def _numbers(about: dict[str, Any], names: tuple[str, ...]) -> list[int]:
    """The first attribute of these names that holds numbers: one, or a list."""
    for name in names:
        values = about.get(name)
        values = values if isinstance(values, list) else [values]
        if values and all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            return [int(v) for v in values]
    return []
