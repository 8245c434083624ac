"""The MallocGame on programs small enough to work out by hand, slow reference and native alike.

The machine serves 1 byte/ps from slow memory and 10 from fast, copies 1 byte/ps in slow memory's
idle time and computes 1 flop/ps. So 8 bytes take 8 ps from slow, 1 ps (rounded up) from fast.
"""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.malloc_game.model import make_model
from loadmaster.program import Builder, Program, TieKind
from native_game import NativeGame, Play
from reference.game import SlowGame
from reference.rules import COPY, COPY_EARLY, COPY_HALF, COPY_TIGHT, DROP, LEAD, NO_COPY

ONLY_DROP = [0, 0, 1]


def machine(capacity: int) -> Machine:
    one, ten = 10**12, 10**13
    rates = {"matrix": {"*": one}, "vector": {"*": one}, "transcendental": {"*": one}}
    memories = (Memory("fast", capacity, ten, ten), Memory("slow", 2**40, one, one))
    links = (Link("slow", "fast", one), Link("fast", "slow", one))
    core = Device("core", ("fast", "slow"), rates)
    return Machine("hand", (core,), memories, links, Rules(copies="idle"))


@pytest.fixture(params=[SlowGame, NativeGame], ids=["slow", "native"])
def play(request: pytest.FixtureRequest) -> Any:
    def start(program: Program, capacity: int, **switches: Any) -> Play:
        plain = {"starts": "hidden", "repack": 0}
        game: Play = request.param(make_model(program, machine(capacity)), **{**plain, **switches})
        return game

    return start


def moves(game: Play, *actions: int) -> list[int]:
    return [game.step(action) for action in actions]


def blocked() -> Program:
    """a and b take the same strip, one after the other, and then a is read again.

    All slow: 8, 8, 8 + 8 + 20 (c is too large for fast memory): 52 ps.
    """
    build = Builder("blocked")
    a, b = build.tensor("a", bytes=8), build.tensor("b", bytes=8)
    c = build.tensor("c", bytes=20, kind="output")
    build.op("make a", "add", writes=[a])
    build.op("make b", "add", writes=[b])
    build.op("use both", "add", reads=[a, b], writes=[c])
    return build.build()


def test_dead_end_is_repaired_in_place(play: Any) -> None:
    game = play(blocked(), 10)
    assert moves(game, NO_COPY) == [7]  # 8 ps from slow become 1
    # b takes a's bytes, as a's residency ends with its write. Now nobody has a where it could be
    # read: its write becomes a Drop, and the 7 ps are paid back by this move: 7 - 7.
    assert moves(game, NO_COPY) == [0]
    assert game.cursor == 2 and game.mask() == ONLY_DROP
    # a: 8 ps from slow. b: stays, 7 ps. 8 + 1 + (8 + 1 + 20) = 38.
    assert moves(game, DROP, NO_COPY) == [0, 7]
    assert game.judged() == (38, 0)
    assert game.placement() == ([(1, 0, 1, 2)], [], [False, True, False, True])


def test_dead_end_is_rewound(play: Any) -> None:
    game = play(blocked(), 10, backup="rewind")
    # Back to the write of a, which is dropped, and b is made in fast memory again: 7 - 14 + 7.
    assert moves(game, NO_COPY, NO_COPY) == [7, 0]
    assert game.cursor == 2 and game.mask() == ONLY_DROP and game.backups == 1
    assert moves(game, DROP, NO_COPY) == [0, 7]
    assert game.judged() == (38, 0)


def test_dead_end_loses_the_game(play: Any) -> None:
    game = play(blocked(), 10, backup="none")
    # Everything that was earned is paid back, and nothing more can be.
    assert moves(game, NO_COPY, NO_COPY) == [7, -7]
    assert game.cursor == 2 and game.mask() == ONLY_DROP and game.backups == 1
    assert moves(game, DROP) == [0] and game.mask() == ONLY_DROP
    assert moves(game, DROP) == [0]
    assert game.judged() == (52, 0) and game.placement() == ([], [], [False] * 4)


