"""Numbers computed by hand, rule by rule of docs/simulation.md, asked of both simulators.

Unless a test says otherwise the machine is `toy()`: every device has a fast memory of 4 bytes
per picosecond and a home of 1 byte per picosecond, does 1 flop of any class per picosecond, and
has links of 1 byte per picosecond. So in the comments "8 B at home" is 8 ps, "8 B in fast" 2 ps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import BadPlan, LoadmasterError
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.machine.presets import load_machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Copy, Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.program.program import CANNOT_RUN, COMPUTED, Program, TieKind
from loadmaster.simulate import simulate
from loadmaster.simulate.simulator import Timeline
from reference.simulate import simulate_reference
from reference.simulate.costs import ceil_time, rate_for

PS = 10**12
"""Per second: one per picosecond."""
S = 10**12
"""A second in picoseconds."""


def toy(
    devices: int = 1,
    *,
    rules: Rules = Rules(),
    latency: int = 0,
    launch: int = 0,
    capacity: int = 2**62,
    alignment: int = 1,
    rates: dict[str, dict[str, int]] | None = None,
    units: tuple[tuple[str, ...], ...] = (("matrix", "vector", "transcendental"),),
    link_latency: int = 0,
    engines: tuple[str, ...] | None = None,
    one_memory: bool = False,
) -> Machine:
    """Memories 2·i (fast) and 2·i + 1 (home) belong to device i; with `one_memory` just i."""
    flops = rates or {name: {"*": PS} for name in ("matrix", "vector", "transcendental")}
    memories, links, reach = [], [], []
    for i in range(devices):
        home = Memory(f"home{i}", capacity, PS, PS, latency, alignment)
        fast = Memory(f"fast{i}", capacity, 4 * PS, 4 * PS, latency, alignment)
        memories += [home] if one_memory else [fast, home]
        reach.append((home.name,) if one_memory else (fast.name, home.name))
    for i in range(devices):
        pairs = [] if one_memory else [(f"home{i}", f"fast{i}"), (f"fast{i}", f"home{i}")]
        pairs += [(f"home{i}", f"home{j}") for j in range(devices) if j != i]
        for a, b in pairs:
            names = (f"out.{a}", f"in.{b}") if engines is None else engines
            links.append(Link(a, b, PS, link_latency, names))
    made = tuple(Device(f"dev{i}", reach[i], flops, launch, units) for i in range(devices))
    return Machine("toy", made, tuple(memories), tuple(links), rules)


FAST, HOME = 0, 1


_engine: Callable[[Program, Machine, Plan], Timeline] = simulate_reference


@pytest.fixture(autouse=True, params=["reference", "native"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number below is asked of the reference and of the native simulator."""
    if request.param == "native":
        monkeypatch.setitem(globals(), "_engine", simulate)


def run(build: Builder | Program, machine: Machine, **plan: Any) -> Timeline:
    program = build.build() if isinstance(build, Builder) else build
    return _engine(program, machine, Plan.of(**plan))


def times(timeline: Timeline) -> list[tuple[int, int]]:
    return list(zip(timeline.op_start.tolist(), timeline.op_end.tolist(), strict=True))


def refused(build: Builder | Program, machine: Machine, words: str, **plan: Any) -> BadPlan:
    """The reference's refusal; both must refuse, their words may differ."""
    program = build.build() if isinstance(build, Builder) else build
    with pytest.raises(LoadmasterError) as refusal:
        run(program, machine, **plan)
    assert refusal.value.remedy
    with pytest.raises(BadPlan, match=words) as caught:
        simulate_reference(program, machine, Plan.of(**plan))
    assert caught.value.object is not None
    assert caught.value.remedy
    return caught.value


def one_op(**op: Any) -> Builder:
    """x (8 B, input) -> op -> y (4 B)."""
    build = Builder("one")
    x = build.tensor("x", bytes=8, kind="input")
    y = build.tensor("y", bytes=4)
    build.op("op", op.pop("kind", "add"), reads=[x], writes=[y], dtype="f32", **op)
    return build


def chain(sizes: Iterable[int], **op: Any) -> Builder:
    """t0 (input) -> op0 -> t1 -> op1 -> …, of the given sizes."""
    build = Builder("chain")
    last = None
    for i, size in enumerate(sizes):
        tensor = build.tensor(f"t{i}", bytes=size, kind="input" if last is None else "activation")
        if last is not None:
            build.op(f"op{i - 1}", "add", reads=[last], writes=[tensor], **op)
        last = tensor
    return build


def work(build: Builder, name: str, flops: int, reads: Iterable[int] = (), size: int = 0) -> int:
    """An op of `flops` ps that reads nothing of what it waits for, and its result."""
    result = build.tensor(f"{name}.out", bytes=size)
    build.op(name, "x", reads=[(t, 0) for t in reads], writes=[(result, 0)], matrix=flops)
    return result


# --- 3. How long a step takes ----------------------------------------------------------------


def test_each_term_is_rounded_up_once() -> None:
    assert ceil_time(0, 3) == 0
    assert ceil_time(10, 3 * PS) == 4  # 3.33
    assert ceil_time(2**60, 7) == (2**60 * PS + 6) // 7  # exact where floats are not


def test_a_rate_is_by_type_then_star_then_the_slowest() -> None:
    assert rate_for({"f32": 2, "*": 5}, "f32") == 2
    assert rate_for({"f32": 2, "*": 5}, "i8") == 5
    assert rate_for({"f32": 2, "bf16": 7}, "i8") == 2


def test_units_work_side_by_side_and_classes_in_a_unit_one_after_the_other() -> None:
    build = one_op(matrix=30, vector=20, transcendental=15)
    assert run(build, toy()).total_ps == 65  # 30 + 20 + 15, memory 12 is hidden
    two = toy(units=(("matrix",), ("vector", "transcendental")))
    assert run(build, two).total_ps == 35  # max(30, 20 + 15)


def test_without_a_rate_a_transcendental_takes_several_vector_flops() -> None:
    machine = toy(rates={"matrix": {"*": PS}, "vector": {"*": 3 * PS}})
    # exp: 5 · 8 = 40 vector flops and 4 · 8 = 32 of its own: ceil(40/3) + ceil(32/3) = 14 + 11
    build = one_op(kind="exp", vector=4, transcendental=5)
    assert run(build, machine).total_ps == 25
    # softmax is not listed: 4 · 1 and 5 · 8: ceil(4/3) + ceil(40/3) = 2 + 14
    build = one_op(kind="softmax", vector=4, transcendental=5)
    assert run(build, machine).total_ps == 16
    # the transcendental term stays in its unit: max(vector 11, transcendental 14)
    apart = toy(
        rates={"matrix": {"*": PS}, "vector": {"*": 3 * PS}},
        units=(("matrix", "vector"), ("transcendental",)),
    )
    assert run(one_op(kind="exp", vector=4, transcendental=5), apart).total_ps == 14


def test_an_access_pays_latency_once_and_nothing_for_no_bytes() -> None:
    assert run(one_op(), toy(latency=5)).total_ps == 22  # 8 + 5 + 4 + 5
    build = Builder("empty")
    x = build.tensor("x", bytes=8, kind="input")
    y = build.tensor("y", bytes=0)
    build.op("op", "add", reads=[(x, 0)], writes=[y])
    assert run(build, toy(latency=5)).total_ps == 1  # at least 1


def test_ports_serial_and_parallel() -> None:
    build = one_op(other_bytes=3)
    x_in_fast = [Residency(0, FAST, NO_OFFSET, 0, 0)]
    # x: 8 B in fast = 2; y: 4 B at home = 4; other: 3 B at home = 3
    assert run(build, toy(), residencies=x_in_fast).total_ps == 9
    parallel = toy(rules=Rules(ports="parallel"))
    assert run(build, parallel, residencies=x_in_fast).total_ps == 7  # max(2, 4 + 3)
    assert run(build, parallel).total_ps == 15  # all at home


