"""Violations, and what a plan says about steps, memories and devices, as sorted columns.

Follows sections 1, 2, 4 and 6 of docs/simulation.md: who runs together and when, which memory serves an
access, when residencies and copies are, home devices, transfers, and places. "Tensor" means a root wherever
nothing else is said. Every rule asks whole columns which rows break it, and finds words for those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, Copy, Plan, Residency
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind, TieKind

Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MOST_PER_RULE = 1_000
"""A plan that breaks a rule everywhere must not fill the memory with texts."""
MOST_PAIRS = 1 << 22
"""Pairs of accesses and residencies that are looked at together."""
HOME = -1
"""In place of a residency's row: the access is served by the home of the device."""


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks, where, by which number, and what would help.

    What `number` is depends on the rule and stands in the message too: the value out of
    range, the row of a residency or copy, a device, bytes that are missing or too many.
    """

    rule: str
    message: str
    tensor: int | None = None
    op: int | None = None
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


def _plain(number: Any) -> int | None:
    return None if number is None else int(number)


class Report:
    """Collects violations: at most `MOST_PER_RULE` of a rule, the others are counted."""

    def __init__(self) -> None:
        self._kept: list[Violation] = []
        self._count: dict[str, int] = {}

    def add(
        self,
        rule: str,
        message: str,
        *,
        tensor: int | None = None,
        op: int | None = None,
        number: int | None = None,
    ) -> None:
        """Note one violation."""
        self._count[rule] = self._count.get(rule, 0) + 1
        if self._count[rule] <= MOST_PER_RULE:
            self._kept.append(Violation(rule, message, _plain(tensor), _plain(op), _plain(number)))

    def add_each(self, rule: str, wrong: Mask | Column, describe: Callable[[int], dict[str, Any]]) -> None:
        """One violation for each row (of a mask: that is set), which `describe` puts into words."""
        rows = np.flatnonzero(wrong) if wrong.dtype == np.bool_ else wrong
        room = max(0, MOST_PER_RULE - self.count(rule))
        for row in rows[:room].tolist():
            self.add(rule, **describe(row))
        if len(rows) > room:
            self._count[rule] = self.count(rule) + len(rows) - room

    def count(self, rule: str) -> int:
        """How often a rule was broken so far."""
        return self._count.get(rule, 0)

    def is_full(self, rule: str) -> bool:
        """Whether further violations of a rule would only be counted."""
        return self.count(rule) >= MOST_PER_RULE

    def violations(self) -> list[Violation]:
        """All that was found, in the order of the rules' checks."""
        more = [
            Violation(rule, f"and {count - MOST_PER_RULE:,} more", number=count - MOST_PER_RULE)
            for rule, count in self._count.items()
            if count > MOST_PER_RULE
        ]
        return self._kept + more


