"""What the runs of all agents have in common: where the time went, and when a checkpoint is due."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError, nearest
from loadmaster.search.solver import MOST_OF_AN_OPTION, Meter, State, rename_options

# Settings of a learned agent: a frozen dataclass, made from what a user gave and checked once.
#
# Needs NumPy alone: a solver is listed, and its options are refused, where JAX is not installed.

Settings = TypeVar("Settings")


def make_settings(
    kind: type[Settings], solver: str, options: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Settings:
    """Settings of a solver from a user's options.

    Args:
      kind: a frozen dataclass that raises `ValueError` for what it can't work with.
      solver: its name, for errors.
      options: what the user gave.
      fixed: settings that make the solver what it is, and that no user gives.
    """
    options = rename_options(options)
    known = [field.name for field in fields(kind) if field.name not in fixed]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise LoadmasterError(
                f"solver '{solver}' has no option '{name}'{nearest(name, known)}",
                object=name,
                remedy=f"use {', '.join(known)}",
            )
    try:
        return kind(**{**options, **fixed})
    except (ValueError, TypeError) as error:
        remedy = "; ".join(["give another value", *getattr(error, "__notes__", [])])
        raise LoadmasterError(str(error), object=solver, remedy=remedy) from None


def free_settings(settings: Any, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not fixed: they make the solver again for a run that is resumed."""
    return {name: value for name, value in asdict(settings).items() if name not in fixed}


def check_settings(
    agent: str,
    settings: Any,
    rules: Callable[[], Mapping[str, bool]],
    *,
    counts: Collection[str] = (),
    shares: Collection[str] = (),
    open_counts: Collection[str] = (),
) -> None:
    """Raise `ValueError` for the first setting that makes no sense.

    Args:
      agent: its name, for the error.
      settings: each must be of its default's type, and a number must not be below 0.
      rules: setting -> whether it is fine; called when all types are right.
      counts: settings that are at least 1; shares: at most 1.
      open_counts: whole numbers, or None: chosen when it is known where they run.
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    wrong = [
        field.name
        for field in fields(settings)
        if not _has_type(field.default, values[field.name], field.name in open_counts)
    ]
    if not wrong:
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        least, most = dict.fromkeys(counts, 1), dict.fromkeys(shares, 1)
        fine = {
            name: least.get(name, 0) <= value <= most.get(name, MOST_OF_AN_OPTION)
            for name, value in numbers.items()
        }
        wrong = [name for name, good in (*rules().items(), *fine.items()) if not good]
    if wrong:
        (default,) = (field.default for field in fields(settings) if field.name == wrong[0])
        error = ValueError(f"{agent} can't work with {wrong[0]} = {values[wrong[0]]!r}")
        error.add_note(f"the default is {json.dumps(default)}")
        raise error


def _has_type(default: object, value: object, open_count: bool) -> bool:
    """Whether it is of the default's type; a whole number may stand for any number."""
    if open_count:
        return value is None or type(value) is int
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return type(value) is type(default) or (type(default) is float and type(value) is int)


def keep_only(settings: Settings, names: Collection[str]) -> Settings:
    """The same settings with all but `names` as they are by default: compiled code is shared by runs that
    differ in nothing that it reads."""
    return type(settings)(**{name: getattr(settings, name) for name in names})


class Session:
    """One run of an agent. A subclass names its parts, and says in `arrays` what it goes on from."""

    def __init__(self, meter: Meter, *parts: str) -> None:
        self.meter = meter
        self.seconds = dict.fromkeys(parts, 0.0)
        """Part of the work -> how long it took, for the log."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """What is done inside counts for a part."""
        started = now()
        yield
        self.seconds[part] += now() - started

    def arrays(self) -> State:
        """All that changes, by name."""
        raise NotImplementedError

    def offer_checkpoint(self) -> None:
        """Gather the state if the observer wants it: that takes time."""
        if self.meter.observer.wants_checkpoint(self.meter):
            self.meter.checkpoint(self.arrays())


class Interval:
    """Says now and then that something is due."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.last = seconds, now()

    @property
    def due(self) -> bool:
        """Whether so many seconds have passed since the start or the last `restart`."""
        return now() - self.last >= self.seconds

    def restart(self) -> None:
        self.last = now()


# A replay buffer: rows of arrays in a ring, the newest over the oldest.


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
