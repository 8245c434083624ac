"""The bound against all decisions of tiny programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from loadmaster.offload.bounds import around_steps
from loadmaster.offload.problem import LEADS, Offload
from loadmaster.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.simulate import simulate
from offload_stack import problems, small_gpu

BOTH = "bytes that must go out and come back"


def test_no_decision_is_below_the_bound_or_moves_fewer_bytes() -> None:
    tight = tried = 0
    for problem in problems(80, first=5_000):
        if problem.gaps > 7:
            continue
        best = min(_values(problem))
        assert best >= problem.bound().value
        tight += int(best <= 1.05 * problem.bound().value)
        tried += 1
    assert tried > 15 and tight > 3


def test_the_bound_holds_where_what_goes_out_must_come_back() -> None:
    largest: Counter[str] = Counter()
    tight = 0
    for seed in range(200):
        problem = there_and_back(seed)
        if problem.gaps > 7:
            continue
        best, bound = min(_values(problem)), problem.bound()
        assert best >= bound.value
        largest[bound.method] += 1
        tight += int(bound.method == BOTH and best <= 1.25 * bound.value)
    assert largest[BOTH] > 30 and tight > 5 and len(largest) > 2, largest


def test_a_step_that_fills_the_memory_sends_the_rest_away_and_back() -> None:
    build = Builder("full")
    x, kept, small = (
        build.tensor(name, bytes=size, kind=kind)
        for name, size, kind in (("x", 4, "input"), ("kept", 100, "activation"), ("small", 4, "activation"))
    )
    build.op("first", "matmul", reads=[x], writes=[kept])
    build.op(
        "full", "matmul", reads=[x], writes=[small, build.tensor("scratch", bytes=300, kind="activation")]
    )
    build.op("last", "matmul", reads=[kept, small], writes=[build.tensor("y", bytes=4, kind="output")])
    program = build.build(costs=np.full((3, 1), 1e-12))
    machine = small_gpu(np.random.default_rng(0), 308)
    links = tuple(replace(link, bandwidth=10**11, latency=0) for link in machine.links)
    problem = Offload(program, replace(machine, links=links))
    out, back = around_steps(program, problem.model)
    assert (out.tolist(), back.tolist()) == ([0, 100, 0], [0, 100, 0])
    assert (problem.bound().value, problem.bound().method) == (2_000, BOTH)  # 10 ps a byte
    assert 2_000 <= min(_values(problem)) <= 2_100


def test_ops_wait_for_their_inputs() -> None:
    build = Builder("inputs")
    early, late = (
        build.tensor(name, bytes=size, kind="input") for name, size in (("early", 10), ("late", 90))
    )
    value = build.tensor("value", bytes=4)
    build.op("first", "matmul", reads=[early], writes=[value])
    build.op("second", "matmul", reads=[value, late], writes=[build.tensor("y", bytes=4, kind="output")])
    program = build.build(costs=[[300e-12], [50e-12]])
    machine = small_gpu(np.random.default_rng(0), 2**20)
    links = tuple(replace(link, bandwidth=10**11, latency=0) for link in machine.links)
    problem = Offload(program, replace(machine, links=links))
    # 10 ps a byte: the second op waits for both inputs, the first one for its own.
    assert problem.bound().value == 1_000 + 50
    assert problem.bound().method == "inputs, and time of the ops behind them"
    assert min(_values(problem)) == 1_050


def test_every_plan_moves_around_each_step_what_must_go_out_and_come_back() -> None:
    asked = 0
    cases = [there_and_back(seed) for seed in range(40)] + problems(60, first=5_000)
    for problem in cases:
        if problem.gaps > 7:
            continue
        out, back = around_steps(problem.program, problem.model)
        asked += int((out > 0).any())
        size = problem.program.storage_bytes
        for plan in _plans(problem):
            for step, op in enumerate(problem.model.step_op.tolist()):
                left = sum(
                    int(size[row.tensor])
                    for row in plan.copy_rows
                    if row.source == problem.model.fast and row.needed_by <= op
                )
                came = sum(
                    int(size[row.tensor])
                    for row in plan.copy_rows
                    if row.target == problem.model.fast and row.issued_after >= op
                )
                assert left >= out[step] and came >= back[step]
    assert asked > 20


def there_and_back(seed: int) -> Offload:
    """Results that are read again in the opposite order, as gradients do, too many for the memory, and
    links as slow as the ops."""
    rng = np.random.default_rng(seed)
    program = _folded(rng, int(rng.integers(2, 5)))
    machine = small_gpu(rng, 2**40)
    links = tuple(
        replace(link, bandwidth=int(rng.choice([10**11, 10**12])), latency=0) for link in machine.links
    )
    roomy = Offload(program, replace(machine, links=links))
    capacity = int(rng.integers(roomy.least, max(roomy.least, roomy.model.needed) + 1)) // 4 * 4 + 4
    return Offload(program, roomy.machine.with_capacity("hbm", capacity))


def _folded(rng: np.random.Generator, depth: int) -> Program:
    build = Builder("folded")
    value = build.tensor("x", bytes=4, kind="input")
    made, costs = [], []
    for number in range(2 * depth):
        back = number >= depth
        reads = [value, made[2 * depth - 1 - number]] if back and number > depth else [value]
        if rng.random() < 0.15:
            reads.append(build.tensor(f"w{number}", bytes=int(rng.integers(1, 40)), kind="weight"))
        kind = "output" if number == 2 * depth - 1 or rng.random() < 0.05 else "activation"
        value = build.tensor(f"t{number}", bytes=int(rng.integers(1, 8 if back else 100)), kind=kind)
        build.op(f"op{number}", "matmul", reads=reads, writes=[value])
        made.append(value)
        costs.append([float(rng.choice([5, 50, 200])) * 1e-12])
    return build.build(costs=np.array(costs))


def _plans(problem: Offload) -> Iterator[Plan]:
    """Of all decisions, with copies as late and as early as can be."""
    for bits in product([False, True], repeat=problem.gaps):
        for lead in (0, len(LEADS) - 1):
            yield problem.plan(problem.vector(np.array(bits, dtype=bool), lead))


def _values(problem: Offload) -> list[int]:
    coming, leaving = problem.traffic_bound()
    values = []
    for plan in _plans(problem):
        line = simulate(problem.program, problem.machine, plan)
        assert line.link_bytes[0] >= coming and line.link_bytes[1] >= leaving
        values.append(line.total_ps)
    return values
