"""A small network to measure: four stages with residual connections, then one block of weights that
refines the result four times, 8-bit.

    python examples/measure_cpu/convnet.py convnet.npz
"""

from __future__ import annotations

from loadmaster.program import Builder, Program, save

STAGES = ((64, 56), (128, 28), (192, 14), (256, 7))
"""(channels, width and height) of each stage."""
REFINEMENTS = 4


def convnet() -> Program:
    """20 nodes, 2.1 MiB of weights, activations up to 196 KiB.

    The weights that are read four times come late: a compiler that fills its memories in program
    order has no room left for them.
    """
    build = Builder("convnet20")
    image = build.tensor("image", shape=(3, 112, 112), kind="input")

    def weights(name: str, before: int, after: int, kernel: int) -> int:
        return build.tensor(f"{name}.w", shape=(after, before, kernel, kernel), kind="weight")

    def conv(name: str, reads: list[int], kept: int, channels: int, size: int) -> int:
        result = build.tensor(f"{name}.out", shape=(channels, size, size))
        build.op(name, "conv", reads=[*reads, kept], writes=[result])
        return result

    x, before = conv("stem", [image], weights("stem", 3, 32, 7), 32, 56), 32
    for number, (channels, size) in enumerate(STAGES):
        name = f"stage{number}"
        down = conv(f"{name}.down", [x], weights(f"{name}.down", before, channels, 1), channels, size)
        wide = conv(f"{name}.conv", [down], weights(f"{name}.conv", channels, channels, 3), channels, size)
        x = conv(f"{name}.out", [wide, down], weights(f"{name}.out", channels, channels, 1), channels, size)
        before = channels
    shared = weights("refine", before, before, 3)
    for number in range(REFINEMENTS):
        x = conv(f"refine{number}", [x], shared, before, STAGES[-1][1])
    pooled = build.tensor("pool.out", shape=(before,))
    build.op("pool", "pool", reads=[x], writes=[pooled])
    logits = build.tensor("fc.out", shape=(1000,))
    build.op("fc", "matmul", reads=[pooled, weights("fc", before, 1000, 1)], writes=[logits])
    scores = build.tensor("softmax.out", shape=(1000,), kind="output")
    build.op("softmax", "softmax", reads=[logits], writes=[scores])
    return build.build()


if __name__ == "__main__":
    import sys

    save(convnet(), sys.argv[1])
