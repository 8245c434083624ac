"""JSON from people we don't know: what can't be meant is one worded `ValueError`, never a crash later.

`json.loads` alone gives RecursionError for deep nesting, infinity for 1e400, integers that no column
can hold, and texts with lone surrogates, which no file can be written with.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MOST_DEPTH = 64
MOST_DIGITS = 64
"""Of an integer: a generator's state has 39."""
_MOST_INTEGER = 10**MOST_DIGITS


def read_json(text: str | bytes, *, most_bytes: int = 2**30) -> Any:
    """The value that `text` holds.

    Raises:
      ValueError: one line that says what is wrong. The caller adds the file and the remedy.
    """
    if len(text) > most_bytes:
        raise ValueError(f"it has {len(text):,} bytes of JSON, above the limit {most_bytes:,}")
    try:
        # Strictly UTF-8: left to itself, json lets bytes through that are half a character.
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        value = json.loads(plain, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("it is not JSON: the text is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"its JSON is nested deeper than {MOST_DEPTH} levels") from None
    except _NotFinite as error:
        raise ValueError(str(error)) from None
    except ValueError:  # the one left: Python reads no integer of more than 4,300 digits
        raise ValueError(f"it has an integer of more than {MOST_DIGITS} digits") from None
    _check(value)
    return value


class _NotFinite(ValueError):
    pass


def _no_constant(name: str) -> NoReturn:
    raise _NotFinite(f"it has the number {name}, which is not finite")


def _check(document: Any) -> None:
    """Level by level, since what is deep must not be walked by recursion."""
    level = [document]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                inner.extend(value)
                inner.extend(value.values())
            elif kind is list:
                inner.extend(value)
            elif kind is str:
                check_encodable(value)
            elif kind is int and not -_MOST_INTEGER < value < _MOST_INTEGER:
                raise ValueError(f"it has an integer of more than {MOST_DIGITS} digits")
            elif kind is float and not math.isfinite(value):
                raise ValueError("it has a number above 1.8e308, which is not finite")
        if not inner:
            return
        level = inner
    raise ValueError(f"its JSON is nested deeper than {MOST_DEPTH} levels")


def check_encodable(text: str) -> None:
    """Refuse lone surrogates: halves of characters, which no file or terminal takes."""
    if text.isascii():  # a flag of the text: no walk
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        excerpt = text[max(0, error.start - 20) : error.start + 20].encode("ascii", "backslashreplace")
        raise ValueError(f"the text '{excerpt.decode()}' has half a character in it") from None
