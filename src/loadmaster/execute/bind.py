"""A plan as actions around each step: what is awaited, copied, dropped, and when.

Around a step: wait for the copies it needs, run it, issue copies out, drop what ends, issue copies
in. Room that is dropped while a copy still reads it is only given to copies that wait for that copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loadmaster.execute.results import refuse_plan
from loadmaster.execute.script import Calls, Leaf, Move, Script, Stay, Step
from loadmaster.machine.machine import Machine
from loadmaster.plan.check.facts import Facts, strands_of
from loadmaster.plan.plan import WHOLE, Plan
from loadmaster.program.importers.torch.captured import Captured, Result


def bind(captured: Captured, plan: Plan, machine: Machine, device: object, *, checked: bool = True) -> Script:
    """The script of a plan; refuses one that can't be followed. `checked=False` trusts the plan."""
    facts = refuse_plan(captured.program, plan, machine, checked=checked)
    return _Binder(captured, facts, device).script()


@dataclass
class _Around:
    """What happens around one rank."""

    waits: list[int] = field(default_factory=list)
    sends: list[Move] = field(default_factory=list)
    fetches: list[Move] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """Stays whose last rank it is."""


class _Binder:
    def __init__(self, captured: Captured, facts: Facts, device: object) -> None:
        self.captured, self.facts = captured, facts
        self.calls = Calls(captured, device)
        self.fast = facts.machine.reach[0][0]
        self.count = len(facts.steps)
        self.stays: list[Stay] = []
        self.stays_of: dict[int, list[int]] = {}
        self._add_stays()
        # One per rank, then the end, and last (so -1 finds it) what comes before the first.
        self.around = [_Around() for _ in range(self.count + 2)]
        self.opened = {number for number, stay in enumerate(self.stays) if stay.first < 0}
        self.writes = [self._written(rank) for rank in range(self.count)]

    def _add_stays(self) -> None:
        for tensor in sorted(self.facts.residencies_of):
            for strand in strands_of(self.facts, tensor)[0]:
                if strand.memory == self.fast:
                    size = self.facts.aligned(self.facts.size[tensor], self.fast)
                    self.stays_of.setdefault(tensor, []).append(len(self.stays))
                    stay = Stay(tensor, strand.first, strand.last, size, strand.offset)
                    self.stays.append(stay)

    def _written(self, rank: int) -> dict[int, int]:
        """Tensor -> the stay that a step's result begins."""
        found = {}
        for tensor in self.facts.steps[rank].writes:
            for number in self.stays_of.get(tensor, []):
                if self.stays[number].first <= rank <= self.stays[number].last:
                    found[tensor] = number
                    self.opened.add(number)
        return found

    def script(self) -> Script:
        self._add_moves()
        for number, stay in enumerate(self.stays):
            if 0 <= stay.last < self.count - 1 and stay.first >= 0:
                self.around[stay.last].ends.append(number)
        self._hold_back()
        steps = tuple(self._step(rank) for rank in range(self.count))
        out = {copy.tensor for copy in self.facts.copies if copy.source == self.fast}
        return Script(
            tuple(self.around[-1].fetches),
            steps,
            tuple(self.around[self.count].waits),
            tuple(self.stays),
            tuple(self._leaf(result, out) for result in self.captured.results),
            len(self.facts.copies),
            tuple(sorted(out)),
            peak_of(self.stays, self.count),
        )

    def _add_moves(self) -> None:
        """Copies in the order in which they are issued; a later one of a direction ends later, so
        only the last of those that a step needs is awaited."""
        facts = self.facts
        place: dict[int, tuple[bool, int]] = {}
        by_issue = sorted(range(len(facts.copies)), key=lambda row: (facts.issued(row), row))
        for turn, row in enumerate(by_issue):
            move = self._move(row)
            place[row] = (move.inward, turn)
            around = self.around[facts.issued(row)]
            (around.fetches if move.inward else around.sends).append(move)
        needed = sorted(by_issue, key=facts.needed)
        reached = {True: -1, False: -1}
        for rank in range(self.count + 1):
            last: dict[bool, int] = {}
            while needed and (facts.needed(needed[0]) == rank or rank == self.count):
                row = needed.pop(0)
                inward, turn = place[row]
                if turn > reached[inward]:
                    reached[inward], last[inward] = turn, row
            self.around[rank].waits += last.values()

    def _move(self, row: int) -> Move:
        facts, copy = self.facts, self.facts.copies[row]
        issued, needed = facts.issued(row), min(facts.needed(row), self.count - 1)
        inward = copy.target == self.fast
        holds = needed if inward else facts.needed(row) - 1
        starts = issued + 1 if inward else issued
        stay = next(
            number
            for number in self.stays_of[copy.tensor]
            if self.stays[number].first <= starts and self.stays[number].last >= holds
        )
        opens = inward and stay not in self.opened
        self.opened.add(stay)
        low, high = (copy.low, copy.high) if copy.low != WHOLE else (0, facts.size[copy.tensor])
        return Move(row, copy.tensor, inward, low, high, stay, opens)

    def _hold_back(self) -> None:
        """Copies in wait for copies out that still read the room dropped just before them."""
        sources: dict[int, list[int]] = {}
        for around in self.around:
            for move in around.sends:
                sources.setdefault(move.stay, []).append(move.row)
        for rank, around in enumerate(self.around[: self.count]):
            pending = tuple(
                row for stay in around.ends for row in sources.get(stay, []) if self.facts.needed(row) > rank
            )
            if pending:
                around.fetches = [replace(move, after=pending) for move in around.fetches]

    def _step(self, rank: int) -> Step:
        around, op = self.around[rank], self.facts.steps[rank].number
        call = self.calls.call(op)
        views = self.calls.views_for(call)
        drops = [slot for stay in around.ends for slot in self.calls.drop(self.stays[stay].tensor)]
        begins = tuple(self.writes[rank].get(slot, -1) for _, slot in call.results)
        return Step(
            tuple(around.waits), views, call, begins, tuple(around.sends), tuple(drops), tuple(around.fetches)
        )

    def _leaf(self, result: Result, out: set[int]) -> Leaf:
        slot = result.tensor
        root = self.facts.root[slot] if slot >= 0 else -1
        views = self.calls.path(slot) if slot >= 0 else ()
        at_host = root < 0 or root in out or self.facts.is_given[root]
        return Leaf(result.what, result.name, slot, root, views, at_host, result.node)


def peak_of(stays: list[Stay], steps: int) -> int:
    """The most bytes that stays hold at one rank."""
    change = [0] * (steps + 1)
    for stay in stays:
        change[max(0, stay.first)] += stay.bytes
        change[stay.last + 1] -= stay.bytes
    held = peak = 0
    for each in change:
        held += each
        peak = max(peak, held)
    return peak
