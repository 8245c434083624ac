"""Lower bounds of Mapping problems and MallocGames that were proven once, with the solver that
proved them.

`recorded_bounds.json` is written by `benchmarks/record_bounds.py`; a bound counts only for the
very same program, machine and cost model. Those of a MallocGame are about its first fast memory.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from typing import Any

from loadmaster.machine.machine import Machine
from loadmaster.program.program import Program
from loadmaster.search.problem import COST_MODEL, Bound


def bound_key(program: Program, machine: Machine, kind: str = "mapping") -> str:
    """What a recorded bound is about; `kind` is the problem's."""
    of_kind = "" if kind == "mapping" else f"{kind}/"
    return f"{of_kind}{COST_MODEL}/{program.hash}/{machine.hash}"


def recorded_bound(program: Program, machine: Machine, kind: str = "mapping") -> Bound | None:
    """The bound on record, if there is one."""
    row = _table().get(bound_key(program, machine, kind))
    return None if row is None else Bound(int(row["bound"]), f"{row['method']}, on record")


def recorded_row(program: Program, machine: Machine) -> dict[str, Any] | None:
    """The whole record: 'bound', 'best' (the value of the best map known), 'proven', 'method'."""
    return _table().get(bound_key(program, machine))


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    file = resources.files("loadmaster.search") / "recorded_bounds.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
