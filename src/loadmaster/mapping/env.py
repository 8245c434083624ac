"""`Loadmaster/Mapping-v0`: submit a memory for every tensor, get a reward."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from loadmaster.arrays import Int32
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.features import PLACED, edges, machine_features, node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model

Observation = dict[str, Any]
"""Arrays by name."""
Action = npt.NDArray[np.integer[Any]]
_LARGEST_FEATURE = 16.0


class MappingEnv(gymnasium.Env[Observation, Action]):
    """One memory for every activation and every weight of a model.

    With N nodes (K = `max_nodes`, by default N), E edges and M memories, fastest first:

    - **Observation**, a dict: `node_features` float32[K, 21] (see `features.COLUMNS`; the last two
      hold the map submitted last, at first all M - 1), `edge_index` int32[2, E] (producer,
      consumer), `node_mask` int8[K], `edge_mask` int8[E], `action_mask` int8[2K] (1: the entry
      decides something), `globals` float32[2M]. Masks are 0 in the padding.
    - **Action**: `MultiDiscrete([M] * 2K)`, the memory of each node's activation, then of each
      node's weights. Entries that decide nothing are ignored.
    - **Mask**: `action_mask` of the observation, over entries: those with 0 decide nothing. Whether a map fits
      depends on all entries at once, so there is no mask over memories.
    - **Reward**: (compiler's time / time) ** power for a map that fits, else minus the share of
      bytes that would have to move (in [-1, 0)).
    - **Termination**: after `episode_steps` maps (1). Never truncated.
    - **Info**: `time_s` (of the map; of its rectified form if it does not fit), `epsilon` (the
      share of bytes that does not fit where it was put), `speedup` over the compiler (0 if it
      does not fit), `best_reward` of the episode.

    `model` and `machine` are names or files; or give a `problem`. Other options are those of
    `Mapping`. A `reset` with a seed starts the count of evaluations anew, which noise depends on.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (so declared by Gymnasium)

    def __init__(
        self,
        model: str = "resnet50",
        machine: str = "nnp-i",
        *,
        problem: Mapping | None = None,
        episode_steps: int = 1,
        max_nodes: int | None = None,
        max_edges: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.problem = problem or Mapping(load_model(model), load_machine(machine), **options)
        self.episode_steps, self.render_mode = episode_steps, render_mode
        pairs = edges(self.problem)
        # Gymnasium has no empty boxes: a program without edges gets one that is masked.
        self.max_nodes = _room("max_nodes", max_nodes, max(1, self.problem.nodes))
        self.max_edges = _room("max_edges", max_edges, max(1, pairs.shape[1]))
        if episode_steps < 1:
            raise LoadmasterError(
                f"an episode has {episode_steps} steps",
                object="episode_steps",
                number=episode_steps,
                remedy="give at least 1",
            )
        self._still = self._fixed_part(pairs)
        memories, k = len(self.problem.memories), self.max_nodes
        highest = max(_LARGEST_FEATURE, float(self.problem.slowest))
        self.observation_space = spaces.Dict(
            {
                "node_features": spaces.Box(0.0, highest, (k, 21), np.float32),
                "edge_index": spaces.Box(0, max(1, k - 1), (2, self.max_edges), np.int32),
                "node_mask": spaces.MultiBinary(k),
                "edge_mask": spaces.MultiBinary(self.max_edges),
                "action_mask": spaces.MultiBinary(2 * k),
                "globals": spaces.Box(0.0, 2.0, (2 * memories,), np.float32),
            }
        )
        self.action_space = spaces.MultiDiscrete([memories] * (2 * k))
        self.evaluations = 0
        self._steps, self._best, self._map = 0, -np.inf, self.problem.all_slowest()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Everything is in the slowest memory."""
        super().reset(seed=seed)
        if seed is not None:
            self.evaluations = 0
        self._steps, self._best, self._map = 0, -np.inf, self.problem.all_slowest()
        return self._observation(), {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Score one map."""
        problem, k = self.problem, self.max_nodes
        entries = np.asarray(action).reshape(2, k)[:, : problem.nodes].reshape(-1)
        self._map = np.where(problem.live, entries, problem.slowest).astype(np.int8)
        scores = problem.score(self._map[None], self.evaluations)
        total, epsilon, _ = problem.rectify(self._map[None])
        value, reward = int(scores.value[0]), float(scores.reward[0])
        self.evaluations += 1
        self._steps += 1
        self._best = max(self._best, reward)
        info = {
            "time_s": (value if value >= 0 else int(total[0])) / 1e12,
            "epsilon": float(epsilon[0]),
            "speedup": problem.compiler_ps / value if value > 0 else 0.0,
            "best_reward": self._best,
        }
        return self._observation(), reward, self._steps >= self.episode_steps, False, info

    def _fixed_part(self, pairs: Int32) -> Observation:
        """What no map changes, padded."""
        problem, n, k = self.problem, self.problem.nodes, self.max_nodes
        rows = np.zeros((k, 21), dtype=np.float32)
        rows[:n], rows[n:, PLACED] = node_features(problem), problem.slowest
        index = np.zeros((2, self.max_edges), dtype=np.int32)
        index[:, : pairs.shape[1]] = pairs
        decides = np.zeros((2, k), dtype=np.int8)
        decides[:, :n] = problem.live.reshape(2, n)
        return {
            "node_features": rows,
            "edge_index": index,
            "node_mask": (np.arange(k) < n).astype(np.int8),
            "edge_mask": (np.arange(self.max_edges) < pairs.shape[1]).astype(np.int8),
            "action_mask": decides.reshape(-1),
            "globals": machine_features(problem),
        }

    def _observation(self) -> Observation:
        seen = {name: array.copy() for name, array in self._still.items()}
        n = self.problem.nodes
        seen["node_features"][:n, PLACED] = self._map.reshape(2, n).T
        return seen


def _room(name: str, given: int | None, needed: int) -> int:
    if given is not None and given < needed:
        raise LoadmasterError(
            f"{name} is {given:,} and this model needs {needed:,}",
            object=name,
            number=given,
            remedy=f"give at least {needed}",
        )
    return needed if given is None else given
