"""The npz reader reads what NumPy writes, and refuses all else in one line of the caller's error."""

from __future__ import annotations

import io
import re
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from loadmaster.arrays import MOST_ENTRIES, json_entry, read_npz
from loadmaster.errors import BadProgram

TYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
ARRAYS = arrays.arrays(
    st.sampled_from(TYPES), arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
)
NAMES = st.text("abcä._/0", min_size=1, max_size=8).filter(
    lambda name: name[0] != "/" and ".." not in name and name not in ("file", "args", "kwds")
)


def packed(save: Any = np.savez, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, **named)
    return file.getvalue()


def zipped(content: bytes, name: str = "x.npy", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def npy(shape: str = "(3,)", descr: str = "'<i8'", data: bytes = bytes(24), order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header = header.ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def changed(data: bytes, marker: bytes, offset: int, number: bytes) -> bytes:
    """Bytes in the last header of this kind replaced."""
    at = data.rindex(marker) + offset
    return data[:at] + number + data[at + len(number) :]


def refused(data: bytes) -> str:
    with pytest.raises(BadProgram) as caught:
        read_npz(data, BadProgram)
    assert "\n" not in caught.value.message and caught.value.__suppress_context__
    return caught.value.message


@settings(deadline=None)
@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.booleans(), st.booleans())
def test_what_numpy_writes_is_read(named: dict[str, Any], small: bool, fortran: bool) -> None:
    if fortran:
        named = {name: np.asfortranarray(array) for name, array in named.items()}
    found = read_npz(packed(np.savez_compressed if small else np.savez, **named), BadProgram)
    assert list(found) == list(named)
    for name, array in named.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable and found[name].flags.aligned
        assert array.ndim < 2 or found[name].flags.f_contiguous == array.flags.f_contiguous


def test_a_file_and_its_bytes_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(packed(x=np.arange(3)))
    assert read_npz(tmp_path / "a.npz", BadProgram)["x"].tolist() == [0, 1, 2]


def test_directories_of_large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    data = packed(x=np.arange(100), y=np.arange(5))
    assert b"PK\6\6" in data
    assert read_npz(data, BadProgram)["x"].tolist() == list(range(100))
    assert "18,446,744,073,709,551,615 entries" in refused(changed(data, b"PK\6\6", 24, b"\xff" * 16))
    assert "damaged" in refused(changed(data, b"PK\6\6", 40, b"\xff" * 8))


WHOLE = packed(np.savez_compressed, x=np.arange(300))
END, ENTRY, LOCAL = b"PK\5\6", b"PK\1\2", b"PK\3\4"
HOSTILE = {
    "nothing": (b"", "no npz file"),
    "no zip": (b"hello" * 20, "no npz file"),
    "cut off": (WHOLE[:-1], "cut off"),
    "a comment": (WHOLE[:-2] + b"\1\0!", "cut off"),
    "more behind it": (WHOLE + b"!", "cut off"),
    "more entries than listed": (changed(WHOLE, END, 8, b"\2\0\2\0"), "damaged"),
    "too many entries": (
        changed(WHOLE, END, 8, b"\xff\xff\xff\xff"),
        "65,535 entries, above the limit 16,384",
    ),
    "one part of several": (changed(WHOLE, END, 4, b"\1\0"), "one part of several"),
    "list elsewhere": (changed(WHOLE, END, 16, b"\0\0\0\0"), "damaged"),
    "encrypted": (changed(WHOLE, ENTRY, 8, b"\1\0"), "'x' is encrypted"),
    "encrypted, by itself": (changed(WHOLE, LOCAL, 6, b"\1\0"), "differently"),
    "another packer": (changed(WHOLE, ENTRY, 10, b"\x0e\0"), "packed by method 14"),
    "wrong sum": (changed(WHOLE, ENTRY, 16, b"abcd"), "its size or CRC is wrong"),
    "larger than listed": (changed(WHOLE, ENTRY, 24, struct.pack("<L", 1000)), "size or CRC"),
    "smaller than listed": (changed(WHOLE, ENTRY, 24, struct.pack("<L", 5000)), "size or CRC"),
    "more than deflate can": (
        changed(WHOLE, ENTRY, 24, struct.pack("<L", 2**31)),
        "claims 2,147,483,648 bytes",
    ),
    "packed beyond the file": (changed(WHOLE, ENTRY, 20, struct.pack("<L", 2**20)), "claims|packed|outside"),
    "lies outside": (changed(WHOLE, ENTRY, 42, struct.pack("<L", 2**30)), "lies outside the file"),
    "another name by itself": (changed(WHOLE, LOCAL, 30, b"y"), "differently"),
    "large sizes that are nowhere": (changed(WHOLE, ENTRY, 24, b"\xff" * 4), "damaged"),
    "no .npy": (zipped(npy(), "x.txt"), "entry 'x.txt' is no .npy array"),
    "a path upwards": (zipped(npy(), "../x.npy"), "no name for an entry"),
    "an absolute path": (zipped(npy(), "/x.npy"), "no name for an entry"),
    "an escape sequence": (zipped(npy(), "\x1b[2J.npy"), r"'\\x1b\[2J.npy' is no name"),
    "no array": (zipped(b"hello"), "entry 'x' is no .npy array"),
    "an empty entry": (zipped(b""), "entry 'x' is no .npy array"),
    "another version": (zipped(npy().replace(b"NUMPY\1", b"NUMPY\7")), "no .npy array"),
    "a long header": (zipped(npy()[:8] + b"\xff\xff" + npy()[10:]), "a header of 65,535 bytes"),
    "a broken header": (zipped(npy().replace(b"'shape'", b"'shade'")), "header that NumPy does not write"),
    "a deep header": (zipped(npy(shape="(" * 90)), "header that NumPy does not write"),
    "text": (zipped(npy(descr="'<U6'")), "holds '<U6', and only numbers"),
    "objects": (packed(x=np.array([{}])), r"holds '\|O', and only numbers"),
    "complex numbers": (packed(x=np.array([1j])), "only numbers are read"),
    "records": (packed(x=np.zeros(2, [("a", "i4")])), "header that NumPy does not write"),
    "the other byte order": (packed(x=np.arange(3, dtype=">i8")), "holds '>i8'"),
    "a negative shape": (zipped(npy(shape="(-3,)")), "header that NumPy does not write"),
    "a huge shape": (zipped(npy(shape="(4611686018427387905, 4)")), "not those of its shape"),
    "a shape that wraps to the size": (
        zipped(npy(shape="(6917529027641081859, 8)")),
        "not those of its shape",
    ),
    "empty and huge": (zipped(npy(shape="(0, 4611686018427387905)", data=b"")), "empty, and has the shape"),
    "too many dimensions": (
        zipped(npy(shape=f"({'1, ' * 40})", data=bytes(8))),
        "not those of its shape|header",
    ),
    "less data": (zipped(npy(data=bytes(23))), "has 23 bytes, and not those"),
    "more data": (zipped(npy(data=bytes(25))), "has 25 bytes, and not those"),
    "neither true nor false": (zipped(npy(descr="'|b1'", data=b"\0\1\2")), "truth values other than 0 and 1"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str) -> None:
    data, words = HOSTILE[case]
    assert re.search(words, refused(data)), refused(data)


def test_names_come_once() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x.npy", npy())
        archive.writestr("x.npy", npy())
    assert "it has 2 entries 'x'" in refused(file.getvalue())


def test_odd_headers_still_give_aligned_numbers() -> None:
    content = npy(data=np.arange(3).tobytes())
    odd = content[:8] + struct.pack("<H", 117) + content[10:126] + b"\n" + content[128:]
    found = read_npz(zipped(odd), BadProgram)["x"]
    assert found.tolist() == [0, 1, 2] and found.flags.aligned


def test_four_megabytes_of_four_gibibytes_are_refused_for_little() -> None:
    """For what it claims where that is true, and else for what comes out of it."""
    raw = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = b"".join(raw.compress(bytes(2**20)) for _ in range(64)) + raw.flush()
    cases = [
        (archive_of(data, 2**26, copies=64), "it unpacks to 4,294,967,296 bytes, above the limit 133"),
        (archive_of(data, 2**32 - 2), "claims 4,294,967,294 bytes"),
        (archive_of(data, 1000), "size or CRC is wrong"),
    ]
    tracemalloc.start()
    try:
        for archive, words in cases:
            assert words in refused(archive)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def archive_of(data: bytes, size: int, copies: int = 1) -> bytes:
    """A zip with the same deflated bytes under many names, each said to be `size` large."""
    file = bytearray()
    listed = bytearray()
    for number in range(copies):
        name, at = f"x{number:04}.npy".encode(), len(file)
        file += struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, 0, 0, 0, 0, len(name), 0) + name
        file += data
        listed += (
            struct.pack(
                "<4s6H3L5H2L", ENTRY, 20, 20, 0, 8, 0, 0, 0, len(data), size, len(name), 0, 0, 0, 0, 0, at
            )
            + name
        )
    end = struct.pack("<4s4H2LH", END, 0, 0, copies, copies, len(listed), len(file), 0)
    return bytes(file + listed + end)


def test_many_entries_are_counted_before_they_are_read() -> None:
    data = archive_of(b"", 0, MOST_ENTRIES + 1)
    assert "it has 16,385 entries, above the limit 16,384" in refused(data)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "none.npz", "can't be read: No such file"),
        (tmp_path, "can't be read"),
        (Path("/dev/zero"), "can't be read"),
        (Path("a\0b"), "no file can have this name"),
    ):
        with pytest.raises(BadProgram, match=words):
            read_npz(path, BadProgram)


def test_a_file_above_the_limit_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "sparse.npz"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadProgram, match="can't be read"):
        read_npz(path, BadProgram)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (np.frombuffer(b"[" * 5000, np.uint8), "entry 'about': its JSON is nested deeper"),
        (np.frombuffer(b'"\\ud800"', np.uint8), "entry 'about': .* half a character"),
        (np.arange(3), "entry 'about' holds no text"),
        (np.zeros((2, 2), np.uint8), "entry 'about' holds no text"),
    ],
)
def test_hostile_texts(entry: Any, words: str) -> None:
    with pytest.raises(BadProgram, match=words):
        json_entry({"about": entry}, "about", BadProgram)
    with pytest.raises(BadProgram, match="it has no entry 'about'"):
        json_entry({}, "about", BadProgram)
