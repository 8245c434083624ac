"""What the slow game reckons with: times of steps, supplies of copies, free addresses.

Lists and linear scans, everything computed anew; see `reference_game`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from loadmaster.malloc_game.model import NEVER, GameModel
from reference.judge import Copy, judge
from reference.strips import Layout, Strip, Strips

COPY, NO_COPY, DROP, COPY_EARLY, COPY_HALF, COPY_TIGHT, LEAD = range(7)
KINDS = (COPY, COPY_EARLY, COPY_HALF, COPY_TIGHT)


@dataclass(eq=False)
class Stay:
    """A residency. That of a carried group stands for all its tensors."""

    tensor: int
    first: int
    last: int
    strip: Strip | None = None
    """Where it lies, if it is there already: its own, or its parent's."""
    offset: int = -1
    moved: Layout | None = None
    """Where everything lies then, if some of it has to move."""
    parent: Stay | None = None
    sites: list[int] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    over: bool = False
    """A read was dropped after it: nobody may continue it."""


class Rules:
    """The state of one game, and all that is asked of it."""

    def __init__(
        self,
        model: GameModel,
        *,
        supply: str = "idle",
        ledger: str = "fifo",
        reward: str = "telescoping",
        backup: str = "retroactive",
        repack: int = 4,
        starts: str = "all",
        stall_term: bool = True,
        max_idle_s: float | None = None,
    ) -> None:
        self.model, self.n, self.moves = model, model.steps, model.sites
        self.supply, self.ledger, self.reward, self.backup = supply, ledger, reward, backup
        self.repack, self.starts, self.stall_term = repack, starts, stall_term
        self.max_idle = None if max_idle_s is None else round(max_idle_s * 10**12)
        self.loop: list[int] = [*model.loop.tolist(), -1]  # loop[-1]: before and after the program
        self.base_slow, self.site_slow = model.base_slow.tolist(), model.site_slow.tolist()
        self.site_fast: list[int] = model.site_fast.tolist()
        self.repeat: list[int] = model.repeat.tolist()
        self.step_of = model.site_step.tolist()
        self.tensor_of = model.site_tensor.tolist()
        self.is_write = [bool(write) for write in model.site_write]
        t = model.tensors
        self.size, self.over, self.carried = t.size.tolist(), t.over.tolist(), t.carried.tolist()
        self.sites_of: list[list[int]] = [[] for _ in self.size]
        self.sites_at: list[list[int]] = [[] for _ in range(self.n)]
        for site, tensor in enumerate(self.tensor_of):
            self.sites_of[tensor].append(site)
            self.sites_at[self.step_of[site]].append(site)
        self.forced: set[int] = set()
        self.backups = 0
        self.clear()

    def clear(self) -> None:
        """Before the first move. What was forced stays forced."""
        given = self.model.tensors.given.tolist()
        self.fast = [False] * self.moves
        self.stays: list[Stay] = []
        alignment = self.model.alignment
        self.strips = Strips(self.n, self.model.capacity // alignment * alignment)
        self.copies: list[Copy] = []
        self.ready: list[int | None] = [-1 if yes else None for yes in given]
        self.back_by = [-1] * len(self.size)
        """The step by which a write-back has ended: no copy in is issued before its end."""
        self.group: dict[int, Stay | None] = {}
        self.actions: list[int] = []

    @property
    def cursor(self) -> int:
        return len(self.actions)

    # --- times -------------------------------------------------------------------------------

    def slow_time(self, step: int, fast: list[bool]) -> int:
        served = [self.site_slow[u] for u in self.sites_at[step] if not fast[u]]
        return int(self.base_slow[step] + sum(served))

    def elapsed(self, step: int, fast: list[bool]) -> int:
        m, slow = self.model, self.slow_time(step, fast)
        quick = sum(self.site_fast[u] for u in self.sites_at[step] if fast[u])
        memory, compute = max(slow, quick) if m.parallel else slow + quick, int(m.compute[step])
        extra = -(-min(compute, memory) * int(m.overlap[step]) // 10**6)
        return max(1, int(m.launch[step]) + max(compute, memory) + extra)

    def idle(self, step: int, fast: list[bool]) -> int:
        busy = self.slow_time(step, fast) + int(self.model.beside[step])
        return max(0, self.elapsed(step, fast) - busy)

    def judged(self) -> tuple[int, int]:
        """(total, stall); what is not decided yet is slow."""
        steps = range(self.n)
        elapsed = [self.elapsed(i, self.fast) for i in steps]
        return judge(self.model, elapsed, [self.idle(i, self.fast) for i in steps], self.in_order())

    def in_order(self) -> list[Copy]:
        return sorted(self.copies, key=lambda copy: (copy.issued, copy.needed))

    def too_idle(self, since: int, step: int) -> bool:
        """Whether a residency that ends with step `since` may not wait for a step."""
        times = (self.model.all_slow * self.model.repeat).tolist()
        return self.max_idle is not None and sum(times[since + 1 : step]) > self.max_idle

    def worth(self) -> int:
        """What the rewards so far must add up to, but for a constant."""
        steps, nothing = range(self.n), [False] * self.moves
        if self.reward == "judged":
            return -self.judged()[0]
        if self.reward == "telescoping":
            return -sum(self.repeat[i] * self.elapsed(i, self.fast) for i in steps)
        total = 0
        for site in np.flatnonzero(self.fast).tolist():
            step, alone = self.step_of[site], [u == site for u in range(self.moves)]
            total += self.repeat[step] * (self.elapsed(step, nothing) - self.elapsed(step, alone))
        return total

    # --- ledgers -----------------------------------------------------------------------------

    def supplies(self, into: bool, nest: int) -> list[int]:
        """[n] how much of each step's time a copy of this nest may use."""
        nothing, everything = [False] * self.moves, [True] * self.moves

        def of(step: int) -> int:
            if self.loop[step] != nest:
                return 0
            if self.supply == "elapsed" or (not into and self.starts == "all"):
                return self.elapsed(step, nothing)
            if self.model.idle_copies:
                return self.idle(step, self.fast if into else nothing)
            return self.elapsed(step, self.fast if into else everything)

        return [of(step) for step in range(self.n)]

    def work(self, tensor: int, into: bool) -> int:
        t = self.model.tensors
        return int((t.copy_in if into else t.copy_out)[tensor])

    def _taken(self, copy: Copy) -> Copy:
        """A copy as its ledger has it, hidden or not."""
        for step in range(copy.needed - 1, copy.issued, -1) if self.ledger == "latest" else ():
            copy.used[step] = min(self.left(copy, step), copy.work - sum(copy.used.values()))
        return copy

    def left(self, copy: Copy, step: int) -> int:
        """Of a step's supply, what copies that are served as late as possible have not taken."""
        taken = [c.used.get(step, 0) for c in self.copies if c.into == copy.into and c.nest == copy.nest]
        return max(0, self.supplies(copy.into, copy.nest)[step] - sum(taken))

    def hides(self, copy: Copy, asked: int) -> bool:
        """Whether so much of a copy is done in time, and nobody is late for it who was not."""
        known = [c for c in self.copies if c.into == copy.into and c.nest == copy.nest]
        supply = self.supplies(copy.into, copy.nest)
        if self.ledger == "latest":
            return sum(self.left(copy, step) for step in range(copy.issued + 1, copy.needed)) >= asked
        before = served(known, supply)
        after = served([*known, replace(copy, asked=asked)], supply)
        return after[-1] < copy.needed and all(
            b >= c.needed or a < c.needed for c, b, a in zip(known, before, after, strict=False)
        )

    def start(self, action: int, tries: list[Copy]) -> Copy | None:
        """Of the copies that there could be, the nearest to the use first, that of a kind of Copy."""
        if action >= LEAD:
            exact = [copy for copy in tries if copy.needed - copy.issued == action - LEAD + 1]
            return self._taken(exact[0]) if exact else None
        longer = [copy for copy in tries if copy.needed - copy.issued >= 2]
        if action == COPY_TIGHT:
            return self._taken((longer or tries)[0]) if tries else None
        for copy in longer:
            work = copy.work
            if self.hides(copy, {COPY: work, COPY_EARLY: 2 * work, COPY_HALF: work // 2}[action]):
                return self._taken(copy)
        return None

    def copies_in(self, tensor: int, nest: int, lowest: int, needed: int) -> list[Copy]:
        if (work := self.work(tensor, True)) == NEVER:
            return []
        issues = [s for s in range(needed - 1, lowest - 1, -1) if self.loop[s] == nest]
        return [Copy(tensor, True, issued, needed, work, work, nest) for issued in issues]

    def copies_out(self, tensor: int, nest: int, issued: int) -> list[Copy]:
        if (work := self.work(tensor, False)) == NEVER:
            return []
        above = [self.step_of[self.sites_of[y][0]] for y, x in enumerate(self.over) if x == tensor]
        ends = [e for e in range(issued + 1, min([self.n, *above]) + 1) if self.loop[e] == nest]
        return [Copy(tensor, False, issued, needed, work, work, nest) for needed in ends]

    # --- addresses ---------------------------------------------------------------------------

    def newest(self, tensor: int) -> Stay | None:
        return next((stay for stay in reversed(self.stays) if stay.tensor == tensor), None)

    def placed(self, stay: Stay) -> Stay | None:
        """With an offset, if there is room or some can be made."""
        strip, size = stay.strip, self.size[stay.tensor]
        if strip is None:
            at = self.strips.find(stay.first, stay.last, size)
        else:
            at = strip.offset if self.strips.can_extend(strip, stay.last) else None
        if at is None and self.repack:
            stay.moved = self.strips.make_room(strip, stay.first, stay.last, size, self.repack)
            if stay.moved is not None:
                at = stay.moved[-1 if strip is None else self.strips.all.index(strip)][0]
        stay.offset = -1 if at is None else at
        return None if at is None else stay

    def loops_around(self, step: int) -> list[int]:
        """Outermost first."""
        found: list[int] = []
        loop = self.loop[step]
        while loop >= 0:
            found, loop = [loop, *found], int(self.model.loop_parent[loop])
        return found

    def stretch(self, first: int, step: int) -> int:
        """What starts outside a loop and is used inside stays to the loop's end."""
        entered = [loop for loop in self.loops_around(step) if loop not in self.loops_around(first)]
        return int(self.model.loop_last[entered[0]]) if entered else step


def served(copies: list[Copy], supply: list[int]) -> list[int]:
    """The step in which each copy is done, in order of issue, one after the other."""
    done = [0] * len(copies)
    left, step = list(supply), 0
    for row in sorted(range(len(copies)), key=lambda row: copies[row].issued):
        step, work = max(step, copies[row].issued + 1), copies[row].asked
        while work > 0 and step < len(left):
            used = min(work, left[step])
            left[step] -= used
            work -= used
            step += work > 0
        done[row] = step
    return done
