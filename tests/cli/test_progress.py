"""The live line on a terminal, plain lines elsewhere, silence with --quiet."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from loadmaster.cli.progress import LiveLine, be_quiet, gap_text, say, standing_text
from loadmaster.runs.observer import Standing


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
    assert standing_text(mixed) == "best 1.00 MiB  bound 1024.00 KiB  gap 9.5e-05 %  1.5 evals/s  2.0 h left"
    assert (gap_text(0.0), gap_text(None), gap_text(0.0012)) == ("0 %", "–", "0.12 %")


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
