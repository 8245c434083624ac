"""Suites of measurements: `run_suite("simulate", Options(quick=True))` yields rows.

A suite is a module here with `CASES`: name -> function of `(Options, seed)` that yields rows.
To add one is to add a file and a line in `SUITES`.
"""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError, nearest

SUITES = {
    "simulate": "benchmarks.suites.simulate",
    "allocation": "benchmarks.suites.allocation",
    "mapping": "benchmarks.suites.mapping",
    "malloc": "benchmarks.suites.malloc",
    "graph": "benchmarks.suites.graph",
    "export": "benchmarks.suites.export",
    "gpu": "benchmarks.suites.gpu",
}


@dataclass(frozen=True)
class Options:
    """What a user can narrow."""

    quick: bool = False
    """End within 60 s on 2 cores."""
    cases: tuple[str, ...] = ()
    """Names of cases, '*' for any characters; none: all."""
    seeds: int = 1
    solvers: tuple[str, ...] = ()
    """Only these; none: the suite's own choice."""
    data: Path | None = None
    """Folder of other projects' instances; none: `$LOADMASTER_DATA`."""


@dataclass(frozen=True)
class Row:
    """One measurement. `gap` is value / bound - 1."""

    case: str
    value: float
    unit: str
    status: str
    """'met' or 'missed' beside a target; 'optimal', 'feasible', … for a solver; 'skipped'."""
    machine: str | None = None
    solver: str | None = None
    seed: int = 0
    evaluations: int = 0
    seconds: float = 0.0
    baseline: float | None = None
    bound: float | None = None
    gap: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What else is worth keeping; 'target' is shown."""

    @property
    def goal(self) -> str:
        return str(self.extra.get("target", "–"))

    def as_dict(self) -> dict[str, Any]:
        """In the order in which results are recorded."""
        order = (
            "case",
            "machine",
            "solver",
            "seed",
            "evaluations",
            "seconds",
            "value",
            "unit",
            "baseline",
            "bound",
            "gap",
            "status",
            "extra",
        )
        values = asdict(self)
        return {key: values[key] for key in order}


Case = Callable[[Options, int], Iterator[Row]]


def run_suite(name: str, options: Options) -> Iterator[Row]:
    """Run the cases of a suite, one after the other; a row comes when it is measured."""
    if name not in SUITES:
        raise LoadmasterError(
            f"there is no suite '{name}'{nearest(name, tuple(SUITES))}",
            object=name,
            remedy=f"use {', '.join(SUITES)}",
        )
    cases: dict[str, Case] = importlib.import_module(SUITES[name]).CASES
    for pattern in options.cases:
        if not fnmatch.filter(cases, pattern):
            raise LoadmasterError(
                f"suite '{name}' has no case '{pattern}'{nearest(pattern, tuple(cases))}",
                object=pattern,
                remedy=f"use {', '.join(cases)}",
            )
    chosen = [
        case
        for case in cases
        if not options.cases or any(fnmatch.fnmatchcase(case, pattern) for pattern in options.cases)
    ]
    for case in chosen:
        for seed in range(options.seeds):
            yield from cases[case](options, seed)
