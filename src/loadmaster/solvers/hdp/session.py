"""One run of HDP: draw a grouping, draw devices, time the plan, learn from it."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from loadmaster.problems.graph import UNFIT, GraphOptimization
from loadmaster.solvers.hdp.features import features_of
from loadmaster.solvers.hdp.learner import Lesson, draw_devices, draw_grouping, learn, make_learner, step_key
from loadmaster.solvers.hdp.settings import Settings
from loadmaster.solvers.solver import Meter, Solution, State
from loadmaster.solvers.trees import arrays_of, restored


class Session:
    """Its state between steps is `learner`, `expected`, `devices` and `step`."""

    def __init__(self, meter: Meter, seed: int, settings: Settings, state: State | None) -> None:
        assert isinstance(meter.problem, GraphOptimization)
        self.meter, self.problem, self.seed, self.settings = meter, meter.problem, seed, settings
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
            self.learner = restored(self.learner, state)
            self.step, self.expected = int(state["step"]), float(state["expected"])
            self.devices = np.array(state["devices"], dtype=np.int32)

    def run(self) -> Solution:
        while not self.meter.exhausted:
            self._step()
            if self.meter.observer.wants_checkpoint(self.meter):
                self.meter.checkpoint(self._state())
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
            lesson = Lesson(self.ops, grouping, rows, jnp.asarray(self.devices), key, noise, excess)
            self.learner = learn(self.learner, lesson, jnp.float32(settings.rate_at(step)), settings.compiled)
            self.expected = settings.baseline * self.expected + (1 - settings.baseline) * cost
        self.step += 1
        self.meter.progress(cost=cost, expected=self.expected)

    def _state(self) -> State:
        return {
            "step": np.array(self.step),
            "expected": np.array(self.expected),
            "devices": self.devices,
            **arrays_of(self.learner),
        }
