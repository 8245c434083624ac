"""HEFT and earliest start written down plainly, for programs without fusion."""

from __future__ import annotations

import numpy as np

from loadmaster.graph import GraphOptimization
from loadmaster.graph.groups import root_homes, root_readers
from loadmaster.graph.placers import expected_bytes
from loadmaster.program.hazards import overwrite_waits, root_writers
from loadmaster.program.program import TensorKind

FOREVER = (1 << 62) - 1


class NobodyHasRoom(Exception):
    """The rule for that is not part of the plain version."""


class Slow:
    """`room` [memories]; what counts when a device is chosen, in thousandths: of transfers, of later ones, of
    the work on a device, and of the time for which transfers wait for each other."""

    def __init__(
        self,
        problem: GraphOptimization,
        room: list[int],
        *,
        transfer: int = 1000,
        ahead: int = 0,
        load: int = 0,
        wait: int = 0,
    ) -> None:
        program, machine = problem.program, problem.machine
        self.problem, self.room = problem, list(room)
        self.transfer, self.ahead, self.load, self.wait = transfer, ahead, load, wait
        self.devices = range(problem.devices)
        self.near = [machine.home.index(machine.home[d]) for d in self.devices]
        nodes = problem.node_op.tolist()
        self.steps = range(len(nodes))
        number = {op: step for step, op in enumerate(nodes)}
        self.repeat = [int(program.op_repeat[op]) for op in nodes]
        self.time = [
            [-1 if t < 0 else min(FOREVER, t * self.repeat[s]) for t in row]
            for s, row in enumerate(problem.durations.tolist())
        ]
        self.group = problem.node_group.tolist()
        self.size = program.storage_bytes.tolist()
        writer, home, readers = root_writers(program), root_homes(program), root_readers(program)
        self.writer: dict[int, int] = {}
        self.home: dict[int, int] = {}
        self.reads: list[list[int]] = [[] for _ in nodes]
        self.readers: dict[int, list[int]] = {}
        for t in range(program.n_tensors):
            if program.tensor_alias[t] != t or program.tensor_kind[t] == TensorKind.INPUT:
                continue
            if writer[t] >= 0:
                self.writer[t] = number[int(writer[t])]
            elif home[t] >= 0:
                self.home[t] = self.group[number[int(home[t])]]
            self.readers[t] = [number[op] for op in readers[t] if op != writer[t]]
            for step in self.readers[t]:
                self.reads[step].append(t)
        self.before = [[self.writer[t] for t in reads if t in self.writer] for reads in self.reads]
        self.users: list[list[int]] = [[] for _ in nodes]
        """Steps that use what a step writes over."""
        for user, by in overwrite_waits(program).T.tolist():
            self.users[number[by]].append(number[user])
        self.bytes = expected_bytes(problem).tolist()
        self.device = [-1] * problem.groups
        self.end = [0] * len(nodes)
        self.arrived: dict[tuple[int, int], int] = {}
        self.engine_free: dict[str, int] = {}

    def link(self, a: int, b: int):  # type: ignore[no-untyped-def]
        machine = self.problem.machine
        ends = (machine.memories[machine.home[a]].name, machine.memories[machine.home[b]].name)
        return next((link for link in machine.links if (link.source, link.target) == ends), None)

    def once(self, tensor: int, link) -> int:  # type: ignore[no-untyped-def]
        return max(1, link.latency + -(-self.size[tensor] * 10**12 // link.bandwidth))

    def move(self, tensor: int, a: int, b: int) -> int:
        if self.near[a] == self.near[b]:
            return 0
        link = self.link(a, b)
        factor = self.repeat[self.writer[tensor]] if tensor in self.writer else 1
        return FOREVER if link is None else self.once(tensor, link) * factor

    def mean_move(self, tensor: int) -> int:
        links = [self.link(a, b) for a in self.devices for b in self.devices if self.near[a] != self.near[b]]
        costs = [self.once(tensor, link) for link in links if link is not None]
        factor = self.repeat[self.writer[tensor]] if tensor in self.writer else 1
        return sum(costs) // len(costs) * factor if costs else 0

    def levels(self, moves: bool) -> list[int]:
        level = [0] * len(self.steps)
        for s in reversed(self.steps):
            able = [t for t in self.time[s] if t >= 0]
            level[s] = sum(able) // max(1, len(able))
            behind = [
                level[r] + (self.mean_move(t) if moves and self.group[r] != self.group[s] else 0)
                for t, w in self.writer.items()
                if w == s
                for r in self.readers[t]
            ]
            level[s] += max(behind, default=0)
        return level

    def source(self, tensor: int) -> int:
        if tensor in self.writer:
            return self.device[self.group[self.writer[tensor]]]
        return self.device[self.home[tensor]] if tensor in self.home else -1

    def arrival(self, tensor: int, at: int, transfer: int = 1000) -> int:
        made = self.end[self.writer[tensor]] if tensor in self.writer else 0
        source = self.source(tensor)
        if source < 0 or self.near[source] == self.near[at]:
            return made
        if (tensor, self.near[at]) in self.arrived:
            return self.arrived[tensor, self.near[at]]
        link = self.link(source, at)
        if self.wait and link is not None:
            free = max([made, *(self.engine_free.get(engine, 0) for engine in link.engines)])
            made += -(-(free - made) * self.wait // 1000)
        return min(FOREVER, made + -(-self.move(tensor, source, at) * transfer // 1000))

    def ready(self, step: int, at: int, transfer: int = 1000) -> int:
        free = [self.end[user] for user in self.users[step]]  # 0: not put yet
        return max([self.arrival(t, at, transfer) for t in self.reads[step]] + free, default=0)

    def can(self, group: int, at: int) -> bool:
        return all(self.time[s][at] >= 0 for s in self.steps if self.group[s] == group)

    def drawn(self, step: int, at: int) -> set[int]:
        homes = {self.home[t] for t in self.reads[step] if t in self.home}
        return {g for g in homes if self.device[g] < 0 and self.can(g, at)}

    def fits(self, step: int, at: int) -> bool:
        needed = sum(self.bytes[g] for g in {self.group[step], *self.drawn(step, at)})
        return needed <= self.room[self.problem.machine.home[at]]

    def later_moves(self, group: int, at: int) -> int:
        total = 0
        for t in self.readers:
            first = self.group[self.writer[t]] if t in self.writer else self.home.get(t, -1)
            others = {self.group[r] for r in self.readers[t]} - {first}
            ends = others if first == group else {first} & set(range(len(self.device)))
            if first != group and group not in others:
                continue
            for other in ends:
                there = self.device[other]
                if there >= 0 and self.near[there] != self.near[at]:
                    total += self.mean_move(t)
        return -(-total * self.ahead // 1000)

    def put(self, step: int, at: int, start: int) -> None:
        for g in [self.group[step], *sorted(self.drawn(step, at))]:
            if self.device[g] < 0:
                self.device[g] = at
                self.room[self.problem.machine.home[at]] -= self.bytes[g]
        for t in self.reads[step]:
            source = self.source(t)
            if source < 0 or self.near[source] == self.near[at] or (t, self.near[at]) in self.arrived:
                continue
            self.arrived[t, self.near[at]] = self.arrival(t, at)
            link = self.link(source, at)
            for engine in link.engines if link is not None and self.wait else ():
                self.engine_free[engine] = max(
                    self.engine_free.get(engine, 0), self.arrived[t, self.near[at]]
                )
        self.end[step] = min(FOREVER, start + self.time[step][at])

    def allowed(self, step: int) -> list[int]:
        given = self.device[self.group[step]]
        if given >= 0:
            return [given]
        able = [d for d in self.devices if self.can(self.group[step], d)]
        found = [d for d in able if self.fits(step, d)]
        if not found:
            raise NobodyHasRoom
        return found

    def counted_load(self, group: int, at: int) -> int:
        there = [g for g in range(len(self.device)) if self.device[g] == at or g == group]
        work = sum(self.time[s][at] for s in self.steps if self.group[s] in there and self.time[s][at] > 0)
        return -(-work * self.load // 1000)

    def heft(self) -> list[int]:
        return self.repair([-1] * len(self.device), self.levels(True))

    def repair(self, given: list[int], rank: list[int], bias: list[list[float]] | None = None) -> list[int]:
        """Steps by falling rank; groups whose device is given, not -1, stay there."""
        for group, device in enumerate(given):
            if device >= 0:
                self.device[group] = device
                self.room[self.problem.machine.home[device]] -= self.bytes[group]
        busy: list[list[tuple[int, int]]] = [[] for _ in self.devices]
        done: set[int] = set()
        waiting = list(self.steps)
        while waiting:
            # Among equal ranks the native order is by layers, not by number: see `comparable`.
            step = min((s for s in waiting if done.issuperset(self.before[s])), key=lambda s: (-rank[s], s))
            waiting.remove(step)
            done.add(step)
            group, best = self.group[step], None
            new = self.device[group] < 0
            for d in self.allowed(step):
                cost: float = self._end(step, d, busy[d], self.transfer if new else 1000)[1]
                if new:
                    cost += self.later_moves(group, d) + self.counted_load(group, d)
                    cost -= bias[group][d] if bias else 0
                if best is None or cost < best[0]:
                    best = (cost, d)
            assert best is not None
            d = best[1]
            start, end = self._end(step, d, busy[d], 1000)
            self.put(step, d, start)
            busy[d].append((start, end))
        return self.device

    def _end(self, step: int, at: int, busy: list[tuple[int, int]], transfer: int) -> tuple[int, int]:
        """Start and end of a step in the first gap that is long enough."""
        start, length = self.ready(step, at, transfer), self.time[step][at]
        for begin, end in sorted(busy):
            if end > start and begin - start < length:
                start = end
        return start, min(FOREVER, start + length)

    def earliest_start(self) -> list[int]:
        level, free = self.levels(False), [0] * len(self.devices)
        waiting, done = set(self.steps), set[int]()
        while waiting:
            ready = [s for s in waiting if done.issuperset(self.before[s] + self.users[s])]
            start, _, d, step = min(
                (max(free[d], self.ready(s, d)), -level[s], d, s) for s in ready for d in self.allowed(s)
            )
            group = self.group[step]
            if self.device[group] < 0:
                cost = start + self.later_moves(group, d)
                for other in self.allowed(step):
                    begin = max(free[other], self.ready(step, other))
                    if begin + self.later_moves(group, other) < cost:
                        cost, d, start = begin + self.later_moves(group, other), other, begin
            self.put(step, d, start)
            free[d] = self.end[step]
            waiting.remove(step)
            done.add(step)
        return self.device

    def comparable(self) -> bool:
        """Whether ranks tell all steps apart, and every time is finite."""
        rank = self.levels(True)
        linked = all(
            self.near[a] == self.near[b] or self.link(a, b) is not None
            for a in self.devices
            for b in self.devices
        )
        return len(set(rank)) == len(rank) and linked and np.all(self.problem.durations >= 0)