def test_overlap_adds_a_share_of_the_smaller_and_launch_comes_on_top() -> None:
    machine = toy(rules=Rules(overlap=50_000), launch=7)
    # compute 20, memory 12: 7 + 20 + ceil(0.05 · 12 = 0.6) = 28
    assert run(one_op(matrix=20), machine).total_ps == 28
    # compute 5, memory 12: 7 + 12 + ceil(0.25) = 20
    assert run(one_op(matrix=5), machine).total_ps == 20


def test_a_loop_repeats_the_run_but_not_the_rounding() -> None:
    build = Builder("loops")
    outer = build.loop(3)
    inner = build.loop(5, outer)
    x = build.tensor("x", bytes=2, kind="input")
    y = build.tensor("y", bytes=1)
    build.op("op", "add", reads=[x], writes=[y], loop=inner)
    timeline = run(build, toy(launch=1))
    assert timeline.total_ps == 60  # (1 + 2 + 1) · 15
    assert timeline.device_busy.tolist() == [60]


def test_a_cost_table_replaces_compute_and_launch() -> None:
    program = one_op(matrix=100, other_bytes=50).build()
    machine = toy(launch=1000)

    def total(cost: int, **plan: Any) -> int:
        table = np.array([[cost]], dtype=np.int64)
        return run(replace(program, costs=table), machine, **plan).total_ps

    assert total(40) == 40  # memory away from the first memory: 12
    assert total(3) == 12
    x_in_fast = [Residency(0, FAST, NO_OFFSET, 0, 0)]
    assert total(3, residencies=x_in_fast) == 4  # x is in the first memory; y away: 4
    both = [*x_in_fast, Residency(1, FAST, NO_OFFSET, 0, 0)]
    assert total(0, residencies=both) == 1  # at least 1
    assert total(COMPUTED) == 1100  # 1000 + max(100, 12 + 50)


def test_a_partly_named_step_uses_the_formula() -> None:
    program = chain([4, 8, 4], matrix=10).build()
    table = np.array([[30], [COMPUTED]], dtype=np.int64)
    timeline = run(replace(program, costs=table), toy(launch=2), fusion=[0, 0])
    assert timeline.total_ps == 42  # 2 + max(30 + 10, 4): t2 is nobody's, so it is internal
    table = np.array([[30], [5]], dtype=np.int64)
    timeline = run(replace(program, costs=table), toy(launch=2), fusion=[0, 0])
    assert timeline.total_ps == 35  # max(30 + 5, 4), no launch


def test_a_cost_table_can_refuse() -> None:
    program = one_op().build()
    forbidden = replace(program, costs=np.array([[CANNOT_RUN]], dtype=np.int64))
    assert refused(forbidden, toy(), "op 'op' can't run on device 'dev0'").number == 0
    narrow = replace(program, costs=np.array([[1]], dtype=np.int64))
    assert refused(narrow, toy(2), "1 columns and machine 'toy' has 2 devices").number == 1


# --- 1. From ops to steps --------------------------------------------------------------------


def test_a_view_takes_no_time_and_is_read_as_its_root() -> None:
    build = Builder("views")
    x = build.tensor("x", bytes=8, kind="input")
    y = build.tensor("y", bytes=4)
    build.op("make", "add", reads=[x], writes=[y])
    v = build.tensor("v", bytes=4, alias=y)
    build.op("view", "reshape", reads=[y], writes=[v], view=True)
    w = build.tensor("w", bytes=4, alias=v)
    build.op("view again", "reshape", reads=[v], writes=[w], view=True)
    z = build.tensor("z", bytes=1)
    build.op("use", "add", reads=[w, y], writes=[z])
    given = build.tensor("given view", bytes=8, alias=x)
    build.op("view of x", "reshape", reads=[x], writes=[given], view=True)
    timeline = run(build, toy())
    # make 8 + 4; use reads w and y, which are two rows of one root: 4 + 4 + 1
    assert times(timeline) == [(0, 12), (12, 12), (12, 12), (12, 21), (0, 0)]
    # x 8 and y 4 at home while 'make' runs; then y 4 + z 1
    assert timeline.memory_peak.tolist() == [0, 12]


def test_a_fused_step_reads_once_and_keeps_what_does_not_leave() -> None:
    build = Builder("fused")
    x = build.tensor("x", bytes=10, kind="input")
    a, b, c = (build.tensor(name, bytes=6) for name in "abc")
    build.op("a", "add", reads=[(x, 7)], writes=[(a, 5)])
    build.op("b", "add", reads=[(x, 7), a], writes=[b])
    build.op("c", "add", reads=[b, a], writes=[c])
    program = build.build()
    # alone: (7+5) + (7+6+6) + (6+6+6) = 12 + 19 + 18
    assert run(program, toy()).total_ps == 49
    # {a, b}: x is read min(7 + 7, 10) = 10; a leaves (c reads it): 5, b leaves: 6 -> 21; c 18
    timeline = run(program, toy(), fusion=[1, 1, -1])
    assert times(timeline) == [(0, 21), (0, 21), (21, 39)]
    # all: x 10; nothing leaves
    timeline = run(program, toy(), fusion=[1, 1, 1])
    assert timeline.total_ps == 10
    assert timeline.memory_peak.tolist() == [0, 10]  # only x


def test_outputs_and_targets_of_ties_leave_a_fused_step() -> None:
    build = Builder("leave")
    w = build.tensor("w", bytes=10, kind="weight")
    a = build.tensor("a", bytes=3)
    b = build.tensor("b", bytes=10)
    shown = build.tensor("shown", bytes=3, alias=a, kind="output")
    first = build.op("first", "add", reads=[(w, 0)], writes=[a])
    build.op("view", "reshape", reads=[a], writes=[shown], view=True)
    second = build.op("second", "add", reads=[a, (w, 0)], writes=[b])
    build.tie(TieKind.INPLACE, w, b, second)
    timeline = run(build, toy(), fusion=[0, -1, 0])
    assert first == 0
    assert timeline.total_ps == 13  # a 3 (an output by its view), b 10 (updates w)
    assert timeline.memory_peak.tolist() == [0, 13]  # the place {w, b} 10, and a


def test_one_member_left_in_a_group_has_its_rows_as_they_are() -> None:
    build = Builder("lone")
    x = build.tensor("x", bytes=4, kind="input")
    y = build.tensor("y", bytes=4)
    build.op("lone", "add", reads=[(x, 9)], writes=[y])
    assert run(build, toy(), fusion=[0]).total_ps == 13  # not cut to 4, and y is written


def test_members_of_a_step_share_device_and_loop() -> None:
    error = refused(chain([1, 1, 1]), toy(2), "fuse ops of one device", fusion=[0, 0], device=[0, 1])
    assert (error.object, error.number) == ("op1", 1)
    build = Builder("loop")
    loop = build.loop(2)
    a = work(build, "a", 1)
    c = build.tensor("c")
    build.op("c", "add", reads=[a], writes=[c], loop=loop)
    refused(build, toy(), "fuse ops of one loop", fusion=[0, 0])


# --- 2. Which memory serves an access --------------------------------------------------------


def test_the_fastest_residency_that_covers_the_position_serves() -> None:
    program = chain([4, 8, 12, 16]).build()
    assert [end - start for start, end in times(run(program, toy()))] == [12, 20, 28]
    # t1 in fast from op0 to op0: its write costs 2, its read by op1 still 8
    rows = [Residency(1, FAST, NO_OFFSET, 0, 0)]
    assert [b - a for a, b in times(run(program, toy(), residencies=rows))] == [6, 20, 28]
    # to op1: both
    rows = [Residency(1, FAST, NO_OFFSET, 0, 1), Residency(1, HOME, NO_OFFSET, 0, 2)]
    assert [b - a for a, b in times(run(program, toy(), residencies=rows))] == [6, 14, 28]
    # BEFORE: everything up to `last`
    rows = [Residency(0, FAST, NO_OFFSET, BEFORE, 0), Residency(2, FAST, NO_OFFSET, BEFORE, 1)]
    assert [b - a for a, b in times(run(program, toy(), residencies=rows))] == [9, 11, 28]


