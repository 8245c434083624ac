"""No test depends on a clock: the suite's is stopped, and nobody looks at another one.

A test that needs time has these ways: a budget in evaluations, nodes or CP-SAT's `work`; a clock of
its own (`clocks.Ticking`) where a limit is the subject; `clocks.wait_until` for another process or
thread. How fast something is, is for `benchmarks/`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

import loadmaster
import toy
from clocks import Ticking, wait_until
from loadmaster import clock
from loadmaster.search.solver import Budget, Meter, solve

TESTS = Path(__file__).parent
SOURCE = Path(loadmaster.__file__).parent

LOOK_AT_A_CLOCK = {
    "clocks.py": "how to wait for others: the limit ends only what has failed",
    "toy.py": "evaluations that take as long as real ones; nobody counts the time",
    "fuzz/": "a reader that hangs is what it looks for: `make fuzz`, with limits of its own",
    "search/test_evaluator.py": "a timer is replaced by one that waits for what was written",
    "runs/": "processes that are killed and signalled: they wait for what was written",
}
"""File or folder of the tests -> why it may."""
RUN_THE_CLOCK = {
    "runs/test_session.py": "shows that time is shown: any will do",
    "search/conformance.py": "engines of other people must end by their own clock; the meter's is a test's",
}
TIMEOUTS = {
    "examples/": "ends a hanging example; 2 minutes for what takes seconds",
    "report/test_browser.py": "a browser's own limit, in milliseconds",
    "runs/": "ends a hanging process",
}
"""Where something ends after a time that is no part of what is tested."""

MEASURE = {
    "execute/": "hardware is measured",
    "clock.py": "the clock itself",
    "cli/progress.py": "what is shown; the clock is injected",
    "search/evaluator.py": "a user's command that hangs is ended",
    "program/zoo/traced.py": "says how long tracing took",
    "runs/": "when to check and to checkpoint, by what the last one took",
    "signals.py": "who does not listen to a signal is ended",
}
"""Module or folder of the package that reads another clock than `loadmaster.clock` -> why it may: no
time limit of a solver does."""


def _named(path: Path, root: Path, allowed: dict[str, str]) -> bool:
    name = path.relative_to(root).as_posix()
    return any(name == one or (one.endswith("/") and name.startswith(one)) for one in allowed)


def _files(root: Path, allowed: dict[str, str]) -> Iterator[tuple[str, list[ast.AST]]]:
    for path in sorted(root.rglob("*.py")):
        if not _named(path, root, allowed):
            yield str(path.relative_to(root)), _nodes(path)


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call, ast.alias, ast.arg, ast.Constant)


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return _looked_at(path.read_text(encoding="utf-8"))


def _looked_at(code: str) -> list[ast.AST]:
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, LOOKED_AT)]


def _clocks(nodes: list[ast.AST]) -> Iterator[str]:
    """Imports of `time`, timers, and the time of day."""
    for node in nodes:
        if isinstance(node, ast.Import) and any(name.name == "time" for name in node.names):
            yield f"line {node.lineno}: import time"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield f"line {node.lineno}: from time import"
        elif isinstance(node, ast.Attribute) and node.attr in ("Timer", "alarm", "setitimer"):
            yield f"line {node.lineno}: {node.attr}"


def _keywords(nodes: list[ast.AST]) -> Iterator[tuple[int, str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield node.lineno, keyword.arg, keyword.value


def test_no_test_looks_at_a_clock() -> None:
    found = [f"{name}, {what}" for name, nodes in _files(TESTS, LOOK_AT_A_CLOCK) for what in _clocks(nodes)]
    assert not found, found


def test_no_test_starts_the_clock() -> None:
    allowed = RUN_THE_CLOCK | {"conftest.py": "the fixture", "test_clocks.py": "this"}
    found = [
        f"{name}, line {node.lineno}"
        for name, nodes in _files(TESTS, allowed)
        for node in nodes
        if (isinstance(node, ast.alias) and node.name == "running")
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "running"
            and ast.unparse(node) == "clock.running"
        )
        or (isinstance(node, ast.arg) and node.arg == "running_clock")
        or (isinstance(node, ast.Constant) and node.value == "running_clock")
    ]
    assert not found, found


def test_nothing_is_given_up_after_a_time() -> None:
    """Neither processes and threads nor the examples of Hypothesis."""
    found = [
        f"{name}, line {line}: {word}={ast.unparse(value)}"
        for name, nodes in _files(TESTS, TIMEOUTS)
        for line, word, value in _keywords(nodes)
        if word in ("timeout", "deadline") and ast.unparse(value) != "None"
    ]
    assert not found, found
    assert settings.default.deadline is None


def test_only_what_measures_has_a_clock_of_its_own() -> None:
    """A limit that is read elsewhere would go on while the suite's clock is stopped."""
    found = [f"{name}, {what}" for name, nodes in _files(SOURCE, MEASURE) for what in _clocks(nodes)]
    assert not found, found


@pytest.mark.parametrize(
    ("root", "allowed"),
    [(TESTS, LOOK_AT_A_CLOCK), (TESTS, RUN_THE_CLOCK), (TESTS, TIMEOUTS), (SOURCE, MEASURE)],
)
def test_the_lists_name_what_there_is(root: Path, allowed: dict[str, str]) -> None:
    assert [name for name in allowed if not (root / name).exists()] == []


def test_clocks_are_seen() -> None:
    """The search itself can find something."""
    lines = ("import time", "from time import sleep", "threading.Timer(1, f)", "signal.alarm(3)")
    for line in lines:
        assert list(_clocks(_looked_at(line))), line
    assert not list(_clocks(_looked_at("import timeit, datetime\nclock.now()")))


def test_the_clock_of_the_suite_is_stopped() -> None:
    meter = Meter(toy.Toy(), Budget(seconds=1e-9))
    assert clock.now() == clock.now() and meter.seconds == 0 and not meter.exhausted
    assert clock.engine_seconds(3.0) is None and clock.engine_seconds(0.0) == 0.0
    with clock.running():
        assert clock.now() > 0 and clock.engine_seconds(3.0) == 3.0
    assert clock.now() == 0


def test_a_limit_is_met_by_a_clock_of_its_own() -> None:
    ticking = Ticking(0.5)
    found = solve(toy.Climb(), toy.Toy(), Budget(seconds=10.0), clock=ticking)
    assert 10.0 <= found.seconds < 12.0 and ticking.looks < 25 and 0 < found.evaluations < 25


def test_waiting_ends_with_what_it_waits_for() -> None:
    left = [1, 2, 3]
    wait_until(lambda: not left or left.pop() == 0, "an empty list")
    assert not left
    with pytest.raises(AssertionError, match="nothing: not within 0 s"):
        wait_until(lambda: False, "nothing", limit=0.0)
