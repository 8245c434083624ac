"""The production compiler's placement as a Plan of ours.

Values with `S(3)` become residencies, copies between the memories become copies. What a Plan
can't say, or what differs between the two texts, is counted in `Replay.partial`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.plan import NO_OFFSET, Copy, Plan, Residency
from loadmaster.program.program import Program, TieKind
from tools.tpu.dumps import FAST_COLOUR, Buffer, read_buffers
from tools.tpu.hlo_placed import Move, PlacedFlattener, flatten_placed

# ----------------------------------------------------------------------------
# Places that the compiler shares more finely than a Plan can say.
#
# * Slices of one tensor come one by one, and each takes its room when it is issued; a residency
#   takes all of it at once.
# * A result may be written over the donated input that its op reads.
# * A tensor may be fetched again while its older copy is still read, or at the very point where its
#   way out is over.
#
# A Plan that says the same in time keeps its memories and loses an offset; one that says the same in
# space issues a copy later.

Placed = dict[int, Residency]
"""Value of the compiler's text -> where it is."""


class Settler:
    """Looks for what shares addresses, and changes residencies so that nothing does."""

    def __init__(self, program: Program, placed: Placed, whole: dict[int, int]) -> None:
        self.placed = dict(placed)
        self.whole = whole
        """Of values that come in slices: the op from which on all their room is taken."""
        self.partial: Counter[str] = Counter()
        self.size = program.storage_bytes.tolist()
        self._place, self._donated = _ties(program)

    def fetch_after(self, written: dict[int, int]) -> None:
        """What is fetched where its way out is over (value -> the op that waits for that) comes
        behind that op."""
        for value, op in written.items():
            row = self.placed.get(value)
            if row is not None and row.first <= op < row.last:
                self.placed[value] = row._replace(first=op + 1)
                self.partial["copies issued later: the tensor is still on its way out"] += 1

    def fetch_once(self) -> None:
        """A tensor that is fetched again while it is there is fetched when it is gone."""
        of_tensor: dict[int, list[int]] = {}
        for value, row in self.placed.items():
            of_tensor.setdefault(row.tensor, []).append(value)
        for values in of_tensor.values():
            values.sort(key=lambda value: self.placed[value].last)
            for older, newer in pairwise(values):
                end = self.placed[older].last + 1
                if self.placed[newer].first < end <= self.placed[newer].last:
                    self.placed[newer] = self.placed[newer]._replace(first=end)
                    self.partial["copies issued later: the tensor is still there"] += 1

    def slices(self, largest: int) -> None:
        """The whole has no offset if it meets another place; above a size, it comes later."""
        for value in sorted(self.whole.keys() & self.placed.keys()):
            small = self.size[self.placed[value].tensor] <= largest
            if small and any(True for _ in self._meeting(value)):
                self._drop_offset(value)
                self.partial["offsets left out: slices take their room one by one"] += 1
        late, changed = set(), True
        while changed:
            changed = False
            for value in sorted(self.whole.keys() & self.placed.keys()):
                for other in list(self._meeting(value)):
                    end = self.placed[other].last + 1
                    if self.placed[value].first < end <= self.whole[value]:
                        self.placed[value] = self.placed[value]._replace(first=end)
                        late.add(value)
                        changed = True
        self.partial["copies issued later: slices wait for room for the whole"] = len(late)

    def results_apart(self, largest: int) -> None:
        """A result over a donated input has no offset; above a size, it is not there at all."""
        for value in list(self.placed):
            for other in list(self._meeting(value)) if value in self.placed else ():
                if other not in self.placed or self.placed[value].offset == NO_OFFSET:
                    continue
                pair = self.placed[value].tensor, self.placed[other].tensor
                if pair[::-1] in self._donated:
                    continue  # seen from the other side
                if pair not in self._donated:
                    self._drop_offset(other)
                    self.partial["offsets left out: unknown"] += 1
                elif self.size[pair[1]] <= largest:
                    self._drop_offset(other)
                    self.partial["offsets left out: written over a donated input"] += 1
                else:
                    del self.placed[other]
                    self.partial["residencies left out: written over a donated input"] += 1

    def _drop_offset(self, value: int) -> None:
        self.placed[value] = self.placed[value]._replace(offset=NO_OFFSET)

    def _meeting(self, value: int) -> Iterator[int]:
        """The values that share time and addresses with one and are not tied to it."""
        one = self.placed[value]
        end = one.offset + self.size[one.tensor]
        if one.offset == NO_OFFSET:
            return
        for other, row in self.placed.items():
            if other == value or row.offset == NO_OFFSET:
                continue
            in_time = row.first <= one.last and one.first <= row.last
            in_space = row.offset < end and one.offset < row.offset + self.size[row.tensor]
            tied = row.offset == one.offset and self._place[row.tensor] == self._place[one.tensor]
            if in_time and in_space and not tied:
                yield other


