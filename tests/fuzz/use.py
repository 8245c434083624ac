"""What is done with an input that was accepted: its content reaches validation, hashes, simulator, checker,
problems and the native core, as a user's would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np

from generate import random_machine
from generate_plan import random_plan
from loadmaster.errors import LoadmasterError
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.presets import standalone_text
from loadmaster.machine.toml import parse_machine
from loadmaster.plan import Plan, plan_from_json, plan_to_json
from loadmaster.plan.check import check
from loadmaster.planner import make_problem
from loadmaster.program import Program, TensorKind, load, save
from loadmaster.program.build import Builder
from loadmaster.program.validate import validate
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate
from loadmaster.simulate.bounds import time_bounds
from loadmaster.simulate.needs import compute_balance, find_largest, needs

ON = (
    ("nnp-i", "mapping", "density"),
    ("tpu-v4i", "malloc-game", "greedy-order"),
    ("h200", "offload", "belady"),
    ("toy2", "graph", "heft"),
    ("arena:64KiB", "allocation", "first-fit"),
    ("arena:64KiB", "order", "peak-greedy"),
)
"""A machine, a kind of problem and a quick solver of it."""


@contextlib.contextmanager
def may_refuse() -> Iterator[None]:
    """What was read may not suit what is tried with it: that is said, and the next is tried."""
    with contextlib.suppress(LoadmasterError):
        yield


def use_program(program: Program, place: Path) -> None:
    """Validate, hash, write and read again, time, check, and solve one problem about it."""
    validate(program)
    file = place / "again.npz"
    save(program, file)
    if load(file).named_hash != program.named_hash:
        raise AssertionError("a program is another after it was saved and loaded")
    number = int(program.hash[:8], 16)
    with may_refuse():
        needs(program)
        find_largest(program, 3)
    machine = random_machine(np.random.default_rng(number))
    with may_refuse():
        use_plan(program, machine, Plan())
    name, kind, solver = ON[number % len(ON)]
    with may_refuse():
        use_plan(program, load_machine(name), Plan())
        compute_balance(program, load_machine(name))
    with may_refuse():
        problem = make_problem(program, load_machine(name), problem=kind)
        problem.bound()
        solution = solve(make_labelled(kind, solver), problem, Budget(2))
        if solution.decision is not None:
            problem.violations(problem.plan(solution.decision))


def use_machine(machine: Machine) -> None:
    """Hash, write and read again, and run a small program there."""
    text = standalone_text(machine)
    if parse_machine(text, "again", _no_base).hash != machine.hash:
        raise AssertionError("a machine is another after it was written and read")
    with may_refuse():
        use_plan(small_program(), machine, Plan())
    with may_refuse():
        time_bounds(small_program(), machine)
    with may_refuse():
        problem = make_problem(small_program(), machine)
        problem.bound()


def use_plan(program: Program, machine: Machine, plan: Plan) -> None:
    """Write it and read it again, then check and time it; a plan that can't run is refused by both."""
    again = plan_from_json(plan_to_json(plan, program, machine), program, machine)
    if again.hash != plan.hash:
        raise AssertionError("a plan is another after it was written and read")
    violations = check(program, machine, plan)
    timeline = simulate(program, machine, plan)
    str(violations[:1])
    check(program, machine, plan, timeline)


def _no_base(name: str) -> str:
    raise AssertionError(f"a machine that stands alone has the base '{name}'")


@lru_cache(maxsize=1)
def small_program() -> Program:
    """Five ops with a weight, a view, a loop and an in-place result."""
    build = Builder("small")
    x = build.tensor("x", shape=(4, 8), dtype="f32", kind="input")
    w = build.tensor("w", shape=(8, 8), dtype="f32", kind="weight")
    a = build.tensor("a", shape=(4, 8), dtype="f32")
    b = build.tensor("b", shape=(32,), dtype="f32", alias=a)
    c = build.tensor("c", shape=(32,), dtype="f32")
    d = build.tensor("d", shape=(32,), dtype="f32")
    y = build.tensor("y", shape=(32,), dtype="f32", kind=TensorKind.OUTPUT)
    build.op("matmul", "matmul", reads=[x, w], writes=[a], matrix=512)
    build.op("flat", "reshape", reads=[a], writes=[b], view=True)
    loop = build.loop(3)
    build.op("exp", "exp", reads=[b], writes=[c], transcendental=32, loop=loop)
    build.op("add", "add", reads=[c], writes=[d], vector=32, group=0)
    build.op("out", "add", reads=[d, b], writes=[y], vector=32)
    return build.build()


def some_plan(seed: int, program: Program, machine: Machine) -> Plan:
    """A random plan without mistakes made on purpose."""
    return random_plan(np.random.default_rng(seed), program, machine, valid_only=True)
