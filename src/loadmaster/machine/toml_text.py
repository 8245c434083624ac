"""TOML from people we don't know: what can't be meant is one worded `ValueError`, never a crash later.

`tomllib.loads` alone gives RecursionError for deep nesting, integers that can't even be printed,
dates that nothing here takes, and needs the square of the length of a key of many parts.
"""

from __future__ import annotations

import tomllib
from typing import Any

from loadmaster.json_text import check_encodable

MOST_BYTES = 4 * 2**20
"""Of a file: a few seconds, whatever it holds."""
MOST_DEPTH = 8
MOST_DIGITS = 30
MOST_DOTS = 200
"""Of a line, and hence parts of a key."""


def read_toml(text: str) -> dict[str, Any]:
    """The tables that `text` holds: texts, numbers, lists and tables alone.

    Raises:
      ValueError: how the sentence "the file …" goes on. The caller adds the file and the remedy.
    """
    if len(text) > MOST_BYTES:
        raise ValueError(f"has {len(text):,} characters, above the limit {MOST_BYTES:,}")
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise ValueError(f"has a line with more than {MOST_DOTS} dots")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"is nested deeper than {MOST_DEPTH} levels") from None
    except ValueError:  # the one left: Python reads no integer of more than 4,300 digits
        raise ValueError(f"has an integer of more than {MOST_DIGITS} digits") from None
    _check(values)
    return values


def _check(values: dict[str, Any]) -> None:
    """Level by level, since what is deep must not be walked by recursion."""
    level: list[Any] = [values]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += [*value, *value.values()]
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, int):
                if abs(value) >= 10**MOST_DIGITS:
                    raise ValueError(f"has an integer of more than {MOST_DIGITS} digits")
            elif not isinstance(value, float):
                raise ValueError(f"has the date or time {value}, where text or a number is meant")
        if not inner:
            return
        level = inner
    raise ValueError(f"is nested deeper than {MOST_DEPTH} levels")


def _check_text(text: str) -> None:
    try:
        check_encodable(text)
    except ValueError as error:
        raise ValueError(f"can't be used: {error}") from None
