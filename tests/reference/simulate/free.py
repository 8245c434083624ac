"""The event engine of the rule copies = 'free' (docs/simulation.md, section 4).

Part of the slow reference: at every instant everything is looked at again.
"""

from __future__ import annotations

from loadmaster.errors import BadPlan
from reference.simulate.log import Log
from reference.simulate.memory import MemoryLedger, Thing, the_copy, the_step, the_transfer
from reference.simulate.steps import CopyWork, Scene, Step, TransferWork


def run_free(scene: Scene, ledger: MemoryLedger) -> Log:
    """Let time run."""
    return _FreeEngine(scene, ledger).run()


class _FreeEngine:
    def __init__(self, scene: Scene, ledger: MemoryLedger) -> None:
        self.scene, self.ledger, self.log = scene, ledger, Log()
        self.listed = _listed_transfers(scene)
        self.produced: dict[tuple[int, int], int] = {}
        """Transfers of the list that wait to be booked, and when their tensor was made."""
        self.waits = {number: self._waits(step) for number, step in scene.steps.items()}
        self.needed_copies: dict[int, list[Thing]] = {number: [] for number in scene.steps}
        for copy in scene.copies:
            if copy.needed_by is not None:
                self.needed_copies[copy.needed_by].append(the_copy(copy.row))

        self.engine_free = dict.fromkeys(scene.machine.engines, 0)
        self.bookings: dict[Thing, tuple[int, int]] = {}
        """Transfers and copies: start and end."""
        self.happened: dict[Thing, int] = {}
        """When a step, a transfer or a copy ended."""
        self.running: list[Step | None] = [None for _ in scene.machine.devices]
        self.previous_end = [0 for _ in scene.machine.devices]
        self.not_started = list(scene.in_order)
        self.bottom_level: dict[int, int] = {}
        if scene.plan.queue == "priority" and scene.plan.tie == "critical_path":
            self.bottom_level = self._bottom_levels()

    # --- what is known before the start ------------------------------------------------------

    def _waits(self, step: Step) -> set[Thing]:
        """What a step waits for, but for explicit copies."""
        waits: set[Thing] = set()
        for access in step.reads:
            transfer = self.scene.transfer_for(access, step.device)
            if transfer is not None:
                waits.add(the_transfer(*transfer))
            elif access.tensor in self.scene.writer:  # else it is given: there from time 0
                waits.add(the_step(self.scene.writer[access.tensor]))
        waits |= {the_step(number) for number in self.scene.users_before(step)}
        return waits - {the_step(step.number)}

    def _bottom_levels(self) -> dict[int, int]:
        readers: dict[int, set[int]] = {}
        for step in self.scene.steps.values():
            written = {access.tensor for access in step.writes}
            readers[step.number] = {
                other.number
                for other in self.scene.steps.values()
                if other is not step and written & {access.tensor for access in other.reads}
            }
        level: dict[int, int] = {}
        while len(level) < len(readers):
            known = len(level)
            for number, after in readers.items():
                if number not in level and all(other in level for other in after):
                    longest = max((level[other] for other in after), default=0)
                    level[number] = self.scene.steps[number].run_time + longest
            if len(level) == known:
                raise self._stuck(min(set(readers) - set(level)))
        return level

    def _stuck(self, number: int) -> BadPlan:
        name = self.scene.program.op_name[number]
        missing = [thing for thing in self._all_waits(number) if thing not in self.happened]
        what = f" ({missing[0][0]} {missing[0][1]} never ends)" if missing else ""
        return BadPlan(
            f"op '{name}' waits for ever{what}",
            object=name,
            number=number,
            remedy="order, fuse and copy so that what an op reads is made before",
        )

    def _all_waits(self, number: int) -> list[Thing]:
        return sorted(self.waits[number]) + self.needed_copies[number]

    # --- time --------------------------------------------------------------------------------

    def run(self) -> Log:
        now: int | None = 0
        while now is not None:
            if now == 0:
                self._produce_transfers(None, now)
                self._book_copies(None, now)
            self._end_steps(now)
            self._end_transfers_and_copies(now)
            self._start_transfers_and_copies(now)
            for device in range(len(self.running)):
                self._start_a_step(device, now)
            now = self._next_instant(now)
        if self.not_started:
            raise self._stuck(self.not_started[0].number)
        for copy in self.scene.copies:
            start, end = self.bookings[the_copy(copy.row)]
            self.log.copy_start[copy.row], self.log.copy_end[copy.row] = start, end
        ends = list(self.log.step_end.values())
        ends += [self.log.copy_end[c.row] for c in self.scene.copies if c.needed_by is None]
        self.log.total = max(ends, default=0)
        return self.log

    def _next_instant(self, now: int) -> int | None:
        instants = [time for booking in self.bookings.values() for time in booking]
        instants += [self.log.step_end[step.number] for step in self.running if step is not None]
        return min((time for time in instants if time > now), default=None)

    def _end_steps(self, now: int) -> None:
        ending = [step for step in self.running if step is not None and self.log.step_end[step.number] == now]
        for step in sorted(ending, key=lambda step: step.number):
            self.running[step.device] = None
            self.previous_end[step.device] = now
            self.happened[the_step(step.number)] = now
            self.ledger.ends(the_step(step.number))
            self._produce_transfers(step, now)
            self._book_copies(step, now)

    def _booked_in_order(self) -> list[Thing]:
        """Transfers by (tensor, device), then copies by row."""
        return sorted(self.bookings, key=lambda thing: (thing[0] == "copy", thing))

    def _end_transfers_and_copies(self, now: int) -> None:
        for thing in self._booked_in_order():
            if self.bookings[thing][1] == now:
                self.happened[thing] = now
                self.ledger.ends(thing)

    def _start_transfers_and_copies(self, now: int) -> None:
        for thing in self._booked_in_order():
            if self.bookings[thing][0] == now:
                self.ledger.starts(thing, now)

    # --- booking -----------------------------------------------------------------------------

    def _produce_transfers(self, step: Step | None, now: int) -> None:
        """The tensors that a step wrote (None: the given ones) can be sent."""
        number = None if step is None else step.number
        mine = [key for key in sorted(self.scene.transfers) if self.scene.writer.get(key[0]) == number]
        if self.listed is None:
            for key in mine:
                self._book_transfer(self.scene.transfers[key], now)
            return
        for key in mine:
            self.produced[key] = now
            while (bookable := self._first_bookable()) is not None:
                self._book_transfer(self.scene.transfers[bookable], self.produced.pop(bookable))

    def _first_bookable(self) -> tuple[int, int] | None:
        """The first of the list that is produced and need not wait for another to be booked."""
        assert self.listed is not None
        for index, key in enumerate(self.listed):
            if key in self.produced and self._is_next(index):
                return key
        return None

    def _is_next(self, index: int) -> bool:
        """Whether every transfer before it in the list that shares an engine is booked."""
        assert self.listed is not None
        engines = self._engines(self.scene.transfers[self.listed[index]].link)
        for earlier in self.listed[:index]:
            shared = set(engines) & set(self._engines(self.scene.transfers[earlier].link))
            if shared and the_transfer(*earlier) not in self.bookings:
                return False
        return True

    def _engines(self, link: int) -> tuple[str, ...]:
        return self.scene.machine.links[link].engines

    def _book(self, thing: Thing, link: int, duration: int, now: int) -> tuple[int, int]:
        start = max([now] + [self.engine_free[engine] for engine in self._engines(link)])
        for engine in self._engines(link):
            self.engine_free[engine] = start + duration
        self.bookings[thing] = (start, start + duration)
        return self.bookings[thing]

    def _book_transfer(self, work: TransferWork, produced: int) -> None:
        thing = the_transfer(work.tensor, work.device)
        start, end = self._book(thing, work.link, work.duration, produced)
        self.log.transfers.append((work.tensor, work.device, start, end))

    def _book_copies(self, step: Step | None, now: int) -> None:
        number = None if step is None else step.number
        issued: list[CopyWork] = [c for c in self.scene.copies if c.issued_by == number]
        for copy in issued:
            self._book(the_copy(copy.row), copy.link, self.scene.copy_time(copy), now)

    # --- starting steps ----------------------------------------------------------------------

    def _ready_time(self, step: Step) -> int | None:
        """When the last thing it waits for happened; None if one has not."""
        things = self._all_waits(step.number)
        if any(thing not in self.happened for thing in things):
            return None
        return max((self.happened[thing] for thing in things), default=0)

    def _start_a_step(self, device: int, now: int) -> None:
        if self.running[device] is not None:
            return
        step = self._choose(device)
        if step is None:
            return
        number = step.number
        self.not_started.remove(step)
        self.running[device] = step
        self.log.step_start[number] = now
        self.log.step_end[number] = now + step.run_time
        self.log.stall[number] = self._stall(step)
        self.ledger.starts(the_step(number), now)

    def _choose(self, device: int) -> Step | None:
        waiting = [step for step in self.not_started if step.device == device]  # by position
        if self.scene.plan.queue == "order":
            waiting = waiting[:1]
        ready_time = {step.number: self._ready_time(step) for step in waiting}
        ready = [step for step in waiting if ready_time[step.number] is not None]
        if not ready:
            return None

        def first_come(step: Step) -> tuple[int, int]:
            time = ready_time[step.number]
            assert time is not None
            return (time, step.number)

        if self.scene.plan.queue in ("order", "ready"):
            return ready[0]
        if self.scene.plan.queue == "fifo":
            return min(ready, key=first_come)
        keys = self.scene.plan.priority
        assert keys is not None
        key_of = {step.number: max(float(keys[op]) for op in step.members) for step in ready}
        largest = max(key_of.values())
        ready = [step for step in ready if key_of[step.number] == largest]
        if self.scene.plan.tie == "critical_path":
            longest = max(self.bottom_level[step.number] for step in ready)
            ready = [step for step in ready if self.bottom_level[step.number] == longest]
        return min(ready, key=first_come)

    def _stall(self, step: Step) -> int:
        """How long it waited for explicit copies alone."""
        copies = self.needed_copies[step.number]
        if not copies:
            return 0
        last_copy = max(self.happened[copy] for copy in copies)
        others = [self.happened[thing] for thing in self.waits[step.number]]
        return max(0, last_copy - max([self.previous_end[step.device], *others]))


def _listed_transfers(scene: Scene) -> list[tuple[int, int]] | None:
    """The plan's list, if it has one: it must name all transfers, once, and nothing else."""
    if scene.plan.transfers is None:
        return None
    listed: list[tuple[int, int]] = []
    for tensor, device in scene.plan.transfers.tolist():
        known = 0 <= tensor < scene.program.n_tensors
        key = (scene.root[tensor] if known else tensor, device)
        if key not in scene.transfers or key in listed:
            raise BadPlan(
                f"the plan lists a transfer of tensor {tensor} to device {device}, "
                f"which {'comes twice' if key in listed else 'is not needed'}",
                object=f"tensor {tensor}",
                number=device,
                remedy="list every transfer once and no other",
            )
        listed.append(key)
    for tensor, device in sorted(scene.transfers):
        if (tensor, device) not in listed:
            name = scene.program.tensor_name[tensor]
            raise BadPlan(
                f"the plan's transfers leave out tensor '{name}' to device {device}",
                object=name,
                number=device,
                remedy="list every transfer, or none",
            )
    return listed
