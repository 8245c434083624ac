"""Small workloads of the zoo: plans of random keys are sound, experts and bounds make sense."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

from loadmaster.graph import UNFIT, Base, GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model

SMALL = [
    ("gnmt-2:steps=2", "p100x4"),
    ("txl-2", "p100x2"),
    ("llama:layers=2,batch=1,tokens=256", "a100-40x4"),
]


@pytest.mark.parametrize(("model", "machine"), SMALL)
def test_random_keys_give_sound_plans(model: str, machine: str) -> None:
    problem = GraphOptimization(load_model(model), load_machine(machine))
    rng = np.random.default_rng(0)
    for _ in range(3):
        vector = problem.vector(
            rng.random(problem.nodes),
            rng.integers(0, problem.devices, problem.groups),
            rng.random(problem.nodes),
        )
        value = problem.evaluate(vector)
        assert value is not None and problem.bound().value <= value < UNFIT
        plan = problem.plan(vector)
        assert plan.fusion is not None and len(np.unique(plan.fusion)) > 10
        assert problem.violations(plan) == []


def test_fusion_and_critical_path_save_time() -> None:
    program, machine = load_model("txl-2"), load_machine("p100x2")
    plain, fused, ordered = (
        GraphOptimization(program, machine, base=Base(fusion, "expert", schedule)).reference_ps
        for fusion, schedule in (("none", "fifo"), ("fixed", "fifo"), ("fixed", "critical_path"))
    )
    assert plain > fused > ordered


def test_the_expert_of_recurrent_models_places_encoder_and_decoder_alike() -> None:
    problem = GraphOptimization(load_model("gnmt-2:steps=2"), load_machine("p100x2"))
    device = problem.split(problem.vector())[1][problem.node_group]
    scopes = [problem.program.op_scope[op] for op in problem.node_op.tolist()]
    found = {scope.partition("/t")[0]: int(d) for scope, d in zip(scopes, device, strict=True)}
    assert found["enc0/ahead"] == found["dec0"] == found["attention"] == found["embed/source"] == 0
    assert found["enc1"] == found["dec1"] == found["softmax"] == found["update/dec1.w"] == 1
