"""Prints the table of `loadmaster.program.zoo.random_graphs`: what the zoo's ops are and cost.

    python tools/graph_kinds.py

One training workload per family; held-out ones must not be added.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from loadmaster.program import Program, TensorKind
from loadmaster.program.kinds import MATRIX
from loadmaster.program.models import load_model
from loadmaster.program.program import FLOP_CLASSES

WORKLOADS = ("rnnlm-2", "gnmt-2", "txl-2", "inception-b32", "wavenet-2x9", "vit-l16", "llama")
LEAST_PERCENT = 0.2


def main() -> None:
    percent: dict[str, float] = defaultdict(float)
    rows: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    weights: list[int] = []
    for name in WORKLOADS:
        program = load_model(name)
        weights += matrix_weights(program)
        made = np.zeros(program.n_ops, dtype=np.int64)
        np.add.at(made, program.write_op, program.tensor_bytes[program.write_tensor])
        ops = np.flatnonzero(~program.op_view & (program.op_group < 0))
        for op in ops.tolist():
            percent[program.op_kind[op]] += 100 / len(ops) / len(WORKLOADS)
            rows[program.op_kind[op]].append((int(made[op]), *program.op_flops[op].tolist()))
    for kind, share in sorted(percent.items(), key=lambda item: -item[1]):
        if share >= LEAST_PERCENT:
            low, high = np.quantile(np.array(rows[kind]), [0.05, 0.95], axis=0).round().astype(int)
            unit = int(high[1:].argmax())
            flops = (low[1 + unit], high[1 + unit])
            print(kind, f"{share:.2f}", FLOP_CLASSES[unit] if flops[1] else "-", low[0], high[0], *flops)
    print("weights", *np.quantile(weights, [0.05, 0.95]).round().astype(int))


def matrix_weights(program: Program) -> list[int]:
    """Bytes of every weight that a matrix op reads."""
    matrix = np.isin(np.array(list(program.op_kind)), MATRIX)[program.read_op]
    read = program.tensor_alias[program.read_tensor[matrix]]
    found = np.unique(read[program.tensor_kind[read] == TensorKind.WEIGHT])
    return [int(size) for size in program.tensor_bytes[found]]


if __name__ == "__main__":
    main()
