"""Places that the compiler shares more finely than a Plan can say.

* Slices of one tensor come one by one, and each takes its room when it is issued; a residency
  takes all of it at once.
* A result may be written over the donated input that its op reads.
* A tensor may be fetched again while its older copy is still read, or at the very point where its
  way out is over.

A Plan that says the same in time keeps its memories and loses an offset; one that says the same in
space issues a copy later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from loadmaster.plan.plan import NO_OFFSET, Residency
from loadmaster.program.program import Program, TieKind

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
