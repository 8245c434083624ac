"""Changes to bytes, texts, numbers and JSON trees. All choices come from the generator passed in."""

from __future__ import annotations

import copy
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

EDGES = (
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    4096,
    65535,
    65536,
    2**31 - 2,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**40,
    2**53,
    2**60,
    2**61,
    2**62 - 1,
    2**62,
    2**63 - 1,
)
"""Numbers at which something wraps round, fills up or is one too many."""
BEYOND = (2**63, 2**64 - 1, 2**64, 10**30, 10**400)
"""Numbers that no int64 holds."""
FLOATS = (0.0, -0.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    " ",
    "x",
    "é",
    "\u202e",
    "\x00",
    "\x1b[2J\x1b]0;title\x07",
    "line\nbreak",
    "../../etc/passwd",
    "%s%n",
    "{0}",
    "\ud800",
    "nan",
    "-1",
    "1e400",
    "x" * 300,
    "'; --",
    "<script>",
)


def whole(rng: Random, beyond: bool = False) -> int:
    """A number that may hurt; `beyond`: also one that no int64 holds."""
    kind = rng.random()
    if kind < 0.35:
        return rng.randint(-4, 20)
    if beyond and kind > 0.9:
        return rng.choice(BEYOND) * rng.choice((1, -1))
    return rng.choice(EDGES) * rng.choice((1, 1, -1)) + rng.choice((0, 0, 0, 1, -1, 3))


def int64(rng: Random) -> int:
    """The same within an int64."""
    return max(-(2**63), min(2**63 - 1, whole(rng)))


def text(rng: Random, like: str = "") -> str:
    """Another text."""
    kind = rng.randrange(5)
    if kind == 0 or not like:
        return rng.choice(TEXTS)
    at = rng.randrange(len(like) + 1)
    if kind == 1:
        return like[:at] + rng.choice(TEXTS) + like[at:]
    if kind == 2:
        return like[:at]
    if kind == 3:
        return like * rng.choice((2, 3, 50))
    return like[:at] + like[at + 1 :]


def octets(rng: Random, data: bytes, times: int = 0) -> bytes:
    """Bytes changed without a thought for what they mean."""
    found = bytearray(data)
    for _ in range(times or rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(8)
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << rng.randrange(8)
        elif kind == 1 and found:
            found[at % len(found)] = rng.randrange(256)
        elif kind == 2:
            del found[at : at + rng.choice((1, 2, 4, 8, 100))]
        elif kind == 3:
            found[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8)))
        elif kind == 4:
            end = at + rng.choice((1, 4, 16, 64))
            found[at:at] = found[at:end] * rng.choice((1, 2, 8))
        elif kind == 5:
            value = whole(rng)
            code = rng.choice(("<H", "<I", "<Q"))
            size = struct.calcsize(code)
            found[at : at + size] = struct.pack(code, value % 256**size)
        elif kind == 6 and len(found) > 8:
            other = rng.randrange(len(found))
            size = rng.choice((1, 4, 16))
            found[at : at + size] = found[other : other + size]
        elif rng.random() < 0.2:
            del found[at:]
    return bytes(found)


def tree(rng: Random, value: Any, times: int = 0) -> Any:
    """A JSON tree with some places changed; the one that is given stays as it is."""
    found = [copy.deepcopy(value)]
    for _ in range(times or rng.choice((1, 1, 1, 2, 3))):
        holder, key = _place(rng, found)
        _change(rng, holder, key)
    return found[0]


def _place(rng: Random, holder: Any) -> tuple[Any, Any]:
    """A random place: walks down, so that a short branch is as likely as a long one."""
    key: Any = 0
    while True:
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or rng.random() < 0.12:
            return holder, key
        holder = inner
        key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))


