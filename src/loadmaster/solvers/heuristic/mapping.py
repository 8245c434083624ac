"""White-box baselines of the Mapping problem: they read the program and the machine.

Each makes one map and submits it once. They are never ranked against solvers that see rewards
only without saying so: their solutions carry `white_box`.
"""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from loadmaster.problems.first_fit import sparse_tables
from loadmaster.problems.mapping import Mapping
from loadmaster.solvers.solver import Meter, Solution, State

Int8 = npt.NDArray[np.int8]


class _OneMap:
    """Makes a map and submits it."""

    name: str
    problem_kind = "mapping"
    deterministic = True

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        """A map that fits."""
        raise NotImplementedError

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        if not meter.exhausted:
            meter.evaluate(self.make(problem, meter))
        return meter.solution(white_box=True)


class AllSlowest(_OneMap):
    name = "all-slowest"
    summary = "everything in the slowest memory (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        return problem.all_slowest()


class RoleSplit(_OneMap):
    """Activations in memory 0, weights in memory 1, in program order; what does not fit there, and
    sparse tables, in the slowest."""

    name = "role-split"
    summary = "activations in the fastest memory, weights in the second (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        slowest, weights = problem.slowest, np.arange(2 * problem.nodes) >= problem.nodes
        decision = problem.all_slowest()
        for chosen, memory in ((~weights, 0), (weights & ~_sparse(problem), 1)):
            # One role at a time: what one role leaves over must not take the other's room.
            wanted = np.where(chosen, np.int8(min(memory, slowest)), np.int8(slowest))
            fitted = problem.rectify(wanted[None])[2][0]
            decision[chosen & (fitted == wanted)] = min(memory, slowest)
        return decision


class Compiler(_OneMap):
    """The frozen first fit in program order that rewards are measured against."""

    name = "compiler"
    summary = "first fit in program order, activations before weights (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        fitted: Int8 = problem.rectify(problem.compiler[None])[2][0]
        return fitted


class Density(_OneMap):
    """From all-slowest, again and again the move to a faster memory that saves most time per byte
    and op of life, as long as one saves anything."""

    name = "density"
    summary = "greedy by time saved per byte and step (white box)"

    def make(self, problem: Mapping, meter: Meter) -> Int8:
        climb = _Climb(problem)
        while not meter.exhausted and climb.step():
            pass
        return climb.decision


Move = tuple[Fraction, int, int, int]
"""Minus the density, entry, memory, and the version of the entry's savings when it was made. The
smallest is the best, and of equals that with the lower entry, then the faster memory."""


class _Climb:
    """The moves of `Density`. A queue holds them by exact density; what a move saves is computed
    again only for entries that share an op with the one that moved."""

    def __init__(self, problem: Mapping) -> None:
        self.problem = problem
        self.decision = problem.all_slowest()
        self._volume = _volumes(problem)
        self._beside = _entries_beside(problem)
        self._version = np.zeros(2 * problem.nodes, dtype=np.int64)
        self._queue: list[Move] = []
        self._blocked: list[list[Move]] = [[] for _ in problem.memories]
        """Moves to a memory that did not fit; they may when something leaves it."""
        self._price(np.flatnonzero(problem.live).tolist())

    def step(self) -> bool:
        """Make the best move that fits; False if there is none."""
        while self._queue:
            move = heapq.heappop(self._queue)
            _, entry, memory, version = move
            if version != self._version[entry]:
                continue
            tried = self.decision.copy()
            tried[entry] = memory
            if self.problem.rectify(tried[None], threads=1)[1][0] > 0:
                self._blocked[memory].append(move)
                continue
            left, self.decision = int(self.decision[entry]), tried
            for waiting in self._blocked[left]:
                heapq.heappush(self._queue, waiting)
            self._blocked[left] = []
            self._price(self._beside[entry])
            return True
        return False

    def _price(self, entries: list[int]) -> None:
        moves = [(entry, memory) for entry in entries for memory in range(self.decision[entry])]
        self._version[entries] += 1
        maps = np.repeat(self.decision[None], len(moves) + 1, axis=0)  # the last stays as it is
        for row, (entry, memory) in enumerate(moves):
            maps[row, entry] = memory
        times = self.problem.times(maps).tolist()
        for (entry, memory), time in zip(moves, times[:-1], strict=True):
            if time < times[-1]:
                density = Fraction(times[-1] - time, int(self._volume[entry, memory]))
                move = (-density, entry, memory, int(self._version[entry]))
                heapq.heappush(self._queue, move)


def _volumes(problem: Mapping) -> npt.NDArray[np.int64]:
    """[2N, M] aligned bytes times ops of life of each entry in each memory, at least 1."""
    entries = problem.entries
    owner = np.repeat(np.arange(2 * entries.nodes), np.diff(entries.piece_start))
    life = entries.piece_last.astype(np.int64) - entries.piece_first + 1
    volume = np.zeros((2 * entries.nodes, len(problem.memories)), dtype=np.int64)
    np.add.at(volume, owner, entries.piece_size * life[:, None])
    return np.maximum(volume, 1)


def _entries_beside(problem: Mapping) -> list[list[int]]:
    """[2N] the live entries that share an op with each, itself included."""
    program, of_tensor = problem.program, problem.entries.of_tensor
    of_op: list[set[int]] = [set() for _ in range(program.n_ops)]
    for ops, tensors in ((program.read_op, program.read_tensor),
                         (program.write_op, program.write_tensor)):  # fmt: skip
        accessed = of_tensor[program.tensor_alias[tensors]]
        for op, entry in zip(ops.tolist(), accessed.tolist(), strict=True):
            if entry >= 0:
                of_op[op].add(entry)
    beside: list[set[int]] = [{entry} for entry in range(2 * problem.nodes)]
    for together in of_op:
        for entry in together:
            beside[entry] |= together
    return [sorted(entries) for entries in beside]


def _sparse(problem: Mapping) -> npt.NDArray[np.bool_]:
    """[2N] entries that hold a table of which less than half is read."""
    of_tensor = problem.entries.of_tensor
    sparse = np.zeros(2 * problem.nodes, dtype=np.bool_)
    sparse[of_tensor[sparse_tables(problem.program) & (of_tensor >= 0)]] = True
    return sparse
