"""The native simulator: golden times, batches, threads, and refusals that explain themselves."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from generate import random_case, random_program
from loadmaster.errors import BadPlan, BadProgram
from loadmaster.machine import load_machine
from loadmaster.mapping.first_fit import first_fit
from loadmaster.plan import Copy, Plan, Residency
from loadmaster.plan.check import check
from loadmaster.program import Builder, Program, TensorKind
from loadmaster.program.models import load_model
from loadmaster.simulate import get_simulator, simulate
from reference.simulate import simulate_reference

COMPILER = {  # picoseconds of first fit: the specification's white-box table
    ("resnet50", "nnp-i"): 112_041_521,
    ("resnet101", "nnp-i"): 436_312_749,
    ("bert", "nnp-i"): 1_152_910_328,
    ("resnet50", "nnp-i-half"): 287_647_771,
    ("resnet101", "nnp-i-half"): 589_477_237,
    ("bert", "nnp-i-half"): 1_324_695_541,
    ("resnet50", "nnp-i-12"): 103_201_699,
    ("resnet101", "nnp-i-12"): 194_091_196,
    ("bert", "nnp-i-12"): 594_599_703,
}
ALL_SLOWEST = {"resnet50": 815_267_107, "resnet101": 1_311_958_589, "bert": 2_979_760_897}


@pytest.mark.parametrize("cell", COMPILER, ids="-".join)
def test_golden_times(cell: tuple[str, str]) -> None:
    program, machine = load_model(cell[0]), load_machine(cell[1])
    plan = first_fit(program, machine)
    timeline = simulate(program, machine, plan)
    assert timeline.total_ps == COMPILER[cell]
    assert check(program, machine, plan, timeline) == [] and timeline.fits
    assert simulate(program, machine).total_ps == ALL_SLOWEST[cell[0]]
    assert simulate_reference(program, machine, plan).total_ps == COMPILER[cell]


def test_any_number_of_threads_gives_the_same() -> None:
    program, machine = load_model("resnet50"), load_machine("nnp-i")
    maps = np.random.default_rng(0).integers(-1, 3, size=(1000, program.n_tensors)).astype(np.int8)
    runs = [get_simulator(program, machine).run_static(maps, threads) for threads in (1, 2, 5)]
    for total, peak in runs[1:]:
        assert np.array_equal(total, runs[0][0]) and np.array_equal(peak, runs[0][1])


def test_many_plans_at_once() -> None:
    rng = np.random.default_rng(5)
    program, machine = random_program(rng, max_ops=30), load_machine("toy2")
    if program.costs is not None:
        program = load_model("resnet50")
    plans = [
        Plan.of(device=np.zeros(program.n_ops), queue="priority", priority=rng.random(program.n_ops))
        for _ in range(40)
    ]
    alone = [simulate(program, machine, plan) for plan in plans]
    for threads in (1, 2, 4):
        total, over = get_simulator(program, machine).run_many(plans, threads)
        assert total.tolist() == [timeline.total_ps for timeline in alone]
        assert over.tolist() == [timeline.memory_over.tolist() for timeline in alone]


def test_threads_may_share_a_simulator() -> None:
    program, machine = load_model("bert"), load_machine("nnp-i")
    shared = get_simulator(program, machine)
    expected = shared.run(Plan()).total_ps
    results: list[int] = []
    workers = [threading.Thread(target=lambda: results.append(shared.run(Plan()).total_ps)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [expected] * 8


def test_simulators_do_not_keep_programs_alive() -> None:
    import weakref

    program = random_program(np.random.default_rng(1))
    machine = load_machine("toy2")
    if program.costs is None:
        simulate(program, machine)
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


def test_frozen_orders_replay_to_the_picosecond() -> None:
    replayed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        program, machine, plan = random_case(rng, valid_only=True)
        if plan.queue == "order":
            continue
        try:
            timeline = simulate(program, machine, plan)
        except BadPlan:
            continue
        order = np.argsort(timeline.op_start, kind="stable").astype(np.int32)
        fixed = plan.changed(order=order, queue="order", transfers=timeline.transfers[:, :2].copy())
        again = simulate(program, machine, fixed)
        assert again.total_ps == timeline.total_ps
        real = ~program.op_view
        assert np.array_equal(again.op_start[real], timeline.op_start[real])
        assert np.array_equal(again.memory_peak, timeline.memory_peak)
        replayed += 1
    assert replayed > 50


def test_scaling_all_rates_scales_all_times() -> None:
    """Twice the rates, half the time: nothing in the model has a hidden unit."""
    from dataclasses import replace

    program, machine = load_model("resnet50"), load_machine("nnp-i")
    faster = replace(
        machine,
        memories=tuple(replace(m, read=m.read * 2, write=m.write * 2) for m in machine.memories),
        devices=tuple(
            replace(
                d,
                launch=d.launch // 2,
                rates={k: {t: r * 2 for t, r in v.items()} for k, v in d.rates.items()},
            )
            for d in machine.devices
        ),
    )
    slow, fast = simulate(program, machine).total_ps, simulate(program, faster).total_ps
    accesses = len(program.read_tensor) + len(program.write_tensor) + 2 * program.n_ops
    assert 0 <= 2 * fast - slow <= 2 * accesses  # each term is rounded up once


def two_ops() -> Program:
    build = Builder("two")
    x = build.tensor("x", bytes=100, kind="input")
    y = build.tensor("y", bytes=100)
    z = build.tensor("z", bytes=100, kind="output")
    build.op("first", "add", reads=[x], writes=[y], vector=100)
    build.op("second", "add", reads=[y], writes=[z], vector=100)
    return build.build()


REFUSED = {
    "device out of range": (Plan.of(device=[0, 9]), "'device' of op 1 is 9"),
    "order twice": (Plan.of(order=[0, 0]), "not a permutation"),
    "order against data": (Plan.of(order=[1, 0]), "op 'second' waits for something that never happens"),
    "no priorities": (Plan.of(queue="priority"), "has no priorities"),
    "nan": (Plan.of(queue="priority", priority=[float("nan"), 0]), "must be finite"),
    "unknown queue": (Plan.of(queue="lifo"), "queue 'lifo'"),
    "residency with fifo": (Plan.of(queue="fifo", residencies=[Residency(1, 0, -1, 0, 1)]), "need an order"),
    "unknown memory": (Plan.of(residencies=[Residency(1, 7, -1, 0, 1)]), "residency 0 has 7 in column 1"),
    "no link": (Plan.of(copies=[Copy(0, 0, 0, -1, 1)]), "has no link from 'hbm0' to 'hbm0'"),
    "copy too late": (Plan.of(copies=[Copy(0, 0, 1, 1, 1)]), "copy 0 is needed before it is issued"),
    "byte range": (Plan.of(copies=[Copy(0, 0, 1, -1, 1, 9, 3)]), "copy 0 has the byte range 9 to 3"),
    "fused across devices": (
        Plan.of(device=[0, 1], fusion=[0, 0]),
        "fused ops 'first' and 'second' are on different devices",
    ),
    "transfer that is not needed": (Plan.of(transfers=[(1, 1)]), "list of transfers is wrong at tensor 'y'"),
    "wrong shape": (Plan(device=np.zeros(3, dtype=np.int32)), "'device' must be int32\\[2\\]"),
    "wrong type": (Plan(residencies=np.zeros((1, 5), dtype=np.int32)), "must be int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_explain_themselves(case: str) -> None:
    plan, message = REFUSED[case]
    with pytest.raises(BadPlan, match=message) as caught:
        simulate(two_ops(), load_machine("toy2"), plan)
    assert caught.value.remedy and "\n" not in caught.value.message


def test_cost_tables_need_their_machine() -> None:
    build = Builder("table")
    build.op("op", "add")
    program = build.build(costs=[[1.0, 2.0]])
    assert simulate(program, load_machine("toy2")).seconds == 1.0
    with pytest.raises(BadProgram, match="has 2 columns and machine 'nnp-i' has 1 devices"):
        simulate(program, load_machine("nnp-i"))


def test_overflow_is_reported_and_not_accepted() -> None:
    build = Builder("huge")
    weight = build.tensor("w", bytes=2**33, kind="weight")
    build.op("op", "add", reads=[weight])
    timeline = simulate(build.build(), load_machine("toy2"))
    assert not timeline.fits
    assert timeline.memory_over.tolist() == [2**33 - 2**30, 0] and timeline.memory_first_over.tolist() == [
        0,
        -1,
    ]


def test_sizes_at_the_limit_do_not_wrap() -> None:
    build = Builder("limit")
    w = build.tensor("w", bytes=2**59, kind="weight")
    y = build.tensor("y", bytes=2**58, kind="output")
    build.op("op", "matmul", reads=[w], writes=[y], matrix=2**59)
    program = build.build()
    for name in ("toy2", "xla-sim", "imxrt1170"):
        timeline = simulate(program, load_machine(name))
        assert timeline.total_ps > 0 and (timeline.op_end >= timeline.op_start).all()


def test_kinds_of_the_roles() -> None:
    assert [int(kind) for kind in TensorKind] == [0, 1, 2, 3, 4], "the native core uses these numbers"
