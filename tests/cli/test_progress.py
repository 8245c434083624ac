"""The live line on a terminal, plain lines elsewhere, silence with --quiet."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from loadmaster.cli.answer import Table, show
from loadmaster.cli.progress import LiveLine, be_quiet, clear, gap_text, say, standing_text
from loadmaster.runs.observer import Pace, Standing, _is_long_enough
from loadmaster.runs.session import _activity


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _loud() -> Iterator[None]:
    be_quiet(False)
    yield
    be_quiet(False)


def standing(best: int | None = 93_400_000_000, improvements: int = 1, unit: str = "ps") -> Standing:
    return Standing(unit, best, 90_200_000_000, 8120, 10.0, 812.0, 17.0, improvements)


def test_the_line() -> None:
    assert standing_text(standing()) == "best 93.40 ms  bound 90.20  gap 3.5 %  812 evals/s  17 s left"
    early = Standing("bytes", None, 4096, 0, 0.0, None, None, 0)
    assert standing_text(early) == "best –  bound 4.00 KiB"
    mixed = Standing("bytes", 2**20, 2**20 - 1, 3, 3.0, 1.5, 7200.0, 1)
    assert standing_text(mixed) == "best 1.00 MiB  bound 1024.00 KiB  gap < 0.001 %  1.5 evals/s  2.0 h left"
    assert (gap_text(0.0), gap_text(None), gap_text(0.0012)) == ("0 %", "–", "0.12 %")
    assert (gap_text(1e-9), gap_text(1e-5), gap_text(3e-5)) == ("< 0.001 %", "0.001 %", "0.003 %")


def test_while_it_compiles_no_time_is_promised() -> None:
    compiling = Standing("ps", 93_400_000_000, None, 3, 3.0, 1.5, 7200.0, 1, "compiling")
    assert standing_text(compiling) == "best 93.40 ms  compiling"


def test_the_pace_is_that_of_evaluating_plans() -> None:
    pace = Pace(0, 0.0)
    for second in range(40):  # compiling, then the first plan: a rate by the clock would promise hours
        pace.add(0, float(second), "compiling")
    assert pace.per_second is None
    pace.add(1, 40.0, "")
    assert pace.per_second is None
    for step in range(1, 11):
        pace.add(1 + 100 * step, 40.0 + step, "")
    assert pace.per_second == 100.0
    pace.add(1001, 60.0, "compiling")  # once more, for another shape
    assert pace.per_second == 100.0


def test_no_time_is_promised_by_the_first_plans() -> None:
    """The first ones improve, and each of these is checked and written: they are slower than the rest."""
    assert not _is_long_enough(599, 60_000, 2.0)
    assert _is_long_enough(600, 60_000, 2.0) and _is_long_enough(1, 60_000, 10.0)


def test_what_a_thread_is_at_is_seen_from_outside() -> None:
    inside, leave = threading.Event(), threading.Event()
    code = compile(
        "def work(inside, leave):\n    inside.set()\n    leave.wait()\n", "/x/jax/_src/compiler.py", "exec"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    thread = threading.Thread(target=names["work"], args=(inside, leave))
    thread.start()
    inside.wait()
    assert _activity(thread.ident or 0) == "compiling"
    leave.set()
    thread.join()
    assert _activity(threading.get_ident()) == "" and _activity(-1) == ""


def test_set_up_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        LiveLine(stream, Clock()).doing("set-up: a lower bound")
    assert terminal.getvalue() == "\r\x1b[Kset-up: a lower bound" and not file.getvalue()
    clear()


def test_on_a_terminal_one_line_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream, clock = Terminal(), Clock()
    line = LiveLine(stream, clock)
    for i in range(10):
        clock.now = i * 0.05
        line.show(standing(improvements=i))
    line.close()
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("left\n")
    assert 4 <= text.count("\r\x1b[K") <= 6
    assert "\x1b[" not in text.replace("\x1b[K", "")  # no colours
    assert max(map(len, text.split("\r\x1b[K"))) <= 80


def test_elsewhere_plain_lines_at_most_one_a_second_and_one_in_ten() -> None:
    stream, clock = io.StringIO(), Clock()
    line = LiveLine(stream, clock)
    line.show(Standing("ps", None, 5, 0, 0.0, None, None, 0))
    assert stream.getvalue() == ""  # nothing to tell yet
    for i in range(400):  # improvements at 0 s to 2 s, then silence
        clock.now = i / 10
        line.show(standing(improvements=min(i + 1, 20)))
    line.close()
    text = stream.getvalue()
    assert "\r" not in text and "\x1b" not in text
    assert text.count("\n") == 3 + 3  # at 0, 1, 2, and 12, 22, 32


def test_the_last_improvement_is_always_told() -> None:
    stream, clock = io.StringIO(), Clock()
    line = LiveLine(stream, clock)
    line.show(standing(95_000_000_000, 1))
    line.show(standing(94_000_000_000, 2))
    line.close()
    line.close()
    assert [text[:13] for text in stream.getvalue().splitlines()] == ["best 95.00 ms", "best 94.00 ms"]


def test_quiet_and_dumb(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    be_quiet(True)
    line = LiveLine(stream)
    line.show(standing())
    line.close()
    assert stream.getvalue() == ""
    be_quiet(False)
    monkeypatch.setenv("TERM", "dumb")
    dumb = LiveLine(stream)
    dumb.show(standing())
    dumb.close()
    assert "\r" not in stream.getvalue()


def test_other_lines_make_room(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    line = LiveLine(stream)
    line.show(standing())
    say("hello")
    assert stream.getvalue().endswith("left\r\x1b[K") and capsys.readouterr().err == "hello\n"
    line.close()


def test_small_gaps_stand_below_one_another() -> None:
    stream = io.StringIO()
    show([Table(("plan", "gap to bound"), [("a", gap_text(0.2)), ("b", gap_text(1e-9))])], stream)
    assert [line.rstrip()[-1] for line in stream.getvalue().splitlines()[1:]] == ["%", "%"]
    assert len({len(line.rstrip()) for line in stream.getvalue().splitlines()}) == 1
