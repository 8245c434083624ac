"""Progress on standard error: one live line on a terminal, else plain lines; none with `--quiet`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from loadmaster.cli.answer import printable, put
from loadmaster.units import MOVED_BYTE_PS, show_bytes, show_time

if TYPE_CHECKING:
    from loadmaster.runs.observer import Standing

_quiet = False
_live: LiveLine | None = None

_REDRAW_SECONDS = 0.1
_PLAIN_SECONDS = 1.0
"""Not on a terminal: at most one improvement so often."""
_SILENT_SECONDS = 10.0
"""Not on a terminal: a line at least so often."""


def be_quiet(quiet: bool) -> None:
    """Whether `say` and `LiveLine` are silent from now on."""
    global _quiet
    _quiet = quiet


def say(text: str) -> None:
    """One line of progress."""
    if not _quiet:
        clear()
        put(printable(text), sys.stderr)


def clear() -> None:
    """Take the live line away, should there be one: something else is to be said."""
    if _live is not None:
        _live.erase()


class LiveLine:
    """`best 93.4 ms  bound 90.2  gap 3.5 %  812 evals/s  17 s left`, kept up to date.

    It has no colours, so that NO_COLOR has nothing to change; the only control characters are
    those that draw the line again, and only on a terminal.
    """

    def __init__(self, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        global _live
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._shown_at: float | None = None
        self._shown_improvements = 0
        self._waiting: Standing | None = None
        self._drawn = False
        self._lock = threading.Lock()
        _live = self

    def show(self, standing: Standing) -> None:
        """Tell it where the run stands; it decides whether to show it."""
        if _quiet:
            return
        with self._lock:
            now = self._clock()
            passed = float("inf") if self._shown_at is None else now - self._shown_at
            improved = standing.improvements > self._shown_improvements
            self._waiting = standing
            if self._terminal:
                due = passed >= _REDRAW_SECONDS
            elif self._shown_at is None:
                due = improved or standing.seconds >= _SILENT_SECONDS
            else:
                due = passed >= (_PLAIN_SECONDS if improved else _SILENT_SECONDS)
            if due:
                self._put(standing, now)

    def doing(self, text: str) -> None:
        """What goes on before and after the search. Only on a terminal, where the next line takes its place."""
        if _quiet or not self._terminal:
            return
        with self._lock:
            self._stream.write(f"\r\x1b[K{printable(text)[: _columns(self._stream) - 1]}")
            self._stream.flush()
            self._drawn = True

    def close(self) -> None:
        """Show what is still owed and leave the line."""
        global _live
        with self._lock:
            owed = self._waiting
            if not _quiet and owed is not None:
                if self._terminal or owed.improvements > self._shown_improvements:
                    self._put(owed, self._clock())
                if self._drawn:
                    self._stream.write("\n")
                    self._stream.flush()
            self._waiting, self._drawn = None, False
        _live = None

    def erase(self) -> None:
        """Make room for another line; the live line comes back below it."""
        with self._lock:
            if self._drawn:
                self._stream.write("\r\x1b[K")
                self._stream.flush()
                self._drawn = False

    def _put(self, standing: Standing, now: float) -> None:
        text = printable(standing_text(standing))
        if self._terminal:
            self._stream.write(f"\r\x1b[K{text[: _columns(self._stream) - 1]}")
            self._drawn = True
        else:
            put(text, self._stream)
        self._stream.flush()
        self._shown_at, self._shown_improvements = now, standing.improvements


def standing_text(standing: Standing) -> str:
    """Where a run stands, in one line."""
    parts = []
    if standing.best is None:
        parts.append("best –")
    else:
        parts.append(f"best {value_text(standing.best, standing.unit)}")
    if standing.bound:  # 0: nothing is known, as of measured times
        parts.append(f"bound {_beside(standing)}")
    if standing.gap is not None:
        parts.append(f"gap {gap_text(standing.gap)}")
    if standing.activity:
        return "  ".join([*parts, standing.activity])
    if standing.per_second is not None:
        parts.append(f"{standing.per_second:,.{0 if standing.per_second >= 10 else 1}f} evals/s")
    if standing.seconds_left is not None:
        parts.append(f"{duration_text(standing.seconds_left)} left")
    return "  ".join(parts)


def value_text(value: int | None, unit: str) -> str:
    """A problem's value for people."""
    if value is None:
        return "–"
    if unit == "moved":
        return show_bytes(value // MOVED_BYTE_PS)
    return show_time(value) if unit == "ps" else show_bytes(value) if unit == "bytes" else f"{value:,}"


def gap_text(gap: float | None) -> str:
    """0.035 as '3.5 %'; more digits where it is small, so that only 0 looks like 0, and below some no number."""
    if gap is None:
        return "–"
    share = 100 * gap
    if 0 < share < 0.001:
        return "< 0.001 %"
    return "0 %" if share == 0 else f"{share:.1f} %" if share >= 1 else f"{share:.2g} %"


def _beside(standing: Standing) -> str:
    """The bound, without its unit if that is the best's."""
    assert standing.bound is not None
    text = value_text(standing.bound, standing.unit)
    number, _, unit = text.partition(" ")
    same = standing.best is not None and value_text(standing.best, standing.unit).endswith(f" {unit}")
    return number if unit and same else text


def duration_text(seconds: float) -> str:
    """Seconds for people who wait: '17 s', '4 min', '2.5 h'."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _columns(stream: IO[str]) -> int:
    try:
        return max(20, os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError, AttributeError):
        return 80
