"""What of an ExecuTorch export needs no ExecuTorch: arenas, reduction, order, search."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.errors import BadMachine
from loadmaster.export.executorch_plans import (
    arena_bytes,
    improve_plan,
    make_placement,
    number_arenas,
    order_of,
    pack,
    reduce_plan,
)
from loadmaster.export.plans import NotExported
from loadmaster.machine import Machine, load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.check import check
from loadmaster.plan.plan import Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate.simulator import simulate


def small_machine(fast: int = 4096) -> Machine:
    return load_machine("ethos-u65").with_capacity("sram", fast)


def lowered_program(seed: int, ops: int = 14) -> Program:
    """A program as the importer makes them: inputs copied in, weights that stay, several results."""
    random = np.random.default_rng(seed)
    build = Builder(f"lowered{seed}", order_source="trace")
    caller = build.tensor("x.caller", shape=(256,), dtype="f32", kind="input")
    weight = build.tensor("w", shape=(512,), dtype="f32", kind="weight", fast=False)
    known = [build.tensor("x", shape=(256,), dtype="f32")]
    build.op("inputs", "copy", reads=[caller], writes=known)
    for number in range(ops):
        reads = [int(t) for t in random.choice(known, size=min(2, len(known)), replace=False)]
        sizes = random.integers(1, 400, size=1 + number % 2)
        last = number == ops - 1
        made = [
            build.tensor(
                f"t{number}.{i}", shape=(int(size),), dtype="f32", kind="output" if last else "activation"
            )
            for i, size in enumerate(sizes)
        ]
        build.op(f"op{number}", "add", reads=[*reads, weight], writes=made, vector=int(sizes.sum()))
        known += made
    return build.build()


def test_arenas_are_numbered_by_the_machine_or_the_user() -> None:
    machine = load_machine("imxrt1170")
    names = {machine.memories[m].name: n for m, n in number_arenas(machine, {}).items()}
    assert names == {"tcm": 3, "ocram": 2, "hyperram": 1}
    names = {machine.memories[m].name: n for m, n in number_arenas(machine, {"tcm": 5}).items()}
    assert names["tcm"] == 5
    with pytest.raises(BadMachine, match="no memory 'tcn'"):
        number_arenas(machine, {"tcn": 5})
    for numbers in ({"tcm": 0}, {"tcm": 1}):
        with pytest.raises(NotExported, match="arena"):
            number_arenas(machine, numbers)


def test_an_unaligned_memory_is_refused() -> None:
    program = lowered_program(0)
    with pytest.raises(NotExported, match="an alignment of 1"):
        reduce_plan(program, load_machine("arena:1MiB"), Plan())


@pytest.mark.parametrize("seed", range(20))
def test_plans_are_reduced_to_what_a_program_can_say(seed: int) -> None:
    program, machine = lowered_program(seed), small_machine()
    problem = Mapping(program, machine)
    decision = np.random.default_rng(seed).integers(0, 2, size=2 * problem.nodes).astype(np.int8)
    plan = problem.plan(decision)
    kept = reduce_plan(program, machine, plan)
    assert check(program, machine, kept) == []
    assert simulate(program, machine, kept).total_ps == simulate(program, machine, plan).total_ps
    assert sorted(r[:3] for r in kept.residency_rows) == sorted(r[:3] for r in plan.residency_rows)
    nothing = reduce_plan(program, machine, Plan())  # undecided: the slowest memory, packed
    assert check(program, machine, nothing) == []
    assert {row.memory for row in nothing.residency_rows} == {machine.home[0]}
    assert all(row.offset % 16 == 0 for row in nothing.residency_rows)


def test_a_tensor_that_moves_stays_in_the_slowest_memory() -> None:
    program, machine = lowered_program(1), small_machine()
    x = program.tensor_name.index("x")
    rows = [Residency(x, 0, 0, 0, 0), Residency(x, 1, 0, 1, program.n_ops - 1)]
    kept = reduce_plan(program, machine, Plan.of(residencies=rows))
    assert [row.memory for row in kept.residency_rows if row.tensor == x] == [1]


def test_the_copy_of_the_inputs_comes_first_in_every_order() -> None:
    build = Builder("two")
    caller = build.tensor("x.caller", shape=(64,), dtype="f32", kind="input")
    x, c = build.tensor("x", shape=(64,), dtype="f32"), build.tensor("c", shape=(8,), dtype="f32")
    y = build.tensor("y", shape=(64,), dtype="f32", kind="output")
    build.op("inputs", "copy", reads=[caller], writes=[x])
    build.op("constant", "broadcast", writes=[c])
    build.op("add", "add", reads=[x, c], writes=[y], vector=64)
    program, machine = build.build(), small_machine()
    plan = Plan.of(order=[1, 0, 2])
    assert order_of(program, plan) == [0, 1, 2]
    kept = reduce_plan(program, machine, plan)
    assert check(program, machine, kept) == []


@pytest.mark.parametrize("seed", range(6))
def test_the_search_beats_its_starts_and_keeps_to_the_bytes(seed: int) -> None:
    program, machine = lowered_program(seed, 20), small_machine(3072)
    order = list(range(program.n_ops))
    slow = np.where(program.producer >= 0, machine.home[0], -1).astype(np.int64)
    offset = pack(program, machine, slow, order)
    assert offset is not None
    start = make_placement(program, slow, offset, order)
    arenas = number_arenas(machine, {})
    total = sum(arena_bytes(program, start, arenas))
    problem = Mapping(program, machine)
    best = solve(make_labelled("mapping", "density"), problem, Budget())
    assert best.decision is not None
    by_node = problem.plan(best.decision)
    free = improve_plan(program, machine, [start, by_node], kicks=10, seed=seed)
    tight = improve_plan(program, machine, [start], most_bytes=total, kicks=10, seed=seed)
    assert free is not None
    assert tight is not None
    for plan in (free, tight):
        assert check(program, machine, plan) == []
    assert simulate(program, machine, free).total_ps <= simulate(program, machine, by_node).total_ps
    assert simulate(program, machine, tight).total_ps <= simulate(program, machine, start).total_ps
    assert sum(arena_bytes(program, tight, arenas)) <= total
