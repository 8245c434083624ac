"""`Loadmaster/Graph-v0`: hand in fusion, placement and schedule of a graph, get a reward."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.features import COLUMNS, LEVELS, machine_vector, node_features, vector_of_levels
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model

Observation = dict[str, Any]
"""Arrays by name."""
Action = npt.NDArray[np.integer[Any]]


class GraphEnv(gymnasium.Env[Observation, Action]):
    """Fusion, devices and schedule of a whole graph in one vector. With n nodes, E edges, G groups and D devices:

    - **Observation**, a dict: `node_features` float32[n, 20] (see `features.COLUMNS`), `edge_index`
      int32[2, E] (producer, reader), `group` int32[n], `machine` float32[8], and `node_mask`,
      `edge_mask` (1: real; a graph without edges has one that is masked).
    - **Action**: `MultiDiscrete`: of the decided tasks, in this order: a fusion level of 16 per node
      (0: never fuse its results), a device per group, a schedule level of 16 per node.
    - **Mask**: none: every vector is a plan, which may need more memory than there is.
    - **Reward**: -sqrt(time / time of the base plan); less where the plan does not fit.
    - **Termination**: after one step. Never truncated.
    - **Info**: `time_s`, `over_bytes`, `fits`, `speedup` over the base plan (0 if it does not fit).

    `model` and `machine` are names or files; or give a `problem`. Other options are those of
    `GraphOptimization`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (so declared by Gymnasium)

    def __init__(
        self,
        model: str = "txl-2",
        machine: str = "p100x2",
        *,
        problem: GraphOptimization | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.problem = problem or GraphOptimization(load_model(model), load_machine(machine), **options)
        self.render_mode = render_mode
        self._still = _observation(self.problem)
        n, edges = self._still["node_features"].shape[0], self._still["edge_index"].shape[1]
        self.observation_space = spaces.Dict(
            {
                "node_features": spaces.Box(-64.0, 64.0, (n, len(COLUMNS)), np.float32),
                "edge_index": spaces.Box(0, max(1, n - 1), (2, edges), np.int32),
                "group": spaces.Box(0, max(1, self.problem.groups - 1), (n,), np.int32),
                "machine": spaces.Box(-64.0, 64.0, (8,), np.float32),
                "node_mask": spaces.MultiBinary(n),
                "edge_mask": spaces.MultiBinary(edges),
            }
        )
        sizes = np.full(self.problem.width, LEVELS, dtype=np.int64)
        sizes[self.problem.part("device")] = self.problem.devices
        self.action_space = spaces.MultiDiscrete(sizes)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """The graph, which is always the same."""
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Score one vector."""
        problem = self.problem
        vectors = vector_of_levels(problem, np.asarray(action))[None]
        total, over, fault = problem.measure(vectors)
        value = int(problem.values(total, over, fault)[0])
        fits = 0 <= value < UNFIT
        info = {
            "time_s": int(total[0]) / 1e12,
            "over_bytes": int(over.sum()),
            "fits": fits,
            "speedup": problem.reference_ps / value if fits and value else 0.0,
        }
        reward = float(problem.rewards(total, over, fault)[0])
        return self._seen(), reward, True, False, info

    def _seen(self) -> Observation:
        return {name: array.copy() for name, array in self._still.items()}


def _observation(problem: GraphOptimization) -> Observation:
    features, edges = node_features(problem), problem.edges
    real_edges = edges.shape[1]
    if real_edges == 0:
        edges = np.zeros((2, 1), dtype=np.int32)
    if problem.nodes == 0:
        features = np.zeros((1, len(COLUMNS)), dtype=np.float32)
    group = np.zeros(len(features), dtype=np.int32)
    group[: problem.nodes] = problem.node_group
    return {
        "node_features": features,
        "edge_index": edges,
        "group": group,
        "machine": machine_vector(problem),
        "node_mask": (np.arange(len(features)) < problem.nodes).astype(np.int8),
        "edge_mask": (np.arange(edges.shape[1]) < real_edges).astype(np.int8),
    }
