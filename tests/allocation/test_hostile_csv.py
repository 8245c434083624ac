"""Buffer files that somebody wrote to do harm: one worded error with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadmaster.allocation import buffers_csv
from loadmaster.allocation.buffers import BadBuffers
from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers, read_buffers, read_pairs

HEAD = "id,lower,upper,size\n"
GAPS = "id,lower,upper,size,gaps\n"

WRONG = {
    "long cell": (HEAD + f"a,0,1,{'1' * 131_073}\n", r"line 2: field larger than field limit"),
    "long id": (HEAD + f"a,0,1,1\n{'b' * 131_073},0,1,1\n", "line 3: field larger"),
    "long quoted id": (HEAD + '"' + "b\n" * 100_000, "field larger than field limit"),
    "long line": (HEAD + "a," * 600_000, "line 2: it has 1,200,000 characters"),
    "many columns": ("id,lower,upper,size" + "," * 2**20 + "\n", "line 1: it has 1,048,596 char"),
    "some columns": ("id,lower,upper,size" + "," * 1_000 + "\n", "line 1: the column '' is not known"),
    "null": (HEAD + "a\0,0,1,1\n", "line 2: it has a null character"),
    "open quote": (HEAD + '"a,0,1,1\n', "unexpected end of data"),
    "text behind a quote": (HEAD + '"a"b,0,1,1\n', "line 2: ',' expected after"),
    "carriage return": (HEAD + "a,0\r,1,1\n", "line 2: new-line character seen"),
    "4,301 digits": (HEAD + f"a,0,1,{'9' * 4_301}\n", r"line 2: 9+ in column 'size' is beyond 2\^62"),
    "beyond 2^62": (HEAD + f"a,0,1,{2**62 + 1}\n", r"in column 'size' is beyond 2\^62"),
    "below -2^62": (HEAD + f"a,-{2**62 + 1},1,1\n", r"in column 'lower' is beyond 2\^62"),
    "digits of another script": (HEAD + "a,0,1,٣\n", "'٣' in column 'size' is no whole number"),
    "fraction": (HEAD + "a,0,1,1.0\n", "'1.0' in column 'size' is no whole number"),
    "endless gap": (GAPS + f"a,0,9,1,1-{'9' * 5_000}\n", "line 2: '1-999.* is no gap"),
    "gap beyond the life": (GAPS + f"a,0,9,1,1-{10**18}\n", "line 2: buffer 'a' has the gap"),
    "nan worth": ("id,lower,upper,size,worth\na,0,1,1,nan\n", "line 2: buffer 'a' has the worth nan"),
    "endless worth": ("id,lower,upper,size,worth\na,0,1,1,1e400\n", "has the worth inf"),
    "blank line within": (HEAD + "a,0,1,1\n\nb,0,1,1\n", "line 3: 0 fields"),
    "nothing": ("", "line 1: the file is empty"),
    "blank lines": ("\n" * 100_000, "the file is empty"),
    "line of the second row": (HEAD + '"a\nb",0,1,1\nc,5,1,1\n', "line 4: buffer 'c' ends"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values(tmp_path: Path, case: str) -> None:
    text, message = WRONG[case]
    path = tmp_path / "buffers.csv"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.raises(BadBuffers, match=message) as caught:
        read_buffers(path)
    assert caught.value.message.startswith("'buffers.csv', line ") and caught.value.remedy
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


def test_bytes_that_are_no_text_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(HEAD.encode() + b"a,0,1,1\n\xff\xfe,0,1,1\n")
    with pytest.raises(BadBuffers, match="line 3: it is not text"):
        read_buffers(path)


def test_a_mark_at_the_beginning_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(b"\xef\xbb\xbf" + HEAD.encode() + b"a,0,1,1\r\n")
    assert read_buffers(path)[0].ids == ("a",)


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("A.1048576.csv", 2**20),
        (f"A.{2**62}.csv", 2**62),
        ("A.0007.csv", 7),
        ("A.²³.csv", None),
        ("A.csv", None),
    ],
)
def test_capacities_in_names(tmp_path: Path, name: str, capacity: int | None) -> None:
    (tmp_path / name).write_text(HEAD + "a,0,1,1\n")
    assert read_buffers(tmp_path / name)[1] == capacity


@pytest.mark.parametrize("digits", ["99999999999999999999999", str(2**62 + 1), "9" * 200])
def test_capacities_that_nothing_has(tmp_path: Path, digits: str) -> None:
    (tmp_path / f"A.{digits}.csv").write_text(HEAD + "a,0,1,1\n")
    with pytest.raises(BadBuffers, match=r"states a capacity of 9*.* bytes, above 2\^62: rename"):
        read_buffers(tmp_path / f"A.{digits}.csv")


def test_files_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with (tmp_path / "large.csv").open("wb") as file:
        file.truncate(2**40)
    for name, words in (("pipe.csv", "a pipe"), ("large.csv", "larger than 256"), (".", "Is a dir")):
        with pytest.raises(BadBuffers, match=words):
            read_buffers(tmp_path / name)
        with pytest.raises(BadBuffers, match=words):
            read_pairs(tmp_path / name, parse_buffers(HEAD + "a,0,1,1\n"))


def test_more_rows_than_anybody_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers_csv, "_MOST_BUFFERS", 3)
    monkeypatch.setattr(buffers_csv, "_MOST_GAPS", 3)
    rows = [f"b{i},0,9,1" for i in range(4)]
    assert len(parse_buffers(HEAD + "\n".join(rows[:3]))) == 3
    with pytest.raises(BadBuffers, match="line 5: more than 3 buffers"):
        parse_buffers(HEAD + "\n".join(rows))
    with pytest.raises(BadBuffers, match="line 3: more than 3 gaps"):
        parse_buffers(GAPS + "a,0,9,1,1-2 3-4\nb,0,9,1,1-2 3-4\n")


def test_any_name_survives_a_round_trip() -> None:
    text = 'id,lower,upper,size\n"a,""b""",0,1,1\n"x\ny",0,1,1\n\u202e,0,1,1\n'
    buffers = parse_buffers(text)
    assert buffers.ids == ('a,"b"', "x\ny", "\u202e")
    assert parse_buffers(format_buffers(buffers)).ids == buffers.ids
