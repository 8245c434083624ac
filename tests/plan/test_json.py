"""Plans as JSON: nothing is lost, and what refers to nothing is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from generate import random_machine, random_program
from generate_plan import random_plan
from loadmaster.errors import BadPlan, BadProgram
from loadmaster.machine import load_machine
from loadmaster.plan import (
    BEFORE,
    Copy,
    Plan,
    Residency,
    load_plan,
    load_planned,
    plan_from_json,
    plan_to_json,
    save_plan,
)
from loadmaster.plan.check import check
from loadmaster.plan.plan import MOST_BYTE
from loadmaster.program import Builder, Program
from loadmaster.simulate import simulate
from reference.simulate import simulate_reference as reference


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
    "deep nesting": ("[" * 100_000, "its JSON is nested deeper than 64 levels"),
    "unknown tensor": (residency(tensor=99, name=None), "residency 0 refers to the unknown tensor 99"),
    "unknown tensor name": (residency(tensor=None, name="xx"), "unknown tensor 'xx' \\(did you mean 'x'"),
    "name and number differ": (residency(name="w"), "calls tensor 1 'w' and it is 'x'"),
    "unknown memory": (residency(memory="l2"), "unknown memory 'l2': use cmem, hbm"),
    "bool offset": (residency(offset=True), "offset True"),
    "huge offset": (residency(offset=2**70), f"offset {2**70}"),
    "op out of range": (residency(last=5), "last 5"),
    "short device": (document(device=[]), "'device' must have 1 entries"),
    "device out of range": (document(device=[3]), "'device' of op 'op' is 3"),
    "nan priority": (document(priority=[float("nan")]), "it has the number NaN, which is not finite"),
    "infinite priority": (document(priority=[7]).replace("[7]", "[1e400]"), "which is not finite"),
    "endless priority": (document(priority=[10**400]), "an integer of more than 64 digits"),
    "5,000 digits": (document(priority=[7]).replace("[7]", "9" * 5_000), "an integer of more than 64 digits"),
    "true as priority": (document(priority=[True]), "'priority' of op 'op' is True"),
    "text as priority": (document(priority=["1"]), "'priority' of op 'op' is '1'"),
    "surrogate as name": (residency(tensor=None, name="\ud800"), "half a character"),
    "long name": (residency(tensor=None, name="x" * 10**6), "unknown tensor 'xxx"),
    "list as name": (residency(tensor=None, name=["x"]), "unknown tensor None"),
    "list as tensor": (residency(tensor=[1]), r"unknown tensor \[1\]"),
    "list as memory": (residency(memory=["cmem"]), r"unknown memory \['cmem'\]"),
    "offset above the simulator's": (
        residency(offset=2**61),
        f"offset {2**61}: give a whole number from -1 to {2**61 - 1}",
    ),
    "offset below none": (residency(offset=-2), "offset -2"),
    "end above the simulator's": (
        document(
            copies=[
                {
                    "tensor": 1,
                    "from": "hbm",
                    "to": "cmem",
                    "issued_after": -1,
                    "needed_by": 0,
                    "bytes": [0, 2**61],
                }
            ]
        ),
        f"copy 0 has high {2**61}",
    ),
    "fraction as offset": (residency(offset=0.0), "offset 0.0"),
    "object as order": (document(order={}), "'order' must have 1 entries"),
    "fraction in order": (document(order=[0.0]), "'order' of op 'op' is 0.0"),
    "huge device": (document(device=[10**60]), "'device' of op 'op' is a number of some 60 digits"),
    "list as queue": (document(queue=["order"]), r"queue is \['order'\]"),
    "list as hash": (document(program={"name": ["x"], "hash": [1]}), "belongs to another program"),
    "repeats of nothing": (document(repeats=3, program={}), "'repeats' is 3"),
    "huge repeat": (document(repeats={"ops": [10**60]}, program={}), "can't be repeated"),
    "unknown queue": (document(queue="lifo"), "queue is 'lifo'"),
    "copies no list": (document(copies={"a": 1}), "'copies' must be a list"),
    "copy bytes": (
        document(
            copies=[
                {"tensor": 1, "from": "hbm", "to": "cmem", "issued_after": -1, "needed_by": 0, "bytes": [1]}
            ]
        ),
        "copy 0 has bytes \\[1\\]",
    ),
    "transfers": (document(transfers=[[0]]), "transfer 0 is \\[0\\]"),
    "another program": (
        document(program={"name": "other", "hash": "00"}),
        "belongs to another program \\('other'\\)",
    ),
    "another machine": (document(machine={"name": "gpu", "hash": "00"}), "belongs to another machine"),
    "another arena": (
        document(machine={"name": "arena", "hash": "00"}),
        "as --machine arena:SIZE, or arena:unlimited",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_plans(case: str, tmp_path: Path) -> None:
    text, message = WRONG[case]
    error = BadProgram if case == "huge repeat" else BadPlan
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(error, match=message) as caught:
        load_planned(path, small(), load_machine("tpu-v4i"))
    assert "\n" not in caught.value.message and caught.value.remedy
    assert len(caught.value.message) < 400


def test_the_largest_offset_is_one_for_all() -> None:
    program, machine = small(), load_machine("tpu-v4i")

    def at(offset: int) -> Plan:
        return Plan.of(residencies=[Residency(1, 0, offset, 0, 0)])

    def copied(end: int) -> Plan:
        return Plan.of(residencies=[Residency(1, 0, 0, 0, 0)], copies=[Copy(1, 1, 0, BEFORE, 0, 0, end)])

    for plan in (at(MOST_BYTE), copied(MOST_BYTE)):
        simulate(program, machine, plan)
        reference(program, machine, plan)
        assert "shape" not in {violation.rule for violation in check(program, machine, plan)}
        assert plan_from_json(plan_to_json(plan, program, machine), program, machine).hash == plan.hash
    for plan in (at(MOST_BYTE + 1), copied(MOST_BYTE + 1)):
        for judge in (simulate, reference):
            with pytest.raises(BadPlan):
                judge(program, machine, plan)
        assert "shape" in {violation.rule for violation in check(program, machine, plan)}
        with pytest.raises(BadPlan):
            plan_from_json(plan_to_json(plan, program, machine), program, machine)
    with pytest.raises(BadPlan, match=r"beyond 2\^63"):
        at(2**63)


def test_of_an_object_with_a_key_twice_the_last_counts() -> None:
    program, machine = small(), load_machine("tpu-v4i")
    twice = document().replace('"tie"', '"queue": "fifo", "queue": "order", "tie"')
    assert plan_from_json(twice, program, machine).queue == "order"


def test_files_that_are_no_files(tmp_path: Path) -> None:
    program, machine = small(), load_machine("tpu-v4i")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(2**40)
    for name, words in (
        ("pipe", "a pipe and no regular file"),
        ("large", "larger than 256.00 MiB"),
        (".", "Is a directory"),
        ("n\0", "no file can have this name"),
    ):
        with pytest.raises(BadPlan, match=words):
            load_plan(tmp_path / name, program, machine)


def test_names_alone_are_enough() -> None:
    plan = plan_from_json(residency(tensor=None), small(), load_machine("tpu-v4i"))
    assert plan.residency_rows == [Residency(1, 0, 0, 0, 0)]


def test_plans_are_immutable_and_hashed() -> None:
    plan = Plan.of(device=[0])
    with pytest.raises(ValueError, match="read-only"):
        plan.device[0] = 1  # type: ignore[index]
    assert plan.hash == Plan.of(device=[0]).hash != Plan.of(device=[1]).hash
    assert plan.changed(queue="fifo").hash != plan.hash


def test_a_machine_of_the_same_values_is_the_same_under_another_name() -> None:
    program, machine = small(), load_machine("tpu-v4i:cmem=1MiB")
    text = plan_to_json(Plan(), program, machine)
    for same in ("tpu", f"{machine.name}:cmem=1MiB"):
        assert plan_from_json(text, program, replace(machine, name=same)).hash == Plan().hash
    with pytest.raises(BadPlan, match="give --capacity cmem=1MiB"):
        plan_from_json(text, program, load_machine("tpu-v4i:cmem=2MiB"))