def test_a_memory_that_the_device_does_not_reach_serves_nothing() -> None:
    rows = [Residency(1, 2, NO_OFFSET, 0, 1)]  # fast1, and all runs on dev0
    assert run(chain([4, 8, 4]), toy(2), residencies=rows).total_ps == 24


def test_windows_follow_the_plans_order() -> None:
    build = Builder("two")
    x = build.tensor("x", bytes=8, kind="input")
    for name in ("a", "b", "c"):
        build.op(name, "add", reads=[x])
    rows = [Residency(0, FAST, NO_OFFSET, 2, 0)]  # from op c to op a
    timeline = run(build, toy(), order=[1, 2, 0], residencies=rows)
    assert times(timeline) == [(10, 12), (0, 8), (8, 10)]


# --- 4. Rule 'free': waiting and transfers ---------------------------------------------------


def test_a_tensor_is_sent_once_to_each_device_that_reads_it() -> None:
    build = Builder("fan")
    x = build.tensor("x", bytes=2, kind="input")
    y = build.tensor("y", bytes=10)
    build.op("make", "add", reads=[x], writes=[y])
    for i in range(4):
        build.op(f"use{i}", "add", reads=[(y, 1)])
    machine = toy(3, link_latency=5)
    timeline = run(build, machine, device=[0, 1, 1, 2, 0])
    # make 0-12. Both transfers leave by out.home0: 12 + (5 + 10) = 27, then 27 + 15 = 42
    assert timeline.transfers.tolist() == [[1, 1, 12, 27], [1, 2, 27, 42]]
    assert times(timeline) == [(0, 12), (27, 28), (28, 29), (42, 43), (12, 13)]
    assert timeline.device_busy.tolist() == [13, 2, 1]
    assert timeline.total_ps == 43
    between = {(link.source, link.target): i for i, link in enumerate(machine.links)}
    assert timeline.link_bytes[between["home0", "home1"]] == 10
    assert timeline.link_bytes[between["home0", "home2"]] == 10
    assert timeline.link_bytes.sum() == 20


def test_engines_are_shared_by_name_and_links_without_engines_never_wait() -> None:
    build = Builder("fan")
    y = build.tensor("y", bytes=10)
    build.op("make", "x", writes=[(y, 0)])
    for i in range(2):
        build.op(f"use{i}", "x", reads=[(y, 0)])
    free = run(build, toy(3, engines=()), device=[0, 1, 2])
    assert free.transfers[:, 2:].tolist() == [[1, 11], [1, 11]]
    bus = run(build, toy(3, engines=("bus",)), device=[0, 1, 2])
    assert bus.transfers[:, 2:].tolist() == [[1, 11], [11, 21]]


def test_an_empty_tensor_takes_a_picosecond_and_loops_multiply() -> None:
    build = Builder("loop")
    loop = build.loop(4)
    a, b = build.tensor("a", bytes=0), build.tensor("b", bytes=3)
    build.op("make", "x", writes=[a, (b, 0)], loop=loop)
    build.op("use", "x", reads=[a, (b, 0)])
    timeline = run(build, toy(2), device=[0, 1])
    # make 4 · 1; a: 1 · 4 from 4, b: 3 · 4 after it on the same engines
    assert timeline.transfers.tolist() == [[0, 1, 4, 8], [1, 1, 8, 20]]
    assert timeline.link_bytes.sum() == 12
    assert timeline.total_ps == 21


def test_home_devices_of_weights_and_their_transfers_at_time_0() -> None:
    build = Builder("weights")
    grouped = build.tensor("grouped", bytes=4, kind="weight", group=7)
    free = build.tensor("free", bytes=6, kind="state")
    unread = build.tensor("unread", bytes=100, kind="weight")
    x = build.tensor("x", bytes=1, kind="input")
    build.op("a", "x", reads=[(grouped, 0), (free, 0), (x, 0)])
    build.op("b", "x", reads=[(grouped, 0), (free, 0), (x, 0)])
    build.op("c", "x", group=7)
    timeline = run(build, toy(2, one_memory=True), device=[0, 1, 1])
    # 'grouped' lives with op c on dev1 and goes to dev0; 'free' with its first reader a on dev0
    assert timeline.transfers.tolist() == [[grouped, 0, 0, 4], [free, 1, 0, 6]]
    assert times(timeline) == [(4, 5), (6, 7), (7, 8)]
    # dev0: free 6, unread 100, x 1, grouped's copy 4. dev1: grouped 4, x 1, free's copy 6
    assert timeline.memory_peak.tolist() == [111, 11]
    assert unread == 2


def test_a_read_served_by_a_residency_waits_for_the_writer_alone() -> None:
    program = chain([2, 8, 2]).build()
    rows = [Residency(1, 2, NO_OFFSET, 0, 1)]  # fast1, from op0 on
    timeline = run(program, toy(2), device=[0, 1], residencies=rows)
    assert len(timeline.transfers) == 0
    assert times(timeline) == [(0, 10), (10, 14)]  # 8 B in fast1 = 2, 2 B at home1


def test_scratch_does_not_wait_for_itself() -> None:
    build = Builder("scratch")
    s = build.tensor("s", bytes=5)
    build.op("op", "x", reads=[s], writes=[s])
    timeline = run(build, toy())
    assert times(timeline) == [(0, 10)]
    assert timeline.memory_peak.tolist() == [0, 5]


def test_a_missing_link_is_an_error() -> None:
    machine = replace(toy(2), links=())
    error = refused(chain([1, 1, 1]), machine, "add a link from 'home0' to 'home1'", device=[0, 1])
    assert error.object == "t1"
    rows = [Copy(0, HOME, FAST, BEFORE, 0)]
    refused(chain([1, 1]), machine, "add a link from 'home0' to 'fast0'", copies=rows)


def two_tensors_for_dev1() -> Builder:
    """dev0 makes p (10 B) at 1 and q (4 B) at 2; dev1 uses both."""
    build = Builder("order")
    p = work(build, "p", 1, size=10)
    q = work(build, "q", 1, size=4)
    build.op("use q", "x", reads=[(q, 0)])
    build.op("use p", "x", reads=[(p, 0)])
    return build


def test_listed_transfers_are_served_in_that_order() -> None:
    build = two_tensors_for_dev1()
    device = [0, 0, 1, 1]
    plain = run(build, toy(2), device=device)
    assert plain.transfers.tolist() == [[0, 1, 1, 11], [1, 1, 11, 15]]
    assert times(plain)[2:] == [(15, 16), (16, 17)]
    # q first: p, produced at 1, waits until q is booked at 2
    listed = run(build, toy(2), device=device, transfers=[(1, 1), (0, 1)])
    assert listed.transfers.tolist() == [[1, 1, 2, 6], [0, 1, 6, 16]]
    assert times(listed)[2:] == [(6, 7), (16, 17)]
    # without a common engine the list orders nothing: each starts when it is produced
    apart = run(build, toy(2, engines=()), device=device, transfers=[(1, 1), (0, 1)])
    assert apart.transfers.tolist() == [[0, 1, 1, 11], [1, 1, 2, 6]]


def test_listed_transfers_must_be_all_and_nothing_else() -> None:
    build, device = two_tensors_for_dev1(), [0, 0, 1, 1]
    refused(build, toy(2), "leave out tensor 'q.out'", device=device, transfers=[(0, 1)])
    rows = [(0, 1), (1, 1), (1, 0)]
    refused(build, toy(2), "tensor 1 to device 0, which is not", device=device, transfers=rows)
    rows = [(0, 1), (1, 1), (0, 1)]
    refused(build, toy(2), "comes twice", device=device, transfers=rows)


