"""Settings of a learned agent: a frozen dataclass, made from what a user gave and checked once.

Needs NumPy alone: a solver is listed, and its options are refused, where JAX is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from loadmaster.errors import LoadmasterError

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
    known = [field.name for field in fields(kind) if field.name not in fixed]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise LoadmasterError(
                f"solver '{solver}' has no option '{name}'", object=name, remedy=f"use {', '.join(known)}"
            )
    try:
        return kind(**{**options, **fixed})
    except (ValueError, TypeError) as error:
        raise LoadmasterError(str(error), object=solver, remedy="give another value") from None


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
            name: least.get(name, 0) <= value <= most.get(name, math.inf) for name, value in numbers.items()
        }
        wrong = [name for name, good in (*rules().items(), *fine.items()) if not good]
    if wrong:
        raise ValueError(f"{agent} can't work with {wrong[0]} = {values[wrong[0]]!r}")


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
