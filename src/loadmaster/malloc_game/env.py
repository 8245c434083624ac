"""`Loadmaster/MallocGame-v0`: Copy (of some kind), NoCopy or Drop for each use of a tensor, in program order."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from loadmaster.arrays import Bool
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.malloc_game.games import FALLBACK, MOST, SHAPES
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import Plan
from loadmaster.program.models import load_model

Observation = dict[str, Any]
"""Arrays by name."""


class MallocGameEnv(gymnasium.Env[Observation, np.int64]):
    """One move for each of the N uses of tensors by ops: from which memory, and how it got there.

    - **Observation**, a dict of arrays whose shapes are the same for every program: `grid`
      uint8[128, 64, 4] (time x address: occupied, of it by this tensor and its ties, where Copy and
      where NoCopy would put it), `series` float32[128, 8] (over the same columns of time), `current`
      float32[24] (the decision), `ahead` and `back` float32[32, 16] (the next and the last ones),
      `globals` float32[8], `action_mask` int8[6].
    - **Action**: `Discrete(6)`: 0 Copy, 1 NoCopy, 2 Drop, and copies with twice (3 CopyEarly) or half (4
      CopyHalf) the time that they need, or beside a single step (5 CopyTight); with `starts="hidden"` the
      first three alone. One that is not legal is replaced by NoCopy, else Copy, else Drop, else any.
    - **Mask**: `action_mask` of the observation, or `action_masks()`, as sb3-contrib asks for it: the legal moves.
    - **Reward**: what the move saves of the largest time that could be saved; their sum is
      (all-slow time - judged time) / (all-slow time - bound).
    - **Termination**: after N moves (with `backup="none"` all moves after a dead end are Drop). Never truncated.
    - **Info**: `action` (as it was played), `legal` (whether it was the one given), `backups`; at the
      end `time_s` and `stall_s`, as the simulator has them for `plan()`.

    `model` and `machine` are names or files; or give a `problem`. Other options are those of
    `MallocGame`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (so declared by Gymnasium)

    def __init__(
        self,
        model: str = "resnet50",
        machine: str = "tpu-v4i-8m",
        *,
        problem: MallocGame | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.problem = problem or MallocGame(load_model(model), load_machine(machine), **options)
        self.render_mode = render_mode
        if not self.problem.moves:
            raise LoadmasterError(
                f"there is nothing to decide about '{self.problem.program.name}' on "
                f"'{self.problem.machine.name}'",
                object=self.problem.program.name,
                number=0,
                remedy="give a machine with a larger fast memory",
            )
        self.games = self.problem.games(1, threads=1)
        boxes: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(0, 255, shape, np.uint8)
            if kind is np.uint8
            else spaces.Box(-MOST, MOST, shape, np.float32)
            for name, (shape, kind) in SHAPES.items()
            if name != "mask"
        }
        self.observation_space = spaces.Dict(
            {**boxes, "action_mask": spaces.MultiBinary(self.problem.actions)}
        )
        self.action_space = spaces.Discrete(self.problem.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Nothing is in fast memory."""
        super().reset(seed=seed)
        self.games.reset()
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Play one move."""
        chosen = int(action)
        if self.games.cursors[0] == self.problem.moves:
            raise LoadmasterError(
                "the game is over", object="step", number=self.problem.moves, remedy="call reset()"
            )
        mask = self.games.masks()[0]
        played = next(move for move in (chosen, *FALLBACK) if mask[move])
        earned = self.games.step(np.array([played], dtype=np.int16))
        ended = bool(self.games.cursors[0] == self.problem.moves)
        info: dict[str, Any] = {"action": played, "legal": played == chosen, "backups": self.games.backups(0)}
        if ended:
            total, stall = self.games.judged()
            info |= {"time_s": int(total[0]) / 1e12, "stall_s": int(stall[0]) / 1e12}
        reward = int(earned[0]) / self.problem.scale_ps
        return self._observation(), reward, ended, False, info

    def action_masks(self) -> Bool:
        """Which moves are legal, one place for each action."""
        mask: Bool = self.games.masks()[0].astype(bool)
        return mask

    def plan(self) -> Plan:
        """What the moves so far amount to."""
        return self.games.plan(0)

    def _observation(self) -> Observation:
        seen = {name: array[0].copy() for name, array in self.games.observe().items()}
        seen["action_mask"] = seen.pop("mask").astype(np.int8)
        return seen
