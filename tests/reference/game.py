"""The MallocGame as plainly as it can be said.

Written from the rules of the game alone; it shares nothing with the native game but the model's
columns. Times are steps of the model, or picoseconds.
"""

from __future__ import annotations

from typing import Any

from loadmaster.plan.plan import Plan
from reference.rules import Rules, Stay

COPY, NO_COPY, DROP = 0, 1, 2


class SlowGame(Rules):
    """One game. `step` plays a move and returns its reward in picoseconds."""

    asked: tuple[int, int] = (-1, 0)
    answer: dict[int, Stay | None]

    def options(self) -> dict[int, Stay | None]:
        """Legal action -> the residency that it makes or continues, as it would be."""
        now = (self.cursor, self.backups)
        if self.asked != now:  # the same question is asked for the mask, the move and the dead end
            self.asked, self.answer = now, self._options()
        return self.answer

    def _options(self) -> dict[int, Stay | None]:
        site = self.cursor
        tensor, step = self.tensor_of[site], self.step_of[site]
        if self.carried[tensor] >= 0:
            found = self.group_options(tensor, step, site)
        else:
            find = self.write_options if self.is_write[site] else self.read_options
            found = find(tensor, step)
        # On another way to a forced site only fast memory may have the tensor: no Drop then.
        return {DROP: None} if site in self.forced and DROP in found else found

    def read_options(self, tensor: int, step: int) -> dict[int, Stay | None]:
        found: dict[int, Stay | None] = {}
        old = self.newest(tensor)
        p = -1 if old is None else old.last
        if old is not None and not old.over and not self.too_idle(p, step):
            last = max(p, self.stretch(old.first, step))
            if self.is_free(old.offset, self.size[tensor], p + 1, last, old, old.parent):
                found[NO_COPY] = Stay(tensor, old.first, last, old.offset)
        ready = self.ready[tensor]
        if ready is None or ready >= step or p >= step:  # what is in fast is read there
            return found
        found[DROP] = None
        for issued in range(step - 2, max(ready, p, self.back_by[tensor]) - 1, -1):
            if self.loop[issued] == self.loop[step]:
                copy = self.offer(tensor, True, self.loop[step], issued, step)
                if copy:
                    offset = self.place(tensor, issued + 1, step, step)
                    if offset is not None:
                        found[COPY] = Stay(tensor, issued + 1, step, offset, copies=[copy])
                    break
        return found

    def write_options(self, tensor: int, step: int) -> dict[int, Stay | None]:
        found: dict[int, Stay | None] = {}
        below, parent = self.over[tensor], None
        if below >= 0:
            (read,) = [u for u in self.sites_of[below] if self.step_of[u] == step]
            if not self.fast[read]:
                return {DROP: None}
            parent = self.newest(below)
        else:
            found[DROP] = None

        def offset(last: int) -> int | None:
            if parent is None:
                return self.place(tensor, step, last, step)
            fits = self.is_free(parent.offset, self.size[tensor], step, last, parent)
            return parent.offset if fits else None

        if not self.model.tensors.output[tensor] and (at := offset(step)) is not None:
            found[NO_COPY] = Stay(tensor, step, step, at, parent)
        above = [self.step_of[self.sites_of[y][0]] for y, x in enumerate(self.over) if x == tensor]
        for needed in range(step + 2, min([self.n, *above]) + 1):
            if self.loop[needed] == self.loop[step]:
                copy = self.offer(tensor, False, self.loop[step], step, needed)
                if copy:
                    if (at := offset(needed - 1)) is not None:
                        found[COPY] = Stay(tensor, step, needed - 1, at, parent, copies=[copy])
                    break
        return found

    def group_options(self, tensor: int, step: int, site: int) -> dict[int, Stay | None]:
        group, t = self.carried[tensor], self.model.tensors
        if group in self.group:
            stay = self.group[group]
            return {DROP: None} if stay is None else {NO_COPY: stay}
        nothing: dict[int, Stay | None] = {DROP: None}
        members = [b for b, g in enumerate(self.carried) if g == group]
        outputs = [b for b in members if t.output[b]]
        givens = [b for b in members if t.given[b]]
        if len(outputs) > 1 or givens != ([] if self.is_write[site] else [tensor]):
            return nothing
        first, copies = step, []
        if givens:
            around = self.loops_around(step)
            needed = (int(self.model.loop_first[around[0]]) if around else step) - 1
            if needed < 1 or self.loop[needed] >= 0:
                return nothing
            tries = [
                self.offer(tensor, True, -1, s, needed) for s in range(needed - 2, -2, -1) if self.loop[s] < 0
            ]
            copies = [copy for copy in tries if copy][:1]
            if not copies:
                return nothing
            first = copies[0].issued + 1
        uses = [self.step_of[u] for b in members for u in self.sites_of[b]]
        last = max(self.stretch(first, use) for use in uses)
        if outputs:
            written = self.step_of[self.sites_of[outputs[0]][0]]
            around = self.loops_around(written)
            issued = int(self.model.loop_last[around[0]]) if around else written
            tries = [
                self.offer(outputs[0], False, -1, issued, e)
                for e in range(issued + 2, self.n + 1)
                if self.loop[e] < 0
            ]
            backs = [copy for copy in tries if copy][:1]
            if not backs:
                return nothing
            copies, last = copies + backs, max(last, backs[0].needed - 1)
        offset = self.fit(tensor, first, last)
        if offset is None:
            return nothing
        return nothing | {COPY if copies else NO_COPY: Stay(tensor, first, last, offset, copies=copies)}

    def mask(self) -> list[int]:
        found = self.options() if self.cursor < self.moves else {}
        return [int(action in found) for action in (COPY, NO_COPY, DROP)]

    def step(self, action: int) -> int:
        before = self.worth()
        self._apply(action)
        while self.cursor < self.moves and not self.options():
            self._back_up()
        gained = self.worth() - before
        ends = self.cursor == self.moves and self.reward == "telescoping" and self.stall_term
        return gained - self.judged()[1] if ends else gained

    def _apply(self, action: int) -> None:
        site, wanted = self.cursor, self.options()[action]
        tensor, step = self.tensor_of[site], self.step_of[site]
        group, old = self.carried[tensor], self.newest(tensor)
        self.actions.append(action)
        self.fast[site] = action != DROP
        if group >= 0:
            if self.group.setdefault(group, wanted) is not None and wanted not in self.stays:
                self._add(wanted)
            return
        if wanted is None:
            if self.is_write[site]:
                self.ready[tensor] = step
            elif old is not None:
                old.over = True
            return
        if not self.is_write[site] and action == NO_COPY:
            assert old is not None
            old.last, old.taken = wanted.last, False
            old.sites.append(site)
            return
        wanted.sites.append(site)
        self._add(wanted)
        if self.is_write[site] and action == COPY:
            self.back_by[tensor] = wanted.copies[0].needed
            self.ready[tensor] = self.back_by[tensor] - 1

    def _add(self, stay: Stay | None) -> None:
        assert stay is not None
        for other in self.stays:
            other.taken = other.taken or self.meets(other, stay.offset, self.size[stay.tensor])
        self.stays.append(stay)
        self.copies += stay.copies

    def _back_up(self) -> None:
        """No move is legal: the residency in the way was a mistake from its first move on."""
        self.backups += 1
        tensor = self.tensor_of[self.cursor]
        chain = [self.newest(self.over[tensor] if self.is_write[self.cursor] else tensor)]
        while chain[-1] is not None and chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        stays = [stay for stay in chain if stay is not None]
        if self.backup == "rewind":
            start = min(stays[-1].sites)
            self.forced.add(start)
            played = self.actions[:start]
            self.clear()
            for action in played:
                self._apply(action)
            return
        if self.backup == "none":
            self.forced = set(range(self.moves))
            played = self.actions
            self.clear()
            for _ in played:
                self._apply(DROP)
            self.actions = played
            return
        for stay in stays:
            self.stays.remove(stay)
            self.copies = [copy for copy in self.copies if copy not in stay.copies]
            for site in stay.sites:
                self.fast[site] = False
                if self.is_write[site]:
                    self.ready[stay.tensor] = self.step_of[site]
                    self.back_by[stay.tensor] = -1

    # --- results -----------------------------------------------------------------------------

    def placement(self) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]], list[bool]]:
        """(residencies: tensor, offset, first, last; copies: tensor, in, issued, needed, work; fast)."""
        rows = []
        for stay in self.stays:
            group = self.carried[stay.tensor]
            members = [b for b, g in enumerate(self.carried) if g == group >= 0] or [stay.tensor]
            for b in members:
                written = group >= 0 and self.is_write[self.sites_of[b][0]]
                first = self.step_of[self.sites_of[b][0]] if written else stay.first
                rows.append((b, stay.offset, first, stay.last))
        copies: list[tuple[int, ...]] = [
            (c.tensor, int(c.into), c.issued, c.needed, c.work) for c in self.copies
        ]
        return sorted(rows), copies, self.fast

    def plan(self, n_ops: int) -> Plan:
        """The placement by op numbers. A window may begin with a view: it holds from the next step."""
        m, (stays, copies, _) = self.model, self.placement()
        op, root = [*m.step_op.tolist(), -1], m.tensors.root
        return Plan.of(
            residencies=[
                (int(root[b]), m.fast, offset, op[first - 1] + 1, op[last])
                for b, offset, first, last in stays
            ],
            copies=[
                (
                    int(root[b]),
                    *((m.slow, m.fast) if into else (m.fast, m.slow)),
                    op[issued],
                    op[needed] if needed < self.n else n_ops,
                )
                for b, into, issued, needed, _ in copies
            ],
        )

    def play(self, preferences: Any) -> list[int]:
        """Plays each preference if it is legal, else NoCopy, Copy, Drop; returns the rewards."""
        rewards = []
        while self.cursor < self.moves:
            mask = self.mask()
            wishes = (int(preferences[self.cursor]), NO_COPY, COPY, DROP)
            rewards.append(self.step(next(action for action in wishes if mask[action])))
        return rewards
