"""What the slow game reckons with: times of steps, supplies of copies, free addresses.

Lists and linear scans, everything computed anew; see `reference_game`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loadmaster.malloc_game.model import NEVER, GameModel
from reference.judge import Copy, judge


@dataclass(eq=False)
class Stay:
    """A residency. That of a carried group stands for all its tensors."""

    tensor: int
    first: int
    last: int
    offset: int
    parent: Stay | None = None
    sites: list[int] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    over: bool = False
    """A read was dropped after it: nobody may continue it."""
    taken: bool = False
    """Another residency was put over its addresses since its last use."""


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
        offsets: str = "considerate",
        stall_term: bool = True,
        min_overlap: float = 1.0,
        max_idle_s: float | None = None,
    ) -> None:
        self.model, self.n, self.moves = model, model.steps, model.sites
        self.supply, self.ledger, self.reward, self.backup = supply, ledger, reward, backup
        self.offsets, self.stall_term, self.min_overlap = offsets, stall_term, min_overlap
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
        return judge(self.model, elapsed, [self.idle(i, self.fast) for i in steps], self.copies)

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
            if self.supply == "elapsed":
                return self.elapsed(step, nothing)
            if self.model.idle_copies:
                return self.idle(step, self.fast if into else nothing)
            return self.elapsed(step, self.fast if into else everything)

        return [of(step) for step in range(self.n)]

    def offer(self, tensor: int, into: bool, nest: int, issued: int, needed: int) -> Copy | None:
        """The copy, if its ledger accepts it."""
        t = self.model.tensors
        work = int((t.copy_in if into else t.copy_out)[tensor])
        if work == NEVER:
            return None
        asked = int(np.ceil(self.min_overlap * work))
        new = Copy(tensor, into, issued, needed, work, asked, nest)
        known = [c for c in self.copies if c.into == into and c.nest == nest]
        supply = self.supplies(into, nest)
        if self.ledger == "fifo":
            before, after = served(known, supply), served([*known, new], supply)
            accepted = after[-1] < needed and all(
                b >= c.needed or a < c.needed for c, b, a in zip(known, before, after, strict=False)
            )
            return new if accepted else None
        for step in range(needed - 1, issued, -1):
            left = max(0, supply[step] - sum(c.used.get(step, 0) for c in known))
            new.used[step] = min(left, asked - sum(new.used.values()))
        return new if sum(new.used.values()) == asked else None

    # --- addresses ---------------------------------------------------------------------------

    def newest(self, tensor: int) -> Stay | None:
        return next((stay for stay in reversed(self.stays) if stay.tensor == tensor), None)

    def meets(self, stay: Stay, offset: int, size: int) -> bool:
        return stay.offset < offset + size and offset < stay.offset + self.size[stay.tensor]

    def is_free(self, offset: int, size: int, first: int, last: int, *but: Stay | None) -> bool:
        return not any(
            stay.first <= last and first <= stay.last and stay not in but and self.meets(stay, offset, size)
            for stay in self.stays
        )

    def best_fit(self, size: int, first: int, last: int, spared: list[Stay]) -> int | None:
        """The start of the smallest gap, then of the lowest; what is spared is in the way too."""
        held = [s for s in self.stays if s.first <= last and first <= s.last] + spared
        starts = sorted({0, *(s.offset + self.size[s.tensor] for s in held)})
        gaps = []
        for start in starts:
            end = min([s.offset for s in held if s.offset >= start], default=self.model.capacity)
            if end - start >= size and not any(self.meets(s, start, end - start) for s in held):
                gaps.append((end - start, start))
        return min(gaps)[1] if gaps else None

    def fit(self, tensor: int, first: int, last: int) -> int | None:
        """Best fit; a considerate one gives up the most patient of the others until there is room."""
        patience = self.patience(tensor) if self.offsets == "considerate" else {}
        while True:
            offset = self.best_fit(self.size[tensor], first, last, list(patience))
            if offset is not None or not patience:
                return offset
            most = max(patience.values())
            patience = {stay: each for stay, each in patience.items() if each < most}

    def patience(self, tensor: int) -> dict[Stay, tuple[bool, int]]:
        """Who else would stay where it is for its next read -> (slow memory has it too, the step)."""
        found = {}
        for other, sites in enumerate(self.sites_of):
            stay, later = self.newest(other), [u for u in sites if u >= self.cursor]
            if other == tensor or self.carried[other] >= 0 or stay is None or not later:
                continue
            if not stay.over and not stay.taken:
                found[stay] = (self.ready[other] is not None, self.step_of[later[0]])
        return found

    def place(self, tensor: int, first: int, last: int, step: int) -> int | None:
        """Where it can stay for as many of its later uses as possible, whole loops included."""
        for site in reversed(self.sites_of[tensor]):
            later = self.step_of[site]
            if later > step:
                wanted = max(last, self.stretch(first, later))
                offset = self.fit(tensor, first, wanted)
                if offset is not None:
                    return offset
        return self.fit(tensor, first, last)

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