class Words:
    """How messages name things."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine = program, machine

    def op_text(self, op: int) -> str:
        names = self.program.op_name
        return f"op {op} '{names[op]}'" if 0 <= op < len(names) else "the end"

    def tensor_text(self, tensor: int) -> str:
        return f"tensor '{self.program.tensor_name[tensor]}'"

    def memory_text(self, memory: int) -> str:
        return f"memory '{self.machine.memories[memory].name}'"

    def device_text(self, device: int) -> str:
        return f"device '{self.machine.devices[device].name}'"


@dataclass(frozen=True, eq=False)
class Rows:
    """A list of entries for each key 0, 1, …: those of key k are `entry[start[k]:start[k + 1]]`."""

    start: Column
    entry: Column

    @classmethod
    def of(cls, key: Column, entry: Column, keys: int) -> Rows:
        """From pairs in any order; entries of one key keep theirs."""
        start = np.zeros(keys + 1, dtype=np.int64)
        np.cumsum(np.bincount(key, minlength=keys), out=start[1:])
        return cls(start, entry[np.argsort(key, kind="stable")])

    @cached_property
    def counts(self) -> Column:
        return np.diff(self.start)

    @cached_property
    def keys(self) -> Column:
        """The key of every entry."""
        return np.repeat(np.arange(len(self.start) - 1), self.counts)

    def __getitem__(self, key: int) -> list[int]:
        return self.entry[self.start[key] : self.start[key + 1]].tolist()  # type: ignore[no-any-return]

    def least(self, values: Column, nothing: int) -> Column:
        """[keys] the least of `values` (one per entry); `nothing` for a key without entries."""
        found = np.full(len(self.start) - 1, nothing, dtype=np.int64)
        some = self.counts > 0
        if some.any():
            found[some] = np.minimum.reduceat(values, self.start[:-1][some])
        return found

    def pairs_with(self, keys: Column) -> Iterator[tuple[Column, Column]]:
        """(index into `keys`, index into `entry`) of every match, some millions at a time."""
        counts = self.counts[keys]
        ends = np.cumsum(counts)
        low = 0
        while low < len(keys):
            before = ends[low - 1] if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + MOST_PAIRS, "right")))
            count = counts[low:high]
            left = np.repeat(np.arange(low, high), count)
            nth = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
            yield left, self.start[keys[left]] + nth
            low = high


def distinct(values: Column) -> Column:
    """Every value once, ascending: by sorting, which for large columns is the quicker way."""
    ordered: Column = np.sort(values)
    is_new: Mask = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return ordered[is_new]


def first_of_each(values: Column) -> Mask:
    """Whether a value is there for the first time."""
    seen = np.zeros(len(values), dtype=np.bool_)
    seen[np.unique(values, return_index=True)[1]] = True
    return seen


class Steps(Words):
    """The plan's steps: ops that run as one. A step is known by its *rank*: 0 is the step with the smallest
    position, 1 the next, and so on. The plan's order is a permutation."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        super().__init__(program, machine)
        self.plan = plan
        n_ops, n_tensors = program.n_ops, program.n_tensors
        self.n_ops, self.n_tensors = n_ops, n_tensors
        self.in_order = plan.queue == "order"

        self.root = program.tensor_alias.astype(np.int64)
        self.is_root = self.root == np.arange(n_tensors)
        self.roots = np.flatnonzero(self.is_root)
        self.size = program.storage_bytes.astype(np.int64)
        kind = program.tensor_kind
        self.is_input = kind == TensorKind.INPUT
        self.is_given = np.isin(kind, [int(each) for each in GIVEN])
        self.is_persistent = np.isin(kind, [int(each) for each in PERSISTENT])
        self.is_output = np.zeros(n_tensors, dtype=np.bool_)
        self.is_output[self.root[kind == TensorKind.OUTPUT]] = True
        tied = program.tie_kind != TieKind.DONATED
        self.ties: list[tuple[int, int, int, int]] = list(
            zip(
                program.tie_kind[tied].tolist(),
                self.root[program.tie_source[tied]].tolist(),
                self.root[program.tie_target[tied]].tolist(),
                program.tie_at[tied].tolist(),
                strict=True,
            )
        )

        ops = np.arange(n_ops)
        self.device = np.zeros(n_ops, np.int64) if plan.device is None else plan.device.astype(np.int64)
        self.order = ops if plan.order is None else plan.order.astype(np.int64)
        self.position = np.empty(n_ops, dtype=np.int64)
        self.position[self.order] = ops
        self.is_view = program.op_view
        self.loop = program.op_loop
        self.read_op = np.repeat(ops, np.diff(program.read_start))
        self.read_root = self.root[program.read_tensor]
        self.write_op = np.repeat(ops, np.diff(program.write_start))
        self.write_root = self.root[program.write_tensor]

        self.members = self._members()
        self.n_steps = len(self.members.start) - 1
        self.step_number = self.members.entry[self.members.start[:-1]]
        """[steps] the smallest op of each"""
        self.step_position = self.members.least(self.position[self.members.entry], 0)
        self.step_device = self.device[self.step_number]
        self.is_fused = self.members.counts > 1
        self.step_of = np.full(n_ops, -1, dtype=np.int64)
        self.step_of[self.members.entry] = self.members.keys
        self.writer = self._writers()
        self.reads, self.writes = self._accesses()
        self.readers = self._readers()

    def _members(self) -> Rows:
        """The ops of every step, ascending; steps by their smallest position. Views are in none."""
        ops = self.order[~self.is_view[self.order]]
        if self.plan.fusion is None:
            return Rows(np.arange(len(ops) + 1), ops)
        fusion = self.plan.fusion.astype(np.int64)[ops]
        group = np.where(fusion >= 0, fusion, self.n_ops + ops)
        _, first, same = np.unique(group, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[same]
        ascending = np.argsort(ops)
        return Rows.of(rank[ascending], ops[ascending], len(first))

    def _writers(self) -> Column:
        """[tensors] the rank of the step that writes each root, or -1: the last that writes it as itself,
        else the first that writes a view of it."""
        writer = np.full(self.n_tensors, -1, dtype=np.int64)
        runs = ~self.is_view[self.write_op]
        for mine, last_wins in ((self.program.write_tensor != self.write_root, -1), (None, 1)):
            chosen = runs & (mine if mine is not None else self.program.write_tensor == self.write_root)
            rows = np.flatnonzero(chosen)[::last_wins]
            writer[self.write_root[rows]] = self.step_of[self.write_op[rows]]
        return writer

    @cached_property
    def leaves(self) -> Mask:
        """[tensors] whether a written tensor is needed outside the step that writes it."""
        leaves = self.is_output.copy()
        leaves[[target for _, _, target, _ in self.ties]] = True
        away = ~self.is_view[self.read_op] & (self.writer[self.read_root] != self.step_of[self.read_op])
        leaves[self.read_root[away]] = True
        return leaves

    def _accesses(self) -> tuple[Rows, Rows]:
        """[steps] the tensors that each reads from outside and writes for outside, each once; of a step of
        one op, all that it reads and writes, as often as it does."""
        sides = []
        for op, root in ((self.read_op, self.read_root), (self.write_op, self.write_root)):
            runs = ~self.is_view[op]
            sides.append(Rows.of(self.step_of[op[runs]], root[runs], self.n_steps))
        if not self.is_fused.any():
            return sides[0], sides[1]
        codes = [side.keys * self.n_tensors + side.entry for side in sides]
        reads = ~np.isin(codes[0], codes[1]) & first_of_each(codes[0])
        writes = self.leaves[sides[1].entry] & first_of_each(codes[1])
        kept = []
        for side, outside in zip(sides, (reads, writes), strict=True):
            keys = side.keys
            stays = outside | ~self.is_fused[keys]
            kept.append(Rows.of(keys[stays], side.entry[stays], self.n_steps))
        return kept[0], kept[1]

    def _readers(self) -> Rows:
        """[tensors] the ranks of the steps that read each, ascending."""
        pairs = distinct(self.reads.entry * max(1, self.n_steps) + self.reads.keys)
        tensor, rank = np.divmod(pairs, max(1, self.n_steps))
        return Rows.of(tensor, rank, self.n_tensors)

    @cached_property
    def uses(self) -> Rows:
        """[steps] the tensors that each reads, then those that it writes, each once."""
        key = np.concatenate([self.reads.keys, self.writes.keys])
        entry = np.concatenate([self.reads.entry, self.writes.entry])
        both = Rows.of(key, entry, self.n_steps)
        once = first_of_each(both.keys * max(1, self.n_tensors) + both.entry)
        return Rows.of(both.keys[once], both.entry[once], self.n_steps)

    def writes_it(self, rank: int, tensor: int) -> bool:
        """Whether a tensor leaves a step that writes it."""
        return tensor in self.writes[rank]

    @cached_property
    def is_written(self) -> Mask:
        """[tensors] whether the writer of a tensor writes it for outside."""
        written = np.zeros(self.n_tensors, dtype=np.bool_)
        own = self.writer[self.writes.entry] == self.writes.keys
        written[self.writes.entry[own]] = True
        return written

    @cached_property
    def step_at_or_before(self) -> Column:
        """[positions] rank of the step of the last op, views left out, up to there; or -1."""
        ranks = self.step_of[self.order]
        latest = np.maximum.accumulate(np.where(ranks >= 0, np.arange(self.n_ops), -1))
        return np.where(latest >= 0, ranks[latest], -1)

    @cached_property
    def step_at_or_after(self) -> Column:
        """[positions] rank of the step of the first op, views left out, from there; or n steps."""
        ranks = self.step_of[self.order][::-1]
        latest = np.maximum.accumulate(np.where(ranks >= 0, np.arange(self.n_ops), -1))
        return np.where(latest >= 0, ranks[latest], self.n_steps)[::-1]

    def op_at(self, rank: int) -> int:
        """The number of a step, or of the nearest one if there is none of this rank."""
        rank = max(0, min(rank, self.n_steps - 1))
        return int(self.step_number[rank]) if self.n_steps else 0


class Overwrite(NamedTuple):
    """An op leaves one tensor in the place of another: it comes after all that use the old one."""

    tensor: int
    over: int
    """What takes its place,"""
    op: int
    """and the op that writes it."""
    users: list[int]
    """The ranks of the other steps that read or write the old one."""


class Transfers(NamedTuple):
    """Tensors that are sent to the home of another device, by tensor and device."""

    tensor: Column
    device: Column
    """The first device with that home."""
    readers: Rows
    """The ranks that wait for each."""

    def __len__(self) -> int:
        return len(self.tensor)

    @property
    def keys(self) -> list[tuple[int, int]]:
        return list(zip(self.tensor.tolist(), self.device.tolist(), strict=True))


def _columns(table: Any, width: int) -> list[Column]:
    rows = np.empty((0, width), dtype=np.int64) if table is None else table.astype(np.int64)
    return [np.ascontiguousarray(column) for column in rows.T]


class Facts(Steps):
    """Look-ups on one plan for one program on one machine."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        super().__init__(program, machine, plan)
        residencies = _columns(plan.residencies, 5)
        self.res_tensor, self.res_memory, self.res_offset, self.res_first, self.res_last = residencies
        self.copy_columns = _columns(plan.copies, 7)
        self.copy_tensor, self.copy_source, self.copy_target = self.copy_columns[:3]
        self.residencies_of = Rows.of(self.res_tensor, np.arange(len(self.res_tensor)), self.n_tensors)
        self.copies_of = Rows.of(self.copy_tensor, np.arange(len(self.copy_tensor)), self.n_tensors)
        self.home = np.array(machine.home, dtype=np.int64)
        self.capacity = np.array([memory.capacity for memory in machine.memories], dtype=np.int64)
        self.alignment = np.array([memory.alignment for memory in machine.memories], dtype=np.int64)
        self.turn = np.full((len(machine.devices), len(machine.memories)), len(machine.memories))
        """[devices, memories] which memory is asked first, second, …; the number of memories: never"""
        for device, memories in enumerate(machine.reach):
            self.turn[device, list(memories)] = np.arange(len(memories))
        self.linked = np.zeros((len(machine.memories),) * 2, dtype=np.bool_)
        for source, target in machine.link_between:
            self.linked[source, target] = True

    # -- residencies and copies -------------------------------------------------------------

    def residency(self, row: int) -> Residency:
        assert self.plan.residencies is not None
        return Residency(*self.plan.residencies[row].tolist())

    def copy(self, row: int) -> Copy:
        assert self.plan.copies is not None
        return Copy(*self.plan.copies[row].tolist())

    @cached_property
    def windows(self) -> tuple[Column, Column]:
        """[residencies] the first and the last rank during which each holds its bytes.

        First above last: it holds nothing. BEFORE: from -1 to the last step.
        """
        before = self.res_first == BEFORE
        if not self.n_ops:
            return np.full_like(self.res_first, -1), np.full_like(self.res_first, -1)
        first = self.step_at_or_after[self.position[self.res_first]]
        last = self.step_at_or_before[self.position[self.res_last]]
        return np.where(before, -1, first), np.where(before, self.n_steps - 1, last)

    def window(self, row: int) -> tuple[int, int]:
        return int(self.windows[0][row]), int(self.windows[1][row])

    @cached_property
    def issued(self) -> Column:
        """[copies] the rank of the step whose end issues each; -1: before the program."""
        op = self.copy_columns[3]
        if not self.n_ops:
            return np.full_like(op, -1)
        return np.where(op == BEFORE, -1, self.step_at_or_before[self.position[op]])

    @cached_property
    def needed(self) -> Column:
        """[copies] the rank of the step that waits for each; the number of steps: the end."""
        op = self.copy_columns[4]
        at_end = op == self.n_ops
        if not self.n_ops:
            return np.full_like(op, self.n_steps)
        return np.where(at_end, self.n_steps, self.step_at_or_after[self.position[np.where(at_end, 0, op)]])

    @cached_property
    def serves_from(self) -> Column:
        """[residencies] the position from which it serves: one that copies fill, when all are there."""
        before = self.res_first == BEFORE
        if not len(before) or not self.n_ops:
            return np.full(len(before), BEFORE, dtype=np.int64)
        first, last = self.position[self.res_first], self.position[self.res_last]
        ready = first.copy()
        step_position = np.append(self.step_position, self.n_ops)  # of the end
        issued_after, needed_by = self.copy_columns[3], self.copy_columns[4]
        issued_at = np.where(issued_after == BEFORE, -1, self.position[issued_after])
        at_end = needed_by == self.n_ops
        needed_at = self.position[np.where(at_end, 0, needed_by)]
        for copy, entry in self.residencies_of.pairs_with(self.copy_tensor):
            row = self.residencies_of.entry[entry]
            fills = (self.copy_target[copy] == self.res_memory[row]) & ~at_end[copy]
            fills &= (issued_at[copy] >= first[row] - 1) & (needed_at[copy] <= last[row])
            np.maximum.at(ready, row[fills], step_position[self.needed[copy[fills]]])
        return np.where(before, BEFORE, ready)

    def serve(self, rank: Column, tensor: Column) -> tuple[Column, Column]:
        """(memory, row of the residency or HOME) that serves each access of a step to a tensor."""
        device, position = self.step_device[rank], self.step_position[rank]
        never = self.turn.size
        best = np.full(len(rank), never * max(1, len(self.res_tensor)), dtype=np.int64)
        for access, entry in self.residencies_of.pairs_with(tensor):
            row = self.residencies_of.entry[entry]
            turn = self.turn[device[access], self.res_memory[row]]
            serves = (turn < self.turn.shape[1]) & (position[access] <= self.position[self.res_last[row]])
            serves &= self.serves_from[row] <= position[access]
            choice = turn[serves] * len(self.res_tensor) + row[serves]
            np.minimum.at(best, access[serves], choice)
        found = best < never * max(1, len(self.res_tensor))
        row = np.where(found, best % max(1, len(self.res_tensor)), HOME)
        memory = self.home[device]
        memory[found] = self.res_memory[row[found]]
        return memory, row

    def serves(self, rank: int, tensor: int) -> tuple[int, int]:
        """The same for one access."""
        device, position = int(self.step_device[rank]), int(self.step_position[rank])
        choices = [
            (int(self.turn[device, self.res_memory[row]]), row)
            for row in self.residencies_of[tensor]
            if self.serves_from[row] <= position <= self.position[self.res_last[row]]
        ]
        turn, row = min(choices, default=(self.turn.shape[1], HOME))
        if turn == self.turn.shape[1]:
            return int(self.home[device]), HOME
        return int(self.res_memory[row]), row

    @cached_property
    def served_readers(self) -> tuple[Column, Column]:
        """What serves the reads in `readers`."""
        return self.serve(self.readers.entry, self.readers.keys)

    # -- devices ----------------------------------------------------------------------------

    @cached_property
    def device_of_group(self) -> dict[int, int]:
        """The device of the first op of each hard group."""
        ops = np.flatnonzero((self.program.op_group >= 0) & ~self.is_view)
        groups, first = np.unique(self.program.op_group[ops], return_index=True)
        return dict(zip(groups.tolist(), self.device[ops[first]].tolist(), strict=True))

    def group_devices(self, groups: Column) -> Column:
        """The device of each of these groups, or -1."""
        known = np.array(sorted(self.device_of_group), dtype=np.int64)
        devices = np.array([self.device_of_group[group] for group in known.tolist()], dtype=np.int64)
        if not len(known):
            return np.full(len(groups), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, groups), len(known) - 1)
        return np.where(known[at] == groups, devices[at], -1)

    @cached_property
    def home_device(self) -> Column:
        """[tensors] where a tensor lives; of an input, the device of its first reader."""
        of_group = self.group_devices(self.program.tensor_group.astype(np.int64))
        first_reader = self.readers.least(self.step_number[self.readers.entry], -1)
        home = np.where(first_reader >= 0, self._device_of(first_reader), 0)
        grouped = self.is_persistent & (of_group >= 0)
        home = np.where(grouped, of_group, home)
        if self.n_steps:
            home = np.where(self.writer >= 0, self.step_device[self.writer], home)
        return np.where(self.is_root, home, 0)

    def _device_of(self, op: Column) -> Column:
        return self.device[op] if self.n_ops else np.zeros_like(op)

    @cached_property
    def near(self) -> Column:
        """[devices] the first device with the same home: what is at home for one is so for both."""
        return np.array([self.machine.home.index(memory) for memory in self.machine.home], dtype=np.int64)

    @cached_property
    def transfers(self) -> Transfers:
        """Every transfer, by tensor and device."""
        tensor, rank = self.readers.keys, self.readers.entry
        device = self.near[self.step_device[rank]]
        sent = (self.near[self.home_device[tensor]] != device) & ~self.is_input[tensor]
        if sent.any():
            sent[sent] = self.serve(rank[sent], tensor[sent])[1] == HOME
        tensor, rank, device = tensor[sent], rank[sent], device[sent]
        codes, which = np.unique(tensor * len(self.near) + device, return_inverse=True)
        return Transfers(codes // len(self.near), codes % len(self.near), Rows.of(which, rank, len(codes)))

    @cached_property
    def devices_used(self) -> list[int]:
        """The devices that run a step."""
        return np.unique(self.step_device).tolist()  # type: ignore[no-any-return]

    # -- memory -----------------------------------------------------------------------------

    @cached_property
    def place(self) -> Column:
        """[tensors] the smallest tensor among those that share one place through ties."""
        place: dict[int, int] = {}

        def find(tensor: int) -> int:
            while place.get(tensor, tensor) != tensor:
                place[tensor] = place.get(place[tensor], place[tensor])
                tensor = place[tensor]
            return tensor

        for _, source, target, _ in self.ties:
            one, other = find(source), find(target)
            place[max(one, other)] = min(one, other)
        found = np.arange(self.n_tensors)
        for tensor in place:
            found[tensor] = find(tensor)
        return found

    @cached_property
    def overwrites(self) -> list[Overwrite]:
        """Every tensor whose place another one takes, in program order."""
        tied = {end for _, source, target, _ in self.ties for end in (source, target)}
        if not tied:
            return []
        chosen = np.zeros(self.n_tensors, dtype=np.bool_)
        chosen[list(tied)] = True
        written_by = np.full(self.n_tensors, -1, dtype=np.int64)
        users: dict[int, set[int]] = {tensor: set() for tensor in tied}
        for op, root in ((self.read_op, self.read_root), (self.write_op, self.write_root)):
            rows = np.flatnonzero(~self.is_view[op] & chosen[root])
            for tensor, rank in zip(root[rows].tolist(), self.step_of[op[rows]].tolist(), strict=True):
                users[tensor].add(rank)
        written_by[self.write_root[rows]] = self.write_op[rows]
        shared: dict[int, list[int]] = {}
        for tensor in tied:
            shared.setdefault(int(self.place[tensor]), []).append(tensor)
        found = []
        for tensors in shared.values():
            tensors.sort(key=lambda tensor: (written_by[tensor], tensor))
            for tensor, over in pairwise(tensors):
                by = int(written_by[over])
                if by >= 0:
                    others = sorted(users[tensor] - {int(self.step_of[by])})
                    found.append(Overwrite(tensor, over, by, others))
        return found

    def align(self, size: Column, memory: Column) -> Column:
        """Sizes rounded up to the alignment of memories."""
        alignment = self.alignment[memory]
        return -(-size // alignment) * alignment
