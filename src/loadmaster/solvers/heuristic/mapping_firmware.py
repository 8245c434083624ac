"""What firmware does with several memories today: baselines of the Mapping problem (white box).

Runtimes for microcontrollers know one arena. It goes whole into the fastest memory that holds it, and
weights stay where the image is. Planners that know banks fill them by size alone: neither how often a
tensor is accessed nor how fast a bank is enters, and weights are not moved.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.plan.static import HOME, lifetimes_in_loops
from loadmaster.problems.mapping import Mapping
from loadmaster.program.program import PERSISTENT, TensorKind
from loadmaster.solvers.heuristic.mapping import OneMap
from loadmaster.solvers.solver import Meter

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]


class OneArena(OneMap):
    name = "one-arena"
    summary = "all activations in the fastest memory that holds them all, weights in the slowest (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        first, last, movable = _activations(problem)
        chosen = np.full(problem.program.n_tensors, HOME, dtype=np.int64)
        for memory in problem.memories:
            size, live = _sizes(problem, memory), np.zeros(problem.program.n_ops, dtype=np.int64)
            for tensor in movable.tolist():
                live[first[tensor] : last[tensor] + 1] += size[tensor]
            if live.max(initial=0) <= problem.machine.memories[memory].capacity:
                chosen[movable] = memory
                break
        return _legal(problem, chosen)


class GreedyBySize(OneMap):
    name = "greedy-by-size"
    summary = "activations, largest first, each in the fastest memory with room (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        first, last, movable = _activations(problem)
        ranked = movable[np.argsort(-problem.program.storage_bytes[movable], kind="stable")]
        memories = problem.machine.memories
        live = np.zeros((len(memories), problem.program.n_ops), dtype=np.int64)
        chosen = np.full(problem.program.n_tensors, HOME, dtype=np.int64)
        size = {memory: _sizes(problem, memory) for memory in problem.memories}
        for tensor in ranked.tolist():
            life = slice(first[tensor], last[tensor] + 1)
            for memory in problem.memories:
                needed = live[memory, life].max(initial=0) + size[memory][tensor]
                if needed <= memories[memory].capacity:
                    live[memory, life] += size[memory][tensor]
                    chosen[tensor] = memory
                    break
        return _legal(problem, chosen)


def _activations(problem: Mapping) -> tuple[Int64, Int64, Int64]:
    """(first op, last op, the roots that are neither kept between runs nor given nor held back)."""
    program = problem.program
    first, last = lifetimes_in_loops(program)
    roots = program.tensor_alias == np.arange(program.n_tensors)
    fixed = np.isin(program.tensor_kind, [*map(int, PERSISTENT), int(TensorKind.INPUT)])
    return first, last, np.flatnonzero(roots & ~fixed & program.tensor_fast & (last >= first))


def _sizes(problem: Mapping, memory: int) -> Int64:
    align = problem.machine.memories[memory].alignment
    return -(-problem.program.storage_bytes // align) * align


def _legal(problem: Mapping, memory: Int64) -> Int8:
    fitted: Int8 = problem.rectify(problem.of_tensors(memory)[None])[2][0]
    return fitted
