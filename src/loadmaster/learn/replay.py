"""A replay buffer: rows of arrays in a ring, the newest over the oldest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Ring:
    """Where the next rows go in arrays of `capacity` rows. The arrays are the owner's."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.stored = 0
        """Rows ever stored."""

    @property
    def filled(self) -> int:
        """Rows that hold something: the first ones."""
        return min(self.stored, self.capacity)

    def store(self, rows: int, *pairs: tuple[npt.NDArray[Any], Any]) -> npt.NDArray[np.int64]:
        """Put `rows` new rows into each (array [capacity, …], new [rows, …]); returns their places [rows]."""
        places = (self.stored + np.arange(rows)) % self.capacity
        for array, new in pairs:
            array[places] = new
        self.stored += rows
        return places

    def oldest_first(self) -> npt.NDArray[np.int64]:
        """[filled] the places in the order in which they were stored."""
        return np.arange(self.stored - self.filled, self.stored) % self.capacity
