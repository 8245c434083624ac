"""Parts, groups, base plans, plans that do not fit, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNFIT, Base, GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.machine.machine import Machine
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.program.storage import save
from loadmaster.search.problem import keys
from loadmaster.search.registry import load_problem


def layers(count: int = 6, size: int = 4096, scoped: bool = True) -> Program:
    """A chain of layers: a product with a weight, an addition, a tanh."""
    build = Builder("layers")
    x = build.tensor("x", shape=(size,), dtype="f32", kind="input")
    for i in range(count):
        scope = f"layer{i}" if scoped else ""
        w = build.tensor(f"w{i}", shape=(size, 64), dtype="f32", kind="weight")
        y, z = (build.tensor(f"{n}{i}", shape=(size,), dtype="f32") for n in "yz")
        last = i == count - 1
        out = build.tensor(f"o{i}", shape=(size,), dtype="f32", kind="output" if last else "activation")
        build.op(f"product{i}", "matmul", reads=[x, w], writes=[y], matrix=size * 128, scope=scope)
        build.op(f"add{i}", "add", reads=[y, x], writes=[z], vector=size, scope=scope)
        build.op(f"tanh{i}", "tanh", reads=[z], writes=[out], transcendental=size, scope=scope)
        x = out
    return build.build()


def toy(capacity: int | None = None) -> Machine:
    machine = load_machine("toy2")
    for memory in machine.memories if capacity is not None else ():
        machine = machine.with_capacity(memory.name, capacity or 0)
    return machine


def test_parts_follow_each_other() -> None:
    problem = GraphOptimization(layers(), toy())
    assert (problem.nodes, problem.groups, problem.devices, problem.width) == (18, 6, 2, 42)
    assert [problem.part(name) for name in ("fusion", "device", "schedule")] == [
        slice(0, 18),
        slice(18, 24),
        slice(24, 42),
    ]
    vector = problem.vector(np.arange(18) / 18, [0, 1, 0, 1, 0, 1], np.full(18, 0.5))
    fusion, device, schedule = problem.split(vector)
    assert device.tolist() == [0, 1, 0, 1, 0, 1]
    assert fusion.tolist() == (np.arange(18) / 18).tolist() and set(schedule) == {0.5}
    alone = GraphOptimization(layers(), toy(), tasks=("schedule",))
    assert alone.width == 18 and alone.part("device") == slice(0, 0)
    assert alone.split(alone.vector())[1].tolist() == [0, 0, 0, 1, 1, 1]


def test_add_and_tanh_become_one_step_and_never_means_never() -> None:
    problem = GraphOptimization(layers(2), toy())
    assert problem.fuse(np.ones(6)).tolist() == [-1, 1, 1, -1, 4, 4]
    keys = np.ones(6)
    keys[1] = 0.06
    assert problem.fuse(keys).tolist() == [-1, -1, -1, -1, 4, 4]


def test_the_expert_cuts_layers_into_runs_and_updates_follow_their_weight() -> None:
    problem = GraphOptimization(layers(), toy(), base=Base(placement="expert"))
    assert problem.split(problem.vector())[1].tolist() == [0, 0, 0, 1, 1, 1]
    with pytest.raises(LoadmasterError, match="don't tell layers apart"):
        GraphOptimization(layers(scoped=False), toy(), base=Base(placement="expert"))
    assert GraphOptimization(layers(scoped=False), toy()).base.placement == "m_topo"


def test_what_does_not_fit_ranks_below_what_does_by_bytes_over() -> None:
    weight = 4096 * 64 * 4
    problem = GraphOptimization(layers(), toy(4 * weight), tasks=("placement",))
    half, five, all_ = (np.array([0.0] * k + [1.0] * (6 - k)) for k in (3, 5, 6))
    scores = problem.score(np.array([half, five, all_]))
    assert scores.value[0] < UNFIT < scores.value[1] < scores.value[2]
    assert scores.reward[0] > scores.reward[1] > scores.reward[2] >= -10
    assert [problem.admits(v) for v in (half, five, all_)] == [True, False, False]
    paper = GraphOptimization(layers(), toy(4 * weight), tasks=("placement",), profile="paper")
    assert paper.score(np.array([half, five, all_])).reward.tolist()[1:] == [-10, -10]


def test_proofs_that_nothing_fits() -> None:
    weight = 4096 * 64 * 4
    assert "weights and moments" in str(GraphOptimization(layers(), toy(2 * weight)).no_plan)
    assert "at once" in str(GraphOptimization(layers(1), toy(weight)).no_plan)
    assert GraphOptimization(layers(), toy(4 * weight)).no_plan is None


def test_hard_groups_decide_for_their_cluster() -> None:
    build = Builder("hard")
    x = build.tensor("x", shape=(8,), dtype="f32", kind="input")
    a, b = (build.tensor(n, shape=(8,), dtype="f32") for n in "ab")
    out = build.tensor("out", shape=(8,), dtype="f32", kind="output")
    build.op("first", "add", reads=[x], writes=[a], vector=8)
    build.op("second", "add", reads=[a], writes=[b], vector=8, group=0)
    build.op("third", "add", reads=[b], writes=[out], vector=8, group=1)
    problem = GraphOptimization(build.build(), toy(), groups="op")
    assert problem.fuse(np.ones(3)).tolist() == [0, 0, -1]  # two hard groups never meet
    plan = problem.plan(problem.vector(np.ones(3), [0, 1, 0]))
    assert plan.device is not None and plan.device.tolist() == [1, 1, 0]


def test_a_plan_comes_back_as_its_vector() -> None:
    problem = GraphOptimization(layers(), toy())
    rng = np.random.default_rng(0)
    for _ in range(20):
        vector = problem.vector(rng.random(18), rng.integers(0, 2, 6), rng.random(18))
        again = problem.decision(problem.plan(vector))
        assert problem.evaluate(again) == problem.evaluate(vector)


def test_saved_and_loaded(tmp_path: Path) -> None:
    from loadmaster.machine.presets import machine_text

    given = np.array([0, 1, 0, 1, 0, 1], dtype=np.int32)
    problem = GraphOptimization(
        layers(),
        toy(),
        base=Base("cost_model", given),
        tie="fifo",
        tasks=("schedule", "fusion"),
        groups="scope",
        readers="all",
    )
    save(problem.program, tmp_path / "program.npz")
    (tmp_path / "machine.toml").write_text(machine_text(problem.machine), encoding="utf-8")
    problem.save(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"keys": keys(problem)}), encoding="utf-8")
    again = load_problem(tmp_path)
    assert isinstance(again, GraphOptimization) and again.options() == problem.options()
    assert again.reference_ps == problem.reference_ps


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": ("fuse",)},
        {"tasks": ()},
        {"groups": "layer"},
        {"profile": "go"},
        {"tie": "lifo"},
        {"base": Base("all")},
        {"readers": "one"},
        {"base": Base(placement=np.array([9]))},
    ],
)
def test_unknown_switches_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LoadmasterError):
        GraphOptimization(layers(), toy(), **wrong)  # type: ignore[arg-type]


def test_vectors_of_the_wrong_shape_or_device_are_refused() -> None:
    problem = GraphOptimization(layers(), toy(), tasks=("placement",))
    for wrong in (np.zeros((1, 5)), np.zeros(6), np.full((1, 6), 2.0), np.full((1, 6), np.nan)):
        with pytest.raises(ValueError):
            problem.score(wrong)
