"""TFLite files for tests: small int8 models of random shape, made byte by byte."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.export.tflm_file import Head
from loadmaster.program.importers.tflite.read import OPERATORS

REFERENCE = "reference"
I8, I16, I32, F32, RESOURCE = 9, 7, 2, 0, 13
WIDTH = {I8: 1, I16: 2, I32: 4, F32: 4}
_OPTIONS = {
    "CONV_2D": 1,
    "DEPTHWISE_CONV_2D": 2,
    "AVERAGE_POOL_2D": 5,
    "MAX_POOL_2D": 5,
    "SVDF": 6,
    "FULLY_CONNECTED": 8,
    "SOFTMAX": 9,
    "CONCATENATION": 10,
    "ADD": 11,
    "RESHAPE": 17,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": 71,
    "IF": 92,
    "WHILE": 93,
    "VAR_HANDLE": 111,
}


@dataclass
class GraphMaker:
    """Tensors are (name, shape, type, data or None, variable); operators (name, inputs, outputs, options)."""

    tensors: list[tuple[Any, ...]] = field(default_factory=list)
    operators: list[tuple[Any, ...]] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(
        self, name: str, shape: list[int], kind: int = I8, data: bytes | None = None, variable: bool = False
    ) -> int:
        self.tensors.append((name, shape, kind, data, variable))
        return len(self.tensors) - 1

    def op(
        self,
        name: str,
        inputs: list[int],
        outputs: list[int],
        options: dict[int, tuple[str, int]] | None = None,
    ) -> None:
        self.operators.append((name, inputs, outputs, options))


def tflite(*graphs: GraphMaker, custom: str = "") -> bytes:
    """The bytes of a file. Options of an operator are fields of its options' table."""
    head = Head()
    names = list(dict.fromkeys(op[0] for graph in graphs for op in graph.operators))
    codes = [_code(head, name, custom) for name in names]
    buffers = [head.table({})]
    tables = []
    for graph in graphs:
        rows = []
        for name, shape, kind, data, variable in graph.tensors:
            number = 0
            if data is not None:
                number = len(buffers)
                buffers.append(head.table({0: (REFERENCE, head.blob(data))}))
            # A bias has the scale of the products: the runtime checks it.
            step = 0.05 if data is None else 0.001 if kind == I32 else 0.02
            scale = head.put(struct.pack("<If", 1, step))
            zero = head.put(struct.pack("<Iq", 1, 0), 8, 4)
            quantized = head.table({2: (REFERENCE, scale), 3: (REFERENCE, zero)})
            rows.append(
                head.table(
                    {
                        0: (REFERENCE, head.numbers(shape)),
                        1: ("b", kind),
                        2: ("I", number),
                        3: (REFERENCE, head.text(name)),
                        4: (REFERENCE, quantized),
                        5: ("B", int(variable)),
                    }
                )
            )
        ops = []
        for name, inputs, outputs, options in graph.operators:
            fields = {
                0: ("I", names.index(name)),
                1: (REFERENCE, head.numbers(inputs)),
                2: (REFERENCE, head.numbers(outputs)),
            }
            if options is not None:
                fields |= {3: ("B", _OPTIONS[name]), 4: (REFERENCE, head.table(options))}
            ops.append(head.table(fields))
        tables.append(
            head.table(
                {
                    0: (REFERENCE, head.vector(rows)),
                    1: (REFERENCE, head.numbers(graph.inputs)),
                    2: (REFERENCE, head.numbers(graph.outputs)),
                    3: (REFERENCE, head.vector(ops)),
                }
            )
        )
    model = head.table(
        {
            0: ("I", 3),
            1: (REFERENCE, head.vector(codes)),
            2: (REFERENCE, head.vector(tables)),
            4: (REFERENCE, head.vector(buffers)),
        }
    )
    return head.finish(model, b"")


def _code(head: Head, name: str, custom: str) -> int:
    number = OPERATORS.index(name)
    fields: dict[int, tuple[str, int]] = {0: ("b", min(number, 127)), 3: ("i", number)}
    if name == "CUSTOM":
        fields[1] = (REFERENCE, head.text(custom))
    return head.table(fields)


CONV = {0: ("b", 0), 1: ("i", 1), 2: ("i", 1), 3: ("b", 0), 4: ("i", 1), 5: ("i", 1)}