def test_a_list_that_waits_in_a_circle_is_an_error() -> None:
    build = Builder("circle")
    a = work(build, "a", 1, size=1)
    b = work(build, "b", 1, [a], size=1)
    c = work(build, "c", 1, [b], size=1)
    build.op("d", "x", reads=[(c, 0)])
    device = [0, 1, 0, 1]
    # c can't be made before a was sent, and is listed first on the same engine
    rows = [(c, 1), (a, 1), (b, 0)]
    error = refused(build, toy(2), "op 'b' waits", device=device, transfers=rows)
    assert error.object == "b"


# --- 4. Copies -------------------------------------------------------------------------------


def three_steps() -> Builder:
    """Three ops of 10 ps each that read a weight w of 20 B."""
    build = Builder("three")
    w = build.tensor("w", bytes=20, kind="weight")
    for name in ("a", "b", "c"):
        build.op(name, "x", reads=[(w, 0)], matrix=10)
    return build


def test_a_copy_runs_from_its_issuing_step_and_stalls_the_needing_one() -> None:
    build = three_steps()
    timeline = run(build, toy(), copies=[Copy(0, HOME, FAST, 0, 2)])
    # issued at 10, takes 20: b 10-20 beside it, c waits from 20 to 30
    assert timeline.copy_start.tolist() == [10]
    assert timeline.copy_end.tolist() == [30]
    assert times(timeline) == [(0, 10), (10, 20), (30, 40)]
    assert timeline.op_stall.tolist() == [0, 0, 10]
    assert timeline.link_bytes.tolist() == [20, 0]


def test_copies_hold_their_engines_in_row_order() -> None:
    rows = [Copy(0, HOME, FAST, BEFORE, 3, 0, 4), Copy(0, HOME, FAST, BEFORE, 3, 4, 20)]
    timeline = run(three_steps(), toy(link_latency=3), copies=rows)
    assert timeline.copy_start.tolist() == [0, 7]  # 3 + 4
    assert timeline.copy_end.tolist() == [7, 26]  # 7 + 3 + 16
    late = [Copy(0, HOME, FAST, 2, 3), Copy(0, FAST, HOME, 1, 3)]
    timeline = run(three_steps(), toy(), copies=late)
    assert timeline.copy_start.tolist() == [30, 20]  # two links, two engines each
    assert timeline.total_ps == 50  # the end waits for both
    assert timeline.op_stall.tolist() == [0, 0, 0]


def test_copies_are_booked_after_the_transfers_of_their_step() -> None:
    build = Builder("both")
    p = work(build, "p", 1, size=10)
    build.op("use", "x", reads=[(p, 0)])
    link = Copy(p, 1, 3, 0, 2)  # home0 to home1, as the transfer
    timeline = run(build, toy(2), device=[0, 1], copies=[link])
    assert timeline.transfers.tolist() == [[p, 1, 1, 11]]
    assert timeline.copy_start.tolist() == [11]
    assert timeline.total_ps == 21


def test_steps_that_end_together_book_by_number() -> None:
    build = Builder("twins")
    a = work(build, "a", 5, size=3)
    b = work(build, "b", 5, size=4)
    build.op("use", "x", reads=[(b, 0), (a, 0)])
    machine = toy(3, engines=("bus",))
    # Both end at 5, b on the lower device; the transfers go by the number of the step.
    timeline = run(build, machine, device=[1, 0, 2])
    assert timeline.transfers.tolist() == [[a, 2, 5, 8], [b, 2, 8, 12]]
    # So do copies: all of step a first. Row 1 (issued by a) comes before row 0 (by b).
    home0, fast0, home1, fast1 = 1, 0, 3, 2
    rows = [Copy(b, home0, fast0, 1, 3), Copy(a, home1, fast1, 0, 3)]
    timeline = run(build, machine, device=[1, 0, 2], copies=rows)
    assert timeline.transfers.tolist() == [[a, 2, 5, 8], [b, 2, 11, 15]]
    assert timeline.copy_start.tolist() == [15, 8]


def test_frees_of_an_instant_precede_its_allocations_on_every_device() -> None:
    build = Builder("instant")
    p = build.tensor("p", bytes=10)
    build.op("make", "x", writes=[p])  # dev0, 0-10; sent 10-20
    q = build.tensor("q", bytes=10)
    build.op("beside", "x", writes=[q])  # dev1, 0-10: q is freed at 10, when p begins to arrive
    build.op("use", "x", reads=[p])  # dev1, 20-30
    r = build.tensor("r", bytes=10)
    build.op("after", "x", writes=[r])  # dev0, 10-20
    s = build.tensor("s", bytes=10)
    build.op("last", "x", writes=[s])  # dev0, 20-30: p was sent at 20, r is over
    timeline = run(build, toy(2, one_memory=True), device=[0, 1, 1, 0, 0])
    assert timeline.memory_peak.tolist() == [20, 10]  # dev0: p and r


def test_devices_that_share_a_home_need_no_transfer() -> None:
    machine = toy(3)
    shared = tuple(
        replace(device, memories=(f"fast{i}", "home0" if i < 2 else "home2"))
        for i, device in enumerate(machine.devices)
    )
    machine = replace(machine, devices=shared)
    build = Builder("near")
    w = build.tensor("w", bytes=5, kind="weight")
    p = build.tensor("p", bytes=10)
    build.op("make", "x", reads=[(w, 0)], writes=[(p, 0)])
    build.op("near", "x", reads=[(p, 0), (w, 0)])
    build.op("far", "x", reads=[(p, 0), (w, 0)])
    timeline = run(build, machine, device=[1, 0, 2])
    # make on dev1, 0-1; dev0 has the same home. One transfer of each to dev2: w 0-5, p 5-15.
    assert times(timeline) == [(0, 1), (1, 2), (15, 16)]
    assert timeline.transfers.tolist() == [[w, 2, 0, 5], [p, 2, 5, 15]]
    assert timeline.memory_peak.tolist() == [0, 15, 0, 0, 0, 15]
    # The other way the transfer is to dev0, the first with that home, for both readers.
    timeline = run(build, machine, device=[2, 1, 0])
    assert timeline.transfers.tolist() == [[w, 0, 0, 5], [p, 0, 5, 15]]
    assert times(timeline) == [(0, 1), (15, 16), (15, 16)]


def test_a_copy_inside_a_loop_runs_as_often_as_its_reader() -> None:
    build = Builder("loop")
    loop = build.loop(3)
    w = build.tensor("w", bytes=5, kind="weight")
    build.op("before", "x", reads=[(w, 0)])
    build.op("a", "x", reads=[(w, 0)], loop=loop)
    build.op("b", "x", reads=[(w, 0)], loop=loop)
    inside = run(build, toy(), copies=[Copy(w, HOME, FAST, 1, 2)])
    assert inside.copy_end.tolist() == [19]  # before 1, a 3 · 1, 3 · 5
    assert inside.link_bytes.tolist() == [15, 0]
    across = run(build, toy(), copies=[Copy(w, HOME, FAST, 0, 2)])
    assert across.copy_end.tolist() == [6]  # once
    assert across.link_bytes.tolist() == [5, 0]


