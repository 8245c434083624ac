"""Time for tests: clocks that are injected where a limit is the subject, and how to wait for others."""

from __future__ import annotations

import time
from collections.abc import Callable


class Ticking:
    """Every look at it takes `step` seconds, and work takes what `advance` is told. So a limit is met
    after the same steps on any computer."""

    def __init__(self, step: float = 0.0) -> None:
        self.step, self.looks, self.time = step, 0, 0.0

    def __call__(self) -> float:
        self.looks += 1
        self.time += self.step
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


def wait_until(condition: Callable[[], object], what: str, limit: float = 300.0) -> None:
    """Wait for another process or thread. The limit is there to end a test that has failed: no
    computer is so busy that one that passes comes near to it."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit:g} s"
        time.sleep(0.01)
