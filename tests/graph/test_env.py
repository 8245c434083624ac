"""`Loadmaster/Graph-v0`."""

from __future__ import annotations

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")


@pytest.mark.parametrize("tasks", [("placement", "fusion", "schedule"), ("placement",)])
def test_gymnasium_accepts_it(tasks: tuple[str, ...]) -> None:
    from gymnasium.utils.env_checker import check_env

    import loadmaster.envs  # noqa: F401 (registers the environments)

    env = gymnasium.make("Loadmaster/Graph-v0", model="gnmt-2:steps=2", machine="p100x2", tasks=tasks)
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=1)
    problem = env.unwrapped.problem
    action = np.zeros(problem.width, dtype=np.int64)
    _, reward, terminated, truncated, info = env.step(action)
    assert terminated and not truncated and info["fits"]
    assert reward == pytest.approx(-np.sqrt(1 / info["speedup"]))
    device = problem.vector()[problem.part("device")]
    action[problem.part("device")] = device
    assert env.unwrapped.step(action)[4]["time_s"] != info["time_s"]  # the expert uses both