def test_positions_of_views_mean_the_steps_around_them() -> None:
    build = Builder("views")
    w = build.tensor("w", bytes=4, kind="weight")
    views = [build.tensor(f"v{i}", bytes=4, alias=w) for i in range(2)]
    build.op("view0", "reshape", reads=[w], writes=[views[0]], view=True)
    build.op("a", "x", reads=[(w, 0)])
    build.op("b", "x", reads=[(w, 0)])
    build.op("view1", "reshape", reads=[w], writes=[views[1]], view=True)
    program = build.build()
    # after view0 = before every step; needed by view1 = by the end
    timeline = run(program, toy(), copies=[Copy(views[0], HOME, FAST, 0, 3)])
    assert (timeline.copy_start[0], timeline.copy_end[0], timeline.total_ps) == (0, 4, 4)
    # after view1 = after b
    timeline = run(program, toy(), copies=[Copy(w, HOME, FAST, 3, 4)])
    assert (timeline.copy_start[0], timeline.total_ps) == (2, 6)
    # needed by view0 = needed by a
    timeline = run(program, toy(), copies=[Copy(w, HOME, FAST, BEFORE, 0)])
    assert times(timeline) == [(0, 0), (4, 5), (5, 6), (0, 0)]


def test_a_copy_must_be_issued_before_it_is_needed() -> None:
    for issued, needed in ((1, 1), (2, 1)):
        rows = [Copy(0, HOME, FAST, issued, needed)]
        for rule in ("free", "idle"):
            machine = toy(rules=Rules(copies=rule))
            assert refused(three_steps(), machine, "copy 0 of tensor 'w'", copies=rows).number == 0
    # In the plan's order b comes before a.
    rows = [Copy(0, HOME, FAST, 1, 0)]
    assert run(three_steps(), toy(), copies=rows, order=[1, 0, 2]).total_ps == 50  # 10 + 20 + 20


def test_a_stall_is_only_what_copies_add() -> None:
    build = Builder("stall")
    a = work(build, "a", 10, size=15)
    w = build.tensor("w", bytes=30, kind="weight")
    build.op("b", "x", reads=[(a, 0), (w, 0)])
    # a ends at 10 on dev0, its transfer at 25 (home0 to home1); the copy home1 to fast1 at 30
    rows = [Copy(w, 3, 2, BEFORE, 1)]
    timeline = run(build, toy(2), device=[0, 1], copies=rows)
    assert times(timeline) == [(0, 10), (30, 31)]
    assert timeline.op_stall.tolist() == [0, 5]


# --- 4. Which step starts --------------------------------------------------------------------


def two_ready_later() -> Program:
    """dev1: 'late' (needs a, ready at 5), 'soon' (needs b, ready at 3); a and b on dev0, 2."""
    build = Builder("queue")
    gate = work(build, "gate", 4)
    a = work(build, "a", 5)
    b = work(build, "b", 3)
    late = work(build, "late", 10, [a])
    soon = work(build, "soon", 10, [b])
    work(build, "free", 4)
    work(build, "end", 1, [gate, late, soon])
    return build.build()


def test_queues_choose_among_what_is_ready() -> None:
    program = two_ready_later()
    machine = toy(3, engines=())
    device = [1, 0, 2, 1, 1, 1, 1]

    def order_on_dev1(**plan: Any) -> list[str]:
        timeline = run(program, machine, device=device, **plan)
        ops = sorted((op for op in range(7) if device[op] == 1), key=lambda o: timeline.op_start[o])
        return [program.op_name[op] for op in ops]

    # `a.out` is empty, so its transfer takes 1: 'late' is ready at 6, 'soon' at 4.
    # order: waits for 'late' though 'soon' and 'free' are ready
    assert order_on_dev1() == ["gate", "late", "soon", "free", "end"]
    # ready: at 4 the smallest position among soon (4) and free (5); 'late' is ready when it ends
    assert order_on_dev1(queue="ready") == ["gate", "soon", "late", "free", "end"]
    moved = [0, 1, 2, 5, 3, 4, 6]  # 'free' before 'late'
    assert order_on_dev1(queue="ready", order=moved) == ["gate", "free", "late", "soon", "end"]
    # fifo: gate and free are ready at 0, the smaller number first; then soon (4), late (6)
    assert order_on_dev1(queue="fifo") == ["gate", "free", "soon", "late", "end"]
    # priority: the largest key among the ready ones
    keys = [0, 0, 0, 9, 1, 2, 0]
    found = order_on_dev1(queue="priority", priority=keys)
    # free (2) 0-4; at 4 soon (1) before gate (0), for late (9) is not ready until 6
    assert found == ["free", "soon", "late", "gate", "end"]


def test_equal_keys_go_by_fifo_or_by_the_longest_path() -> None:
    build = Builder("tie")
    short = work(build, "short", 2)
    long = work(build, "long", 2)
    work(build, "after short", 3, [short])
    work(build, "after long", 9, [long])
    keys = [1.0] * 4
    fifo = run(build, toy(), queue="priority", priority=keys)
    # ready times: short 0, long 0, after short 2, after long 4
    assert fifo.op_start.tolist() == [0, 2, 4, 7]
    # bottom levels: short 2 + 3, long 2 + 9, after short 3, after long 9
    path = run(build, toy(), queue="priority", priority=keys, tie="critical_path")
    assert path.op_start.tolist() == [11, 0, 13, 2]


def test_a_step_has_the_largest_key_of_its_members() -> None:
    build = Builder("keys")
    for name in "abc":
        work(build, name, 5)
    timeline = run(build, toy(), queue="priority", priority=[0, 1, 2], fusion=[0, -1, 0])
    assert times(timeline) == [(0, 10), (10, 15), (0, 10)]


def test_tables_need_the_queue_order() -> None:
    for name, rows in (
        ("residencies", [Residency(0, FAST, NO_OFFSET, 0, 0)]),
        ("copies", [Copy(0, HOME, FAST, BEFORE, 0)]),
        ("transfers", [(0, 0)]),
    ):
        error = refused(chain([1, 1]), toy(), "use the queue 'order'", queue="fifo", **{name: rows})
        assert (error.object, error.number) == (name, 1)


def test_an_order_that_can_not_run_is_an_error() -> None:
    error = refused(chain([1, 1, 1]), toy(), "op 'op1' waits", order=[1, 0])
    assert error.object == "op1"
    assert run(chain([1, 1, 1]), toy(), order=[1, 0], queue="ready").total_ps == 4
    circle = Builder("circle")
    a = work(circle, "a", 1)
    b = work(circle, "b", 1, [a])
    work(circle, "c", 1, [b])
    refused(circle, toy(), "waits for ever", fusion=[0, -1, 0], queue="fifo")
    refused(
        circle,
        toy(),
        "waits for ever",
        fusion=[0, -1, 0],
        queue="priority",
        priority=[0, 0, 0],
        tie="critical_path",
    )


@pytest.mark.parametrize(
    ("words", "plan"),
    [
        ("no permutation", {"order": [0, 0]}),
        ("no permutation", {"order": [0, 2]}),
        ("'order' has 1 entries", {"order": [0]}),
        ("'device' has 3 entries", {"device": [0, 0, 0]}),
        ("device of op 1", {"device": [0, 1]}),
        ("queue 'lifo'", {"queue": "lifo"}),
        ("tie 'coin'", {"tie": "coin"}),
        ("queue 'priority'", {"queue": "priority"}),
        ("queue 'priority'", {"queue": "priority", "priority": [0.0, float("nan")]}),
        ("tensor of residency 0", {"residencies": [(3, 0, -1, 0, 0)]}),
        ("memory of residency 0", {"residencies": [(0, 2, -1, 0, 0)]}),
        ("first op of residency 0", {"residencies": [(0, 0, -1, 2, 0)]}),
        ("last op of residency 0", {"residencies": [(0, 0, -1, 0, -1)]}),
        ("offset of residency 0", {"residencies": [(0, 0, -2, 0, 0)]}),
        ("tensor of copy 0", {"copies": [(-1, 1, 0, 0, 1)]}),
        ("source of copy 0", {"copies": [(0, 2, 0, 0, 1)]}),
        ("target of copy 0", {"copies": [(0, 1, -1, 0, 1)]}),
        ("issuing op of copy 0", {"copies": [(0, 1, 0, 2, 2)]}),
        ("needing op of copy 0", {"copies": [(0, 1, 0, 0, 3)]}),
        ("high byte of copy 0", {"copies": [(0, 1, 0, 0, 1, 3, -1)]}),
        ("fusion group of op 1", {"fusion": [0, 2]}),
        ("low byte of copy 0", {"copies": [(0, 1, 0, 0, 1, 3, 2)]}),
    ],
)
def test_numbers_out_of_range_are_refused(words: str, plan: dict[str, Any]) -> None:
    refused(chain([4, 4, 4]), toy(), words, **plan)


