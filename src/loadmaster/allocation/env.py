"""`Loadmaster/Allocation-v0`: order the buffers, first fit does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from loadmaster.allocation.buffers_csv import read_buffers
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model

Floats = npt.NDArray[np.float32]
Observation = dict[str, Any]


class AllocationEnv(gymnasium.Env[Observation, Floats]):
    """An order in which n buffers are placed, each at the lowest free offset.

    - **Observation**, a dict: `buffers` float32[n, 3], the first and the last time of each buffer
      as shares of the whole span and its size as a share of the bound.
    - **Action**: `Box(0, 1, [n])`, one key per buffer: small keys are placed first, equal ones in
      the order of the buffers.
    - **Mask**: none: every order is legal.
    - **Reward**: minus height / bound, so -1 is optimal; the bound is the largest number of bytes
      alive at one time.
    - **Termination**: after one step. Never truncated.
    - **Info**: `height` and `bound` in bytes, `fits` (the capacity, if there is one), `gap`.

    `buffers` is a CSV file; or give a `model` with a `machine`, or a `problem`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (so declared by Gymnasium)

    def __init__(
        self,
        model: str = "resnet50",
        machine: str = "arena:unlimited",
        *,
        buffers: str | Path | None = None,
        problem: Allocation | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.problem = problem or _load(model, machine, buffers)
        self.render_mode = render_mode
        self.bound = self.problem.bound().value
        if not self.bound:
            raise LoadmasterError(
                f"'{self.problem.name}' has no bytes to place",
                object=self.problem.name,
                remedy="give other buffers",
            )
        count = len(self.problem.buffers)
        self.observation_space = spaces.Dict({"buffers": spaces.Box(0.0, 1.0, (count, 3))})
        self.action_space = spaces.Box(0.0, 1.0, (count,))
        self.offsets = np.zeros(count, dtype=np.int64)
        """Of the last step."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Floats) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place all buffers in the order of their keys."""
        order = np.argsort(np.asarray(action), kind="stable").astype(np.int32)
        self.offsets = self.problem.native.place(order)
        if not len(self.offsets):  # whatever the order
            raise LoadmasterError(
                f"the pins of '{self.problem.name}' leave no room",
                object=self.problem.name,
                remedy="free some buffers",
            )
        height = int(self.problem.native.height(self.offsets))
        capacity = self.problem.capacity
        info = {
            "height": height,
            "bound": self.bound,
            "fits": capacity is None or height <= capacity,
            "gap": height / self.bound - 1,
        }
        return self._observation(), -height / self.bound, True, False, info

    def _observation(self) -> Observation:
        b = self.problem.buffers
        start, span = int(b.lower.min()), int(b.upper.max() - b.lower.min())
        columns = [(b.lower - start) / span, (b.upper - start) / span, b.size / self.bound]
        return {"buffers": np.stack(columns, axis=1).clip(0, 1).astype(np.float32)}


def _load(model: str, machine: str, buffers: str | Path | None) -> Allocation:
    if buffers is None:
        return ProgramAllocation(load_model(model), load_machine(machine))
    found, capacity = read_buffers(Path(buffers))
    return Allocation(found, capacity, Path(buffers).stem)
