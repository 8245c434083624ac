"""What is held in which memory, and when (docs/simulation.md, section 6).

Part of the slow reference. Both engines tell it what starts and what ends; it knows no
time of its own. A *thing* is a step, a transfer or a copy.
"""

from __future__ import annotations

from loadmaster.plan.plan import BEFORE, NO_OFFSET
from reference.simulate.costs import ceil_divide
from reference.simulate.steps import Scene

Thing = tuple[str, int, int]
"""('step', number, 0), ('transfer', tensor, device) or ('copy', row, 0)."""


def the_step(number: int) -> Thing:
    return ("step", number, 0)


def the_transfer(tensor: int, device: int) -> Thing:
    return ("transfer", tensor, device)


def the_copy(row: int) -> Thing:
    return ("copy", row, 0)


class HomeCopy:
    """A tensor in the home memory of some devices because nothing else is decided."""

    def __init__(self, tensor: int, device: int, memory: int) -> None:
        self.tensor, self.device, self.memory = tensor, device, memory
        self.openers: set[Thing] = set()
        self.uses: set[Thing] = set()
        """Those that are not over."""
        self.opened_at_start = False
        self.never_over = False
        self.is_open = False


class HeldResidency:
    """A residency from the start of one step to the end of another."""

    def __init__(self, tensor: int, memory: int, first: Thing, last: Thing) -> None:
        self.tensor, self.memory = tensor, memory
        self.first, self.last = first, last
        self.is_open = False
        self.is_over = False


class MemoryLedger:
    """Counts the bytes held in every memory."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.memories = scene.machine.memories
        self.place = scene.place
        self.place_size: dict[int, int] = {}
        for tensor in scene.roots:
            place = self.place[tensor]
            self.place_size[place] = max(self.place_size.get(place, 0), scene.size[tensor])
        self.holds: dict[tuple[int, int], int] = {}
        """(place, memory) -> how many hold it there."""
        self.held = [0 for _ in self.memories]
        self.peak = [0 for _ in self.memories]
        self.first_over = [-1 for _ in self.memories]
        self.residencies = self._held_residencies()
        self.home_copies = [
            home_copy
            for tensor in scene.roots
            for device in sorted(set(scene.near_device))
            if (home_copy := self._home_copy(tensor, device)) is not None
        ]
        self._begin()

    # --- counting ----------------------------------------------------------------------------

    def _aligned(self, size: int, memory: int) -> int:
        alignment = self.memories[memory].alignment
        return ceil_divide(size, alignment) * alignment

    def _hold(self, tensor: int, memory: int, now: int) -> None:
        key = (self.place[tensor], memory)
        self.holds[key] = self.holds.get(key, 0) + 1
        if self.holds[key] > 1:
            return
        self.held[memory] += self._aligned(self.place_size[key[0]], memory)
        self.peak[memory] = max(self.peak[memory], self.held[memory])
        over = self.held[memory] > self.memories[memory].capacity
        if over and self.first_over[memory] == -1:
            self.first_over[memory] = now

    def _release(self, tensor: int, memory: int) -> None:
        key = (self.place[tensor], memory)
        self.holds[key] -= 1
        if self.holds[key] == 0:
            self.held[memory] -= self._aligned(self.place_size[key[0]], memory)

    # --- what is known before the start ------------------------------------------------------

    def _held_residencies(self) -> list[HeldResidency]:
        scene, held = self.scene, []
        for row in scene.residencies:
            if row.first == BEFORE:
                continue  # held from time 0 to the end: see `_begin`
            first = scene.step_at_or_after(scene.pos[row.first])
            last = scene.step_at_or_before(scene.pos[row.last])
            if first is None or last is None or first.position > last.position:
                continue  # no step in its window
            steps = (the_step(first.number), the_step(last.number))
            held.append(HeldResidency(row.tensor, row.memory, *steps))
        return held

    def _home_copy(self, tensor: int, device: int) -> HomeCopy | None:
        scene = self.scene
        home = scene.machine.home[device]
        near = scene.is_near(tensor, device)
        if scene.is_persistent(tensor) and near and tensor not in scene.has_before_residency:
            return None  # held from time 0 to the end: see `_begin`
        result = HomeCopy(tensor, device, home)

        if near and tensor in scene.writer:
            writer = scene.steps[scene.writer[tensor]]
            for access in writer.writes:
                if access.tensor == tensor and not access.by_residency:
                    result.openers.add(the_step(writer.number))
        if (tensor, device) in scene.transfers:
            result.openers.add(the_transfer(tensor, device))
        for copy in scene.copies:
            if copy.tensor == tensor and near and copy.target == home:
                result.openers.add(the_copy(copy.row))

        result.uses |= result.openers
        for step in scene.steps.values():
            if scene.near_device[step.device] != device or step.number == scene.writer.get(tensor):
                continue
            for access in step.reads:
                if access.tensor == tensor and not access.by_residency:
                    result.uses.add(the_step(step.number))
        for sent, target in scene.transfers:
            if sent == tensor and near:
                result.uses.add(the_transfer(sent, target))
        for copy in scene.copies:
            if copy.tensor == tensor and copy.source == home:
                result.uses.add(the_copy(copy.row))

        given_here = scene.is_input(tensor) or (scene.is_persistent(tensor) and near)
        result.opened_at_start = given_here and len(result.uses) > 0
        result.never_over = tensor in scene.output_roots and near
        return result

    def _begin(self) -> None:
        scene = self.scene
        for tensor in scene.roots:
            if scene.is_persistent(tensor) and tensor not in scene.has_before_residency:
                home_device = scene.home_device[tensor]
                assert home_device is not None
                self._hold(tensor, scene.machine.home[home_device], 0)
        for row in scene.residencies:
            if row.first == BEFORE:
                self._hold(row.tensor, row.memory, 0)
        for home_copy in self.home_copies:
            if home_copy.opened_at_start:
                self._open(home_copy, 0)

    # --- what happens ------------------------------------------------------------------------

    def starts(self, thing: Thing, now: int) -> None:
        for residency in self.residencies:
            if residency.first == thing and not residency.is_over:
                residency.is_open = True
                self._hold(residency.tensor, residency.memory, now)
        for home_copy in self.home_copies:
            if thing in home_copy.openers and not home_copy.is_open:
                self._open(home_copy, now)

    def ends(self, thing: Thing) -> None:
        for residency in self.residencies:
            if residency.last == thing:
                residency.is_over = True
                if residency.is_open:
                    self._release(residency.tensor, residency.memory)
        for home_copy in self.home_copies:
            if thing in home_copy.uses:
                home_copy.uses.remove(thing)
                over = not home_copy.uses and not home_copy.never_over
                if home_copy.is_open and over:
                    home_copy.is_open = False
                    self._release(home_copy.tensor, home_copy.memory)

    def _open(self, home_copy: HomeCopy, now: int) -> None:
        home_copy.is_open = True
        self._hold(home_copy.tensor, home_copy.memory, now)

    # --- results -----------------------------------------------------------------------------

    def top(self) -> list[int]:
        """The highest address that an explicit offset uses, per memory."""
        top = [0 for _ in self.memories]
        for row in self.scene.residencies:
            if row.offset != NO_OFFSET:
                end = row.offset + self._aligned(self.scene.size[row.tensor], row.memory)
                top[row.memory] = max(top[row.memory], end)
        return top

    def over(self) -> list[int]:
        needed = [max(peak, top) for peak, top in zip(self.peak, self.top(), strict=True)]
        return [max(0, needed[i] - memory.capacity) for i, memory in enumerate(self.memories)]
