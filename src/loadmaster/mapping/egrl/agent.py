"""EGRL as a solver: `Egrl` on scores and a decoder. EGRL as published is in `paper`."""

from __future__ import annotations

from typing import Any

from loadmaster.arrays import Int8
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.mapping.egrl.search import Search, Settings
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, Solver, State


class Egrl(Solver):
    """Evolutionary graph reinforcement learning on scores. Options are the fields of `Settings`."""

    name = "egrl"
    problem_kind = "mapping"
    summary = (
        "scores ranked by a trained policy, decoded into maps that fit, and evolved; sees rewards, and the "
        "machine as it is described"
    )
    deterministic = True

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, {})
        self.options = free_settings(self.settings, {})
        self.start: Int8 | None = None
        """A map to begin with, should one be known."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Mapping)
        if not meter.problem.live.any():
            meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        return Search(meter, seed, self.settings, state).run(self.start)
