"""Plans as JSON: nothing is lost, and what refers to nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from generate import random_machine, random_program
from generate_plan import random_plan
from loadmaster.errors import BadPlan
from loadmaster.machine import load_machine
from loadmaster.plan import (
    BEFORE,
    Copy,
    Plan,
    Residency,
    load_plan,
    plan_from_json,
    plan_to_json,
    save_plan,
)
from loadmaster.program import Builder, Program


def small() -> Program:
    build = Builder("small")
    w = build.tensor("w", bytes=64, kind="weight")
    x = build.tensor("x", bytes=64, kind="input")
    y = build.tensor("y", bytes=64, kind="output")
    build.op("op", "add", reads=[w, x], writes=[y], vector=64)
    return build.build()


@pytest.mark.parametrize("seed", range(40))
def test_round_trip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program, machine = random_program(rng), random_machine(rng)
    plan = random_plan(rng, program, machine, valid_only=True)
    again = plan_from_json(plan_to_json(plan, program, machine), program, machine)
    assert again.hash == plan.hash


def test_files_are_whole_or_absent(tmp_path: Path) -> None:
    program, machine = small(), load_machine("nnp-i")
    plan = Plan.of(residencies=[Residency(0, 0, 0, BEFORE, 0)])
    save_plan(plan, program, machine, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json", program, machine).hash == plan.hash
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    with pytest.raises(BadPlan, match="can't be read"):
        load_plan(tmp_path / "none.json", program, machine)


def document(**changes: object) -> str:
    program, machine = small(), load_machine("tpu-v4i")
    plan = Plan.of(residencies=[Residency(1, 0, 0, 0, 0)], copies=[Copy(1, 1, 0, BEFORE, 0)])
    base = json.loads(plan_to_json(plan, program, machine))
    return json.dumps(base | changes)


def residency(**changes: object) -> str:
    base = {"tensor": 1, "name": "x", "memory": "cmem", "offset": 0, "first": 0, "last": 0}
    return document(residencies=[base | changes])


WRONG = {
    "not json": ("{", "it is not JSON"),
    "not a plan": ("[]", "it is no plan"),
    "deep nesting": ("[" * 100_000, "it is not JSON"),
    "unknown tensor": (residency(tensor=99, name=None), "residency 0 refers to the unknown tensor 99"),
    "unknown tensor name": (residency(tensor=None, name="xx"), "unknown tensor 'xx' \\(did you mean 'x'"),
    "name and number differ": (residency(name="w"), "calls tensor 1 'w' and it is 'x'"),
    "unknown memory": (residency(memory="l2"), "unknown memory 'l2': use cmem, hbm"),
    "bool offset": (residency(offset=True), "offset True"),
    "huge offset": (residency(offset=2**70), f"offset {2**70}"),
    "op out of range": (residency(last=5), "last 5"),
    "short device": (document(device=[]), "'device' must have 1 entries"),
    "device out of range": (document(device=[3]), "'device' of op 'op' is 3"),
    "nan priority": (document(priority=[float("nan")]), "'priority' of op 'op' is nan"),
    "unknown queue": (document(queue="lifo"), "queue is 'lifo'"),
    "copies no list": (document(copies={"a": 1}), "'copies' must be a list"),
    "copy bytes": (document(copies=[{"tensor": 1, "from": "hbm", "to": "cmem", "issued_after": -1, "needed_by": 0,
                                     "bytes": [1]}]), "copy 0 has bytes \\[1\\]"),
    "transfers": (document(transfers=[[0]]), "transfer 0 is \\[0\\]"),
    "another program": (document(program={"name": "other", "hash": "00"}), "belongs to another program \\('other'\\)"),
    "another machine": (document(machine={"name": "gpu", "hash": "00"}), "belongs to another machine"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_plans(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(BadPlan, match=message) as caught:
        plan_from_json(text, small(), load_machine("tpu-v4i"))
    assert "\n" not in caught.value.message and caught.value.remedy


def test_names_alone_are_enough() -> None:
    plan = plan_from_json(residency(tensor=None), small(), load_machine("tpu-v4i"))
    assert plan.residency_rows == [Residency(1, 0, 0, 0, 0)]


def test_plans_are_immutable_and_hashed() -> None:
    plan = Plan.of(device=[0])
    with pytest.raises(ValueError, match="read-only"):
        plan.device[0] = 1  # type: ignore[index]
    assert plan.hash == Plan.of(device=[0]).hash != Plan.of(device=[1]).hash
    assert plan.changed(queue="fifo").hash != plan.hash