# --- 5. Rule 'idle': the oracles of XLA's tests ----------------------------------------------


def xla(build: Builder, **plan: Any) -> Timeline:
    return run(build, load_machine("xla-sim"), **plan)


def test_xla_a_copy_beside_a_memory_bound_op() -> None:
    build = Builder("async copy")
    x, y = build.tensor("x", bytes=8, kind="input"), build.tensor("y", bytes=8)
    w = build.tensor("w", bytes=32, kind="weight")
    build.op("op", "x", reads=[x], writes=[y])
    timeline = xla(build, copies=[Copy(w, HOME, FAST, BEFORE, 1)])
    assert times(timeline) == [(0, 16 * S)]  # 8 + 8 B at 1 B/s, never idle
    assert timeline.total_ps == 48 * S  # then 32 B


def test_xla_copies_awaited_and_one_beside_an_all_fast_op() -> None:
    build = Builder("prefetch")
    a, b = (build.tensor(name, bytes=256, kind="input") for name in "ab")
    c = build.tensor("c", bytes=256)
    d = build.tensor("d", bytes=512, kind="weight")
    build.op("op", "x", reads=[a, b], writes=[c])
    fast = [Residency(tensor, FAST, NO_OFFSET, 0, 0) for tensor in (a, b, c)]
    rows = [Copy(a, HOME, FAST, BEFORE, 0), Copy(b, HOME, FAST, BEFORE, 0), Copy(d, HOME, FAST, BEFORE, 1)]
    timeline = xla(build, residencies=fast, copies=rows)
    assert timeline.copy_end.tolist() == [256 * S, 512 * S, 1024 * S]
    assert times(timeline) == [(512 * S, 896 * S)]  # 3 · 256 B at 2 B/s = 384 s
    assert timeline.op_stall.tolist() == [512 * S]
    assert timeline.total_ps == 1024 * S  # d: 384 s done during the op, 128 s after it


def sharing(flops: int, reads: int, fast_reads: int = 0) -> Builder:
    """One op over a weight R of 512 B and one W of 128 B (the tensors of the two queues)."""
    build = Builder("sharing")
    build.tensor("R", bytes=512, kind="weight")
    build.tensor("W", bytes=128, kind="weight")
    x, y = (build.tensor("x", bytes=reads, kind="input"), build.tensor("y", bytes=fast_reads, kind="input"))
    build.op("op", "x", reads=[x, y], matrix=flops)
    return build


def test_xla_waiting_for_one_queue_beside_the_other() -> None:
    rows = [Copy(0, HOME, FAST, BEFORE, 1), Copy(1, FAST, HOME, BEFORE, 0)]
    timeline = xla(sharing(0, 1), copies=rows)
    # W: 128 B at half speed = 256 s. The op (1 s) leaves no idle time. R has 512 - 128 = 384 B left.
    assert timeline.copy_end.tolist() == [(256 + 1 + 384) * S, 256 * S]
    assert timeline.op_stall.tolist() == [256 * S]
    assert timeline.copy_start.tolist() == [0, 0]


def test_xla_idle_time_is_shared_by_halves() -> None:
    # 128 B at 1 B/s and 128 B at 2 B/s: 192 s, of which 64 s leave slow memory idle.
    build = sharing(0, 128, 128)
    rows = [Copy(0, HOME, FAST, BEFORE, 1, 0, 128), Copy(1, FAST, HOME, BEFORE, 1)]
    timeline = xla(build, copies=rows, residencies=[Residency(3, FAST, NO_OFFSET, 0, 0)])
    assert times(timeline) == [(0, 192 * S)]
    # 32 B of each were done: 96 + 96 B are left, at half speed each: both end 192 s later
    assert timeline.copy_end.tolist() == [384 * S, 384 * S]
    # Waiting for one alone takes as long; the other has left by then.
    alone = [Copy(0, HOME, FAST, BEFORE, 1, 0, 128)]
    timeline = xla(build, copies=alone, residencies=[Residency(3, FAST, NO_OFFSET, 0, 0)])
    assert timeline.total_ps == (192 + 64) * S


def test_xla_a_queue_that_empties_frees_the_other() -> None:
    rows = [Copy(0, HOME, FAST, BEFORE, 1), Copy(1, FAST, HOME, BEFORE, 1)]
    # 256 s shared empty W (128 B); then 384 s alone empty R: 640 s
    assert xla(sharing(1000, 0), copies=rows).total_ps == 1000 * S
    assert xla(sharing(640, 0), copies=rows).total_ps == 640 * S
    assert xla(sharing(639, 0), copies=rows).total_ps == 640 * S  # one second is left, alone
    assert xla(sharing(256, 0), copies=rows).total_ps == 640 * S
    timeline = xla(sharing(200, 0), copies=rows)
    # 100 B of each done: R 412, W 28 left. Waiting for R: 56 shared, 384 alone
    assert timeline.copy_end.tolist() == [640 * S, 640 * S]


# --- 5. Rule 'idle': the rest ----------------------------------------------------------------

IDLE = Rules(copies="idle")


def test_half_picoseconds_of_work_are_exact() -> None:
    build = Builder("halves")
    w = build.tensor("w", bytes=20, kind="weight")
    build.op("a", "x", reads=[(w, 0)], matrix=3)
    build.op("b", "x", reads=[(w, 0)])
    machine = toy(rules=IDLE)
    rows = [
        Copy(w, HOME, FAST, BEFORE, 1, 0, 5),
        Copy(w, FAST, HOME, BEFORE, 2, 0, 1),
        Copy(w, HOME, FAST, BEFORE, 2, 0, 4),
    ]
    timeline = run(build, machine, copies=rows)
    # Halves: R 10 and 8; W 2. a (3 ps): 2 ps shared (W gone, R 8 and 8), 1 ps alone (R 6 and 8).
    # b waits 3 ps for the first. b (1 ps, idle): R 8 - 2 = 6, so 3 ps at the end.
    assert timeline.copy_end.tolist() == [6, 3, 10]
    assert timeline.op_stall.tolist() == [0, 3]
    rows = [Copy(w, HOME, FAST, BEFORE, 1, 0, 5), Copy(w, FAST, HOME, BEFORE, 2, 0, 3)]
    timeline = run(build, machine, copies=rows)
    # a: 3 ps shared: R 10 - 3 = 7, W 6 - 3 = 3. b waits for R: 3 ps shared, then 4 alone = 2 ps.
    assert timeline.copy_end.tolist() == [8, 8]
    rows = [Copy(w, HOME, FAST, BEFORE, 1, 0, 4), Copy(w, FAST, HOME, BEFORE, 2, 0, 20)]
    timeline = run(build, machine, copies=rows)
    # a: R 8 - 3 = 5, W 40 - 3 = 37. b waits 5 ps (shared): W 32. b: 1 ps alone: 30. End: 15 ps.
    assert timeline.copy_end.tolist() == [8, 24]


