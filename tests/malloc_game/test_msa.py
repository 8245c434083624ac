"""Memory space assignment: the numbers of XLA's own tests, a case by hand, and random programs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from generate import random_machine, random_program
from loadmaster.machine import Machine, load_machine
from loadmaster.malloc_game.model import make_model
from loadmaster.malloc_game.msa import Assigner, BadOption, make_options
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Builder, Program, TieKind
from loadmaster.simulate import simulate

SECOND = 10**12


def assigner(program: Program, machine: Machine, style: str = "2023", **switches: Any) -> Assigner:
    model = make_model(program, machine)
    return Assigner(program, machine, model, make_options(style, switches))


def resized(machine: Machine, capacity: int, **fields: int) -> Machine:
    fast = replace(machine.memories[0], capacity=capacity, **fields)
    return replace(machine, memories=(fast, *machine.memories[1:]))


def rows(program: Program, found: Plan) -> tuple[dict[str, list[tuple[int, ...]]], list[tuple[Any, ...]]]:
    """(residencies by name, copies with names)"""
    named: dict[str, list[tuple[int, ...]]] = {}
    for tensor, _, offset, first, last in found.residency_rows:
        named.setdefault(program.tensor_name[tensor], []).append((offset, first, last))
    return named, [
        (program.tensor_name[c[0]], "in" if c[2] == 0 else "out", c[3], c[4]) for c in found.copy_rows
    ]


# --- costs -----------------------------------------------------------------------------------


def test_cost_of_an_add() -> None:
    build = Builder("add")
    a, b = (build.tensor(name, bytes=32, kind="input") for name in "ab")
    c = build.tensor("c", bytes=32)
    build.op("add", "add", reads=[a, b], writes=[c], vector=8)
    build.op("use", "neg", reads=[c])
    machine = load_machine("xla-sim")
    slow, fast = machine.memories[1], machine.memories[0]
    machine = replace(
        machine,
        memories=(replace(fast, read=128, write=128), replace(slow, read=32, write=32)),
        devices=(
            replace(
                machine.devices[0],
                rates={"*": {"*": 8}} | {name: {"*": 8} for name in ("matrix", "vector", "transcendental")},
            ),
        ),
    )
    model = make_model(build.build(), machine)
    for fast_sites, seconds in (([], 3.0), ([0], 2.25), ([0, 2], 1.5), ([0, 1, 2], 1.0)):
        is_fast = np.zeros(model.sites, dtype=bool)
        is_fast[fast_sites] = True
        assert model.elapsed(is_fast)[0] == seconds * SECOND


def hand_program(inputs: tuple[str, ...] = ("p0", "p1")) -> Program:
    build = Builder("hand")
    made = {name: build.tensor(name, bytes=24, kind="input") for name in inputs}
    p0, p1 = made["p0"], made["p1"]
    value = p0
    for i in range(7):
        result = build.tensor(f"negate{i}", bytes=24)
        build.op(f"negate{i}", "neg", reads=[value], writes=[result], vector=6)
        value = result
    build.op("add", "add", reads=[value, p1], writes=[build.tensor("sum", bytes=24, kind="output")], vector=6)
    return build.build()


def test_hand_case() -> None:
    program, machine = hand_program(), load_machine("xla-unit")
    msa = assigner(program, machine, "test")
    bounded = dict(
        zip((program.tensor_name[t] for t in msa.model.tensors.root), msa.boundedness, strict=True)
    )
    for name, seconds in (("negate0", 0.432), ("negate6", 0.432), ("p0", 0.216), ("p1", 0.216)):
        assert bounded[name] == pytest.approx(seconds * SECOND / math.sqrt(24))
    plan = msa.plan()
    named, copies = rows(program, plan)
    assert set(named) == {*(f"negate{i}" for i in range(7)), "p1"}
    assert copies == [("p1", "in", 5, 7)]
    assert check(program, machine, plan) == []
    timeline = simulate(program, machine, plan)
    assert int(timeline.op_stall.sum()) == 0.192 * SECOND
    assert timeline.total_ps == 1.032 * SECOND
    assert msa.model.all_slow_ps == 4.08 * SECOND


def test_numbers_of_tensors_do_not_matter() -> None:
    machine = load_machine("xla-unit")
    plans = []
    for inputs in (("p0", "p1"), ("p1", "p0")):
        program = hand_program(inputs)
        plans.append(rows(program, assigner(program, machine, "test").plan()))
    assert plans[0] == plans[1]


# --- behaviours ------------------------------------------------------------------------------


def chain(
    *,
    steps: int,
    seconds: float,
    reads: dict[int, list[str]],
    inputs: dict[str, int],
    late: dict[str, int] | None = None,
) -> Program:
    """Ops of a given time with a tiny result each; `late` are tensors made by the op of that number."""
    build = Builder("chain")
    tensors = {name: build.tensor(name, bytes=size, kind="input") for name, size in inputs.items()}
    made: dict[int, list[str]] = {}
    for name, op in (late or {}).items():
        made.setdefault(op, []).append(name)
        tensors[name] = build.tensor(name, bytes=48)
    for op in range(steps):
        build.op(
            f"op{op}",
            "neg",
            reads=[tensors[name] for name in reads.get(op, [])],
            writes=[tensors[name] for name in made.get(op, [])],
            vector=int(seconds * 1000),
        )
    return build.build()


def test_resource_end_to_end() -> None:
    # Six ops of 10 s; a copy takes 20 s, so the second one can only begin when the first is over.
    program = chain(steps=6, seconds=10, reads={2: ["p0"], 5: ["p1"]}, inputs={"p0": 256, "p1": 256})
    machine = resized(load_machine("xla-unit"), 304)
    slow = replace(machine.memories[1], read=10, write=10)
    links = tuple(replace(link, bandwidth=13) for link in machine.links)
    machine = replace(machine, memories=(machine.memories[0], slow), links=links)
    costs = [10.0] * 6
    program = replace(program, costs=np.array([[int(c * SECOND)] for c in costs], dtype=np.int64))
    slow = replace(slow, read=10**6, write=10**6)  # the ops' own reads are in their costs
    machine = replace(machine, memories=(machine.memories[0], slow))
    plan = assigner(program, machine, min_ratio=1.0, preferred_ratio=1.0, max_ratio=10).plan()
    named, copies = rows(program, plan)
    assert copies == [("p0", "in", -1, 2), ("p1", "in", 2, 5)]
    assert [named["p0"][0][1:], named["p1"][0][1:]] == [(0, 2), (3, 5)]


def test_only_the_memory_bound_chain_comes_to_fast_memory() -> None:
    build = Builder("chains")
    ends = {name: build.tensor(name, bytes=48, kind="input") for name in ("negate", "tanh")}
    for i in range(6):
        for name in ends:
            kind = "output" if (name, i) == ("tanh", 5) else "activation"
            result = build.tensor(f"{name}{i}", bytes=48, kind=kind)
            flops = {"vector": 12} if name == "negate" else {"transcendental": 12}
            build.op(
                f"{name}{i}",
                "neg" if name == "negate" else "tanh",
                reads=[ends[name]],
                writes=[result],
                **flops,
            )  # type: ignore[arg-type]
            ends[name] = result
    build.op("end", "neg", reads=[ends["negate"]], vector=12)
    program, machine = build.build(), load_machine("xla-unit")
    named, _ = rows(program, assigner(program, machine, "test").plan())
    results = [name for name in named if name[-1].isdigit()]
    assert results
    assert all(name.startswith("negate") for name in results)


def evicting_program() -> Program:
    """`early` is used at once and again much later; between, `wide` needs the room."""
    build = Builder("evict")
    early = build.tensor("early", bytes=48)
    build.op("make", "neg", writes=[early], vector=10)
    build.op("use", "neg", reads=[early], vector=10)
    for i in range(20):
        build.op(f"wait{i}", "neg", vector=500)
    wide = build.tensor("wide", bytes=120)
    build.op("make wide", "neg", writes=[wide], vector=1)
    build.op("use wide", "neg", reads=[(wide, 10**4)], vector=1)
    for i in range(20):
        build.op(f"wait{i + 20}", "neg", vector=500)
    build.op("use again", "neg", reads=[early], vector=10)
    return build.build()


def test_a_value_used_again_much_later_goes_out_once_and_comes_back_once() -> None:
    program, machine = evicting_program(), load_machine("xla-unit")
    plan = assigner(program, machine).plan()
    named, copies = rows(program, plan)
    assert [(name, way) for name, way, _, _ in copies] == [("early", "out"), ("early", "in")]
    assert copies[0][2] == 0 and copies[1][3] == program.n_ops - 1
    assert len(named["early"]) == 2 and len(named["wide"]) == 1
    assert check(program, machine, plan) == []


def test_a_small_copy_behind_a_large_one_ends_when_it_is_done() -> None:
    build = Builder("queue")
    made = {}
    for name, size in (("large", 96), ("small", 8)):
        made[name] = build.tensor(name, bytes=size)
        build.op(f"make {name}", "neg", writes=[made[name]], vector=10)
        build.op(f"use {name}", "neg", reads=[made[name]], vector=10)
    for i in range(20):
        build.op(f"wait{i}", "neg", vector=20)
    wide = build.tensor("wide", bytes=120)
    build.op("make wide", "neg", writes=[wide], vector=1)
    build.op("use wide", "neg", reads=[(wide, 10**4)], vector=1)
    for i in range(20):
        build.op(f"wait{i + 20}", "neg", vector=500)
    for name, tensor in made.items():
        build.op(f"use {name} again", "neg", reads=[tensor], vector=10)
    program, machine = build.build(), load_machine("xla-unit")
    stalls = []
    for stretch, end in ((False, 8), (True, 26)):
        plan = assigner(program, machine, stretch=stretch).plan()
        named, copies = rows(program, plan)
        assert copies[:2] == [("large", "out", 0, 24), ("small", "out", 2, end)]
        assert [each[1:] for each in named["small"]] == [(2, end - 1), (46, 47)]
        assert check(program, machine, plan) == []
        stalls.append(int(simulate(program, machine, plan).op_stall.sum()))
    assert stalls == [0.844 * SECOND, 0.444 * SECOND]


def test_what_is_read_too_late_is_made_in_fast_memory_and_written_back() -> None:
    build = Builder("late")
    skip = build.tensor("skip", bytes=96)
    build.op("make", "neg", writes=[skip], vector=10)
    for i in range(10):
        build.op(f"wait{i}", "neg", vector=200)
    wide = build.tensor("wide", bytes=120)
    build.op("make wide", "neg", writes=[wide], vector=1)
    build.op("use both", "neg", reads=[(wide, 10**4), skip], vector=1)
    program, machine = build.build(), load_machine("xla-unit")
    plan = assigner(program, machine, write_back=True).plan()
    assert rows(program, plan) == ({"wide": [(0, 11, 12)], "skip": [(0, 0, 10)]}, [("skip", "out", 0, 11)])
    assert check(program, machine, plan) == []
    without = assigner(program, machine).plan()
    times = [simulate(program, machine, each).total_ps for each in (without, plan)]
    assert times == [14.04 * SECOND, 13.176 * SECOND]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_at_most_so_many_copies_are_under_way(most: int) -> None:
    inputs = {f"p{i}": 16 for i in range(5)}
    reads = {10 + i: [f"p{i}"] for i in range(5)}
    program = chain(steps=16, seconds=0.2, reads=reads, inputs=inputs)
    machine = load_machine("xla-unit")
    _, copies = rows(program, assigner(program, machine, most_in=most).plan())
    under_way = [sum(issued <= step <= needed for _, _, issued, needed in copies) for step in range(16)]
    assert max(under_way, default=0) == most
    _, free = rows(program, assigner(program, machine).plan())
    assert len(free) == 5


def fragmented() -> tuple[Program, Machine]:
    """Two small tensors leave a hole between them that a large one does not fit into: the second
    lies above the first, which is gone when the large one comes."""
    build = Builder("fragmented")
    first, second, large = (
        build.tensor(name, bytes=size) for name, size in (("first", 40), ("second", 40), ("large", 88))
    )
    build.op("a", "neg", writes=[first], vector=1)
    build.op("b", "neg", reads=[(first, 9000)], writes=[second], vector=1)
    build.op("c", "neg", reads=[(second, 2000)], writes=[large], vector=1)
    build.op("d", "neg", reads=[(large, 1000), (second, 2000)], vector=1)
    return build.build(), load_machine("xla-unit")


def test_repacking_makes_room() -> None:
    program, machine = fragmented()
    named, _ = rows(program, assigner(program, machine, repacks=0).plan())
    assert "large" not in named
    msa = assigner(program, machine, repacks=1)
    plan = msa.plan()
    named, _ = rows(program, plan)
    assert set(named) == {"first", "second", "large"}
    assert msa.assign().info["repacks"] == 1
    assert check(program, machine, plan) == []


def test_inefficient_places_are_given_up() -> None:
    # A slow memory that serves 4 of 96 bytes: the copy would cost more than it brings.
    build = Builder("thin")
    p = build.tensor("p", bytes=96, kind="input")
    for i in range(12):
        build.op(f"op{i}", "neg", reads=[(p, 4)] if i == 11 else [], vector=300 if i < 11 else 1)
    program, machine = build.build(), load_machine("xla-unit")
    assert len(rows(program, assigner(program, machine).plan())[1]) == 1
    msa = assigner(program, machine, inefficient_ratio=0.5)
    assert rows(program, msa.plan()) == ({}, [])
    assert msa.assign().info["inefficient"] == 1


def test_cross_program_prefetch_takes_the_largest_weight_from_the_start() -> None:
    program = chain(steps=6, seconds=1, reads={3: ["p0", "p1"]}, inputs={"p0": 40, "p1": 80})
    plan = assigner(program, load_machine("xla-unit"), cross_program=1).plan()
    named, copies = rows(program, plan)
    assert named["p1"] == [(0, 0, 3)]
    assert ("p1", "in", -1, 3) in copies


def test_large_copies_go_in_parts_so_that_others_pass_between_them() -> None:
    # `large` is needed last and takes long; `small`, needed earlier, would wait behind it.
    program = chain(
        steps=12, seconds=0.3, reads={8: ["small"], 11: ["large"]}, inputs={"large": 96, "small": 16}
    )
    machine = load_machine("xla-unit")
    plan = assigner(program, machine, slices=4, slice_bytes=64).plan()
    _, copies = rows(program, plan)
    parts = [copy for copy in copies if copy[0] == "large"]
    assert len(parts) == 4 and len({issued for _, _, issued, _ in parts}) == 4
    assert [(row.low, row.high) for row in plan.copy_rows if row.high == 96] == [(72, 96)]
    assert check(program, machine, plan) == []
    whole = assigner(program, machine).plan()
    assert len(whole.copy_rows) == 2


def test_what_a_loop_reads_is_fetched_before_it_and_stays() -> None:
    build = Builder("loop")
    p = build.tensor("p", bytes=48, kind="input")
    loop = build.loop(10)
    for i in range(4):
        build.op(f"before{i}", "neg", vector=500)
    for i in range(3):
        build.op(f"body{i}", "neg", reads=[p] if i == 1 else [], vector=5, loop=loop)
    build.op("after", "neg", vector=5)
    program, machine = build.build(), load_machine("xla-unit")
    plan = assigner(program, machine).plan()
    named, copies = rows(program, plan)
    assert len(copies) == 1 and copies[0][3] == 3
    assert named["p"][0][2] == 6
    assert (
        simulate(program, machine, plan).total_ps
        == assigner(program, machine).totals(np.arange(1, dtype=np.int32)[None], 1)[0]
    )


def test_in_place_results_lie_where_their_operand_lay() -> None:
    build = Builder("in place")
    a, b, c = (build.tensor(name, bytes=48) for name in "abc")
    build.op("make", "neg", writes=[a], vector=1)
    second = build.op("first", "neg", reads=[a], writes=[b], vector=1)
    third = build.op("second", "neg", reads=[b], writes=[c], vector=1)
    build.op("use", "neg", reads=[c], vector=1)
    build.tie(TieKind.INPLACE, a, b, second)
    build.tie(TieKind.INPLACE, b, c, third)
    program, machine = build.build(), load_machine("xla-unit:fast=48")
    plan = assigner(program, machine).plan()
    named, copies = rows(program, plan)
    assert named == {"a": [(0, 0, 1)], "b": [(0, 1, 2)], "c": [(0, 2, 3)]}
    assert copies == []
    assert check(program, machine, plan) == []


# --- all programs ----------------------------------------------------------------------------


def test_every_plan_is_sound_and_timed_as_the_simulator_has_it() -> None:
    seen = {"plans": 0, "fast": 0, "in": 0, "out": 0, "sliced": 0, "in place": 0, "carried": 0}
    for seed in range(9000):
        rng = np.random.default_rng(seed)
        machine = random_machine(rng)
        if len(machine.devices) > 1 or len(machine.reach[0]) < 2:
            continue
        program = random_program(rng, max_ops=int(rng.integers(4, 40)))
        if check(program, machine, Plan()):
            continue
        style = ("2023", "test", "production")[seed % 3]
        msa = assigner(
            program,
            machine,
            style,
            min_ratio=float(rng.choice([0, 0.5, 1])),
            max_ratio=float(rng.choice([2, 8, 100])),
            strict_order=bool(rng.integers(2)),
            slices=int(rng.integers(1, 5)),
            slice_bytes=8,
            write_back=seed // 3 % 2 == 1,
            stretch=seed // 6 % 2 == 1,
        )
        order = np.arange(msa.tensors, dtype=np.int32)
        if seed % 2:
            order = rng.permutation(msa.tensors).astype(np.int32)
        found, plan = msa.assign(order), msa.plan(order)
        assert check(program, machine, plan) == [], seed
        total = simulate(program, machine, plan).total_ps
        assert msa.tables.judge(found.is_fast, found.copies)[0] == total, seed
        assert msa.totals(np.stack([order, order]), 2).tolist() == [total, total], seed
        is_in = found.copies[:, 1] == 1
        fast = np.unique(found.residencies[:, 0])
        seen["plans"] += 1
        seen["fast"] += int(found.is_fast.sum())
        seen["in"] += int(is_in.sum())
        seen["out"] += int((~is_in).sum())
        seen["sliced"] += int((found.slices >= 0).sum())
        seen["in place"] += int((msa.model.tensors.over[fast] >= 0).sum())
        seen["carried"] += int((msa.model.tensors.carried[fast] >= 0).sum())
    assert seen["plans"] > 1000 and min(seen.values()) > 30, seen


def test_bad_switches_are_refused() -> None:
    with pytest.raises(BadOption, match="did you mean 'repacks'"):
        make_options("2023", {"repack": 3})
    with pytest.raises(BadOption, match="style"):
        make_options("2021", {})
    with pytest.raises(BadOption, match="above 0"):
        make_options("2023", {"async_factor": 0.0})
    program, machine = hand_program(), load_machine("xla-unit")
    with pytest.raises(ValueError, match="permutation"):
        assigner(program, machine).totals(np.zeros((1, 10), dtype=np.int32), 1)
