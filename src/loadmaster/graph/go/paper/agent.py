"""The published GO as a solver: a policy that learns on the graph at hand, by PPO."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError, require
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.graph import MOST_DEVICES, graph_of, padded_sizes
from loadmaster.graph.go.paper.network import make_network
from loadmaster.graph.go.paper.settings import Settings
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.search.solver import Meter, Solution, Solver, State

PACKAGES = ("jax", "equinox", "optax")


class PaperGo(Solver):
    """Options are the fields of `Settings`. It learns until the budget is spent."""

    name = "paper"
    problem_kind = "graph"
    summary = (
        "GO as published: a level for every op and a device for every group, learned on this graph by PPO"
    )
    deterministic = scheduled = True

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, {})
        self.options = free_settings(self.settings, {})

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, settings = meter.problem, self.settings
        assert isinstance(problem, GraphOptimization)
        for package in PACKAGES:
            require(package, "agents")
        if meter.exhausted:
            return meter.solution()
        if not decides(problem):
            meter.evaluate_many(problem.vector()[None])
            return meter.solution()
        check_devices(problem)
        from loadmaster.graph.go.paper.learner import Session

        graph = graph_of(problem, padded_sizes(problem, settings.segment))
        network = make_network(seed, settings.shape)
        return Session(meter, settings, network, graph, np.random.default_rng([seed, 21]), state).run()


def decides(problem: GraphOptimization) -> bool:
    """Whether anything can be decided at all."""
    placed = "placement" in problem.tasks and problem.devices > 1 and problem.groups > 0
    fused = "fusion" in problem.tasks and bool(problem.touched[problem.node_op].any())
    return placed or fused or ("schedule" in problem.tasks and problem.nodes > 1)


def check_devices(problem: GraphOptimization) -> None:
    """Refuse machines with more devices than the network has outputs for."""
    if problem.devices > MOST_DEVICES:
        raise LoadmasterError(
            f"GO knows machines of up to {MOST_DEVICES} devices, and '{problem.machine.name}' has {problem.devices}",
            object=problem.machine.name,
            number=problem.devices,
            remedy="use --solver search",
        )
