"""GO as a solver of graphs: the trained policy as it is, fine-tuned, or trained on one graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError, require
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.actions import Actions, draw, likeliest, vectors_of
from loadmaster.graph.go.graph import MOST_DEVICES, graph_of, padded_sizes
from loadmaster.graph.go.infer import CHECKPOINT, forward, load_network
from loadmaster.graph.go.network import Logits, Network, make_network
from loadmaster.graph.go.settings import Settings, Shape
from loadmaster.graph.pipeline import batch_size
from loadmaster.learn.policies import PRETRAINED, pretrained_names
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.search.solver import Meter, Solution, Solver, State

PACKAGES = ("jax", "equinox", "optax")


class Go(Solver):
    """Options are the fields of `Settings`, and `init`: 'auto' (the policy that comes with the
    package, where there is one and the network is of its shape; else an untrained one), 'scratch', or
    a file of `loadmaster train go`."""

    name = "go"
    problem_kind = "graph"
    summary = "a graph network decides all at once: as trained, then fine-tuned on this graph (GO)"
    deterministic = scheduled = True

    def __init__(self, init: str = "auto", **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, {})
        self.init = init
        self.options = {"init": init, **free_settings(self.settings, {})}
        if init not in ("auto", "scratch"):
            load_network(init, self.settings.shape)  # a file that can't be used is told at once

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, settings = meter.problem, self.settings
        assert isinstance(problem, GraphOptimization)
        if settings.mode != "zero-shot":
            for package in PACKAGES:
                require(package, "agents")
        if meter.exhausted:
            return meter.solution()
        if not decides(problem):
            meter.evaluate_many(problem.vector()[None])
            return meter.solution()
        check_devices(problem)
        name = source_of(self.init, settings)
        network, shape = start_of(name, seed, settings.shape), settings.shape
        graph = graph_of(problem, padded_sizes(problem, shape.segment))
        rng = np.random.default_rng([seed, 21])
        first: Actions | None = None
        if settings.mode != "one" and state is None:
            first = try_policy(meter, forward(network, graph, shape), rng, settings.greedy_samples)
        if settings.mode == "zero-shot":
            return meter.solution(init=name)
        from loadmaster.graph.go.session import Session

        solution = Session(meter, settings, network, graph, rng, first, state).run()
        solution.metrics["init"] = name
        return solution


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


def source_of(init: str, settings: Settings) -> str:
    """'scratch', or the name of a policy."""
    if init != "auto":
        return init
    fits = settings.mode != "one" and settings.shape == Shape()
    packaged = CHECKPOINT.removeprefix(PRETRAINED) in pretrained_names("go")
    return CHECKPOINT if fits and packaged else "scratch"


def start_of(name: str, seed: int, shape: Shape) -> Network:
    """The network to begin with: a new one for 'scratch', else a trained policy by name or file."""
    return make_network(seed, shape) if name == "scratch" else load_network(name, shape)


def try_policy(meter: Meter, logits: Logits, rng: np.random.Generator, samples: int) -> Actions | None:
    """Evaluate the likeliest plan, then draws; of those, the one that is the best so far."""
    problem = meter.problem
    assert isinstance(problem, GraphOptimization)
    best: Actions | None = None
    for actions in (likeliest(problem, logits), draw(problem, logits, rng, samples).actions):
        if not meter.exhausted and len(actions.device):
            best = evaluated(meter, actions)[1] or best
    return best


def evaluated(meter: Meter, actions: Actions) -> tuple[np.ndarray[Any, Any], Actions | None]:
    """(rewards of plans [plans, …] as far as the budget goes, the plan that is the new best)"""
    problem, before = meter.problem, meter.best_value
    assert isinstance(problem, GraphOptimization)
    vectors, size = vectors_of(problem, actions), batch_size(problem, len(actions.device))
    value, reward = np.zeros(0, dtype=np.int64), np.zeros(0)
    for at in range(0, len(vectors), size):  # large graphs a few at a time, so that time limits hold
        if not meter.exhausted:
            scores = meter.evaluate_many(vectors[at : at + size])
            value = np.concatenate([value, scores.value])
            reward = np.concatenate([reward, scores.reward])
    if meter.best_value == before or meter.best_value is None:
        return reward, None
    row = int(np.flatnonzero(value == meter.best_value)[0])
    return reward, Actions(*(part[row] for part in actions))
