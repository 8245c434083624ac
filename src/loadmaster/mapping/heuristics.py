"""White-box baselines of the Mapping problem: they read the program and the machine, make one map and
submit it once. They are never ranked against solvers that see rewards only without saying so."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from fractions import Fraction

import numpy as np

from loadmaster.arrays import Bool, Int8, Int64
from loadmaster.mapping.first_fit import sparse_tables
from loadmaster.mapping.model import MappingModel, make_model
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.plan import HOME, lifetimes_in_loops
from loadmaster.search.solver import Meter, Solution, Solver, State

Move = tuple[float, Fraction, int, int, int]
"""Minus the density, roughly and exactly, entry, memory, and the version of the entry's savings.
The smallest is the best, and of equals that with the lower entry, then the faster memory. Rounding
is monotonic, so the rough number only saves comparisons of fractions."""


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
        climb = Climb(problem)
        while not meter.exhausted and climb.step():
            pass
        return climb.decision


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


class Climb:
    """The moves of `Density`, from all-slowest: which one saves most time per byte and op of life, and
    whether it fits. A move changes the time of the ops that access its entry and nothing else, so that
    only entries that share an op with it are priced again: ten thousand ops take a second.

    Live entries are numbered as in `MappingModel`; those
    that are pinned are where they belong from the start, and are not moved.
    """

    def __init__(self, problem: Mapping) -> None:
        self._problem, model = problem, make_model(problem)
        self._chosen = [problem.slowest] * model.entries
        self._times, self._room = _Times(model), _Room(problem)
        self._volume = _volumes(problem)
        self._saved: list[list[int]] = [[] for _ in self._chosen]
        """[E] what a move to each faster memory saves."""
        self._version = [0] * model.entries
        self._queue: list[Move] = []
        self._blocked: list[list[Move]] = [[] for _ in problem.memories]
        """Moves to a memory that did not fit; they may when something leaves it."""
        self._pinned = model.pinned.tolist()
        for entry, memory in enumerate(self._pinned):
            if 0 <= memory < problem.slowest:
                self._room.move(entry, problem.slowest, memory)
                self._times.move(entry, problem.slowest, memory)
                self._chosen[entry] = memory
        for entry in range(model.entries):
            self._price(entry)

    @property
    def decision(self) -> Int8:
        decision = self._problem.all_slowest()
        decision[self._problem.entries.live] = self._chosen
        return decision

    def step(self) -> bool:
        """Make the best move that fits; False if there is none."""
        while self._queue:
            move = heapq.heappop(self._queue)
            *_, entry, memory, version = move
            if version != self._version[entry]:
                continue
            left = self._chosen[entry]
            if not self._room.move(entry, left, memory):
                self._blocked[memory].append(move)
                continue
            self._times.move(entry, left, memory)
            self._chosen[entry] = memory
            for waiting in self._blocked[left]:
                heapq.heappush(self._queue, waiting)
            self._blocked[left] = []
            for other in self._times.beside(entry):
                self._price(other)
            return True
        return False

    def _price(self, entry: int) -> None:
        """Put its moves into the queue, unless the same ones are there."""
        if self._pinned[entry] >= 0:
            return
        here = self._chosen[entry]
        saved = [self._times.saved(entry, here, memory) for memory in range(here)]
        if saved == self._saved[entry]:
            return
        self._saved[entry] = saved
        self._version[entry] += 1
        for memory, time in enumerate(saved):
            if time > 0:
                volume = self._volume[entry][memory]
                move = (-time / volume, Fraction(-time, volume), entry, memory, self._version[entry])
                heapq.heappush(self._queue, move)


class _Times:
    """The time of every node as entries move, in plain integers."""

    def __init__(self, model: MappingModel) -> None:
        self._compute, self._launch = model.compute.tolist(), model.launch.tolist()
        self._repeat, self._overlap = model.repeat.tolist(), model.overlap.tolist()
        self._combine = max if model.parallel else sum
        """How the memories of a node share its time."""
        slowest = model.memories - 1
        self._busy = [[0] * slowest + [fixed] for fixed in model.fixed.tolist()]
        """[N][M] time that each memory serves a node."""
        self._uses: list[list[tuple[int, list[int]]]] = [[] for _ in range(model.entries)]
        """[E] (node, time [M]) of the nodes that access an entry."""
        self._entries: list[list[int]] = []
        """[N] the entries that a node accesses."""
        for node in range(model.nodes):
            here = model.accesses(node)
            self._entries.append(model.access_entry[here].tolist())
            costs = model.access_cost[here].tolist()
            for entry, cost in zip(self._entries[-1], costs, strict=True):
                self._uses[entry].append((node, cost))
                self._busy[node][slowest] += cost[slowest]
        self._now = [self._time(node, busy) for node, busy in enumerate(self._busy)]

    def _time(self, node: int, busy: list[int]) -> int:
        compute, memory = self._compute[node], self._combine(busy)
        both = -(-min(compute, memory) * self._overlap[node] // 10**6)  # rounded up
        once: int = max(1, max(compute, memory) + both + self._launch[node])
        return once * int(self._repeat[node])

    def saved(self, entry: int, left: int, memory: int) -> int:
        """Time that moving an entry from `left` to a memory saves; negative: it costs."""
        saved = 0
        for node, cost in self._uses[entry]:
            busy = self._busy[node].copy()
            busy[left] -= cost[left]
            busy[memory] += cost[memory]
            saved += self._now[node] - self._time(node, busy)
        return saved

    def move(self, entry: int, left: int, memory: int) -> None:
        for node, cost in self._uses[entry]:
            self._busy[node][left] -= cost[left]
            self._busy[node][memory] += cost[memory]
            self._now[node] = self._time(node, self._busy[node])

    def beside(self, entry: int) -> list[int]:
        """The entries that share a node with one, itself included."""
        near = {other for node, _ in self._uses[entry] for other in self._entries[node]}
        return sorted(near | {entry})


class _Room:
    """Bytes in every memory but the slowest at every op."""

    def __init__(self, problem: Mapping) -> None:
        entries = problem.entries
        self._slowest = problem.slowest
        self._capacity = [problem.machine.memories[m].capacity for m in problem.memories]
        self._held = np.zeros((problem.slowest, problem.program.n_ops), dtype=np.int64)
        lives = zip(entries.piece_first.tolist(), entries.piece_last.tolist(), strict=True)
        pieces = list(
            zip((slice(first, last + 1) for first, last in lives), entries.piece_size.tolist(), strict=True)
        )
        starts = entries.piece_start.tolist()
        self._pieces = [
            pieces[starts[entry] : starts[entry + 1]] for entry in np.flatnonzero(entries.live).tolist()
        ]
        """[E] (ops of life, bytes [M]) of the places of an entry."""

    def move(self, entry: int, left: int, memory: int) -> bool:
        """Move an entry, unless it does not fit there."""
        pieces, held = self._pieces[entry], self._held[memory]
        for ops, size in pieces:
            held[ops] += size[memory]
        if any(held[ops].max(initial=0) > self._capacity[memory] for ops, _ in pieces):
            for ops, size in pieces:
                held[ops] -= size[memory]
            return False
        if left != self._slowest:
            for ops, size in pieces:
                self._held[left][ops] -= size[left]
        return True


def _volumes(problem: Mapping) -> list[list[int]]:
    """[E][M] aligned bytes times ops of life of each live entry in each memory, at least 1."""
    entries = problem.entries
    owner = np.repeat(np.arange(2 * entries.nodes), np.diff(entries.piece_start))
    life = entries.piece_last.astype(np.int64) - entries.piece_first + 1
    volume = np.zeros((2 * entries.nodes, len(problem.memories)), dtype=np.int64)
    np.add.at(volume, owner, entries.piece_size * life[:, None])
    found: list[list[int]] = np.maximum(volume, 1)[entries.live].tolist()
    return found
