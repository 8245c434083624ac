"""White-box baselines of the Mapping problem: they read the program and the machine, make one map and
submit it once. They are never ranked against solvers that see rewards only without saying so."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from loadmaster.arrays import Bool, Int8, Int64
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.first_fit import sparse_tables
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.plan import HOME, lifetimes_in_loops
from loadmaster.search.solver import Meter, Solution, Solver, State


class OneMap(Solver):
    """Makes one map and submits it."""

    name: str
    problem_kind = "mapping"
    deterministic = True

    @abstractmethod
    def make(self, problem: Mapping, meter: Meter) -> Int8:
        """A map that fits."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        if not meter.exhausted:
            decision = self.make(problem, meter)
            meter.evaluate(problem.packable(decision) if problem.pins else decision)
        return meter.solution()


class AllSlowest(OneMap):
    name = "all-slowest"
    summary = "everything in the slowest memory (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        return problem.all_slowest()


class RoleSplit(OneMap):
    """Activations in memory 0, weights in memory 1, in program order; what does not fit there, and
    sparse tables, in the slowest."""

    name = "role-split"
    summary = "activations in the fastest memory, weights in the second (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        slowest, weights = problem.slowest, np.arange(2 * problem.nodes) >= problem.nodes
        decision = problem.all_slowest()
        for chosen, memory in ((~weights, 0), (weights & ~_sparse(problem), 1)):
            # One role at a time: what one role leaves over must not take the other's room.
            one_role = np.where(chosen, np.int8(min(memory, slowest)), np.int8(slowest))
            fits = problem.make_legal(one_role) == one_role
            decision[chosen & fits] = min(memory, slowest)
        return decision


class Compiler(OneMap):
    """The frozen first fit in program order that rewards are measured against."""

    name = "compiler"
    summary = "first fit in program order, activations before weights (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        return problem.make_legal(problem.compiler)


class Density(OneMap):
    """From all-slowest, again and again the move to a faster memory that saves most time per byte
    and op of life, as long as one saves anything."""

    name = "density"
    summary = "greedy by time saved per byte and step (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        if not problem.live.any():
            return problem.all_slowest()
        decoder = Decoder(problem)
        decision: Int8 = decoder.decode(np.zeros((1, *decoder.shape)))[0]
        return decision


def _sparse(problem: Mapping) -> Bool:
    """[2N] entries that hold a table of which less than half is read."""
    of_tensor = problem.entries.of_tensor
    sparse = np.zeros(2 * problem.nodes, dtype=np.bool_)
    sparse[of_tensor[sparse_tables(problem.program) & (of_tensor >= 0)]] = True
    return sparse


class OneArena(OneMap):
    """What runtimes for microcontrollers do, which know one arena: it goes whole into the fastest memory
    that holds it, and weights are where the image is."""

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
        return problem.make_legal(problem.of_tensors(chosen))


class GreedyBySize(OneMap):
    """What planners that know banks do: they fill them by size alone. Neither how often a tensor is
    accessed nor how fast a bank is enters, and weights are not moved."""

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
        return problem.make_legal(problem.of_tensors(chosen))


def _activations(problem: Mapping) -> tuple[Int64, Int64, Int64]:
    """(first op, last op, the roots that are neither kept between runs nor given nor held back)."""
    program = problem.program
    first, last = lifetimes_in_loops(program)
    decided = program.is_root & ~program.is_given & program.tensor_fast & (last >= first)
    return first, last, np.flatnonzero(decided)


def _sizes(problem: Mapping, memory: int) -> Int64:
    align = problem.machine.memories[memory].alignment
    return -(-problem.program.storage_bytes // align) * align