def _ties(program: Program) -> tuple[list[int], set[tuple[int, int]]]:
    """[tensors] a number that tensors in one place share, and the donated pairs."""
    place = np.arange(program.n_tensors)
    donated = set()
    rows = zip(program.tie_kind, program.tie_source, program.tie_target, strict=True)
    for kind, source, target in rows:
        if kind == TieKind.DONATED:
            donated.add((int(source), int(target)))
        else:
            place[place == place[target]] = place[source]
    return place.tolist(), donated


FAST, SLOW = 0, 1
"""The memories of the TPU machines: cmem, hbm."""
EVERYTHING = 2**62


@dataclass
class Replay:
    """A production placement for one program."""

    plan: Plan
    as_issued: Plan
    """Every copy exactly where the compiler issues it, and every offset: some places may overlap."""
    partial: dict[str, int]
    """What was left out or differs in `plan`, and how often."""
    violations: list[str]
    """What the checker says about `plan`: nothing, or it is no placement."""


def replay(program: Program, machine: Machine, placed: str, assignment: str) -> Replay:
    """From the text after memory space assignment and the buffer assignment.

    Places that meet keep the compiler's times and lose their offset, as far as the checker finds
    room for them; the largest of them keep their offset and lose their time.
    """
    flat, results = flatten_placed(placed)
    reader = _Reader(program, flat, results, read_buffers(assignment, FAST_COLOUR))
    as_read = reader.residencies()
    as_issued = reader.plan(as_read)
    sizes = sorted({int(size) for size in program.tensor_bytes}, reverse=True)
    for largest in [EVERYTHING, *(size - 1 for size in sizes)]:
        settler = Settler(program, as_read, reader.whole())
        settler.fetch_after(reader.written())
        settler.fetch_once()
        settler.slices(largest)
        settler.results_apart(largest)
        plan = reader.plan(settler.placed)
        violations = [violation.message for violation in check(program, machine, plan)]
        if not violations:
            break
    partial = reader.partial + settler.partial
    return Replay(plan, as_issued, dict(partial), violations)


