"""XLA's runtime simulator, the rule copies = 'idle' (docs/simulation.md, section 5).

Part of the slow reference: copies move only while steps leave the home memory idle.
"""

from __future__ import annotations

from loadmaster.errors import BadPlan
from reference.simulate.costs import ceil_divide, ceil_time
from reference.simulate.log import Log
from reference.simulate.memory import MemoryLedger, the_copy, the_step
from reference.simulate.steps import CopyWork, Scene, Step

HALVES = 2
"""Half-picoseconds of work that a queue alone does in a picosecond; of two, each does one."""


def run_idle(scene: Scene, ledger: MemoryLedger) -> Log:
    """Let time run."""
    return _IdleEngine(scene, ledger).run()


class _Queued:
    def __init__(self, copy: CopyWork, work: int) -> None:
        self.copy = copy
        self.left = HALVES * work


class _IdleEngine:
    def __init__(self, scene: Scene, ledger: MemoryLedger) -> None:
        self.scene, self.ledger, self.log = scene, ledger, Log()
        self.home = scene.machine.home[0]
        self.work = [self._work(copy) for copy in scene.copies]
        self.reading: list[_Queued] = []
        """Queue R: copies from the home."""
        self.writing: list[_Queued] = []
        """Queue W: copies to the home."""
        self.gone: list[CopyWork] = []
        """Copies that left their queue, until they are written down as ended."""
        self.clock = 0

    def _work(self, copy: CopyWork) -> int:
        """Picoseconds that a copy takes alone."""
        home = self.scene.machine.memories[self.home]
        link = self.scene.machine.links[copy.link]
        if self.home not in (copy.source, copy.target):
            name = self.scene.program.tensor_name[copy.tensor]
            raise BadPlan(
                f"copy {copy.row} of tensor '{name}' goes from memory '{link.source}' to "
                f"'{link.target}', and copies = 'idle' allows only copies from or to '{home.name}'",
                object=name,
                number=copy.row,
                remedy=f"copy it by way of '{home.name}', or use copies = 'free'",
            )
        side = home.read if copy.source == self.home else home.write
        return max(1, link.latency + ceil_time(copy.bytes, min(link.bandwidth, side)))

    def _check_order(self) -> None:
        """Nothing waits here: what a step reads is written before it, and not written over."""
        for step in self.scene.in_order:
            for access in step.reads:
                writer = self.scene.writer.get(access.tensor, step.number)
                if self.scene.steps[writer].position > step.position:
                    name = self.scene.program.op_name
                    raise BadPlan(
                        f"op '{name[step.number]}' runs before op '{name[writer]}', "
                        "which writes what it reads",
                        object=name[step.number],
                        number=step.number,
                        remedy="order it after what it reads",
                    )
            for user in self.scene.users_before(step):
                if self.scene.steps[user].position > step.position:
                    name = self.scene.program.op_name
                    raise BadPlan(
                        f"op '{name[step.number]}' runs before op '{name[user]}', "
                        "which uses what it writes over",
                        object=name[step.number],
                        number=step.number,
                        remedy="order it after all that use what was there before",
                    )

    def run(self) -> Log:
        self._check_order()
        previous: int | None = None  # the step before, by number; None: before the program
        for step in [*self.scene.in_order, None]:  # None: the end
            repeat = 1 if step is None else step.repeat
            number = None if step is None else step.number
            waited = self._wait_for_queued(number, repeat)
            pushed = [copy for copy in self.scene.copies if copy.issued_by == previous]
            for copy in pushed:
                self._push(copy)
            for copy in pushed:
                if copy.needed_by == number:
                    waited += self._wait(copy, repeat)
            if step is not None:
                self.log.stall[step.number] = repeat * waited
                self._run_step(step)
                previous = step.number
        self.log.total = self.clock
        return self.log

    def _wait_for_queued(self, number: int | None, repeat: int) -> int:
        waited = 0
        for copy in self._in_order_of_issue():
            if copy.needed_by == number:
                waited += self._wait(copy, repeat)
        return waited

    def _in_order_of_issue(self) -> list[CopyWork]:
        """The copies that are in a queue, by issuing step, then by row."""

        issuers: list[int | None] = [None, *(step.number for step in self.scene.in_order)]
        queued = [entry.copy for entry in self.reading + self.writing]
        return sorted(queued, key=lambda copy: (issuers.index(copy.issued_by), copy.row))

    def _push(self, copy: CopyWork) -> None:
        queue = self.reading if copy.source == self.home else self.writing
        queue.append(_Queued(copy, self.work[copy.row]))
        self.log.copy_start[copy.row] = self.clock
        self.ledger.starts(the_copy(copy.row), self.clock)

    def _run_step(self, step: Step) -> None:
        self.log.step_start[step.number] = self.clock
        self.ledger.starts(the_step(step.number), self.clock)
        self._drain(max(0, step.duration - step.slow))
        self.clock += step.run_time
        self.log.step_end[step.number] = self.clock
        self.ledger.ends(the_step(step.number))
        self._end_those_gone()

    # --- the queues --------------------------------------------------------------------------

    def _drain(self, idle: int) -> None:
        """Both queues work for `idle` picoseconds, or until both are empty."""
        shared = min(idle, _total(self.reading), _total(self.writing))
        self._take(self.reading, shared)
        self._take(self.writing, shared)
        for queue in (self.reading, self.writing):  # if time is left, one of them is empty
            self._take(queue, HALVES * (idle - shared))

    def _wait(self, copy: CopyWork, repeat: int) -> int:
        """Drain until the copy has left its queue. Returns whole picoseconds, before repeats."""
        queue, other = self.reading, self.writing
        if copy.source != self.home:
            queue, other = other, queue
        rows = [entry.copy.row for entry in queue]
        if copy.row not in rows:
            return 0  # it left while another was waited for
        ahead = _total(queue[: rows.index(copy.row) + 1])
        shared = min(ahead, _total(other))
        alone = ahead - shared
        self._take(other, shared)
        self._take(queue, ahead)
        waited = shared + ceil_divide(alone, HALVES)
        self.clock += repeat * waited
        self._end_those_gone()
        return waited

    def _take(self, queue: list[_Queued], work: int) -> None:
        """Do some half-picoseconds of work, heads first."""
        while queue and work > 0:
            done = min(work, queue[0].left)
            queue[0].left -= done
            work -= done
            if queue[0].left == 0:
                self.gone.append(queue.pop(0).copy)

    def _end_those_gone(self) -> None:
        for copy in sorted(self.gone, key=lambda copy: copy.row):
            self.log.copy_end[copy.row] = self.clock
            self.ledger.ends(the_copy(copy.row))
        self.gone.clear()


def _total(queue: list[_Queued]) -> int:
    return sum(entry.left for entry in queue)
