"""`GameModel`: a program on one fast and one slow memory, as the game, its solvers and its bounds
read it.

Steps are the ops that are no views, in program order. Tensors are roots that may be decided about.
A *site* is one read or one write of such a tensor by one step: reads in operand order, then writes
in result order. What is not decided (too large, not allowed, tied to such a tensor) always costs
what it costs in slow memory and is part of `base_slow`. Times are picoseconds of one execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import Bool, Int8, Int32, Int64
from loadmaster.errors import BadMachine
from loadmaster.machine.machine import Machine
from loadmaster.program.hazards import place_bytes, places
from loadmaster.program.program import Program, TensorKind, TieKind
from loadmaster.simulate.costs import compute_times

NEVER = -1
"""As the time of a copy: there is no link."""
MILLION = 10**6


@dataclass(frozen=True, eq=False)
class Tensors:
    """The B tensors that a game decides about, by row, and what it costs to move them."""

    root: Int32
    """[B] its number in the program"""
    of_root: Int32
    """[T] its row, or -1: not decided"""
    size: Int64
    """[B] bytes it takes in fast memory: of its place, aligned"""
    copy_in: Int64
    """[B] picoseconds of a copy from slow to fast with nothing beside it; NEVER: no link"""
    copy_out: Int64
    given: Int8
    """[B] no step writes it: slow memory has it from the start"""
    output: Int8
    """[B] slow memory must have it at the end"""
    over: Int32
    """[B] the tensor that its producing step overwrites with it in place, or -1"""
    carried: Int32
    """[B] the group of tensors that loops carry in one place, or -1"""

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What the native core reads."""
        return {
            "tensor_size": self.size,
            "tensor_in": self.copy_in,
            "tensor_out": self.copy_out,
            "tensor_given": self.given,
            "tensor_output": self.output,
            "tensor_over": self.over,
            "tensor_carried": self.carried,
        }


def find_tensors(program: Program, machine: Machine, fast: int) -> Tensors:
    """The roots that some step accesses, that fit, and that may leave slow memory."""
    root = program.tensor_alias
    place_of = places(program)[root]
    memory = machine.memories[fast]
    size = -(-place_bytes(program)[place_of] // memory.alignment) * memory.alignment
    barred = _barred_places(program, place_of)
    decided = _accessed(program) & (root == np.arange(program.n_tensors))
    decided &= ~barred[place_of] & (size <= memory.capacity) & (program.storage_bytes > 0)
    rows = np.flatnonzero(decided).astype(np.int32)
    of_root = np.full(program.n_tensors, -1, dtype=np.int32)
    of_root[rows] = np.arange(len(rows))
    output = np.zeros(program.n_tensors, dtype=np.int8)
    output[root[program.tensor_kind == TensorKind.OUTPUT]] = 1
    home = machine.memories[machine.home[0]]
    over, carried = _ties(program, of_root, place_of)
    return Tensors(
        root=rows,
        of_root=of_root,
        size=size[rows],
        copy_in=_copy_times(program, machine, rows, machine.home[0], fast, home.read),
        copy_out=_copy_times(program, machine, rows, fast, machine.home[0], home.write),
        given=program.is_given[rows].astype(np.int8),
        output=output[rows],
        over=over,
        carried=carried,
    )


def _accessed(program: Program) -> Bool:
    """[T] whether a step reads or writes the root."""
    found = np.zeros(program.n_tensors, dtype=bool)
    for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        found[program.tensor_alias[tensor[~program.op_view[op]]]] = True
    return found


def _barred_places(program: Program, place_of: Int32) -> Bool:
    """[T] places with a tensor that must stay in slow memory: all tensors of a place share a fate."""
    root = program.tensor_alias
    barred = np.zeros(program.n_tensors, dtype=bool)
    barred[place_of[~program.tensor_fast | (program.storage_bytes == 0)]] = True
    # A step that reads what it writes has no moment at which to decide about it.
    reads, written = (
        op.astype(np.int64) * program.n_tensors + root[tensor]
        for op, tensor in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor))
    )
    both = np.isin(reads, written) & ~program.op_view[program.read_op]
    barred[place_of[root[program.read_tensor[both]]]] = True
    # Two results over one tensor, or one result over two: nobody could say who is continued. Nor is
    # a tensor continued by an op that writes over it without reading it.
    inplace = program.tie_kind == TieKind.INPLACE
    over = root[program.tie_source[inplace]]
    is_read = np.isin(program.tie_at[inplace].astype(np.int64) * program.n_tensors + over, reads)
    barred[place_of[over[~is_read]]] = True
    for ends in (program.tie_source[inplace], program.tie_target[inplace]):
        roots, counts = np.unique(root[ends], return_counts=True)
        barred[place_of[roots[counts > 1]]] = True
    # What a loop carries from or to a tensor that nobody accesses has no step at which it enters.
    carried, accessed = program.tie_kind == TieKind.CARRIED, _accessed(program)
    for ends in (root[program.tie_source[carried]], root[program.tie_target[carried]]):
        barred[place_of[ends[~accessed[ends]]]] = True
    # A given tensor that comes back as an output under a view is the caller's own memory.
    views = (program.tensor_kind == TensorKind.OUTPUT) & (root != np.arange(program.n_tensors))
    given = program.is_given
    barred[place_of[root[views & given[root]]]] = True
    return barred


