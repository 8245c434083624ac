"""A column of texts that repeat: each different text once, and a code per row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Labels:
    """`column[row]` is a text; `column.codes` numbers them by first appearance."""

    values: tuple[str, ...]
    codes: Int32

    @classmethod
    def of(cls, texts: Iterable[str]) -> Labels:
        known: dict[str, int] = {}
        codes = [known.setdefault(text, len(known)) for text in texts]
        array = np.array(codes, dtype=np.int32)
        array.setflags(write=False)
        return cls(tuple(known), array)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def __iter__(self) -> Iterator[str]:
        return (self.values[code] for code in self.codes)

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values)}

    def rows(self, value: str) -> npt.NDArray[np.bool_]:
        """Which rows hold this text, as a mask."""
        return np.equal(self.codes, self._code_of.get(value, -1))
