"""What the ops of the zoo are and cost: shares of kinds, and ranges of sizes and flops.

Measured over one training workload per family (rnnlm-2, gnmt-2, txl-2, inception-b32, wavenet-2x9,
vit-l16, llama; no held-out one), without views and updates, each workload counting alike. Ranges
are the 5 % and 95 % quantiles. `tools/graph_kinds.py` prints the table anew.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of op. Sizes are bytes of the result."""

    name: str
    percent: float
    unit: str
    """The flop class, as in `FLOP_CLASSES`; '' where it only moves bytes."""
    least_bytes: int
    most_bytes: int
    least_flops: int = 0
    most_flops: int = 0


KINDS = (
    Kind("mul", 29.25, "vector", 768, 67_108_864, 192, 16_777_216),
    Kind("add", 17.39, "vector", 16_384, 67_108_864, 4_096, 16_777_216),
    Kind("matmul", 10.48, "matrix", 262_144, 81_920_000, 9_961_472, 105_763_569_664),
    Kind("reduce_sum", 8.19, "vector", 4, 262_144, 266, 32_768_000),
    Kind("sub", 4.75, "vector", 19_456, 51_642_368, 4_864, 12_910_592),
    Kind("conv", 4.55, "matrix", 262_144, 88_510_464, 1_049_075_712, 33_554_432_000),
    Kind("transpose", 4.45, "", 2_097_152, 81_920_000),
    Kind("broadcast", 3.12, "", 256, 79_480_832),
    Kind("logistic", 1.8, "transcendental", 262_144, 524_288, 65_536, 131_072),
    Kind("convert", 1.72, "vector", 2_097_152, 67_108_864, 1_048_576, 16_777_216),
    Kind("div", 1.71, "vector", 256, 268_435_456, 64, 134_217_728),
    Kind("reverse", 1.51, "", 59_904, 2_256_896),
    Kind("neg", 1.5, "vector", 256, 103_284_736, 64, 49_795_584),
    Kind("split", 1.45, "", 524_288, 33_554_432),
    Kind("concat", 1.44, "", 524_288, 33_554_432),
    Kind("tanh", 1.31, "transcendental", 262_144, 19_922_944, 65_536, 4_980_736),
    Kind("rsqrt", 0.88, "transcendental", 256, 50_432, 64, 12_608),
    Kind("compare", 0.64, "vector", 32_768, 16_777_216, 32_768, 16_777_216),
    Kind("exp", 0.62, "transcendental", 19_456, 268_435_456, 4_864, 134_217_728),
    Kind("reduce_max", 0.53, "vector", 256, 403_456, 4_864, 134_217_728),
    Kind("max", 0.48, "vector", 2_621_440, 67_108_864, 655_360, 16_777_216),
    Kind("select", 0.48, "vector", 2_621_440, 67_108_864, 655_360, 16_777_216),
    Kind("pad", 0.28, "", 26_096_435, 67_371_008),
    Kind("gather", 0.27, "", 256, 144_384),
    Kind("scatter", 0.27, "vector", 2_560_000, 126_976_000, 64, 36_096),
    Kind("log", 0.23, "transcendental", 256, 256, 64, 64),
)
"""Kinds of at least 0.2 %; the rest is too rare to tell a range."""

WEIGHT_BYTES = (262_144, 23_068_672)
"""The same range, of the weights that matrix ops read."""
