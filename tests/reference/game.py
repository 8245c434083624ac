"""The MallocGame as plainly as it can be said.

Written from the rules of the game alone; it shares nothing with the native game but the model's
columns. Times are steps of the model, or picoseconds.
"""

from __future__ import annotations

from typing import Any, Literal

from loadmaster.plan.plan import Plan
from reference.rules import COPY, COPY_EARLY, COPY_HALF, COPY_TIGHT, DROP, KINDS, LEAD, NO_COPY, Rules, Stay

Options = dict[int, Stay | None]


FALLBACK = (NO_COPY, COPY, DROP, COPY_HALF, COPY_TIGHT, COPY_EARLY)


class SlowGame(Rules):
    """One game. `step` plays a move and returns its reward in picoseconds."""

    asked: tuple[int, int] = (-1, 0)
    answer: Options

    def options(self) -> Options:
        """Legal action that a mask lists -> the residency that it makes or continues, as it would be."""
        now = (self.cursor, self.backups)
        if self.asked != now:  # the same question is asked for the mask, the move and the dead end
            self.asked, self.answer = now, {}
            for action in range(LEAD) if self.starts == "all" else (COPY, NO_COPY, DROP):
                found = self.find(action)
                if found is not False and not self.repeats(action, found):
                    self.answer[action] = found
        return self.answer

    def repeats(self, action: int, found: Stay | None) -> bool:
        """A copy of another kind is the very same."""
        if action not in KINDS or found is None:
            return False

        def spans(stay: Stay) -> list[tuple[int, int]]:
            return [(copy.issued, copy.needed) for copy in stay.copies]

        earlier = [self.answer[kind] for kind in KINDS[: KINDS.index(action)] if kind in self.answer]
        return spans(found) in [spans(stay) for stay in earlier if stay is not None]

    def find(self, action: int) -> Stay | Literal[False] | None:
        """What a move would make; None: nothing, it is a Drop; False: it is not legal."""
        site = self.cursor
        tensor, step = self.tensor_of[site], self.step_of[site]
        if self.carried[tensor] >= 0:
            ask = self.group_option
        else:
            ask = self.write_option if self.is_write[site] else self.read_option
        # On another way to a forced site only fast memory may have the tensor: no Drop then.
        if site in self.forced and action != DROP and ask(DROP, tensor, step) is None:
            return False
        return ask(action, tensor, step)

    def read_option(self, action: int, tensor: int, step: int) -> Stay | Literal[False] | None:
        old, ready = self.newest(tensor), self.ready[tensor]
        p = -1 if old is None else old.last
        if action == NO_COPY:
            if old is None or old.over or self.too_idle(p, step):
                return False
            last = max(p, self.stretch(old.first, step))
            return self.placed(Stay(tensor, old.first, last, old.strip)) or False
        if ready is None or ready >= step or p >= step:  # what is in fast is read there
            return False
        if action == DROP:
            return None
        lowest = max(ready, p, self.back_by[tensor])
        copy = self.start(action, self.copies_in(tensor, self.loop[step], lowest, step))
        if copy is None:
            return False
        first = copy.issued + 1
        return self.placed(Stay(tensor, first, self.stretch(first, step), copies=[copy])) or False

    def write_option(self, action: int, tensor: int, step: int) -> Stay | Literal[False] | None:
        below, parent = self.over[tensor], None
        if below >= 0:
            (read,) = [u for u in self.sites_of[below] if self.step_of[u] == step]
            if not self.fast[read]:
                return None if action == DROP else False
            parent = self.newest(below)
        if action == DROP:
            return None if parent is None else False
        new = Stay(tensor, step, step, None if parent is None else parent.strip, parent=parent)
        if action == NO_COPY:
            return False if self.model.tensors.output[tensor] else self.placed(new) or False
        copy = self.start(action, self.copies_out(tensor, self.loop[step], step))
        if copy is None:
            return False
        new.last, new.copies = copy.needed - 1, [copy]
        return self.placed(new) or False

    def group_option(self, action: int, tensor: int, step: int) -> Stay | Literal[False] | None:
        group, t = self.carried[tensor], self.model.tensors
        if group in self.group:
            stay = self.group[group]
            return stay if action == (DROP if stay is None else NO_COPY) else False
        if action == DROP:
            return None
        members = [b for b, g in enumerate(self.carried) if g == group]
        outputs = [b for b in members if t.output[b]]
        givens = [b for b in members if t.given[b]]
        if len(outputs) > 1 or givens != ([] if self.is_write[self.cursor] else [tensor]):
            return False
        if (action == NO_COPY) == bool(givens or outputs):
            return False
        first, copies = step, []
        if givens:
            around = self.loops_around(step)
            needed = (int(self.model.loop_first[around[0]]) if around else step) - 1
            if needed < 1 or self.loop[needed] >= 0:
                return False
            copy = self.start(action, self.copies_in(tensor, -1, -1, needed))
            if copy is None:
                return False
            copies, first = [copy], copy.issued + 1
        uses = [self.step_of[u] for b in members for u in self.sites_of[b]]
        last = max(self.stretch(first, use) for use in uses)
        if outputs:
            written = self.step_of[self.sites_of[outputs[0]][0]]
            around = self.loops_around(written)
            issued = int(self.model.loop_last[around[0]]) if around else written
            kind = COPY if givens and action >= LEAD else action
            copy = self.start(kind, self.copies_out(outputs[0], -1, issued))
            if copy is None:
                return False
            copies, last = [*copies, copy], max(last, copy.needed - 1)
        return self.placed(Stay(tensor, first, last, copies=copies)) or False

    def mask(self) -> list[int]:
        found = self.options() if self.cursor < self.moves else {}
        return [int(action in found) for action in range(LEAD if self.starts == "all" else 3)]

    def knows(self, action: int) -> bool:
        """Whether a move is legal, one that no mask lists too."""
        return (
            self.starts == "all" and self.find(action) is not False
            if action >= LEAD
            else action in self.options()
        )

    def step(self, action: int) -> int:
        before = self.worth()
        self._apply(action)
        while self.cursor < self.moves and not self.options():
            self._back_up()
        gained = self.worth() - before
        ends = self.cursor == self.moves and self.reward == "telescoping" and self.stall_term
        return gained - self.judged()[1] if ends else gained

    def _apply(self, action: int) -> None:
        site, wanted = self.cursor, self.find(action) if action >= LEAD else self.options()[action]
        assert wanted is not False
        tensor, step = self.tensor_of[site], self.step_of[site]
        group, old = self.carried[tensor], self.newest(tensor)
        self.actions.append(action)
        self.fast[site] = action != DROP
        new = wanted is not None and wanted not in self.stays
        if new and wanted is not None and wanted.moved is not None:
            self.strips.move(wanted.moved)
        if group >= 0:
            if self.group.setdefault(group, wanted) is not None and new:
                self._add(wanted)
        elif wanted is None:
            if self.is_write[site]:
                self.ready[tensor] = step
            elif old is not None:
                old.over = True
        else:
            if not self.is_write[site] and action == NO_COPY:
                assert old is not None and old.strip is not None
                old.last = wanted.last
                self.strips.extend(old.strip, old.last)
                old.sites.append(site)
            else:
                wanted.sites.append(site)
                self._add(wanted)
                if self.is_write[site] and action != NO_COPY:
                    self.back_by[tensor] = wanted.copies[0].needed
                    self.ready[tensor] = self.back_by[tensor] - 1
            self._reserve(tensor, site)
        if new and wanted is not None and wanted.moved is not None:
            self.strips.reserve_all()

    def _reserve(self, tensor: int, site: int) -> None:
        """What only fast memory has must be there for its next read."""
        later, stay = [u for u in self.sites_of[tensor] if u > site], self.newest(tensor)
        if (
            self.repack
            and later
            and self.ready[tensor] is None
            and stay is not None
            and stay.strip is not None
        ):
            self.strips.reserve(stay.strip, self.step_of[later[0]])

    def _add(self, stay: Stay | None) -> None:
        assert stay is not None
        if stay.strip is None:
            stay.strip = self.strips.open(stay.first, stay.last, self.size[stay.tensor], stay.offset)
        else:
            self.strips.extend(stay.strip, stay.last)
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
        if self.backup == "rewind" and min(stays[-1].sites) not in self.forced:
            self.forced.add(min(stays[-1].sites))
            played = self.actions
            self.clear()
            while self.cursor < len(played):
                wishes = (played[self.cursor], *FALLBACK)
                self._apply(next(action for action in wishes if self.knows(action)))
                while self.cursor < self.moves and not self.options():
                    self._back_up()
            self.actions = played
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
            assert stay.strip is not None
            self.strips.close(stay.strip)
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
            assert stay.strip is not None
            group = self.carried[stay.tensor]
            members = [b for b, g in enumerate(self.carried) if g == group >= 0] or [stay.tensor]
            for b in members:
                written = group >= 0 and self.is_write[self.sites_of[b][0]]
                first = self.step_of[self.sites_of[b][0]] if written else stay.first
                rows.append((b, stay.strip.offset, first, stay.last))
        copies: list[tuple[int, ...]] = [
            (c.tensor, int(c.into), c.issued, c.needed, c.work) for c in self.in_order()
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
        """Plays each preference if it is legal, else NoCopy, Copy, Drop, or what else is; returns the rewards."""
        rewards = []
        while self.cursor < self.moves:
            wishes = (int(preferences[self.cursor]), *FALLBACK)
            rewards.append(self.step(next(action for action in wishes if self.knows(action))))
        return rewards