def test_what_was_played_is_played_again_after_a_rewind(play: Any) -> None:
    """a takes the strip that b had: b's write is dropped, so that its first read, NoCopy, becomes a copy."""
    build = Builder("again")
    b, a = build.tensor("b", bytes=8), build.tensor("a", bytes=8)
    build.op("make b", "add", writes=[b])
    build.op("long", "matmul", matrix=20)
    build.op("use b", "add", reads=[b])
    build.op("make a", "add", writes=[a])
    build.op("use both", "add", reads=[b, a])
    game = play(build.build(), 8, backup="rewind")
    assert moves(game, NO_COPY, NO_COPY, NO_COPY) == [7, 7, 0]
    assert game.cursor == 3 and game.backups == 1
    stays, copies, fast = game.placement()
    assert fast == [False, True, True, False, False] and copies == [(0, 1, 0, 2, 8)]
    assert stays == [(0, 0, 1, 2), (1, 0, 3, 3)]


def tied_output(idle: int) -> Program:
    """y, an output, overwrites x in place; then a step that leaves slow memory `idle` ps."""
    build = Builder("tied")
    x, y = build.tensor("x", bytes=8), build.tensor("y", bytes=8, kind="output")
    w = build.tensor("w", bytes=30, kind="weight")
    build.op("make x", "add", writes=[x])
    update = build.op("update", "add", reads=[x], writes=[y])
    build.op("busy", "matmul", reads=[w], matrix=30 + idle)
    build.tie(TieKind.INPLACE, x, y, update)
    return build.build()


def test_output_over_a_fast_read_needs_its_write_back(play: Any) -> None:
    game = play(tied_output(8), 16)
    # Two of the 8-byte accesses become fast: 7 ps each. The write-back of 8 ps just fits behind.
    assert moves(game, NO_COPY, NO_COPY) == [7, 7]
    assert game.mask() == [1, 0, 0]  # an output can't stay, and its place is in fast memory
    assert moves(game, COPY) == [7]
    stays, copies, _ = game.placement()
    assert stays == [(0, 0, 0, 1), (1, 0, 1, 2)] and copies == [(1, 0, 1, 3, 8)]
    assert game.judged() == (1 + 2 + 38, 0)


def test_a_write_back_counts_on_whole_steps_and_may_be_waited_for(play: Any) -> None:
    """The step behind takes 31 ps, 1 of them without slow memory: of 8 ps, 7 are waited for."""
    game = play(tied_output(1), 16, starts="all")
    assert moves(game, NO_COPY, NO_COPY, COPY) == [7, 7, 7 - 7]
    assert game.judged() == (1 + 2 + 31 + 7, 7)


def test_output_over_a_fast_read_that_can_not_be_written_back(play: Any) -> None:
    build = Builder("tied at the end")
    x, y = build.tensor("x", bytes=8), build.tensor("y", bytes=8, kind="output")
    build.op("make x", "add", writes=[x])
    update = build.op("update", "add", reads=[x], writes=[y])
    build.tie(TieKind.INPLACE, x, y, update)
    game = play(build.build(), 16)
    # Nothing comes after it: x should never have been fast. 7 for the read, -14 for the repair.
    assert moves(game, NO_COPY, NO_COPY) == [7, -7]
    assert game.mask() == ONLY_DROP
    assert moves(game, DROP) == [0]
    assert game.judged() == (8 + 16, 0) and game.placement()[:2] == ([], [])


@pytest.mark.parametrize(("first", "second", "issued"), [(20, 8, 0), (8, 7, -1), (1, 7, -1), (1, 6, None)])
def test_copy_must_fit_the_ledger(play: Any, first: int, second: int, issued: int | None) -> None:
    """8 bytes of w are needed by step 2: from step 1 alone, from both, or not at all."""
    build = Builder("fits")
    w = build.tensor("w", bytes=8, kind="weight")
    build.op("one", "matmul", matrix=first)
    build.op("two", "matmul", matrix=second)
    build.op("read", "add", reads=[w])
    game = play(build.build(), 8)
    assert game.mask() == [issued is not None, False, True]
    if issued is not None:
        assert moves(game, COPY) == [7]
        assert game.placement()[:2] == ([(0, 0, issued + 1, 2)], [(0, 1, issued, 2, 8)])
        assert game.judged() == (first + second + 1, 0)