def test_waits_are_in_order_of_issue_and_multiplied_by_the_loop() -> None:
    build = Builder("loop")
    loop = build.loop(10)
    w = build.tensor("w", bytes=20, kind="weight")
    build.op("a", "x", reads=[w], loop=loop)
    build.op("b", "x", reads=[(w, 0)], matrix=2, loop=loop)
    rows = [Copy(w, HOME, FAST, 0, 1, 0, 6), Copy(w, HOME, FAST, BEFORE, 1, 0, 4)]
    timeline = run(build, toy(rules=IDLE), copies=rows)
    # a: 20 ps, never idle, ten times. b waits for row 1 (issued first): 4 · 10; row 0 is pushed
    # after that and takes 6 · 10 more.
    assert timeline.copy_start.tolist() == [240, 0]
    assert timeline.copy_end.tolist() == [300, 240]
    assert times(timeline) == [(0, 200), (300, 320)]
    assert timeline.op_stall.tolist() == [0, 100]
    assert timeline.total_ps == 320


def test_a_copy_that_leaves_during_a_step_ends_with_it() -> None:
    build = three_steps()
    timeline = run(build, toy(rules=IDLE), copies=[Copy(0, HOME, FAST, 0, 2, 0, 3)])
    assert timeline.copy_start.tolist() == [10]
    assert timeline.copy_end.tolist() == [20]
    assert timeline.op_stall.tolist() == [0, 0, 0]