def branchy(seed: int, operators: int = 14) -> bytes:
    """A random graph of 1x1 convolutions, additions and concatenations, in a random legal order."""
    rng = np.random.default_rng(seed)
    graph = GraphMaker()
    side = int(rng.integers(2, 6))
    channels = {graph.tensor("input", [1, side, side, 4]): 4}
    graph.inputs = [0]

    def conv(source: int, to: int) -> None:
        weights = rng.integers(-127, 128, to * channels[source]).astype(np.int8).tobytes()
        bias = rng.integers(-500, 500, to).astype("<i4").tobytes()
        w = graph.tensor(f"w{len(graph.tensors)}", [to, 1, 1, channels[source]], I8, weights)
        b = graph.tensor(f"b{len(graph.tensors)}", [to], I32, bias)
        out = graph.tensor(f"conv{len(graph.tensors)}", [1, side, side, to])
        graph.op("CONV_2D", [source, w, b], [out], CONV)
        channels[out] = to

    for _ in range(operators):
        known = list(channels)
        source = int(rng.choice(known))
        alike = [t for t in known if channels[t] == channels[source] and t != source]
        kind = rng.random()
        if kind < 0.25 and alike:
            out = graph.tensor(f"add{len(graph.tensors)}", [1, side, side, channels[source]])
            graph.op("ADD", [source, int(rng.choice(alike))], [out], {0: ("b", 0)})
            channels[out] = channels[source]
        elif kind < 0.4 and len(known) > 1:
            other = int(rng.choice([t for t in known if t != source]))
            total = channels[source] + channels[other]
            if total > 40:
                continue
            out = graph.tensor(f"concat{len(graph.tensors)}", [1, side, side, total])
            graph.op("CONCATENATION", [source, other], [out], {0: ("i", 3), 1: ("b", 0)})
            channels[out] = total
        else:
            conv(source, int(rng.choice([1, 2, 4, 8, 16])))
    read = {number for _, inputs, _, _ in graph.operators for number in inputs}
    ends = [t for t in channels if t not in read]
    while len(ends) > 1:  # everything is needed
        first, second = ends[0], ends[1]
        total = channels[first] + channels[second]
        out = graph.tensor(f"concat{len(graph.tensors)}", [1, side, side, total])
        graph.op("CONCATENATION", [first, second], [out], {0: ("i", 3), 1: ("b", 0)})
        channels[out] = total
        ends = [*ends[2:], out]
    size = side * side * channels[ends[0]]
    flat = graph.tensor("flat", [1, size])
    shape = graph.tensor("shape", [2], I32, struct.pack("<2i", 1, size))
    graph.op("RESHAPE", [ends[0], shape], [flat], {})
    weights = rng.integers(-127, 128, 3 * size).astype(np.int8).tobytes()
    w = graph.tensor("dense_w", [3, size], I8, weights)
    b = graph.tensor("dense_b", [3], I32, rng.integers(-500, 500, 3).astype("<i4").tobytes())
    out = graph.tensor("output", [1, 3])
    graph.op("FULLY_CONNECTED", [flat, w, b], [out], {0: ("b", 0)})
    graph.outputs = [out]
    return tflite(graph)