@pytest.mark.parametrize(("first", "fits"), [(15, True), (14, False)])
def test_second_copy_finds_what_the_first_one_left(play: Any, first: int, fits: bool) -> None:
    """Two weights of 8 ps for step 2. Step 1 does nothing, which takes 1 ps: 16 or 15 ps in all."""
    build = Builder("two copies")
    v, w = (build.tensor(name, bytes=8, kind="weight") for name in "vw")
    build.op("one", "matmul", matrix=first)
    build.op("two", "add")
    build.op("read", "add", reads=[v, w])
    game = play(build.build(), 16)
    assert moves(game, COPY) == [7]
    assert game.mask() == [fits, 0, 1]
    if fits:
        assert moves(game, COPY) == [7]
        assert game.placement()[1] == [(0, 1, -1, 2, 8), (1, 1, -1, 2, 8)]
        assert game.judged() == (15 + 1 + 2, 0)


def evicted() -> Program:
    """b makes room for c between its write and its read."""
    build = Builder("evicted")
    b, c = build.tensor("b", bytes=8), build.tensor("c", bytes=8)
    build.op("make b", "add", writes=[b])
    build.op("long", "matmul", matrix=20)
    build.op("make c", "add", writes=[c])
    build.op("use c", "add", reads=[c])
    build.op("long again", "matmul", matrix=20)
    build.op("use b", "add", reads=[b])
    return build.build()


def test_eviction_and_refetch(play: Any) -> None:
    game = play(evicted(), 8)
    assert game.mask() == [1, 1, 1]
    assert moves(game, COPY, NO_COPY, NO_COPY) == [7, 7, 7]
    # c had b's strip over steps 2 and 3, and b is in slow memory since step 2.
    assert game.mask() == [1, 0, 1]
    assert moves(game, COPY) == [7]
    stays, copies, _ = game.placement()
    assert stays == [(0, 0, 0, 1), (0, 0, 4, 5), (1, 0, 2, 3)]
    assert copies == [(0, 0, 0, 2, 8), (0, 1, 3, 5, 8)]
    # 72 ps all slow; each access saves 7, and both copies hide in 20 ps of compute.
    assert game.judged() == (72 - 28, 0)


def test_a_copy_in_waits_for_the_write_back(play: Any) -> None:
    """Slow memory has b when step 2 starts, so a copy is issued after step 2, not after step 1."""
    build = Builder("in a hurry")
    b = build.tensor("b", bytes=8)
    build.op("make b", "add", writes=[b])
    for number in range(3):
        build.op(f"long {number}", "matmul", matrix=8)
    build.op("use b", "add", reads=[b])
    game = play(build.build(), 8)
    assert moves(game, COPY) == [7]
    assert game.mask() == [1, 1, 1]
    assert moves(game, COPY) == [7]
    assert game.placement()[1] == [(0, 0, 0, 2, 8), (0, 1, 2, 4, 8)]


def test_read_before_the_write_back_is_done(play: Any) -> None:
    build = Builder("early")
    b = build.tensor("b", bytes=8, kind="output")
    build.op("make b", "add", writes=[b])
    build.op("early", "add", reads=[b])
    build.op("long", "matmul", matrix=8)
    build.op("late", "add", reads=[b])
    game = play(build.build(), 8)
    # Step 1 may yet be slow and supplies nothing, step 2 supplies 8 ps: written back by step 3.
    assert moves(game, COPY) == [7]
    assert game.mask() == [0, 1, 0]  # slow memory does not have it yet
    assert moves(game, NO_COPY) == [7]
    # Steps 1 and 2 lie between the write-back and step 3, and no copy in has a step to itself.
    assert game.mask() == [0, 1, 1]
    assert moves(game, NO_COPY) == [7]
    assert game.placement()[:2] == ([(0, 0, 0, 3)], [(0, 0, 0, 3, 8)])


