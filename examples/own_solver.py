"""A solver of your own beside the built-in ones: it proposes decisions, the meter counts and keeps.

    python examples/own_solver.py

The graph is built by hand, as a compiler would hand over its own; so is the machine.
"""

from __future__ import annotations

import numpy as np

import loadmaster as lm
from loadmaster.machine.toml import parse_machine

MACHINE = """
name = "chip"
[[memory]]
name = "tcm"
capacity = "48KiB"
bandwidth = "16GB/s"
[[memory]]
name = "dram"
capacity = "64MiB"
bandwidth = "1GB/s"
[[device]]
name = "npu"
memories = ["tcm", "dram"]
matrix = "100Gflop/s"
vector = "10Gflop/s"
"""


def network(layers: int = 12) -> lm.Program:
    """A chain of layers, each adding what came two layers before."""
    build = lm.Builder("network")
    values = [build.tensor("x", bytes=8_192, kind="input")]
    for i in range(layers):
        weight = build.tensor(f"w{i}", bytes=4_096 + 1_024 * (i % 5), kind="weight")
        kind = "output" if i == layers - 1 else "activation"
        values.append(build.tensor(f"t{i}", bytes=6_144 + 2_048 * (i % 3), kind=kind))
        reads = [*sorted({values[i], values[max(0, i - 2)]}), weight]
        build.op(f"layer{i}", "matmul", reads=reads, writes=[values[-1]], matrix=200_000)
    return build.build()


class CoinFlips(lm.Solver):
    """Tries random maps, and small changes of the best so far."""

    name, problem_kind = "coin-flips", "mapping"
    summary = "random maps, then single changes of the best"
    deterministic = True

    def run(self, meter: lm.Meter, seed: int, state: object) -> lm.Solution:
        rng, problem = np.random.default_rng(seed), meter.problem
        size = 2 * problem.nodes  # type: ignore[attr-defined]
        while not meter.exhausted:
            decision = rng.integers(0, 2, size, dtype=np.int8)
            if meter.best is not None:
                one = rng.integers(size)
                decision = meter.best.copy()
                decision[one] = 1 - decision[one]
            meter.evaluate(decision)
        return meter.solution()


def main() -> None:
    problem = lm.make_problem(network(), parse_machine(MACHINE, "chip", str))
    # With OR-tools installed, 'auto' proves its answer; without, its bound leaves capacities out.
    best = lm.solve(problem, "auto", seconds=10)
    compiler = lm.make_solver("mapping", "heuristic", {"rule": "compiler"})
    for solver in (compiler, "density", CoinFlips(), "search", "auto"):
        found = lm.solve(problem, solver, seconds=10, evaluations=400, seed=1)
        name = solver if isinstance(solver, str) else solver.name
        assert found.value is not None
        gap = found.value / best.bound.value - 1
        print(
            f"{name:12} {found.value / 1e6:8.3f} µs  gap to bound {gap:6.1%}  {found.evaluations} evaluations"
        )


if __name__ == "__main__":
    main()
