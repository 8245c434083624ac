"""A problem and settings for tests of published EGRL: small, with entries that decide nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from generate_mapping import three_memories
from loadmaster.machine.machine import Machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.problem import Decision, Scores

SMALL: dict[str, Any] = {
    "width": 8,
    "heads": 2,
    "depth": 1,
    "population": 6,
    "boltzmann": 0.34,
    "batch": 4,
    "burn_in": 8,
    "updates": 1.0,
    "horizon": 200,
}
"""Four GNNs, two chromosomes."""


def chain(count: int = 10, readers_of_first: int = 0) -> Program:
    """Ops one after another, every third without weights; the first result may have many readers."""
    build = Builder("chain")
    results = [build.tensor("x", bytes=96, kind="input")]
    for i in range(count):
        reads = {results[i], results[max(0, i - 2)]}
        if 0 < i <= readers_of_first:
            reads.add(results[1])
        if i % 3:
            reads.add(build.tensor(f"w{i}", bytes=40 + 37 * (i % 5), kind="weight"))
        kind = "output" if i == count - 1 else "activation"
        results.append(build.tensor(f"t{i}", bytes=64 + 24 * (i % 4), kind=kind))
        build.op(
            f"op{i}",
            "matmul" if i % 3 else "add",
            reads=sorted(reads),
            writes=[results[-1]],
            matrix=900 + 31 * i,
        )
    return build.build()


def roomy(small: int = 400, middle: int = 800) -> Machine:
    """About one random map in three of `chain` fits."""
    machine = three_memories()
    sizes = (small, middle, machine.memories[2].capacity)
    held = zip(machine.memories, sizes, strict=True)
    return replace(machine, memories=tuple(replace(m, capacity=size) for m, size in held))


def chain_problem(**switches: Any) -> Mapping:
    return Mapping(chain(), roomy(), **switches)


class Recording(Mapping):
    """Remembers every map that it was asked to score; may fail to score some."""

    def __init__(self, *parts: Any, fails_from: int | None = None, **switches: Any) -> None:
        self.asked: list[np.ndarray] = []
        self.fails_from = fails_from
        super().__init__(*parts, **switches)

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        """From evaluation `fails_from` on, every other one fails."""
        scores = super().score(decisions, first)
        self.asked += list(np.array(decisions))
        if self.fails_from is None:
            return scores
        number = first + np.arange(len(decisions))
        failed = (number >= self.fails_from) & (number % 2 == 0)
        return Scores(np.where(failed, -1, scores.value), np.where(failed, -1.0, scores.reward), failed)