def test_a_dropped_read_ends_the_residency(play: Any) -> None:
    """A plan can't say that a step reads slow memory while the tensor lies in fast memory."""
    build = Builder("dropped")
    b = build.tensor("b", bytes=8, kind="output")
    build.op("make b", "add", writes=[b])
    build.op("long", "matmul", matrix=8)
    for name in ("one", "two"):
        build.op(name, "add", reads=[b])
    game = play(build.build(), 8)
    assert moves(game, COPY) == [7]
    assert game.mask() == [0, 1, 1]
    assert moves(game, DROP) == [0]
    assert game.mask() == ONLY_DROP


@pytest.mark.parametrize(("gap", "offset"), [(4, 8), (2, 20)])
def test_offset_is_that_of_the_smallest_gap(play: Any, gap: int, offset: int) -> None:
    """Step 0 makes p at 0, q behind it, r behind that; p and r are still being written back in step 1.

    So `gap` bytes are free at 8, and all above r: c (3 bytes) goes into the gap if it can.
    """
    build = Builder("gaps")
    p, q, r, c = (build.tensor(n, bytes=s) for n, s in (("p", 8), ("q", gap), ("r", 12 - gap), ("c", 3)))
    build.op("make", "add", writes=[p, q, r])
    build.op("long", "matmul", writes=[c], matrix=30)
    build.op("end", "add", reads=[p, q, r, c])
    game = play(build.build(), 24)
    moves(game, COPY, NO_COPY, COPY, NO_COPY)
    assert (3, offset, 1, 1) in game.placement()[0]


def fragmented() -> Program:
    """p, q and r fill fast memory; q is dead when s comes, which needs the bytes of q and as many more."""
    build = Builder("fragmented")
    p, q, r, s = (build.tensor(n, bytes=b) for n, b in (("p", 8), ("q", 4), ("r", 8), ("s", 8)))
    build.op("make", "add", writes=[p, q, r])
    build.op("use q", "add", reads=[q])
    build.op("make s", "add", writes=[s])
    build.op("end", "add", reads=[p, r, s])
    return build.build()


def test_what_lies_in_the_way_is_moved(play: Any) -> None:
    """24 bytes hold p, q and r or p, r and s, and 4 lie free at either side of r."""
    game = play(fragmented(), 24)
    moves(game, NO_COPY, NO_COPY, NO_COPY, NO_COPY)
    assert game.mask() == [0, 1, 1]  # over p or r, which are not held after their write
    game = play(fragmented(), 24, repack=4)
    moves(game, NO_COPY, NO_COPY, NO_COPY, NO_COPY)
    # Only fast memory has p and r: they will be read, and s does not lie over them.
    assert moves(game, NO_COPY) == [7]
    assert game.placement()[0] == [(0, 0, 0, 0), (1, 16, 0, 1), (2, 8, 0, 0), (3, 16, 2, 2)]
    assert moves(game, NO_COPY, NO_COPY, NO_COPY) == [7, 7, 7]
    assert game.backups == 0
    # With one byte less there is no room for all three, and one of them has to go.
    tight = play(fragmented(), 23, repack=4)
    moves(tight, *[NO_COPY] * 6)
    assert tight.backups == 1


@pytest.mark.parametrize(
    ("action", "issued", "stall"),
    [
        (COPY, 0, 0),
        (COPY_EARLY, -1, 0),
        (COPY_HALF, 1, 4),
        (COPY_TIGHT, 2, 7),
        (LEAD, 3, 8),
        (LEAD + 4, -1, 0),
    ],
)
def test_copies_start_when_they_are_told_to(play: Any, action: int, issued: int, stall: int) -> None:
    """w (8 bytes) is read behind steps of 8, 8, 3 and 1 ps: 8 of them hide it, twice that is 16 and half of it
    4, and the last step alone leaves 7 to be waited for."""
    build = Builder("starts")
    w = build.tensor("w", bytes=8, kind="weight")
    for number, flops in enumerate((8, 8, 3, 1)):
        build.op(f"long {number}", "matmul", matrix=flops)
    build.op("read", "add", reads=[w])
    game = play(build.build(), 8, starts="all")
    assert game.mask() == [1, 0, 1, 1, 1, 1]
    assert moves(game, action) == [7 - stall]
    assert game.placement()[1] == [(0, 1, issued, 4, 8)]
    assert game.judged() == (20 + 1 + stall, stall)


