"""Buffers and their CSV: nothing is lost, and wrong files get a line number and a remedy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from loadmaster.allocation.buffers import BadBuffers, Buffers, Gap, PinsClash, check_pins
from loadmaster.allocation.buffers_csv import (
    _parse_any,
    _parse_plain,
    format_buffers,
    parse_buffers,
    read_buffers,
    read_pairs,
    write_buffers,
)
from loadmaster.plan.check import check_offsets


def test_columns_and_their_aliases() -> None:
    plain = parse_buffers("id,lower,upper,size\na,0,3,4\nb,3,9,4\n")
    renamed = parse_buffers("size,buffer_id,begin,upper\n4,a,0,3\n4,b,3,9\n")
    assert plain.hash == renamed.hash and plain.ids == ("a", "b")


def test_the_end_column_is_inclusive() -> None:
    upper = parse_buffers("id,lower,upper,size,gaps\na,0,9,4,2-5\n")
    end = parse_buffers("id,start,end,size,gaps\na,0,8,4,2-4\n")
    assert end.upper.tolist() == [9] and end.hash == upper.hash


def test_everything_survives_a_file(tmp_path: Path) -> None:
    buffers = Buffers.of(
        [0, 2, 1],
        [9, 5, 4],
        [16, 8, 24],
        ids=["a", "b,c", 'd"'],
        alignment=[1, 8, 4],
        hint=[-1, 8, -1],
        pinned=[0, -1, -1],
        benefit=[1.5, 2, 3],
        gaps={0: [Gap(2, 4), Gap(5, 7, 4, 12)]},
    )
    again = parse_buffers(format_buffers(buffers))
    assert again.hash == buffers.hash and again.ids == buffers.ids
    write_buffers(buffers, np.array([0, 16, 32]), tmp_path / "x.4096.csv")
    placed, capacity = read_buffers(tmp_path / "x.4096.csv")
    assert placed.pinned.tolist() == [0, 16, 32] and capacity == 4096
    assert [path.name for path in tmp_path.iterdir()] == ["x.4096.csv"]


def test_friendly_to_other_programs_files() -> None:
    assert len(parse_buffers("\ufeffid,lower,upper,size\r\na,0,3,4\r\n\r\n".removeprefix("\ufeff"))) == 1


WRONG = {
    "": "line 1: the file is empty",
    "id,lower,upper\na,0,1\n": "line 1: there is no column 'size'",
    "id,lower,size\na,0,1\n": "no column 'upper' or 'end'",
    "id,lower,upper,size,colour\n": "the column 'colour' is not known",
    "id;lower;upper;size\n": "the columns are separated by ';': write commas there",
    "id,id,lower,upper,size\n": "the column 'id' is there twice",
    "id,lower,upper,end,size\n": "is there twice",
    "id,lower,upper,size\na,0,1\n": "line 2: 3 fields, and the header has 4",
    "id,lower,upper,size\na,0,1,4\nb,zero,1,4\n": "line 3: 'zero' in column 'lower' is no whole number",
    "id,lower,upper,size\na,0,1,99999999999999999999\n": "beyond 2\\^62",
    "id,lower,upper,size\na,5,5,4\n": "line 2: buffer 'a' ends at 5 and must end after it begins",
    "id,lower,upper,size\na,0,1,-4\n": "line 2: buffer 'a' has -4 bytes",
    "id,lower,upper,size\na,0,1,4\na,0,1,4\n": "line 3: two buffers have one id, 'a'",
    "id,lower,upper,size,alignment\na,0,1,4,0\n": "buffer 'a' has alignment 0",
    "id,lower,upper,size,alignment,offset\na,0,1,4,8,4\n": "pinned to 4, off its alignment",
    "id,lower,upper,size,alignment,hint\na,0,1,4,8,4\n": "misaligned hint 4",
    "id,lower,upper,size,gaps\na,0,9,4,3\n": "'3' is no gap",
    "id,lower,upper,size,gaps\na,0,9,4,3-12\n": "has the gap 3-12",
    "id,lower,upper,size,gaps\na,0,9,4,5-6 2-3\n": "has the gap 2-3",
    "id,lower,upper,size,gaps\na,0,9,4,5-6@2:9\n": "has the gap 5-6@2:9",
    "id,lower,upper,size,worth\na,0,9,4,nan\n": "has the worth nan",
    "id,lower,upper,size,worth\na,0,9,4,much\n": "'much' in column 'worth' is no number",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_wrong_files(text: str) -> None:
    with pytest.raises(BadBuffers, match=WRONG[text]) as caught:
        parse_buffers(text)
    assert caught.value.remedy and "\n" not in caught.value.message


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadBuffers, match="can't be read"):
        read_buffers(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadBuffers, match="is not text"):
        read_buffers(tmp_path / "binary.csv")


def test_pairs(tmp_path: Path) -> None:
    buffers = parse_buffers("id,lower,upper,size\na,0,3,4\nb,3,9,4\n")
    (tmp_path / "pairs.csv").write_text("a,b\nb,a\n")
    assert read_pairs(tmp_path / "pairs.csv", buffers) == ((1, 0),)
    (tmp_path / "pairs.csv").write_text("a,b\nb,z\n")
    with pytest.raises(BadBuffers, match="line 2"):
        read_pairs(tmp_path / "pairs.csv", buffers)


def test_live_bytes_the_slow_way() -> None:
    for seed in range(50):
        buffers = random_buffers(np.random.default_rng(seed))
        slow = max(
            sum(high - low for _, lower, upper, low, high in rows_of(buffers) if lower <= time < upper)
            for time in range(21)
        )
        assert buffers.max_live == slow


def random_buffers(rng: np.random.Generator, count: int | None = None) -> Buffers:
    n = int(rng.integers(1, 8)) if count is None else count
    lower = rng.integers(0, 15, n)
    upper = lower + rng.integers(1, 6, n)
    size = rng.integers(0, 6, n)
    gaps = {}
    for b in range(n):
        if upper[b] - lower[b] >= 3 and rng.random() < 0.3:
            low, high = sorted(rng.integers(0, size[b] + 1, 2).tolist()) if rng.random() < 0.5 else (0, 0)
            gaps[b] = [Gap(int(lower[b]) + 1, int(lower[b]) + 2, low, high)]
    pairs = [(0, 1)] if n > 1 and rng.random() < 0.3 else []
    return Buffers.of(lower, upper, size, alignment=rng.choice([1, 1, 2, 4], n), gaps=gaps, apart=pairs)


def rows_of(buffers: Buffers) -> list[tuple[int, int, int, int, int]]:
    return list(zip(*(column.tolist() for column in buffers.pieces), strict=True))


def slow_is_sound(buffers: Buffers, offsets: list[int]) -> bool:
    """Byte by byte and instant by instant."""
    taken: dict[tuple[int, int], int] = {}
    for buffer, lower, upper, low, high in rows_of(buffers):
        for time in range(lower, upper):
            for byte in range(offsets[buffer] + low, offsets[buffer] + high):
                if taken.setdefault((time, byte), buffer) != buffer:
                    return False
    for a, b in buffers.apart:
        mine = set(range(offsets[a], offsets[a] + int(buffers.size[a])))
        if mine & set(range(offsets[b], offsets[b] + int(buffers.size[b]))):
            return False
    return all(offsets[b] >= 0 and offsets[b] % int(buffers.alignment[b]) == 0 for b in range(len(buffers)))


def test_the_checker_of_offsets_agrees_with_a_slow_one() -> None:
    sound = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        buffers = random_buffers(rng)
        offsets = (rng.integers(0, 6, len(buffers)) * buffers.alignment).tolist()
        found = check_offsets(
            buffers.ids,
            buffers.pieces,
            buffers.size,
            np.array(offsets, dtype=np.int64),
            apart=buffers.apart,
            alignment=buffers.alignment,
            pinned=buffers.pinned,
        )
        assert (not found) == slow_is_sound(buffers, offsets), (seed, found)
        sound += not found
    assert 30 < sound < 570


def test_the_checker_of_offsets_names_what_is_wrong() -> None:
    buffers = Buffers.of([0, 0], [2, 2], [4, 4], alignment=4, pinned=[-1, 8])

    def rules(offsets: list[int], capacity: int | None = None) -> list[str]:
        found = check_offsets(
            buffers.ids,
            buffers.pieces,
            buffers.size,
            np.array(offsets),
            alignment=buffers.alignment,
            pinned=buffers.pinned,
            capacity=capacity,
        )
        return [violation.message for violation in found]

    assert rules([0, 8]) == []
    assert "is at 2, off its alignment 4" in rules([2, 8])[0]
    assert "is pinned to 8 and lies at 4" in rules([0, 4])[0]
    assert "has no offset" in rules([-4, 8])[0]
    assert "share address 8 at time 0" in rules([8, 8])[0]
    assert "ends at 12 and the capacity is 11" in rules([0, 8], 11)[0]


def test_plain_files_are_read_as_any_file() -> None:
    """By column what is plain, row by row what is not: the same buffers, or the same error."""
    rng = np.random.default_rng(5)
    plain = odd = 0
    for _ in range(400):
        names = ["id", "lower", rng.choice(["upper", "end"]), "size", "alignment", "hint", "offset"]
        names = names[: int(rng.integers(4, 8))]
        rng.shuffle(names)
        rows = []
        for b in range(int(rng.integers(0, 5))):
            cells = {"id": f"b{b}", "lower": b, "upper": b + 2, "end": b + 1, "size": 8, "alignment": 4}
            cells |= {"hint": -1, "offset": int(rng.choice([-1, 8]))}
            if rng.random() < 0.15:
                cells[rng.choice(names)] = rng.choice(
                    ["", " 7", "-3", "+9", "1e3", "٣", '"4"', "9" * 19, "b0", "1,2"]
                )
            rows.append(",".join(str(cells[name]) for name in names))
        text = "\n".join([",".join(names), *rows]) + "\n" * int(rng.integers(0, 3))
        fast = _parse_plain(text)
        plain, odd = plain + (fast is not None), odd + (fast is None)
        try:
            slow = _parse_any(text, "csv")
        except BadBuffers as error:
            assert fast is None
            with pytest.raises(BadBuffers, match=re.escape(error.message)):
                parse_buffers(text)
            continue
        assert parse_buffers(text).hash == slow.hash and parse_buffers(text).ids == slow.ids
        assert fast is None or (fast.hash == slow.hash and fast.ids == slow.ids)
    assert plain > 50 and odd > 50


def test_pins_clash_where_the_checker_says_so() -> None:
    rng = np.random.default_rng(8)
    seen = {True: 0, False: 0}
    for _ in range(300):
        n = int(rng.integers(1, 6))
        lower = rng.integers(0, 12, n)
        life = rng.integers(1, 6, n)
        gaps = {0: [Gap(int(lower[0]), int(lower[0]) + 1)]} if rng.random() < 0.5 else {}
        apart = [(0, n - 1)] if n > 1 and rng.random() < 0.3 else []
        offset = rng.integers(-1, 12, n)
        buffers = Buffers.of(
            lower, lower + life, rng.integers(0, 6, n), pinned=offset, gaps=gaps, apart=apart
        )
        fixed = np.flatnonzero(offset >= 0)
        far = np.where(offset >= 0, offset, 100 * (1 + np.arange(n)))  # where nobody else is
        free = buffers.changed(pinned=np.full(n, -1))
        wrong = check_offsets(
            free.ids,
            free.pieces,
            free.size,
            far,
            alignment=free.alignment,
            pinned=free.pinned,
            apart=free.apart,
        )
        seen[bool(wrong)] += 1
        if not wrong:
            check_pins(buffers, None)
            continue
        with pytest.raises(PinsClash, match=r"the pins of .* overlap") as clash:
            check_pins(buffers, None)
        two = [int(name) for name in clash.value.ids]
        assert len(two) == 2 and set(two) <= set(fixed.tolist())
        only = np.where(np.isin(np.arange(n), two), offset, -1)
        with pytest.raises(PinsClash):
            check_pins(buffers.changed(pinned=only), None)
    assert min(seen.values()) > 50
    with pytest.raises(PinsClash, match="the pin of '0' ends at 9 and the memory at 8"):
        check_pins(Buffers.of([0], [1], [4], pinned=[5]), 8)


def test_stretches_are_the_times_between_events() -> None:
    buffers = Buffers.of([5, 0, 5], [9, 5, 7], [1, 2, 3])
    times, first, last = buffers.stretches
    assert times.tolist() == [0, 5, 7, 9]
    assert (first.tolist(), last.tolist()) == ([1, 0, 1], [2, 0, 1])
