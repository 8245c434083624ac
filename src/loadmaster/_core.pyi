"""Types of the native core (`native/src/module.cpp`)."""

from collections.abc import Mapping, Sequence
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

def ceil_times(amounts: Int64, rates: Int64) -> Int64: ...
