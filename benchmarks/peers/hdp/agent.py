"""HDP as a solver of the placement task."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from benchmarks.peers.hdp.network import (
    Batch,
    Settings,
    draw_devices,
    draw_grouping,
    features_of,
    improve,
    make_learner,
    step_key,
)
from loadmaster.errors import require
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.learn import session as learn
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.search.solver import Meter, Solution, Solver, State


class Hdp(Solver):
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
        self.settings = make_settings(Settings, self.name, settings, self.fixed)
        self.options = free_settings(self.settings, self.fixed)

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        for package in ("jax", "equinox", "optax"):
            require(package, "agents")

        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        if meter.exhausted:
            return meter.solution()
        if "placement" not in problem.tasks or problem.devices == 1 or not problem.groups:
            meter.evaluate_many(problem.vector()[None])  # there is nothing to place
            return meter.solution()
        return Session(meter, seed, self.settings, state).run()


class Session(learn.Session):
    """One run of HDP: draw a grouping, draw devices, time the plan, learn from it. Its state between steps is `learner`, `expected`, `devices` and `step`."""

    def __init__(self, meter: Meter, seed: int, settings: Settings, state: State | None) -> None:
        assert isinstance(meter.problem, GraphOptimization)
        super().__init__(meter)
        self.problem, self.seed, self.settings = meter.problem, seed, settings
        self.features = features_of(self.problem, settings)
        self.groups = settings.groups_for(self.problem.devices)
        self.ops = jnp.asarray(self.features.ops)
        self.learner = make_learner(
            seed,
            self.features.ops.shape[1],
            self.features.width(self.groups),
            self.groups,
            self.problem.devices,
            settings,
        )
        self.step, self.expected = 0, settings.failure
        self.devices = np.zeros(self.groups, dtype=np.int32)
        if state is not None:
            self.learner = restore_tree(self.learner, state)
            self.step, self.expected = int(state["step"]), float(state["expected"])
            self.devices = np.array(state["devices"], dtype=np.int32)

    def run(self) -> Solution:
        while not self.meter.exhausted:
            self._step()
            self.offer_checkpoint()
        return self.meter.solution(steps=self.step, expected=self.expected)

    def _step(self) -> None:
        settings, step, network = self.settings, self.step, self.learner.network
        key = step_key(self.seed, step)
        noise = jnp.float32(settings.noise if step <= settings.noise_until else 0.0)
        grouping = draw_grouping(network, self.ops, key, noise)
        place = np.asarray(grouping)
        rows = jnp.asarray(self.features.group_rows(place, self.groups))
        if step < settings.sampling_until:
            self.devices = np.asarray(draw_devices(network, rows, key, noise, settings.compiled))
        vector = self.problem.vector(device=self.devices[place])
        value = int(self.meter.evaluate_many(vector[None]).value[0])
        fits = 0 <= value < UNFIT
        cost = math.sqrt(value / max(1, self.problem.reference_ps)) if fits else settings.failure
        if fits or step < settings.failures_until:
            excess = jnp.float32(cost - self.expected)
            batch = Batch(self.ops, grouping, rows, jnp.asarray(self.devices), key, noise, excess)
            self.learner = improve(
                self.learner, batch, jnp.float32(settings.rate_at(step)), settings.compiled
            )
            self.expected = settings.baseline * self.expected + (1 - settings.baseline) * cost
        self.step += 1
        self.meter.progress(cost=cost, expected=self.expected)

    def arrays(self) -> State:
        """All that changes."""
        return {
            "step": np.array(self.step),
            "expected": np.array(self.expected),
            "devices": self.devices,
            **tree_arrays(self.learner),
        }
