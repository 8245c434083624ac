"""Suites of measurements: `run_suite("simulate", Options(quick=True))` yields rows.

A suite is a module here with `CASES`: name -> function of `(Options, seed)` that yields rows.
To add one is to add a file and a line in `SUITES`.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadmaster import __version__
from loadmaster.errors import LoadmasterError, nearest

SUITES = {"simulate": "loadmaster.bench.simulate"}


@dataclass(frozen=True)
class Options:
    """What a user can narrow."""

    quick: bool = False
    """End within 60 s on 2 cores."""
    cases: tuple[str, ...] = ()
    """Names of cases, '*' for any characters; none: all."""
    seeds: int = 1


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
        order = ("case", "machine", "solver", "seed", "evaluations", "seconds", "value", "unit",
                 "baseline", "bound", "gap", "status", "extra")  # fmt: skip
        values = asdict(self)
        return {key: values[key] for key in order}


Case = Callable[[Options, int], Iterator[Row]]


def run_suite(name: str, options: Options) -> Iterator[Row]:
    """Run the cases of a suite, one after the other; a row comes when it is measured."""
    if name not in SUITES:
        raise LoadmasterError(f"there is no suite '{name}'{nearest(name, tuple(SUITES))}",
                              object=name, remedy=f"use {', '.join(SUITES)}")  # fmt: skip
    cases: dict[str, Case] = importlib.import_module(SUITES[name]).CASES
    for wanted in options.cases:
        if not fnmatch.filter(cases, wanted):
            raise LoadmasterError(
                f"suite '{name}' has no case '{wanted}'{nearest(wanted, tuple(cases))}",
                object=wanted,
                remedy=f"use {', '.join(cases)}",
            )
    chosen = [
        case for case in cases
        if not options.cases or any(fnmatch.fnmatchcase(case, wanted) for wanted in options.cases)
    ]  # fmt: skip
    for case in chosen:
        for seed in range(options.seeds):
            yield from cases[case](options, seed)


def versions() -> dict[str, str]:
    """Of everything that can change a figure."""
    found = {"loadmaster": __version__, "python": platform.python_version()}
    for package in ("numpy", "jax", "ortools"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def host() -> dict[str, Any]:
    """The kind of computer, not its name, and how much else it has to do: times depend on both."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": model, "cores": cores(), "system": platform.system(), "load": load}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
