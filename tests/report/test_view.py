"""What a report says about a plan, held to the timeline, the plan itself and plain re-counting."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from generate import random_case
from generate_mapping import layers, three_memories
from loadmaster.errors import LoadmasterError
from loadmaster.plan import BEFORE, NO_OFFSET, Copy, Plan, Residency
from loadmaster.program.build import Builder
from loadmaster.report import memory_map
from loadmaster.report.page import Columns
from loadmaster.report.rows import list_changes, order_moves
from loadmaster.report.subject import Subject
from loadmaster.report.view import NOWHERE, View, _lanes, count_transitions, strip_tensors


def views(count: int) -> list[View]:
    """Plans that run; sound ones and others."""
    found: list[View] = []
    for seed in range(3 * count):
        program, machine, plan = random_case(np.random.default_rng(seed), valid_only=True)
        view = View(Subject("plan", program, machine, plan), "after")
        try:
            view.subject.timeline  # noqa: B018
        except LoadmasterError:
            continue
        found.append(view)
    assert len(found) >= count
    return found[:count]


@pytest.fixture(scope="module")
def cases() -> list[View]:
    return views(400)


def test_profiles_have_the_peaks_of_the_timeline(cases: list[View]) -> None:
    sound = 0
    for view in cases:
        if {violation.rule for violation in view.subject.violations} - {"capacity"}:
            assert view.residencies is not None  # not sound: it is shown all the same
            continue
        sound += 1
        peaks = dict.fromkeys(range(len(view.subject.machine.memories)), 0)
        peaks |= {profile.memory: profile.peak for profile in view.profiles}
        assert list(peaks.values()) == view.subject.timeline.memory_peak.tolist()
    assert sound > 60


def test_the_peak_is_reached_at_the_moment_that_is_named(cases: list[View]) -> None:
    for view in cases:
        for profile in view.profiles:
            span = np.stack(view.occupancy.spans(profile.memory), axis=1)
            there = (span[:, 0] <= profile.peak_at) & (profile.peak_at < span[:, 1])
            assert span[there, 2].sum() == profile.peak
            assert profile.peak == 0 or profile.largest


def test_decided_boxes_lie_where_the_plan_puts_them(cases: list[View]) -> None:
    seen = 0
    for view in cases:
        boxes, rows = view.residencies, view.subject.plan.residency_rows
        for i in np.flatnonzero(boxes.decided).tolist():
            own = (boxes.tensor[i], boxes.memory[i], boxes.address[i], boxes.first[i], boxes.last[i])
            assert Residency(*map(int, own)) in rows
            seen += 1
    assert seen > 200


def test_boxes_without_an_address_are_drawn_apart(cases: list[View]) -> None:
    for view in cases:
        boxes, place = view.residencies, view.occupancy.place
        for i, j in combinations(range(len(boxes)), 2):
            if boxes.memory[i] != boxes.memory[j] or (boxes.decided[i] and boxes.decided[j]):
                continue
            if place[boxes.tensor[i]] == place[boxes.tensor[j]] or not boxes.size[[i, j]].all():
                continue  # they share one place, or take none
            in_time = boxes.begin[i] < boxes.end[j] and boxes.begin[j] < boxes.end[i]
            in_space = (
                boxes.address[i] < boxes.address[j] + boxes.size[j]
                and boxes.address[j] < boxes.address[i] + boxes.size[i]
            )
            assert not (in_time and in_space)


def test_the_axis_of_ops_rises_and_ends_with_the_program(cases: list[View]) -> None:
    for view in cases:
        when, ops, numbered = view._warp()
        assert (np.diff(when) > 0).all() and (np.diff(ops) >= 0).all()
        assert (np.diff(ops)[1:] > 0).all()  # before the first op there may be a wait
        assert when[0] == 0 and ops[0] == 0
        assert ops[-1] == (view.subject.program.n_ops if numbered else len(view.bars.op))


def test_every_copy_and_transfer_has_its_bar(cases: list[View]) -> None:
    copies = transfers = 0
    for view in cases:
        timeline, moves = view.subject.timeline, view.moves
        assert sorted(moves.start[moves.planned].tolist()) == sorted(timeline.copy_start.tolist())
        assert (~moves.planned).sum() == len(timeline.transfers)
        copies, transfers = copies + int(moves.planned.sum()), transfers + len(timeline.transfers)
        assert (view.bars.end > view.bars.start).all()
        for device in range(len(view.subject.machine.devices)):
            repeat = view.bars.end[view.bars.device == device].sum()
            repeat -= view.bars.start[view.bars.device == device].sum()
            if view.subject.machine.rules.copies == "free":
                assert repeat == timeline.device_busy[device]
    assert copies > 50 and transfers > 50


def test_bars_of_one_link_lie_side_by_side() -> None:
    start = np.array([0, 0, 5, 6, 7])
    end = np.array([5, 9, 8, 7, 9])
    assert _lanes(np.zeros(5, dtype=np.int64), start, end).tolist() == [0, 1, 0, 2, 2]


def test_order_moves_is_the_least_number() -> None:
    """Against trying all sets of ops to keep."""
    for order in permutations(range(5)):
        plan = Plan.of(order=order)
        kept = max(
            size for size in range(6) if any(list(ops) == sorted(ops) for ops in combinations(order, size))
        )
        assert order_moves(Plan(), plan, 5) == order_moves(plan, Plan(), 5) == 5 - kept


def test_changes_are_counted_and_the_largest_named() -> None:
    program, machine = layers(), three_memories()
    weights = [t for t in range(program.n_tensors) if program.tensor_kind[t] == 0]
    last = program.n_ops - 1
    old = Plan.of(residencies=[Residency(t, 2, NO_OFFSET, BEFORE, last) for t in weights])
    moved = weights[:3]
    rows = [Residency(t, 1 if t in moved else 2, NO_OFFSET, BEFORE, last) for t in weights]
    subjects = [
        Subject(name, program, machine, plan)
        for name, plan in (("old", old), ("new", Plan.of(residencies=rows)))
    ]
    found = list_changes(*subjects)
    sizes = {program.tensor_name[t]: int(program.storage_bytes[t]) for t in moved}
    assert found[0] == {"what": "change", "name": "tensors moved", "count": 3, "bytes": sum(sizes.values())}
    named = [row for row in found if row["what"] == "tensor"]
    assert [row["name"] for row in named] == sorted(sizes, key=lambda name: -sizes[name])
    assert all((row["from"], row["to"]) == ("large", "middle") for row in named)
    # One change after another adds up here, where nothing overlaps: each op waits for its weight.
    assert sum(row["effect_ps"] for row in named) == (
        subjects[1].timeline.total_ps - subjects[0].timeline.total_ps
    )
    assert list_changes(subjects[0], subjects[0]) == []


def test_copies_are_named() -> None:
    build = Builder("two")
    x = build.tensor("x", bytes=64, kind="input")
    w = build.tensor("w", bytes=128, kind="weight")
    y, z = build.tensor("y", bytes=64), build.tensor("z", bytes=64, kind="output")
    build.op("one", "add", reads=[x], writes=[y], vector=64)
    build.op("two", "matmul", reads=[y, w], writes=[z], matrix=640)
    from loadmaster.machine import load_machine

    program, machine = build.build(), load_machine("tpu-v4i")
    fast = machine.memory("cmem")
    plan = Plan.of(residencies=[Residency(w, fast, 0, 0, 1)], copies=[Copy(w, 1 - fast, fast, -1, 1)])
    old, new = (Subject(name, program, machine, p) for name, p in (("a", Plan()), ("b", plan)))
    found = list_changes(old, new)
    assert [(r["name"], r["count"]) for r in found if r["what"] == "change"] == [
        ("tensors moved", 1),
        ("copies added", 1),
    ]
    copy = next(row for row in found if row["what"] == "copy")
    assert (copy["name"], copy["change"], copy["to"], copy["bytes"]) == ("w", "added", "cmem", 128)


def test_transitions_count_every_used_tensor_once(cases: list[View]) -> None:
    for view in cases[:100]:
        program, used = view.subject.program, view.memories != NOWHERE
        found = count_transitions(program, view.memories, view.memories)
        if found is None:
            assert len(np.unique(view.memories[used])) < 2
            continue
        assert found.count.sum() == used.sum() and found.bytes.sum() == program.storage_bytes[used].sum()
        assert (found.count == np.diag(np.diag(found.count))).all()


def test_strips_name_the_largest_result_and_weight() -> None:
    program = layers()
    results, weights = strip_tensors(program)
    assert [program.tensor_name[t] for t in results] == [f"t{i}" for i in range(12)]
    assert [program.tensor_name[t] for t in weights] == [f"w{i}" for i in range(12)]


def test_columns_keep_every_number_and_text() -> None:
    import base64
    import gzip

    rng = np.random.default_rng(0)
    columns, arrays = Columns(), {}
    for i, most in enumerate((1, 200, 2**20, 2**40)):
        arrays[f"c{i}"] = rng.integers(-most, most, size=100 + i)
        columns.add(f"c{i}", arrays[f"c{i}"])
    for i, most in enumerate((2, 300, 2**40)):  # ascending, as times and ends are: as differences
        arrays[f"up{i}"] = np.cumsum(rng.integers(0, most, size=5_000))
        columns.add(f"up{i}", arrays[f"up{i}"])
    texts = ["", "plain", "\u202eevil\n", "</script>", "x" * 10_000, "\ud800"]
    columns.add_texts("names", texts)
    data = gzip.decompress(base64.b64decode(columns.pack()))
    kinds = {"Int8Array": "i1", "Uint8Array": "u1", "Int32Array": "<i4", "Float64Array": "<f8"}
    for name, array in arrays.items():
        kind, offset, length, *steps = columns.table[name]
        assert offset % 8 == 0 and bool(steps) == name.startswith("up")
        read = np.frombuffer(data, dtype=kinds[steps[0] if steps else kind], count=length, offset=offset)
        read = np.cumsum(read).astype(kinds[kind]) if steps else read
        assert (read == array).all()
    kind, offset, length = columns.table["names.ends"]
    ends = np.frombuffer(data, dtype=kinds[kind], count=length, offset=offset).tolist()
    _, offset, length = columns.table["names"]
    joined = data[offset : offset + length]
    read_texts = [joined[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]
    assert read_texts == [*texts[:-1], "?"]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_always_there_lies_below_all_else(seed: int) -> None:
    """Stacked without a search, and as first fit in the same order stacks it."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 20, 30)
    end = begin + rng.integers(1, 20, 30)
    always = rng.random(30) < 0.3
    begin[always], end[always] = 0, 40
    size = rng.integers(1, 9, 30)
    loose = np.full(30, NO_OFFSET)
    whole = end - begin >= (end - begin).max()
    order = np.lexsort((begin, -size, ~whole)).astype(np.int32)
    expected = memory_map._first_fit(begin, end, size, np.full(30, -1), order)
    assert memory_map._pack(begin, end, size, loose).tolist() == expected.tolist()
