"""The clock that time limits look at, and how to stop it.

Every limit in seconds is read here, so that there is one place to take time out of a run. While the
clock is `stopped`, searches end by their evaluations, their nodes or a proof, and so does a test,
however busy the computer is. Where a limit is the subject itself, inject a clock into one search
(`solve(..., clock=...)`) or into all that looks at this one (`reading`).
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator

_FOREVER = datetime.timedelta(days=365)
"""MathOpt knows no other word for 'no limit' in a field that is set."""
_source: Callable[[], float] | None = time.monotonic


def now() -> float:
    """Seconds since some moment; always the same while the clock is stopped."""
    return 0.0 if _source is None else _source()


def engine_seconds(seconds: float | None) -> float | None:
    """What to tell an engine that has a clock of its own; None: no limit, for the clock is stopped.

    No time at all stays no time at all.
    """
    return None if seconds is not None and seconds > 0 and _source is None else seconds


def engine_limit(seconds: float) -> datetime.timedelta:
    """The same as MathOpt takes it, at least 10 ms: with none it may end without a word."""
    limit = engine_seconds(seconds)
    if limit is None or limit >= _FOREVER.total_seconds():
        return _FOREVER
    return datetime.timedelta(seconds=max(0.01, limit))


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """No time passes in this process."""
    with reading(None):
        yield


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Time passes, also within `stopped`."""
    with reading(time.monotonic):
        yield


@contextlib.contextmanager
def reading(source: Callable[[], float] | None) -> Iterator[None]:
    """`now` is what `source` says; None: no time passes."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
