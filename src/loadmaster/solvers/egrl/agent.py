"""EGRL as a solver. One generation: the population proposes and is scored, the learner trains on
all that was ever scored, the learner proposes, the population evolves with the learner among it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from loadmaster.errors import require
from loadmaster.problems.mapping import Mapping
from loadmaster.solvers.egrl.settings import Settings
from loadmaster.solvers.options import free_settings, settings_from
from loadmaster.solvers.solver import Meter, Solution, State


class Egrl:
    """Evolutionary graph reinforcement learning. Options are the fields of `Settings`, and
    `init`: a trained policy ('pretrained:bert', or a file of `loadmaster train egrl`)."""

    name = "egrl"
    problem_kind = "mapping"
    summary = "evolution of graph networks and Boltzmann maps beside a gradient learner; sees rewards only"
    deterministic = True
    scheduled = True
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that make this solver what it is."""

    def __init__(self, init: str | None = None, **settings: Any) -> None:
        self.settings = settings_from(Settings, self.name, settings, self.fixed)
        self.init = init
        self.start: npt.NDArray[np.int8] | None = None
        """A map to begin with, should one be known: the first Boltzmann chromosome stays around it."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        require("jax", "agents"), require("equinox", "agents"), require("optax", "agents")
        from loadmaster.solvers.egrl.session import Session

        assert isinstance(meter.problem, Mapping)
        if not meter.problem.live.any():
            meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        session = Session(meter, seed, self.settings, self.init, state)
        if self.start is not None and state is None and not meter.exhausted:
            session.begin(self.start)
        return session.run()

    @property
    def switches(self) -> dict[str, Any]:
        """The options that make this solver again, for a run that is resumed."""
        return {"init": self.init, **free_settings(self.settings, self.fixed)}


class EvolutionAlone(Egrl):
    """EGRL without its gradient learner."""

    name = "ea"
    summary = "EGRL's evolution alone"
    scheduled = False  # only the learner's noise falls over the budget
    fixed: ClassVar = {"learner": False}


class GradientAlone(Egrl):
    """EGRL's learner alone: one noisy and one greedy rollout a round."""

    name = "pg"
    summary = "EGRL's gradient learner alone"
    fixed: ClassVar = {"population": 0, "boltzmann": 0.0, "imitation": 0.0, "updates": 1.0}