def _ties(program: Program, of_root: Int32, place_of: Int32) -> tuple[Int32, Int32]:
    """(over[B], carried[B]) in rows."""
    rows = int(of_root.max(initial=-1)) + 1
    over = np.full(rows, -1, dtype=np.int32)
    carried = np.full(rows, -1, dtype=np.int32)
    root = program.tensor_alias
    reads = program.read_op.astype(np.int64) * program.n_tensors + root[program.read_tensor]
    by_op = program.tie_at.astype(np.int64) * program.n_tensors + root[program.tie_source]
    groups: dict[int, int] = {}
    for kind, source, target, is_read in zip(
        program.tie_kind.tolist(),
        root[program.tie_source].tolist(),
        root[program.tie_target].tolist(),
        np.isin(by_op, reads).tolist(),
        strict=True,
    ):
        if of_root[source] < 0 or of_root[target] < 0 or source == target:
            continue
        if kind == TieKind.INPLACE and is_read:
            over[of_root[target]] = of_root[source]
        elif kind == TieKind.CARRIED:
            groups.setdefault(int(place_of[source]), len(groups))
    group_of = np.full(program.n_tensors, -1, dtype=np.int32)
    group_of[list(groups)] = list(groups.values())
    decided = np.flatnonzero(of_root >= 0)
    carried[of_root[decided]] = group_of[place_of[decided]]
    return over, carried


def _copy_times(
    program: Program, machine: Machine, rows: Int32, source: int, target: int, slow_rate: int
) -> Int64:
    link = machine.link_between.get((source, target))
    if link is None:
        return np.full(len(rows), NEVER, dtype=np.int64)
    about = machine.links[link]
    idle = machine.rules.copies == "idle"
    rate = min(about.bandwidth, slow_rate) if idle else about.bandwidth
    size = np.ascontiguousarray(program.storage_bytes[rows])
    times: Int64 = _core.ceil_times(size, np.full(len(rows), rate, dtype=np.int64))
    return np.maximum(1, times + about.latency)


_NATIVE = (
    *("compute", "base_slow", "launch", "overlap", "repeat", "beside"),
    *("loop", "loop_parent", "loop_first", "loop_last"),
    *("site_start", "site_step", "site_tensor", "site_write", "site_slow", "site_fast"),
)
"""Columns of a `GameModel` that the native core reads."""