def test_a_kind_of_copy_that_starts_like_another_is_no_move(play: Any) -> None:
    game = play(evicted(), 8, starts="all")
    assert game.mask() == [1, 1, 1, 0, 0, 0]  # step 1 is long enough for twice the copy
    moves(game, LEAD)
    assert game.placement()[1] == [(0, 0, 0, 1, 8)]


def in_a_loop(carry: bool) -> Program:
    """x is made, used (and updated) by a loop of 3 steps and 5 rounds, and read after it."""
    build = Builder("loop")
    x, c = build.tensor("x", bytes=8), build.tensor("c", bytes=8)
    y = build.tensor("y", bytes=8)
    loop = build.loop(5)
    build.op("make x", "add", writes=[x])
    build.op("use x", "add", reads=[x], loop=loop)
    build.op("make y", "add", writes=[y], loop=loop)
    build.op("make c", "add", writes=[c], loop=loop)
    build.op("end", "add", reads=[y if carry else c])
    if carry:
        build.tie(TieKind.CARRIED, x, y, loop)
    return build.build()


def test_what_a_loop_uses_stays_to_its_end(play: Any) -> None:
    game = play(in_a_loop(carry=False), 8)
    assert moves(game, NO_COPY, NO_COPY) == [7, 35]  # five rounds
    # x is at 0 to 8 until step 3, though its last use is in step 1: the next round reads it again.
    assert game.mask() == ONLY_DROP
    assert moves(game, DROP) == [0]
    assert game.mask() == ONLY_DROP
    moves(game, DROP, DROP)
    assert game.placement()[0] == [(0, 0, 0, 3)]


def test_what_a_loop_carries_has_one_strip(play: Any) -> None:
    game = play(in_a_loop(carry=True), 16)
    assert game.mask() == [0, 1, 1]
    assert moves(game, NO_COPY) == [7]
    for reward in (35, 35):  # x is read, y is written, five times each
        assert game.mask() == [0, 1, 0]
        assert moves(game, NO_COPY) == [reward]
    moves(game, DROP)  # c is free to do as it likes
    assert game.mask() == [0, 1, 0]
    moves(game, NO_COPY)
    # One offset, from x's write and from y's to the last read of y.
    assert game.placement()[0] == [(0, 0, 0, 4), (2, 0, 2, 4)]


def test_a_carried_state_comes_in_before_the_loop_and_goes_back_after_it(play: Any) -> None:
    """s is given and read by the loop of steps 3 and 4, which leaves y, an output, in its place."""
    build = Builder("state")
    s = build.tensor("s", bytes=8, kind="state")
    y = build.tensor("y", bytes=8, kind="output")
    loop = build.loop(5)
    for name, flops in (("zero", 20), ("one", 8), ("two", 1)):
        build.op(name, "matmul", matrix=flops)
    build.op("three", "add", reads=[s], loop=loop)
    build.op("four", "add", writes=[y], loop=loop)
    build.op("five", "matmul", matrix=8)
    build.op("six", "matmul", matrix=1)
    build.tie(TieKind.CARRIED, s, y, loop)
    game = play(build.build(), 8)
    # In by step 2, the last one before the loop; 8 ps of step 1 are enough. Out after step 4, the
    # loop's last one; 8 ps of step 5 are enough, so it is there by step 6.
    assert game.mask() == [1, 0, 1]
    assert moves(game, COPY) == [35]
    assert game.mask() == [0, 1, 0]
    assert moves(game, NO_COPY) == [35]
    stays, copies, _ = game.placement()
    assert stays == [(0, 0, 1, 5), (1, 0, 4, 5)]
    assert sorted(copies) == [(0, 1, 0, 2, 8), (1, 0, 4, 6, 8)]
    assert game.judged() == (20 + 8 + 1 + 5 * (1 + 1) + 8 + 1, 0)


def test_a_carried_value_may_stay_slow(play: Any) -> None:
    game = play(in_a_loop(carry=True), 16)
    moves(game, DROP)
    for _ in range(2):
        assert game.mask() == ONLY_DROP
        moves(game, DROP)