def test_the_work_of_a_copy_uses_the_slower_of_link_and_home() -> None:
    machine = toy(rules=IDLE, link_latency=2)
    slow_write = replace(machine.memories[1], read=PS // 2, write=PS // 4)
    machine = replace(machine, memories=(machine.memories[0], slow_write))
    build = Builder("work")
    w = build.tensor("w", bytes=3, kind="weight")
    build.op("a", "x", reads=[(w, 0)])
    end = {"issued_after": 0, "needed_by": 1}
    assert run(build, machine, copies=[Copy(w, HOME, FAST, **end)]).total_ps == 9  # 1 + 2 + 6
    assert run(build, machine, copies=[Copy(w, FAST, HOME, **end)]).total_ps == 15  # 1 + 2 + 12
    assert run(build, toy(rules=IDLE), copies=[Copy(w, FAST, HOME, low=0, high=0, **end)]).total_ps == 2


def test_idle_has_one_device_one_queue_and_copies_of_the_home() -> None:
    machine = toy(rules=IDLE)
    refused(chain([1, 1]), machine, "use the queue 'order'", queue="fifo")
    refused(chain([1, 1]), machine, "leave transfers out", transfers=[(0, 0)])
    refused(chain([1, 1]), toy(2, rules=IDLE), "2 devices")
    middle = Memory("middle", 100, PS, PS)
    device = replace(machine.devices[0], memories=("fast0", "middle", "home0"))
    machine = replace(
        machine,
        devices=(device,),
        memories=(*machine.memories, middle),
        links=(*machine.links, Link("middle", "fast0", PS)),
    )
    rows = [Copy(0, 2, FAST, BEFORE, 0)]
    error = refused(chain([1, 1]), machine, "from or to 'home0'", copies=rows)
    assert error.object == "t0"


# --- 6. Memory -------------------------------------------------------------------------------


def peaks(timeline: Timeline) -> list[int]:
    return timeline.memory_peak.tolist()


def test_a_result_is_held_from_its_step_to_its_last_reader() -> None:
    # op0 holds t0 10 + t1 20, op1 t1 20 + t2 5, op2 t2 5 + t3 7
    assert peaks(run(chain([10, 20, 5, 7]), toy())) == [0, 30]
    # frees come before allocations: t0 is freed when op1 starts
    assert peaks(run(chain([10, 20, 11]), toy())) == [0, 31]


def test_sizes_are_rounded_up_to_the_alignment_of_each_memory() -> None:
    assert peaks(run(chain([10, 20, 5]), toy(alignment=16))) == [0, 48]  # 16 + 32


def test_outputs_stay_and_unread_results_go() -> None:
    build = Builder("outputs")
    out = build.tensor("out", bytes=100, kind="output")
    lost = build.tensor("lost", bytes=10)
    last = build.tensor("last", bytes=1)
    build.op("a", "x", writes=[out])
    build.op("b", "x", writes=[lost])
    build.op("c", "x", writes=[last])
    assert peaks(run(build, toy())) == [0, 110]
    sent = run(build, toy(2), device=[1, 0, 0])
    assert peaks(sent) == [0, 10, 0, 100]


def test_a_place_counts_once_with_its_largest_member() -> None:
    build = Builder("ties")
    w = build.tensor("w", bytes=10, kind="weight")
    new = build.tensor("new", bytes=12)
    x = build.tensor("x", bytes=3, kind="input")
    y = build.tensor("y", bytes=3, kind="output")
    op = build.op("update", "x", reads=[w, x], writes=[new, y])
    build.tie(TieKind.INPLACE, w, new, op)
    build.tie(TieKind.DONATED, x, y)  # no place of its own
    assert peaks(run(build, toy())) == [0, 18]  # {w, new} 12, x 3, y 3


def test_carried_values_share_a_place() -> None:
    build = Builder("carried")
    loop = build.loop(3)
    start = build.tensor("start", bytes=8)
    build.op("init", "x", writes=[start])
    step = build.tensor("step", bytes=8)
    build.op("body", "x", reads=[start], writes=[step], loop=loop)
    build.tie(TieKind.CARRIED, start, step, loop)
    assert peaks(run(build, toy())) == [0, 8]


def test_a_residency_is_held_between_its_steps() -> None:
    program = chain([4, 8, 2, 2]).build()
    rows = [Residency(1, FAST, 16, 0, 1)]
    timeline = run(program, toy(), residencies=rows)
    # t1 (8) in fast during op0 and op1, its home is never opened; home: t0 4; t2 2; t2 + t3 4
    assert peaks(timeline) == [8, 4]
    assert timeline.memory_top.tolist() == [24, 0]
    assert timeline.memory_over.tolist() == [0, 0]


def test_a_window_without_a_step_holds_nothing_but_its_offset_counts() -> None:
    rows = [Residency(1, FAST, 5, 1, 0)]
    timeline = run(chain([4, 8, 2]), toy(), residencies=rows)
    assert peaks(timeline)[FAST] == 0
    assert timeline.memory_top.tolist() == [13, 0]


def test_a_weight_waits_in_its_residency_from_before() -> None:
    build = three_steps()
    assert peaks(run(build, toy())) == [0, 20]
    # all reads from fast: the home copy has no use
    rows = [Residency(0, FAST, NO_OFFSET, BEFORE, 2)]
    assert peaks(run(build, toy(), residencies=rows)) == [20, 0]
    # c reads it from home: opened at time 0, and over when c ends
    rows = [Residency(0, FAST, NO_OFFSET, BEFORE, 1)]
    assert peaks(run(build, toy(), residencies=rows)) == [20, 20]


def test_inputs_are_there_from_the_start_to_their_last_use_on_each_device() -> None:
    build = Builder("input")
    x = build.tensor("x", bytes=30, kind="input")
    big = build.tensor("big", bytes=50)
    unread = build.tensor("unread", bytes=1000, kind="input")
    build.op("a", "x", reads=[x])
    build.op("b", "x", reads=[x])
    build.op("c", "x", writes=[big])
    # dev0: x until a ends, then big; dev1: x
    timeline = run(build, toy(2), device=[0, 1, 0])
    assert peaks(timeline) == [0, 50, 0, 30]
    assert unread == 2
    # A copy from home0 keeps x there until it ends (30 ps beside c): 30 + 50
    rows = [Copy(x, 1, 0, 0, 3)]
    assert peaks(run(build, toy(2), device=[0, 1, 0], copies=rows)) == [0, 80, 0, 30]


def test_a_transfer_holds_both_ends() -> None:
    build = Builder("transfer")
    p = build.tensor("p", bytes=10)
    q = build.tensor("q", bytes=100)
    r = build.tensor("r", bytes=1000)
    build.op("make", "x", writes=[p])
    build.op("beside", "x", writes=[q])  # 10-110 on dev0 while p is sent, 10-20
    build.op("use", "x", reads=[p])  # 20-30 on dev1
    build.op("after", "x", writes=[r])  # 30- on dev1: p is gone
    timeline = run(build, toy(2, one_memory=True), device=[0, 0, 1, 1])
    assert timeline.transfers.tolist() == [[p, 1, 10, 20]]
    assert peaks(timeline) == [110, 1000]


def test_an_explicit_copy_home_opens_the_home_copy() -> None:
    build = Builder("evict")
    t = build.tensor("t", bytes=8)
    other = build.tensor("other", bytes=5)
    build.op("make", "x", writes=[t])  # in fast, 2 ps
    build.op("beside", "x", writes=[other])  # 2-7
    build.op("use", "x", reads=[t])  # from home
    rows = [Residency(t, FAST, NO_OFFSET, 0, 0)]
    # Nothing opens the home copy: only `other` is held at home.
    assert peaks(run(build, toy(), residencies=rows)) == [8, 5]
    # The copy opens it at 2; 'use' reads it at 10: t 8 + other 5
    copies = [Copy(t, FAST, HOME, 0, 2)]
    timeline = run(build, toy(), residencies=rows, copies=copies)
    assert times(timeline) == [(0, 2), (2, 7), (10, 18)]
    assert peaks(timeline) == [8, 13]


def test_over_counts_bytes_or_addresses_and_says_when() -> None:
    program = chain([10, 20, 25]).build()
    timeline = run(program, toy(capacity=32))
    # op0: 30 fits; op1 (from 30): t1 20 + t2 25 = 45
    assert timeline.memory_peak.tolist() == [0, 45]
    assert timeline.memory_over.tolist() == [0, 13]
    assert timeline.memory_first_over.tolist() == [-1, 30]
    assert not timeline.fits
    rows = [Residency(1, FAST, 20, 0, 0)]
    timeline = run(program, toy(capacity=32), residencies=rows)
    # fast: 20 B at address 20 end at 40, though only 20 are held
    assert timeline.memory_over.tolist()[FAST] == 8
    assert timeline.memory_first_over.tolist()[FAST] == -1
    at_once = run(program, toy(capacity=5))
    assert at_once.memory_first_over.tolist() == [-1, 0]


def test_memory_under_idle_follows_the_boundary() -> None:
    build = Builder("boundary")
    x = build.tensor("x", bytes=10, kind="input")
    y = build.tensor("y", bytes=40)
    build.op("a", "x", reads=[x], writes=[y])  # reads at home
    build.op("b", "x", reads=[x, y])
    # Pushed when a has ended, awaited by b: x is in fast while it moves? Only if a residency says so.
    rows = [Residency(x, FAST, NO_OFFSET, 1, 1)]
    timeline = run(build, toy(rules=IDLE), residencies=rows, copies=[Copy(x, HOME, FAST, BEFORE, 1)])
    # a: 50 ps, never idle. b waits 10 for the copy, then 3 (10 B in fast) + 40.
    assert times(timeline) == [(0, 50), (60, 103)]
    assert peaks(timeline) == [10, 50]


# --- 7. The Timeline, and whole presets ------------------------------------------------------


def test_a_program_without_steps_takes_no_time() -> None:
    build = Builder("nothing")
    w = build.tensor("w", bytes=7, kind="weight")
    assert run(build, toy()).total_ps == 0
    copies = [Copy(w, HOME, FAST, BEFORE, 0)]
    for rules in (Rules(), IDLE):
        timeline = run(build, toy(rules=rules), copies=copies)
        assert timeline.total_ps == 7
        assert timeline.copy_end.tolist() == [7]
        assert peaks(timeline) == [0, 7]


def test_columns_have_one_row_per_thing() -> None:
    machine = toy(2)
    timeline = run(chain([1, 1, 1]), machine, device=[0, 1])
    assert timeline.transfers.shape == (1, 4)
    assert timeline.link_bytes.shape == (len(machine.links),)
    assert timeline.memory_peak.shape == (4,)
    assert timeline.copy_start.shape == (0,)
    assert timeline.op_start.dtype == np.int64


def test_egrl_a_node_is_its_launch_and_the_larger_of_compute_and_memory() -> None:
    machine = load_machine("nnp-i")
    build = Builder("node")
    x = build.tensor("x", bytes=680, kind="input")
    w = build.tensor("w", bytes=6800, kind="weight")
    y = build.tensor("y", bytes=672)
    z = build.tensor("z", bytes=672, kind="output")
    # macs and vector ops: 92,012,544 matrix flops = 1,000,000 ps and 718,848 = 1,000,000 ps
    build.op("compute", "conv", reads=[x, w], writes=[y], matrix=92_012_544, vector=718_848)
    build.op("memory", "pool", reads=[y], writes=[z], vector=7)
    rows = [
        Residency(w, 0, 0, BEFORE, 1),  # sram
        Residency(y, 1, 0, 0, 1),  # llc
    ]
    timeline = run(build, machine, residencies=rows)
    # x is in dram: ceil(680 · 10^12 / 67.2e9) = 10,120 (10,119.05); w: 1,000; y: ceil(988.2) = 989
    # -> memory 12,109 < compute 2,000,000; launch 200,000
    assert times(timeline)[0] == (0, 2_200_000)
    # y: 989 from llc; z: 672 B to dram = 10,000 -> 10,989; compute ceil(9.74) = 10
    assert times(timeline)[1] == (2_200_000, 2_200_000 + 200_000 + 10_989)
    # aligned to 64: sram 6,848 (6,800), llc 704 (672), dram: x 704 and, later, z 704
    assert peaks(timeline) == [6848, 704, 704]


def test_go_clusters_transfers_and_weights() -> None:
    machine = load_machine("toy2")
    build = Builder("step")
    w = build.tensor("w", bytes=10_000, kind="weight")
    x = build.tensor("x", bytes=1_000_000, kind="input")
    y = build.tensor("y", bytes=1_000_000)
    z = build.tensor("z", bytes=1_000_000)
    build.op("first", "matmul", reads=[x], writes=[y], matrix=4_000_000)
    build.op("second", "matmul", reads=[y, w], writes=[z], matrix=1_000_000)
    build.op("owner", "add", reads=[(w, 0)], vector=1)
    us = 10**6
    timeline = run(build, machine, device=[0, 1, 0], queue="fifo")
    # w lives with its first reader, op 'second', on gpu1, and is sent to gpu0 at time 0:
    # 10 us + 10,000 B / 10 GB/s = 1 us.
    # first: 1 us + max(4, 2) us + 0.05 · 2 us = 5.1 us. Then y: 10 us + 100 us = 110 us.
    # second: 1 us + max(1, 2.01) us + 0.05 · 1 us = 3.06 us
    # owner: 1 us + 1 ps + ceil(0.05 · 0)
    assert timeline.transfers.tolist() == [[w, 0, 0, 11 * us], [y, 1, 5_100_000, 115_100_000]]
    assert times(timeline) == [(0, 5_100_000), (115_100_000, 118_160_000), (11 * us, 12 * us + 1)]
    # gpu0: x and y, 2 MB, and w's copy until 'owner' ends (12 us), y until it is sent
    assert peaks(timeline) == [2_010_000, 2_010_000]


def test_go_fifo_replays_to_the_picosecond() -> None:
    """A run's order of steps and of transfers, handed in, gives the same Timeline."""
    program = two_ready_later()
    machine = toy(3, link_latency=2)
    device = [1, 0, 2, 1, 1, 1, 1]
    first = run(program, machine, device=device, queue="fifo")
    order = np.lexsort((np.arange(program.n_ops), first.op_start))
    again = run(program, machine, device=device, order=order, transfers=first.transfers[:, :2].tolist())
    assert times(again) == times(first)
    assert sorted(again.transfers.tolist()) == sorted(first.transfers.tolist())
    assert again.memory_peak.tolist() == first.memory_peak.tolist()
