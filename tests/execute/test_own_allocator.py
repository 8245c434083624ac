"""The allocator behind planned runs, on host memory: rooms are respected whatever kernels ask for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from loadmaster import _core
from loadmaster.execute.placement import free_ranges, held_bytes, room_columns
from loadmaster.execute.script import Call, FastResidency, Script, Step

GRAIN, ROOM = 512, 64 * 512


def script_of(rng: np.random.Generator, steps: int) -> tuple[Script, list[int], list[int]]:
    """Random residencies that don't overlap, results of the steps in which they begin; offsets, bytes by tensor."""
    residencies: list[FastResidency] = []
    for _ in range(40):
        first = int(rng.integers(-1, steps))
        last = int(rng.integers(max(0, first), steps)) if first >= 0 else steps - 1
        room = int(rng.integers(1, 8)) * 256
        low = int(rng.integers(0, (ROOM - room) // 256)) * 256
        meets = (s for s in residencies if s.first <= last and first <= s.last)
        if all(s.offset + s.bytes <= low or low + room <= s.offset for s in meets):
            residencies.append(FastResidency(len(residencies), first, last, room, low))
    begun = [
        [n for n, s in enumerate(residencies) if s.first == step and rng.random() < 0.7]
        for step in range(steps)
    ]
    call = Call(0, print, (), {}, ())
    made = tuple(Step((), (), call, tuple(begun[step]), (), (), ()) for step in range(steps))
    script = Script((), made, (), tuple(residencies), (), 0, (), 0)
    return script, [s.offset for s in residencies], [s.bytes - int(rng.integers(0, 200)) for s in residencies]


def test_free_ranges_are_what_nobody_has() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        script, offsets, sizes = script_of(rng, 6)
        columns, number = room_columns(script, offsets, sizes, ROOM)
        free = free_ranges(script, offsets, ROOM)
        for step in range(6):
            there = np.zeros(ROOM, dtype=bool)
            for residency in script.residencies:
                if residency.first <= step <= residency.last:
                    there[residency.offset : residency.offset + residency.bytes] = True
            open_ = np.zeros(ROOM, dtype=bool)
            for low, high in free[step].tolist():
                assert low < high and not open_[max(0, low - 1)]  # ascending, and none touch
                open_[low:high] = True
            assert (open_ == ~there).all() and held_bytes(script)[step] == there.sum()
            begin, end = columns["free_start"][step : step + 2]
            assert np.array_equal(columns["free_low"][begin:end], free[step][:, 0])
        for residency, row in number.items():
            assert columns["result_bytes"][row] == sizes[residency]
            assert columns["result_offset"][row] == offsets[residency]


def test_nothing_ever_lies_where_another_does() -> None:
    placed = temporaries = refused = borrowed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        script, offsets, sizes = script_of(rng, 5)
        columns, _ = room_columns(script, offsets, sizes, ROOM)
        own, base = _core.OwnAllocator(2**20), 2**30
        rooms = _core.rooms(base, columns)
        for step, about in enumerate(script.steps):
            assert own.at(rooms, step) == 0
            wanted = [sizes[residency] for residency in about.residencies]
            spots = {(sizes[residency], offsets[residency]) for residency in about.residencies}
            open_ = np.zeros(ROOM, dtype=bool)
            for low, high in free_ranges(script, offsets, ROOM)[step].tolist():
                open_[low:high] = True
            mine = open_.copy()  # free ranges, and the rooms of this step's results
            for residency in about.residencies:
                mine[offsets[residency] : offsets[residency] + script.residencies[residency].bytes] = True
            taken = np.zeros(ROOM, dtype=bool)
            live: list[tuple[int, int]] = []
            asked = [*wanted, *rng.integers(1, 4000, 6).tolist()]
            for size in rng.permutation(asked).tolist():
                if live and rng.random() < 0.4:
                    address, count = live.pop(int(rng.integers(len(live))))
                    own.free(address)
                    taken[address - base : address - base + count] = False
                try:
                    address = own.alloc(size)
                except RuntimeError as error:
                    assert "no room" in str(error)
                    refused += 1
                    continue
                low = address - base
                assert mine[low : low + size].all() and not taken[low : low + size].any()
                taken[low : low + size] = True
                live.append((address, size))
                if (size, low) in spots:
                    placed += 1
                else:
                    assert low % GRAIN == 0
                    temporaries += 1
                    borrowed += not open_[low : low + size].all()
            for address, _ in live:
                own.free(address)
        assert own.at(rooms, -1) == 0 and own.held == 0
        assert (rooms.most >= 0).all() and rooms.most.max() <= ROOM
    assert placed > 300 and temporaries > 1000 and refused > 20 and borrowed > 10


def one_step(results: list[tuple[int, int]], free: list[tuple[int, int]]) -> _core.Rooms:
    """Rooms of a single step: (bytes, offset) of results, and free ranges."""
    made, open_ = (
        np.array(results, dtype=np.int64).reshape(-1, 2),
        np.array(free, dtype=np.int64).reshape(-1, 2),
    )
    return _core.rooms(
        0,
        {
            "result_start": np.array([0, len(made)]),
            "result_bytes": made[:, 0].copy(),
            "result_room": made[:, 0].copy(),
            "result_offset": made[:, 1].copy(),
            "free_start": np.array([0, len(open_)]),
            "free_low": open_[:, 0].copy(),
            "free_high": open_[:, 1].copy(),
        },
    )


def test_what_is_learned_decides_between_allocations_of_one_size() -> None:
    own, rooms = _core.OwnAllocator(2**20), one_step([(1024, 4096)], [(8192, 10240)])
    own.at(rooms, 0)
    assert [own.alloc(1024), own.alloc(1024)] == [4096, 8192]
    assert own.number_of(8192) == 1 and own.within(4000, 100) == [0]
    assert own.at(rooms, 0) == 1024  # a temporary that nobody has freed
    rooms.learn(0, 1)
    assert [own.alloc(1024), own.alloc(1024)] == [8192, 4096]


def test_what_is_freed_before_the_result_may_lie_in_its_place() -> None:
    own, rooms = _core.OwnAllocator(2**20), one_step([(4096, 0)], [(4096, 4608)])
    own.at(rooms, 0)
    assert own.alloc(2048) == 0
    own.free(0)
    assert own.alloc(4096) == 0
    with pytest.raises(RuntimeError, match=r"no room for 513 bytes .* in step 0, where 512 are free"):
        own.alloc(513)


def test_a_result_that_is_smaller_than_the_plan_knows_is_no_temporary() -> None:
    """Where nothing else is free it comes to lie in its own place, and stays there after its step."""
    own, rooms = _core.OwnAllocator(2**20), one_step([(2048, 4096)], [])
    for _ in range(2):
        own.at(rooms, 0)
        assert own.alloc(1900) == 4096
        assert own.at(rooms, -1) == 0
    assert rooms.most[0] == 2048, "the first time alone it counted as one"


def test_what_lies_elsewhere_after_its_step_is_still_told() -> None:
    own, rooms = _core.OwnAllocator(2**20), one_step([(2048, 4096)], [(8192, 12288)])
    own.at(rooms, 0)
    assert own.alloc(1900) == 8192
    assert own.at(rooms, -1) == 2048


def test_between_plans_it_is_a_cache() -> None:
    own = _core.OwnAllocator(10 * 2**20)
    assert own.alloc(0) == 0
    one = own.alloc(2**20)
    own.free(one)
    assert (own.held, own.cached, own.most) == (0, 2**20, 2**20)
    assert own.alloc(2**20 - 100) == one  # the same block again
    own.free(one)
    large = own.alloc(10 * 2**20)  # only if what is cached goes back
    assert own.cached == 0 and own.held == 10 * 2**20
    with pytest.raises(RuntimeError, match="no room for 1 bytes"):
        own.alloc(1)
    own.free(large)
    own.release()
    own.reset_most()
    assert (own.held, own.cached, own.most) == (0, 0, 0)


def test_it_is_held_to_a_budget_with_what_it_caches() -> None:
    own = _core.OwnAllocator(10 * 2**20)
    own.free(own.alloc(3 * 2**20))
    own.hold_to(4 * 2**20)
    kept = own.alloc(2 * 2**20)  # both would be too much
    assert (own.held, own.cached) == (2 * 2**20, 0)
    with pytest.raises(RuntimeError, match="no room for 2097153 bytes beside the 2097152 that are held"):
        own.alloc(2 * 2**20 + 1)
    own.hold_to(2**20)  # what is held stays
    with pytest.raises(RuntimeError, match="no room for 1 bytes"):
        own.alloc(1)
    own.hold_to(None)
    own.free(own.alloc(8 * 2**20))
    own.hold_to(9 * 2**20)
    assert own.cached == 0 and own.held == 2 * 2**20
    own.free(kept)


def test_tables_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        _core.rooms(
            0,
            {
                name: np.zeros(2, dtype=np.int64)
                for name in (
                    "result_start",
                    "result_bytes",
                    "result_room",
                    "result_offset",
                    "free_start",
                    "free_low",
                    "free_high",
                )
            },
        )


def test_a_run_that_is_over_leaves_nothing_behind() -> None:
    """The process's own allocator is never destroyed, so it must let go of a plan's rooms."""
    code = (
        "import numpy as np; from loadmaster import _core; own = _core.device_allocator()\n"
        "names = 'result_start result_bytes result_room result_offset free_start free_low free_high'\n"
        "columns = {n: np.zeros(2 * n.endswith('start'), dtype=np.int64) for n in names.split()}\n"
        "rooms = _core.rooms(0, columns); own.at(rooms, 0); own.at(rooms, -1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
