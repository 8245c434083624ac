"""The Gymnasium environments: the contract of the library, and the rewards of the problems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.features import node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model

gymnasium = pytest.importorskip("gymnasium")
import loadmaster.envs  # noqa: E402, F401 (registers the environments)

MAPPING, ALLOCATION = "Loadmaster/Mapping-v0", "Loadmaster/Allocation-v0"
GAME, GRAPH = "Loadmaster/MallocGame-v0", "Loadmaster/Graph-v0"


@pytest.fixture(scope="module")
def problem() -> Mapping:
    return Mapping(load_model("resnet50"), load_machine("nnp-i"))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (MAPPING, {"model": "resnet50", "machine": "nnp-i"}),
        (MAPPING, {"model": "bert", "machine": "nnp-i-12", "max_nodes": 400, "max_edges": 500}),
        (MAPPING, {"model": "resnet50", "machine": "nnp-i-half", "episode_steps": 3, "noise": 0.1}),
        (ALLOCATION, {"model": "resnet50", "machine": "arena:8MiB"}),
        (GAME, {"model": "alexnet-inf", "machine": "tpu-v4i-16m"}),
        (GRAPH, {"model": "resnet50", "machine": "p100x2"}),
    ],
)
def test_the_checker_of_gymnasium_is_content(name: str, options: dict[str, Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(name, **options).unwrapped)  # a warning is an error here


@pytest.mark.parametrize(
    ("name", "options"),
    [
        (MAPPING, {"model": "resnet50", "machine": "nnp-i"}),
        (ALLOCATION, {"model": "resnet50", "machine": "arena:8MiB"}),
        (GAME, {"model": "alexnet-inf", "machine": "tpu-v4i-16m"}),
        (GRAPH, {"model": "resnet50", "machine": "p100x2"}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*recommend:UserWarning")  # to flatten what is seen, to scale keys
def test_the_checker_of_stable_baselines3_is_content(name: str, options: dict[str, Any]) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(gymnasium.make(name, **options).unwrapped)


def test_importing_the_module_is_enough() -> None:
    code = (
        "import gymnasium\nname = 'loadmaster.envs:Loadmaster/Mapping-v0'\n"
        "print(gymnasium.make(name, model='resnet50', machine='nnp-i').action_space.shape)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "(114,)\n"


def test_a_step_earns_what_the_problem_says(problem: Mapping) -> None:
    env = gymnasium.make(MAPPING, problem=problem)
    seen, _ = env.reset(seed=0)
    assert (seen["node_features"] == node_features(problem)).all()
    assert seen["action_mask"].sum() == problem.live.sum() == 111
    assert seen["node_mask"].all() and seen["edge_mask"].sum() == 72
    _, reward, ended, cut, info = env.step(problem.compiler)
    assert reward == 1 and ended and not cut and info["speedup"] == 1 and info["epsilon"] == 0
    assert info["time_s"] == problem.compiler_ps / 1e12
    env.reset()
    _, reward, _, _, info = env.step(problem.all_slowest())
    assert info["time_s"] == 815_267_107e-12
    assert reward == pytest.approx((problem.compiler_ps / 815_267_107) ** 2)
    env.reset()
    _, reward, _, _, info = env.step(np.zeros(2 * problem.nodes, dtype=np.int64))
    assert reward == -info["epsilon"] == pytest.approx(-0.634551, abs=1e-6)
    assert info["speedup"] == 0 and info["time_s"] == 112_041_521e-12


def test_padding_changes_nothing_but_sizes(problem: Mapping) -> None:
    env = gymnasium.make(MAPPING, problem=problem, max_nodes=60, max_edges=100)
    seen, _ = env.reset()
    assert seen["node_features"].shape == (60, 21) and seen["edge_index"].shape == (2, 100)
    assert seen["node_mask"].sum() == 57 and seen["edge_mask"].sum() == 72
    assert (seen["node_features"][57:, :19] == 0).all()
    assert (seen["node_features"][57:, 19:] == problem.slowest).all()
    action = np.zeros((2, 60), dtype=np.int64)  # padding says 0: ignored
    action[:, :57] = problem.compiler.reshape(2, 57)
    assert env.step(action.reshape(-1))[1] == 1
    with pytest.raises(LoadmasterError, match="needs 57"):
        gymnasium.make(MAPPING, problem=problem, max_nodes=56)


def test_longer_episodes_show_the_map_and_keep_the_best(problem: Mapping) -> None:
    env = gymnasium.make(MAPPING, problem=problem, episode_steps=2)
    env.reset()
    seen, first, ended, _, info = env.step(problem.compiler)
    assert not ended and info["best_reward"] == first
    assert (seen["node_features"][:, 19:] == problem.compiler.reshape(2, 57).T).all()
    everywhere = np.zeros(2 * problem.nodes, dtype=np.int64)
    seen, second, ended, _, info = env.step(everywhere)
    assert ended and second < first and info["best_reward"] == first
    dead = ~problem.live.reshape(2, 57).T
    assert (seen["node_features"][:, 19:][dead] == problem.slowest).all()
    assert (seen["node_features"][:, 19:][~dead] == 0).all()
    assert (env.reset()[0]["node_features"][:, 19:] == problem.slowest).all()
    with pytest.raises(LoadmasterError, match="0 steps"):
        gymnasium.make(MAPPING, problem=problem, episode_steps=0)


def test_noise_differs_between_steps_and_returns_with_the_seed() -> None:
    env = gymnasium.make(MAPPING, model="resnet50", machine="nnp-i", episode_steps=3, noise=0.1)
    action = env.unwrapped.problem.compiler
    runs = []
    for _ in range(2):
        env.reset(seed=7)
        runs.append([env.step(action)[1] for _ in range(3)])
    assert runs[0] == runs[1] and len(set(runs[0])) == 3


def test_the_order_of_buffers_decides_the_height(tmp_path: Path) -> None:
    # b and c share time 1; a, alive alone, is in the way if it comes before b at the bottom.
    file = tmp_path / "three.csv"
    file.write_text("id,lower,upper,size\na,0,1,4\nb,0,2,4\nc,1,3,8\n")
    env = gymnasium.make(ALLOCATION, buffers=file)
    seen, _ = env.reset()
    assert seen["buffers"].tolist() == pytest.approx(
        np.array([[0, 1 / 3, 4 / 12], [0, 2 / 3, 4 / 12], [1 / 3, 1, 8 / 12]])
    )
    _, reward, ended, _, info = env.step(np.array([0, 0.5, 1], dtype=np.float32))
    assert (reward, ended, info["height"]) == (-16 / 12, True, 16)
    env.reset()
    _, reward, _, _, info = env.step(np.array([1, 0, 0.5], dtype=np.float32))
    assert reward == -1 and info["gap"] == 0 and info["bound"] == 12 and info["fits"]
    assert env.unwrapped.offsets.tolist() == [4, 0, 4]
