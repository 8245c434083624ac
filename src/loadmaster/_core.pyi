"""Types of the native core (`native/src/module.cpp`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
PlanArrays = tuple[Any, Any, Any, Any, int, bool, Any, Any, Any]

class Simulator:
    def __init__(self, columns: Mapping[str, npt.NDArray[Any]]) -> None: ...
    def run(self, plan: PlanArrays) -> dict[str, Any]: ...
    def run_many(self, plans: Sequence[PlanArrays], threads: int) -> tuple[Int64, Int64, Int64]: ...
    def run_static(self, memory: npt.NDArray[np.int8], threads: int) -> tuple[Int64, Int64]: ...

class MapBatch:
    def __init__(self, simulator: Simulator, columns: Mapping[str, npt.NDArray[Any]]) -> None: ...
    def evaluate(
        self, maps: npt.NDArray[np.int8], rectified: npt.NDArray[np.int8], threads: int
    ) -> tuple[Int64, Int64]: ...

def ceil_times(amounts: Int64, rates: Int64) -> Int64: ...

TECHNIQUES: list[str]
Placement = tuple[int, Int64, int, int, int]
Improved = Callable[[Int64], None]

class Stop:
    def __init__(self, seconds: float, nodes: int) -> None: ...
    def ask(self) -> None: ...

class Buffers:
    def __init__(
        self,
        lower: Int64,
        upper: Int64,
        size: Int64,
        alignment: Int64,
        pinned: Int64,
        hint: Int64,
        gaps: Int64,
        apart: npt.NDArray[np.int32],
    ) -> None: ...
    def height(self, offsets: Int64) -> int: ...
    def place(self, order: npt.NDArray[np.int32]) -> Int64: ...
    def fit(self, capacity: int, switches: Mapping[str, Any], stop: Stop) -> Placement: ...
    def minimize(
        self, switches: Mapping[str, Any], stop: Stop, improved: Improved
    ) -> Placement: ...
    def large(
        self, capacity: int, seed: int, threads: int, effort: int, stop: Stop, improved: Improved
    ) -> Placement: ...
    def baseline(self, name: str, seed: int, stop: Stop) -> Placement: ...
    def infeasible_subset(
        self, capacity: int, switches: Mapping[str, Any], stop: Stop
    ) -> Int64: ...
