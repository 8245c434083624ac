"""How long a placement takes, as docs/simulation.md says (sections 4 and 5), for the slow game."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.malloc_game.model import GameModel


@dataclass(eq=False)
class Copy:
    """Issued after one step, needed by another; -1 and n: the program's ends."""

    tensor: int
    into: bool
    """From slow to fast."""
    issued: int
    needed: int
    work: int
    asked: int = 0
    """Of its ledger."""
    nest: int = -1
    used: dict[int, int] = field(default_factory=dict)
    """By step, of a ledger that serves as late as possible."""


def judge(model: GameModel, elapsed: list[int], idle: list[int], copies: list[Copy]) -> tuple[int, int]:
    """(total, stall) in picoseconds."""
    repeat, loop = model.repeat.tolist(), [*model.loop.tolist(), -1]
    if model.idle_copies:
        return _idle(repeat, elapsed, idle, copies)
    ends = [0] * (len(elapsed) + 1)
    """When all copies that a step needs are there."""
    engine_free: dict[int, int] = {}
    now = stall = 0
    for step in range(-1, len(elapsed)):
        if step >= 0:
            stall += max(0, ends[step] - now)
            now = max(now, ends[step]) + repeat[step] * elapsed[step]
        for copy in [copy for copy in copies if copy.issued == step]:
            inside = loop[copy.issued] == loop[copy.needed] >= 0
            engine = model.engines[0 if copy.into else 1]
            start = max(now, engine_free.get(engine, 0)) if engine >= 0 else now
            end = start + copy.work * (repeat[copy.needed] if inside else 1)
            engine_free[engine] = end
            ends[copy.needed] = max(ends[copy.needed], end)
    stall += max(0, ends[-1] - now)
    return max(now, ends[-1]), stall


def _idle(repeat: list[int], elapsed: list[int], idle: list[int], copies: list[Copy]) -> tuple[int, int]:
    queues: tuple[list[Copy], list[Copy]] = ([], [])
    left: dict[int, int] = {}
    """Half-picoseconds of work at full speed, of the copies in the queues."""

    def event(most: int) -> int:
        """Work until a copy leaves, `most` halves at most; returns the halves that passed."""
        heads = [queue[0] for queue in queues if queue]
        work = min(most // len(heads), *(left[id(copy)] for copy in heads))
        for copy in heads:
            left[id(copy)] -= work
            if left[id(copy)] == 0:
                queues[copy.into].pop(0)
        return work * len(heads)

    total = stall = 0
    for step in range(len(elapsed) + 1):
        times = [*repeat, 1][step]
        for push in (False, True):
            issued = [copy for copy in copies if copy.issued == step - 1]
            for copy in issued if push else []:
                left[id(copy)] = 2 * copy.work
                queues[copy.into].append(copy)
            awaited = [copy for copy in copies if copy.needed == step and (copy in issued) == push]
            for copy in sorted(awaited, key=lambda copy: copy.issued):
                waited = 0
                while left[id(copy)] > 0:
                    waited += event(10**30)
                stall += times * -(-waited // 2)
        if step < len(elapsed):
            total += times * elapsed[step]
            halves = 2 * idle[step]
            while halves > 0 and (queues[0] or queues[1]):
                halves -= event(halves)
    return total + stall, stall
