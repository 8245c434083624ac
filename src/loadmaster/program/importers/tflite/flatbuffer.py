"""Flatbuffers, as far as TFLite's files need them: tables, vectors and texts in a piece of bytes.

A table begins with the way back to its vtable, which says where each field lies; a field that is
not there has its default. Everything else is reached by unsigned offsets, counted from where they
stand, hence always forward. Nothing in a file is trusted: each access is checked against its end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


class Broken(ValueError):
    """The bytes are no flatbuffer of this kind."""


_SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "Q": 8}


def number(data: bytes, at: int, code: str) -> int:
    """The whole number of a `struct` code at a place."""
    if not 0 <= at <= len(data) - _SIZES[code]:
        raise Broken(f"place {at} is outside of {len(data)} bytes")
    return int(struct.unpack_from("<" + code, data, at)[0])


def follow(data: bytes, at: int) -> int:
    """Where the offset at a place leads to."""
    step = number(data, at, "I")
    if step == 0 or at + step > len(data) - 4:
        raise Broken(f"the offset {step} at {at} leads nowhere")
    return at + step


@dataclass(frozen=True, slots=True)
class Table:
    """One table; fields are numbered as in the schema."""

    data: bytes
    at: int

    @property
    def fields(self) -> int:
        """How many fields its vtable has room for."""
        return (number(self.data, self._vtable, "H") - 4) // 2

    @property
    def _vtable(self) -> int:
        return self.at - number(self.data, self.at, "i")

    def place(self, field: int) -> int | None:
        """Where a field lies, or None if it has its default."""
        vtable = self._vtable
        entry = 4 + 2 * field
        if entry + 2 > number(self.data, vtable, "H"):
            return None
        step = number(self.data, vtable + entry, "H")
        if step >= number(self.data, vtable + 2, "H"):
            raise Broken(f"field {field} is outside of its table")
        return self.at + step if step else None

    def number(self, field: int, code: str, default: int = 0) -> int:
        place = self.place(field)
        return default if place is None else number(self.data, place, code)

    def target(self, field: int) -> int | None:
        """Where the object of a field lies."""
        place = self.place(field)
        return None if place is None else follow(self.data, place)

    def table(self, field: int) -> Table | None:
        target = self.target(field)
        return None if target is None else Table(self.data, target)

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """(where the elements of this size begin, how many there are)."""
        target = self.target(field)
        if target is None:
            return 0, 0
        count = number(self.data, target, "I")
        if target + 4 + count * size > len(self.data):
            raise Broken(f"{count} elements at {target} are more than the file has")
        return target + 4, count

    def tables(self, field: int) -> list[Table]:
        begin, count = self.vector(field, 4)
        return [Table(self.data, follow(self.data, begin + 4 * i)) for i in range(count)]

    def numbers(self, field: int, dtype: str = "<i4") -> npt.NDArray[np.int64]:
        begin, count = self.vector(field, np.dtype(dtype).itemsize)
        return np.frombuffer(self.data, dtype, count, begin).astype(np.int64)

    def text(self, field: int) -> str:
        begin, count = self.vector(field, 1)
        return self.data[begin : begin + count].decode("utf-8", errors="replace")


def root(data: bytes, identifier: bytes) -> Table:
    """The table that a file is about."""
    if data[4:8] != identifier:
        raise Broken(f"it does not say {identifier.decode()} after its first four bytes")
    return Table(data, follow(data, 0))
