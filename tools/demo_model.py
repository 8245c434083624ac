"""Make the model of `loadmaster demo`: `python tools/demo_model.py`. The same bytes every time.

Four branches widen an image and narrow it again. A converter that goes through the graph level by level writes
all widened images before the first is narrowed: the order is right, and needs three times the memory.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
SIDE, WIDE, NARROW, BRANCHES, CLASSES = 32, 24, 2, 4, 4


def main() -> bytes:
    sys.path.insert(0, str(ROOT / "tests"))
    make = import_module("generate_tflite")  # the maker of tests' models

    rng = np.random.default_rng(2026)
    graph = make.GraphMaker()

    def constant(shape: list[int], kind: int) -> int:
        low, high, dtype = (-127, 128, np.int8) if kind == make.I8 else (-500, 500, np.dtype("<i4"))
        data = rng.integers(low, high, int(np.prod(shape))).astype(dtype).tobytes()
        number: int = graph.tensor(
            f"{'weights' if kind == make.I8 else 'bias'}_{len(graph.tensors)}", shape, kind, data
        )
        return number

    def conv(source: int, name: str, side: int, wide: int, window: int, channels: int) -> int:
        operands = [source, constant([wide, window, window, channels], make.I8), constant([wide], make.I32)]
        out: int = graph.tensor(name, [1, side, side, wide])
        graph.op("CONV_2D", operands, [out], make.CONV)
        return out

    image = graph.tensor("image", [1, SIDE, SIDE, 4])
    wide = [conv(image, f"branch_{i}/wide", SIDE, WIDE, 3, 4) for i in range(BRANCHES)]
    narrow = [conv(each, f"branch_{i}/narrow", SIDE, NARROW, 1, WIDE) for i, each in enumerate(wide)]
    joined = graph.tensor("joined", [1, SIDE, SIDE, NARROW * BRANCHES])
    graph.op("CONCATENATION", narrow, [joined], {0: ("i", 3), 1: ("b", 0)})
    pooled = graph.tensor("pooled", [1, 4, 4, NARROW * BRANCHES])
    pool = {0: ("b", 1), 1: ("i", 8), 2: ("i", 8), 3: ("i", 8), 4: ("i", 8), 5: ("b", 0)}
    graph.op("AVERAGE_POOL_2D", [joined], [pooled], pool)
    count = 4 * 4 * NARROW * BRANCHES
    shape = graph.tensor("shape", [2], make.I32, np.array([1, count], dtype="<i4").tobytes())
    flat = graph.tensor("flat", [1, count])
    graph.op("RESHAPE", [pooled, shape], [flat], {})
    scores = graph.tensor("scores", [1, CLASSES])
    graph.op(
        "FULLY_CONNECTED",
        [flat, constant([CLASSES, count], make.I8), constant([CLASSES], make.I32)],
        [scores],
        {0: ("b", 0)},
    )
    graph.inputs, graph.outputs = [image], [scores]
    return bytes(make.tflite(graph))


if __name__ == "__main__":
    (ROOT / "src" / "loadmaster" / "cli" / "four_branches.tflite").write_bytes(main())
