"""Clocks for tests of which a time limit is the subject: time passes when it is looked at."""

from __future__ import annotations


class Ticking:
    """Every look at it takes `step` seconds, so that a limit is met after so many looks on any
    computer."""

    def __init__(self, step: float) -> None:
        self.step, self.looks = step, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * self.step