@dataclass(frozen=True, eq=False)
class GameModel:
    """n steps, B tensors, N sites, L loops. Columns; indices are rows."""

    fast: int
    """Memory numbers of the machine."""
    slow: int
    capacity: int
    """Of the fast memory; a multiple of its alignment."""
    alignment: int
    parallel: bool
    """Ports side by side: an op's memory time is the larger of the two memories', not the sum."""
    idle_copies: bool
    """Copies move only while ops leave the slow memory idle; else on their link's engines."""
    engines: tuple[int, int]
    """Of copies in and out: equal if they take turns with each other; -1: no engine"""

    step_op: Int32
    """[n] the op of each step"""
    compute: Int64
    """[n]"""
    base_slow: Int64
    """[n] time that slow memory serves whatever is decided"""
    launch: Int64
    """[n]"""
    overlap: Int64
    """[n] millionths of the smaller of compute and memory time that is added to the larger"""
    repeat: Int64
    """[n]"""
    beside: Int64
    """[n] time that slow memory serves within a given time of the cost table: not idle"""
    loop: Int32
    """[n] innermost loop or -1"""
    loop_parent: Int32
    loop_first: Int32
    """[L] first and last step, inner loops included; first > last: it has none"""
    loop_last: Int32

    site_start: Int64
    """[n + 1]"""
    site_step: Int32
    """[N]"""
    site_tensor: Int32
    """[N]"""
    site_write: Int8
    """[N]"""
    site_slow: Int64
    """[N] time if served by slow memory"""
    site_fast: Int64
    """[N] time if served by fast memory"""
    site_bytes: Int64
    """[N]"""

    tensors: Tensors
    """[B] columns"""

    @property
    def steps(self) -> int:
        return len(self.step_op)

    @property
    def sites(self) -> int:
        return len(self.site_tensor)

    @cached_property
    def all_slow(self) -> Int64:
        """[n] elapsed time of each step with every site slow"""
        return self.elapsed(np.zeros(self.sites, dtype=bool))

    @property
    def all_slow_ps(self) -> int:
        """T0: the time of the plan that decides nothing."""
        return int((self.all_slow * self.repeat).sum())

    def memory_times(self, is_fast: Bool) -> tuple[Int64, Int64]:
        """([n] time that slow memory serves, [n] fast) for sites bool[N]."""
        slow, fast = self.base_slow.copy(), np.zeros_like(self.base_slow)
        np.add.at(slow, self.site_step, np.where(is_fast, 0, self.site_slow))
        np.add.at(fast, self.site_step, np.where(is_fast, self.site_fast, 0))
        return slow, fast

    def elapsed(self, is_fast: Bool) -> Int64:
        """[n] how long each step takes once, as the simulator has it, without stalls."""
        return self.step_times(*self.memory_times(is_fast))

    def step_times(self, slow: Int64, fast: Int64, step: Any = slice(None)) -> Int64:
        """Picoseconds of one execution of steps that the memories serve for so long: the larger of
        compute and memory time, a share of the smaller, and the launch.

        Args:
          slow, fast: arrays that broadcast against the columns of `step`.
          step: a number, or an index of the [n] columns; by default all steps.
        """
        memory = np.maximum(slow, fast) if self.parallel else slow + fast
        compute = self.compute[step]
        small, large = np.minimum(compute, memory), np.maximum(compute, memory)
        hidden = -((-small * self.overlap[step]) // MILLION)
        times: Int64 = np.maximum(1, self.launch[step] + large + hidden)
        return times

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """What the native core reads."""
        own = {name: getattr(self, name) for name in _NATIVE}
        about = [self.capacity, self.alignment, self.parallel, self.idle_copies, *self.engines]
        return {**own, **self.tensors.columns(), "about": np.array(about, dtype=np.int64)}


def make_model(program: Program, machine: Machine, fast: str | None = None) -> GameModel:
    """The game's columns. `fast` names the fast memory; by default the device's first."""
    reach = machine.reach[0]
    chosen = reach[0] if fast is None else machine.memory(fast)
    slow = reach[-1]
    if chosen not in reach[:-1]:
        raise BadMachine(
            f"'{machine.memories[chosen].name}' is no fast memory of machine '{machine.name}'",
            object=machine.memories[chosen].name,
            number=len(reach),
            remedy="give a machine whose device has two or more memories, and one before its last",
        )
    memory = machine.memories[chosen]
    tensors = find_tensors(program, machine, chosen)
    steps = np.flatnonzero(~program.op_view).astype(np.int32)
    number = np.full(program.n_ops, -1, dtype=np.int32)
    number[steps] = np.arange(len(steps))
    sites = _sites(program, machine, tensors, number, chosen, slow)
    compute, named = compute_times(program, machine)
    given = named[steps, 0] > 0  # by the cost table: no launch, no overlap, no other bytes
    other = access_times(machine, slow, program.op_other_bytes[steps], write=False)
    first, last = _loops(program, steps)
    return GameModel(
        fast=chosen,
        slow=slow,
        alignment=memory.alignment,
        capacity=memory.capacity // memory.alignment * memory.alignment,
        parallel=machine.rules.ports == "parallel",
        idle_copies=machine.rules.copies == "idle",
        engines=_engines(machine, chosen, slow),
        step_op=steps,
        compute=np.ascontiguousarray(compute[steps, 0]),
        base_slow=sites.pop("fixed") + np.where(given, 0, other),
        launch=np.where(given, 0, machine.devices[0].launch).astype(np.int64),
        overlap=np.where(given, 0, machine.rules.overlap).astype(np.int64),
        repeat=program.op_repeat[steps],
        beside=np.where(given, other, 0),
        loop=program.op_loop[steps],
        loop_parent=program.loop_parent,
        loop_first=first,
        loop_last=last,
        tensors=tensors,
        **sites,
    )


def _sites(
    program: Program, machine: Machine, tensors: Tensors, number: Int32, fast: int, slow: int
) -> dict[str, Any]:
    """Sites in order, and the time of all other accesses by step."""
    n = int((number >= 0).sum())
    fixed = np.zeros(n, dtype=np.int64)
    access = find_accesses(program, machine, fast, slow)
    local, step = tensors.of_root[access.root].astype(np.int64), number[access.op].astype(np.int64)
    others = np.flatnonzero((step >= 0) & (local < 0))
    np.add.at(fixed, step[others], access.slow[others])
    # Repeated operands of one tensor in one op are one site; rows round up one by one. Operand order stays.
    rows = np.flatnonzero((step >= 0) & (local >= 0))
    side = 2 * step[rows] + access.write[rows]
    site = side * max(1, len(tensors.root)) + local[rows]
    by_site = np.argsort(site, kind="stable")
    rows, side, site = rows[by_site], side[by_site], site[by_site]
    first = np.flatnonzero(np.append(True, site[1:] != site[:-1])[: len(site)])
    costs = (access.slow[rows], access.fast[rows], access.size[rows])
    times = [np.add.reduceat(cost, first) if len(first) else cost for cost in costs]
    order = np.lexsort((rows[first], side[first]))
    first = first[order]
    steps = (side[first] // 2).astype(np.int32)
    start = np.concatenate([[0], np.cumsum(np.bincount(steps, minlength=n))]).astype(np.int64)
    return {
        "fixed": fixed,
        "site_start": start,
        "site_step": steps,
        "site_tensor": local[rows[first]].astype(np.int32),
        "site_write": (side[first] % 2).astype(np.int8),
        "site_slow": times[0][order],
        "site_fast": times[1][order],
        "site_bytes": times[2][order],
    }


def _engines(machine: Machine, fast: int, slow: int) -> tuple[int, int]:
    links = [machine.link_between.get(pair) for pair in ((slow, fast), (fast, slow))]
    held = [set() if link is None else set(machine.links[link].engines) for link in links]
    shared = bool(held[0] & held[1])
    return 0 if held[0] else -1, (0 if shared else 1) if held[1] else -1


class Accesses(NamedTuple):
    """[A] every read, then every write of a program; picoseconds in either memory."""

    op: Int32
    root: Int32
    write: Bool
    size: Int64
    slow: Int64
    fast: Int64
    """0 where a time of the cost table has it already: that of the device's first memory."""


def find_accesses(program: Program, machine: Machine, fast: int, slow: int) -> Accesses:
    """Every access, and what it takes in the memories of these numbers."""
    op = np.concatenate([program.read_op, program.write_op])
    tensor = np.concatenate([program.read_tensor, program.write_tensor])
    size = np.concatenate([program.read_bytes, program.write_bytes])
    write = np.repeat([False, True], [len(program.read_op), len(program.write_op)])
    in_slow, in_fast = (
        np.where(write, *(access_times(machine, memory, size, write=way) for way in (True, False)))
        for memory in (slow, fast)
    )
    in_table = compute_times(program, machine)[1][:, 0] > 0
    if fast == machine.reach[0][0]:
        in_fast = np.where(in_table[op], 0, in_fast)
    return Accesses(op, program.tensor_alias[tensor], write, size, in_slow, in_fast)


def access_times(machine: Machine, memory: int, size: Int64, *, write: bool) -> Int64:
    """Picoseconds of accesses of some bytes each."""
    about = machine.memories[memory]
    rate = np.full(len(size), about.write if write else about.read, dtype=np.int64)
    times: Int64 = _core.ceil_times(np.ascontiguousarray(size), rate)
    return np.where(size > 0, times + about.latency, 0)


def _loops(program: Program, steps: Int32) -> tuple[Int32, Int32]:
    """([L] first step, [L] last step), inner loops included."""
    first = np.full(program.n_loops + 1, len(steps), dtype=np.int32)  # the last: outside all
    last = np.full(program.n_loops + 1, -1, dtype=np.int32)
    numbers = np.arange(len(steps), dtype=np.int32)
    np.minimum.at(first, program.op_loop[steps], numbers)
    np.maximum.at(last, program.op_loop[steps], numbers)
    for loop in range(program.n_loops - 1, -1, -1):  # parents come before their loops
        parent = program.loop_parent[loop]
        first[parent], last[parent] = min(first[parent], first[loop]), max(last[parent], last[loop])
    return first[:-1], last[:-1]