def _change(rng: Random, holder: Any, key: Any) -> None:
    value = holder[key]
    kind = rng.randrange(10)
    if kind == 0:
        holder[key] = rng.choice((None, True, [], {}, "", 0, -1, 0.5, [[]], {"x": 1}))
    elif kind == 1 and (isinstance(holder, dict) or len(holder) > 1):
        del holder[key]
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(value))
    elif kind == 2 and isinstance(holder, dict):
        holder[text(rng, str(key))] = copy.deepcopy(value)
    elif kind == 3:
        holder[key] = deep(rng)
    elif kind == 4 and isinstance(value, list) and value:
        rng.shuffle(value)
    elif isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = whole(rng, beyond=True) if rng.random() < 0.7 else value + rng.choice((1, -1))
    elif isinstance(value, float):
        holder[key] = rng.choice(FLOATS) if rng.random() < 0.7 else -value
    elif isinstance(value, str):
        holder[key] = text(rng, value)
    elif isinstance(value, list) and value and not isinstance(value[0], list | dict) and rng.random() < 0.1:
        holder[key] = (value * (2000 // len(value) + 1))[:2000]
    else:
        holder[key] = rng.choice((whole(rng, beyond=True), rng.choice(FLOATS), rng.choice(TEXTS)))


def deep(rng: Random) -> Any:
    """Lists or objects inside one another; not so deep that writing them fails."""
    found: Any = 1
    for _ in range(rng.choice((2, 20, 200))):
        found = [found] if rng.random() < 0.5 else {"x": found}
    return found


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TOKEN = re.compile(r"[A-Za-z_][\w.-]*|\d+|[^\w\s]")


def lines(rng: Random, source: str, *, tokens: Sequence[str] = (), times: int = 0) -> str:
    """A text of lines and tokens, changed by lines, tokens and numbers. `tokens` are words to put in."""
    found = source
    for _ in range(times or rng.choice((1, 1, 1, 2, 3, 5))):
        found = rng.choice(_TEXT_CHANGES)(rng, found, tokens)
    return found


def _replace_number(rng: Random, source: str, tokens: Sequence[str]) -> str:
    def any_number() -> str:
        kind = rng.random()
        if kind < 0.05:
            return "9" * rng.choice((20, 400, 5000))
        return str(rng.choice(FLOATS)) if kind < 0.15 else str(whole(rng, beyond=True))

    return _replaced(rng, source, _NUMBER, any_number)


def _replace_token(rng: Random, source: str, tokens: Sequence[str]) -> str:
    known = [match.group() for match in _TOKEN.finditer(source[:20_000])]
    if not known:
        return source + "x"
    return _replaced(rng, source, _TOKEN, lambda: rng.choice([*tokens, rng.choice(known), rng.choice(known)]))


def _replaced(rng: Random, source: str, pattern: re.Pattern[str], new: Callable[[], str]) -> str:
    places = [match.span() for match in pattern.finditer(source)]
    if not places:
        return source + new()
    begin, end = rng.choice(places)
    return source[:begin] + new() + source[end:]


def _change_lines(rng: Random, source: str, tokens: Sequence[str]) -> str:
    rows = source.split("\n")
    at, other = rng.randrange(len(rows)), rng.randrange(len(rows))
    kind = rng.randrange(5)
    if kind == 0:
        del rows[at]
    elif kind == 1:
        rows.insert(other, rows[at])
    elif kind == 2:
        rows[at], rows[other] = rows[other], rows[at]
    elif kind == 3:
        del rows[at:]
    else:
        rows[at:at] = rows[min(at, other) : max(at, other)]
    return "\n".join(rows)


def _change_characters(rng: Random, source: str, tokens: Sequence[str]) -> str:
    at = rng.randrange(len(source) + 1)
    kind = rng.randrange(4)
    if kind == 0:
        return source[:at] + source[at + rng.choice((1, 2, 8)) :]
    if kind == 1:
        return source[:at] + rng.choice(TEXTS) + source[at:]
    if kind == 2:
        return source[:at] + rng.choice("()[]{}<>=,;:\"'%#/*\\") * rng.choice((1, 1, 2, 300)) + source[at:]
    return source[:at] + source[at : at + rng.choice((1, 8, 64))] * rng.choice((2, 20)) + source[at:]


_TEXT_CHANGES: tuple[Callable[[Random, str, Sequence[str]], str], ...] = (
    _replace_number,
    _replace_number,
    _replace_token,
    _replace_token,
    _change_lines,
    _change_characters,
)


def encoded(rng: Random, source: str) -> bytes:
    """A text as bytes, now and then with some that are no text."""
    data = source.encode("utf-8", "surrogatepass")
    return octets(rng, data) if rng.random() < 0.05 else data