@dataclass
class _Reader:
    program: Program
    flat: PlacedFlattener
    results: list[int | None]
    buffers: dict[str, Buffer]
    partial: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        ops = {name: op for op, name in enumerate(self.program.op_name)}
        self.op_of = [ops.get(step.name, -1) for step in self.flat.steps]
        self.tensor_of = {name: tensor for tensor, name in enumerate(self.program.tensor_name)}
        known = [op for op in self.op_of if op >= 0]
        self.partial["ops added"] = self.op_of.count(-1)
        self.partial["ops missing"] = self.program.n_ops - len(known)
        ends = [(self._is_fast(move.source), self._is_fast(move.target)) for move in self.flat.moves]
        self.partial["copies inside one memory"] = sum(here == there for here, there in ends)
        if known != sorted(known):
            raise BadPlan(
                f"'{self.program.name}': the compiler changed the order of ops",
                object=self.program.name,
                remedy="leave this program out",
            )

    def residencies(self) -> Placed:
        """Where the compiler has every value that lies in fast memory."""
        readers: dict[int, list[int]] = {}
        for number, step in enumerate(self.flat.steps):
            for value in step.reads:
                readers.setdefault(value, []).append(number)
        rows = {
            value: self._residency(value, readers.get(value, []))
            for value in range(len(self.flat.values))
            if self._is_fast(value) and self._tensor(value) >= 0
        }
        return {value: row for value, row in rows.items() if row is not None}

    def plan(self, placed: Placed) -> Plan:
        """The residencies with the copies that belong to them."""
        copies = [self._copy(move, placed) for move in self.flat.moves]
        return Plan.of(
            residencies=list(placed.values()), copies=[copy for copy in copies if copy is not None]
        )

    def whole(self) -> dict[int, int]:
        """Of values that come in slices: the op before which the last slice is issued."""
        issues: dict[int, list[int]] = {}
        for move in self.flat.moves:
            issues.setdefault(move.target, []).append(move.issued)
        return {value: self._op(max(times)) for value, times in issues.items() if len(times) > 1}

    def written(self) -> dict[int, int]:
        """Of values that are fetched after they were written back: the op that waits for that."""
        arrives = {move.target: move.needed for move in self.flat.moves if not self._is_fast(move.target)}
        return {
            move.target: self._op(arrives[move.source]) for move in self.flat.moves if move.source in arrives
        }

    def _is_fast(self, value: int) -> bool:
        is_part = value in self.flat.parts
        return self.flat.values[value].shape.memory_space == FAST_COLOUR and not is_part

    def _tensor(self, value: int) -> int:
        """A tensor that nobody wants is none in the program."""
        return self.tensor_of.get(self.flat.values[self.flat.tensor(value)].name, -1)

    def _op(self, step: int) -> int:
        """The op at a step, or the next one that the program has; n_ops: none."""
        later = (op for op in self.op_of[step:] if op >= 0)
        return next(later, self.program.n_ops)

    def _residency(self, value: int, readers: list[int]) -> Residency | None:
        buffer = self.buffers.get(self.flat.buffer[value])
        if buffer is None:
            self.partial["fast values without an offset"] += 1
            return None
        coming = [move for move in self.flat.moves if move.target == value]
        leaving = [move for move in self.flat.moves if move.source == value]
        begin = min((move.issued for move in coming), default=self.flat.values[value].step)
        used = [self._until(begin, step) for step in readers]
        used += [move.needed - 1 for move in leaving]
        if value in self.results:
            used.append(len(self.flat.steps) - 1)
        if coming and not used:
            self.partial["copies for the next run"] += len(coming)
            return None
        last = min(self._op(max([*used, begin])), self.program.n_ops - 1)
        return Residency(self._tensor(value), FAST, buffer.offset, self._op(begin), last)

    def _until(self, begin: int, step: int) -> int:
        """The last step of a reader: what comes into a loop from outside stays for all of it."""
        loops, loop = self.flat.loops, self.flat.steps[step].loop
        while loop >= 0 and not loops[loop].start <= begin < loops[loop].end:
            step, loop = loops[loop].end - 1, loops[loop].parent
        return step

    def _copy(self, move: Move, placed: Placed) -> Copy | None:
        source, target = (FAST if self._is_fast(v) else SLOW for v in (move.source, move.target))
        tensor = self._tensor(move.target)
        if (source == FAST and move.source not in placed) or (target == FAST and move.target not in placed):
            return None
        if source == target or tensor < 0:
            return None
        issued = self._op(move.issued) - 1
        if target == FAST:
            issued = max(issued, placed[move.target].first - 1)
        is_whole = move.high - move.low == int(self.program.tensor_bytes[tensor])
        span = () if is_whole else (move.low, move.high)
        return Copy(tensor, source, target, issued, self._op(move.needed), *span)
