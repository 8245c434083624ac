"""All that the recording knows of the package: whoever moves or renames something mends it here, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

import offload_stack
import solver_cases
from generate import random_machine, random_program
from generate_game import random_game
from generate_graph import random_graph
from generate_mapping import layers, random_mapping, three_memories
from generate_order import random_straight
from generate_tflite import branchy
from generate_training import random_training
from loadmaster import clock
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.cli.main import app
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.host import host
from loadmaster.machine import load_machine
from loadmaster.machine.presets import preset_names
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.check import check
from loadmaster.plan.json import load_plan, plan_to_json
from loadmaster.program.models import load_model
from loadmaster.program.zoo import MODELS, is_cached
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.search.registry import kinds, make_labelled, solver_labels
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate

__all__ = [
    "MODELS",
    "Allocation",
    "Buffers",
    "GraphOptimization",
    "LoadmasterError",
    "MallocGame",
    "Mapping",
    "Offload",
    "PeakOrder",
    "branchy",
    "check",
    "clock",
    "cpu",
    "is_cached",
    "kinds",
    "layers",
    "load_machine",
    "load_model",
    "load_plan",
    "muzero_outputs",
    "offload_stack",
    "plan_document",
    "policy_parameters",
    "preset_names",
    "pretrained",
    "random_game",
    "random_graph",
    "random_machine",
    "random_mapping",
    "random_program",
    "random_straight",
    "random_training",
    "run_command",
    "run_solver",
    "simulate",
    "solver_cases",
    "solver_labels",
    "synthetic",
    "three_memories",
]


def cpu() -> str:
    """The processor: results of compiled networks may differ in the last bit on another one."""
    return str(host()["cpu"])


def run_solver(
    problem: Any, kind: str, name: str, options: dict[str, Any], evaluations: int, seed: int
) -> Any:
    """A solution: `decision`, `value`, `bound.value`, `status`, `evaluations`."""
    return solve(make_labelled(kind, name, options), problem, Budget(evaluations), seed)


def plan_document(problem: Any, decision: Any) -> dict[str, Any]:
    """The plan of a decision, as its file has it."""
    document: dict[str, Any] = json.loads(
        plan_to_json(problem.plan(decision), problem.program, problem.machine)
    )
    return document


def run_command(*words: object) -> tuple[int, str]:
    """(exit code, what is printed) of a command line."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def pretrained() -> dict[str, list[str]]:
    """Agent -> the policies that the package ships."""
    from loadmaster.learn.policies import pretrained_names

    return {agent: pretrained_names(agent) for agent in ("muzero",)}


def policy_parameters(agent: str, name: str) -> dict[str, np.ndarray]:
    """The arrays of a shipped policy."""
    from loadmaster.learn.policies import read_policy

    return read_policy(f"pretrained:{name}", agent)[0]


def muzero_outputs(name: str, problem: MallocGame) -> dict[str, np.ndarray]:
    """Logits and value of a game's first position. There is no NumPy way yet."""
    import jax

    from loadmaster.malloc_game.muzero.paper import Settings, load_policy
    from loadmaster.malloc_game.muzero.paper.network import make_network
    from loadmaster.malloc_game.muzero.paper.search import look

    network = load_policy(f"pretrained:{name}", make_network(jax.random.key(0), Settings()))
    seen = dict(problem.published().games(1).observe())
    masks = seen.pop("mask")
    root = jax.jit(look)(network, jax.device_put(seen), np.array([problem.moves], np.int32), masks)
    return {"logits": np.asarray(root.logits), "value": np.asarray(root.value)}


HERE = Path(__file__).parent
