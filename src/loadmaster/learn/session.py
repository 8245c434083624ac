"""What the runs of all agents have in common: where the time went, and when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from loadmaster.clock import now
from loadmaster.search.solver import Meter, State


class Session:
    """One run of an agent. A subclass names its parts, and says in `arrays` what it goes on from."""

    def __init__(self, meter: Meter, *parts: str) -> None:
        self.meter = meter
        self.seconds = dict.fromkeys(parts, 0.0)
        """Part of the work -> how long it took, for the log."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """What is done inside counts for a part."""
        started = now()
        yield
        self.seconds[part] += now() - started

    def arrays(self) -> State:
        """All that changes, by name."""
        raise NotImplementedError

    def offer_checkpoint(self) -> None:
        """Gather the state if the observer wants it: that takes time."""
        if self.meter.observer.wants_checkpoint(self.meter):
            self.meter.checkpoint(self.arrays())


class Interval:
    """Says now and then that something is due."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.last = seconds, now()

    @property
    def due(self) -> bool:
        """Whether so many seconds have passed since the start or the last `restart`."""
        return now() - self.last >= self.seconds

    def restart(self) -> None:
        self.last = now()
