"""HDP as a solver of the placement task."""

from __future__ import annotations

from typing import Any, ClassVar

from loadmaster.errors import require
from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.hdp.settings import Settings
from loadmaster.solvers.options import free_settings, settings_from
from loadmaster.solvers.solver import Meter, Solution, State


class Hdp:
    """Hierarchical device placement (2018) after TensorFlow Grappler's hierarchical controller:
    one plan per update, with the published numbers. Options are the fields of `Settings`. Tasks
    other than placement are the base plan's.

    It departs from that code where the code contradicts its own method: it learns from the plan
    that was timed (there, a fresh draw is made for the update), lists both directions of an op's
    neighbours, gives kinds and shapes of a group columns of their own, and aligns the two
    directions of the placer's reader.
    """

    name = "hdp"
    problem_kind = "graph"
    summary = "learns to group ops and to place the groups (HDP, as published)"
    deterministic = True
    fixed: ClassVar[dict[str, Any]] = {}

    def __init__(self, **settings: Any) -> None:
        self.settings = settings_from(Settings, self.name, settings, self.fixed)

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        for package in ("jax", "equinox", "optax"):
            require(package, "agents")
        from loadmaster.solvers.hdp.session import Session

        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if meter.exhausted:
            return meter.solution()
        if "placement" not in problem.tasks or problem.devices == 1 or not problem.groups:
            meter.evaluate_many(problem.vector()[None])  # there is nothing to place
            return meter.solution()
        return Session(meter, seed, self.settings, state).run()

    @property
    def switches(self) -> dict[str, Any]:
        """The options that make this solver again, for a run that is resumed."""
        return free_settings(self.settings, self.fixed)