def convolutional(seed: int, operators: int = 7, side: int = 0) -> bytes:
    """A chain of convolutions, pools, paddings and residual sums with random windows, strides and paddings."""
    rng = np.random.default_rng(seed)
    graph = GraphMaker()
    height, width = (side, side) if side else (int(n) for n in rng.integers(9, 24, 2))
    shape = [1, height, width, int(rng.integers(1, 4))]
    x = graph.tensor("input", shape)
    graph.inputs = [x]

    def added(
        kind: str, inputs: list[int], shape: list[int], options: dict[int, tuple[str, int]] | None
    ) -> int:
        out = graph.tensor(f"{kind.lower()}{len(graph.tensors)}", shape)
        graph.op(kind, inputs, [out], options)
        return out

    def numbers(shape: list[int]) -> int:
        data = rng.integers(-127, 128, int(np.prod(shape))).astype(np.int8).tobytes()
        return graph.tensor(f"w{len(graph.tensors)}", shape, I8, data)

    def bias(count: int) -> int:
        data = rng.integers(-500, 500, count).astype("<i4").tobytes()
        return graph.tensor(f"b{len(graph.tensors)}", [count], I32, data)

    for _ in range(operators):
        kind, padding = rng.random(), int(rng.integers(2))
        window = [int(n) for n in rng.choice([1, 2, 3, 5], 2)]
        stride = [int(n) for n in rng.choice([1, 1, 2], 2)]
        if kind > 0.8:
            window = stride = [2, 2]
        span = [
            -(-size // step) if padding == 0 else (size - wide) // step + 1
            for size, wide, step in zip(shape[1:3], window, stride, strict=True)
        ]
        if min(span) < 2:
            continue
        steps = {0: ("b", padding), 1: ("i", stride[1]), 2: ("i", stride[0])}
        if kind < 0.4:
            to = int(rng.choice([2, 4, 8]))
            weights = [numbers([to, *window, shape[3]]), bias(to)]
            shape = [1, *span, to]
            x = added("CONV_2D", [x, *weights], shape, {**steps, 3: ("b", 0), 4: ("i", 1), 5: ("i", 1)})
        elif kind < 0.6:
            weights = [numbers([1, *window, shape[3]]), bias(shape[3])]
            shape = [1, *span, shape[3]]
            more = {3: ("i", 1), 4: ("b", 0), 5: ("i", 1), 6: ("i", 1)}
            x = added("DEPTHWISE_CONV_2D", [x, *weights], shape, {**steps, **more})
        elif kind < 0.7:
            around = [int(n) for n in rng.integers(0, 3, 4)]
            paddings = struct.pack("<8i", 0, 0, *around, 0, 0)
            p = graph.tensor(f"p{len(graph.tensors)}", [4, 2], I32, paddings)
            shape = [1, shape[1] + around[0] + around[1], shape[2] + around[2] + around[3], shape[3]]
            x = added("PAD", [x, p], shape, None)
        elif kind < 0.8:  # a block with a way around it
            weights = [numbers([shape[3], 3, 3, shape[3]]), bias(shape[3])]
            one = {0: ("b", 0), 1: ("i", 1), 2: ("i", 1), 3: ("b", 0), 4: ("i", 1), 5: ("i", 1)}
            x = added("ADD", [x, added("CONV_2D", [x, *weights], shape, one)], shape, {0: ("b", 0)})
        else:
            pool = {**steps, 3: ("i", window[1]), 4: ("i", window[0]), 5: ("b", 0)}
            shape = [1, *span, shape[3]]
            x = added("MAX_POOL_2D" if kind < 0.9 else "AVERAGE_POOL_2D", [x], shape, pool)
    graph.outputs = [x]
    return tflite(graph)


def svdf(
    kind: int,
    batch: int = 1,
    inputs: int = 8,
    filters: int = 12,
    rank: int = 2,
    layers: int = 1,
    said: int = -1,
) -> bytes:
    """Layers of SVDF, as keyword spotters have them; the state of int8 layers has 16 bits. `said`: another rank than
    the true one."""
    graph = GraphMaker()
    x = graph.tensor("input", [batch, inputs], kind)
    graph.inputs = [x]
    state, bias, memory, units = (
        (F32, F32, 5, filters // rank) if kind == F32 else (I16, I32, 5, filters // rank)
    )
    for layer in range(layers):
        weights = [
            graph.tensor(f"{name}{layer}", shape, type_, bytes(WIDTH[type_] * int(np.prod(shape))))
            for name, shape, type_ in (
                ("feature", [filters, inputs], kind),
                ("time", [filters, memory], state),
                ("bias", [units], bias),
            )
        ]
        kept = graph.tensor(f"state{layer}", [batch, memory * filters], state, None, True)
        out = graph.tensor(f"svdf{layer}", [batch, units], kind)
        graph.op("SVDF", [x, *weights, kept], [out], {0: ("i", rank if said < 0 else said), 1: ("b", 1)})
        x, inputs = out, units
    graph.outputs = [x]
    return tflite(graph)


def lstm(kind: int, batch: int = 1, steps: int = 4, inputs: int = 6, hidden: int = 10) -> bytes:
    """One layer of LSTM without peepholes and projection; the cell of an int8 layer has 16 bits."""
    graph = GraphMaker()
    x = graph.tensor("input", [batch, steps, inputs], kind)
    cell, bias = (F32, F32) if kind == F32 else (I16, I32)
    shapes = [
        *(("w", [hidden, inputs], kind),) * 4,
        *(("r", [hidden, hidden], kind),) * 4,
        *(("b", [hidden], bias),) * 4,
    ]
    given = [
        graph.tensor(f"{name}{n}", shape, type_, bytes(WIDTH[type_] * int(np.prod(shape))))
        for n, (name, shape, type_) in enumerate(shapes)
    ]
    states = [
        graph.tensor(name, [batch, hidden], type_, None, True) for name, type_ in (("h", kind), ("c", cell))
    ]
    out = graph.tensor("output", [batch, steps, hidden], kind)
    ends = [x, *given[:8], -1, -1, -1, *given[8:], -1, -1, *states, -1, -1, -1, -1]
    graph.op("UNIDIRECTIONAL_SEQUENCE_LSTM", ends, [out], {0: ("b", 4), 3: ("B", 0)})
    graph.inputs, graph.outputs = [x], [out]
    return tflite(graph)
