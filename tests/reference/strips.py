"""Addresses of fast memory over time, as plainly as it can be said: a list of strips and scans of all of them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

EACH = 128
"""Strips that are laid out anew for each one that may be pushed out."""


@dataclass(eq=False)
class Strip:
    """Held from `first` to `last`; `until` is how long it is reserved, `wish` how long it should be."""

    first: int
    last: int
    size: int
    offset: int
    wish: int
    until: int

    def meets(self, first: int, last: int) -> bool:
        return self.first <= last and first <= self.until

    def lies_in(self, low: int, high: int) -> bool:
        return self.offset < high and low < self.offset + self.size


Layout = list[tuple[int, int]]
"""(offset, until) of every strip."""


class Strips:
    """All that are held, in the order in which they were opened."""

    def __init__(self, steps: int, capacity: int) -> None:
        self.steps, self.capacity = steps, capacity
        self.all: list[Strip] = []

    def best_fit(self, held: list[Strip], first: int, last: int, size: int) -> int | None:
        """The smallest gap, then the lowest; the one above everything has no end."""
        near = [strip for strip in held if strip.meets(first, last)]
        gaps = []
        for start in {0, *(strip.offset + strip.size for strip in near)}:
            ends = [strip.offset for strip in near if strip.offset >= start]
            end = min(ends, default=10**18)
            if end - start >= size and not any(strip.lies_in(start, start + size) for strip in near):
                gaps.append((end - start, start))
        at = min(gaps)[1]
        return at if at + size <= self.capacity else None

    def find(self, first: int, last: int, size: int) -> int | None:
        return self.best_fit(self.all, first, last, size)

    def open(self, first: int, last: int, size: int, offset: int) -> Strip:
        self.all.append(Strip(first, last, size, offset, last, last))
        return self.all[-1]

    def close(self, strip: Strip) -> None:
        if strip in self.all:
            self.all.remove(strip)

    def can_extend(self, strip: Strip, last: int) -> bool:
        others = [other for other in self.all if other is not strip and other.meets(strip.until + 1, last)]
        taken = any(other.lies_in(strip.offset, strip.offset + strip.size) for other in others)
        return last <= strip.until or not taken

    def extend(self, strip: Strip, last: int) -> None:
        strip.last, strip.until = max(strip.last, last), max(strip.until, last)
        strip.wish = max(strip.wish, last)

    def reserve(self, strip: Strip, last: int) -> None:
        strip.wish = max(strip.wish, last)
        if self.can_extend(strip, strip.wish):
            strip.until = max(strip.until, strip.wish)

    def reserve_all(self) -> None:
        for strip in self.all:
            self.reserve(strip, strip.wish)

    def move(self, layout: Layout) -> None:
        for strip, (offset, until) in zip(self.all, layout, strict=False):
            strip.offset, strip.until = offset, max(strip.last, until)

    def make_room(self, strip: Strip | None, first: int, last: int, size: int, effort: int) -> Layout | None:
        """Where everything could lie so that a strip lasts longer, or (None) one more is there, at the end."""
        begin = first if strip is None else strip.last + 1
        for step in range(begin, last + 1):
            if size + sum(s.size for s in self.all if s.first <= step <= s.last) > self.capacity:
                return None
        for reserving in (True, False):
            ways = []
            for _ in range(2):
                moved = [copy(each) for each in self.all]
                if strip is None:
                    moved.append(Strip(first, last, size, -1, last, last))
                claim = moved[-1] if strip is None else moved[self.all.index(strip)]
                claim.offset, claim.last = -1, max(claim.last, last)
                claim.until = max(claim.until, claim.last)
                for each in moved:
                    each.until = each.until if reserving else each.last
                ways.append((moved, claim))
            full = [sum(s.size for s in ways[0][0] if s.first <= t <= s.until) for t in range(self.steps)]
            if max(full) > self.capacity:
                continue
            if self._insert(*ways[0], effort):
                return [(each.offset, each.until) for each in ways[0][0]]
            if self._reorder(ways[1][0], effort * EACH):
                return [(each.offset, each.until) for each in ways[1][0]]
        return None

    def _insert(self, strips: list[Strip], claim: Strip, most: int) -> bool:
        """It goes where it costs least, those that lie there go elsewhere, and so on."""
        worth = {strip: strip.size for strip in strips}
        homeless = [claim]
        for _ in range(most):
            strip = max(homeless, key=lambda each: (worth[each], strips.index(each)))
            homeless.remove(strip)
            near = [each for each in strips if each.offset >= 0 and each.meets(strip.first, strip.until)]
            places = {0, self.capacity - strip.size}
            places |= {each.offset + each.size for each in near} | {each.offset - strip.size for each in near}
            cost = {
                at: sum(worth[each] for each in near if each.lies_in(at, at + strip.size))
                for at in places
                if 0 <= at <= self.capacity - strip.size
            }
            strip.offset = min(cost, key=lambda at: (cost[at], at))
            for each in near:
                if each.lies_in(strip.offset, strip.offset + strip.size):
                    each.offset = -1
                    homeless.append(each)
            worth[strip] += strip.size
            if not homeless:
                return True
        return False

    def _reorder(self, strips: list[Strip], most: int) -> bool:
        """The longest first; what does not fit comes first the next time."""
        order = sorted(strips, key=lambda s: (s.first - s.until, -s.size, strips.index(s)))
        placed = len(order)
        while placed <= most:
            failed = None
            for place, strip in enumerate(order):
                at = self.best_fit(order[:place], strip.first, strip.until, strip.size)
                if at is None:
                    failed = place
                    break
                strip.offset = at
            if failed is None:
                return True
            placed += failed + 1
            order.insert(0, order.pop(failed))
        return False
