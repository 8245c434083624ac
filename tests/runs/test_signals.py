"""Signals end a run with its best kept and its log whole, whatever the main thread is doing.

No test looks at a clock: each waits for a line, or for all that hold a pipe to be gone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import toy
from loadmaster import signals
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.history import find_contradictions
from loadmaster.runs.replay import replay
from loadmaster.search.solver import Budget

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]

SCRIPT = """
import ctypes, os, signal, subprocess, sys, threading, time
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs these tests may ignore it, as nohup does
sys.path.insert(0, {tests!r})
from pathlib import Path
import numpy as np
import toy
from loadmaster import signals
from loadmaster.runs import run_solver
from loadmaster.search.solver import Budget


def tell(*words):
    print(*words, flush=True)


class Search(toy.Plain):
    def run(self, meter, seed, state):
        rng = np.random.default_rng(seed)
        meter.observer._check_after = float("inf")  # as where checks take long: the best is owed
        for _ in range(20):
            meter.evaluate(meter.problem.place(rng.permutation(len(meter.problem.roots))))
        # It holds our output: who reads that to its end knows that this has ended too.
        self.child = subprocess.Popen(["sleep", "1000000"], start_new_session=True)
        tell("searching", meter.best_value)
        self.rest(meter)
        self.child.kill()
        return meter.solution()


class Patient(Search):
    def rest(self, meter):
        while not meter.exhausted:
            meter.evaluate(meter.best)


class Deaf(Search):
    def rest(self, meter):
        try:
            while not meter.observer.stop:
                pass
            tell("asked")
            while True:
                pass
        finally:
            self.child.kill()


class Compiles(Search):
    def rest(self, meter):
        # As in C++: a mutex that is locked already is waited for, whatever signals come.
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
        libc.pthread_mutex_lock(mutex)
        threading.Thread(target=tell_blocked, args=(mutex, mutex.raw), daemon=True).start()
        libc.pthread_mutex_lock(mutex)


def tell_blocked(mutex, free):
    while mutex.raw == free:  # a mutex notes that somebody waits for it
        time.sleep(0.001)
    tell("blocked")


def search():
    return run_solver({solver}(), toy.Toy(), Budget(10**9), folder=Path({folder!r}))

{main}
"""
LIBRARY = """
try:
    found = search()
except KeyboardInterrupt:
    tell("raised"); sys.exit(3)
tell(found.stop, found.interrupted); sys.exit(4)
"""
WATCHED = """
watcher = signals.Watcher(lambda run: tell("answered", run), lambda where: tell("left", where), grace={grace})
with signals.watching(watcher):
    search()
"""


def started(folder: Path, solver: str, main: str) -> tuple[subprocess.Popen[str], int]:
    """A run that has found something, which is not checked yet, and goes on; and what that is worth."""
    code = SCRIPT.format(tests=str(Path(toy.__file__).parent), folder=str(folder), solver=solver, main=main)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    found = re.fullmatch(r"searching (\d+)\n", process.stdout.readline())
    assert found, process.communicate()
    if solver == "Compiles":  # before that the main thread would hear signals itself
        assert process.stdout.readline() == "blocked\n"
    return process, int(found[1])


def check_whole(folder: Path, best: int | None = None) -> RunFolder:
    """The log ends with the stop, its last line is whole, and the plan file is the best plan."""
    (path,) = folder.iterdir()
    run = RunFolder.open(path)
    text = run.read_log()
    history = History(text.lines)
    assert not text.torn and text.lines[-1]["event"] == "stop"
    assert len(history.of("stop")) == 1 and history.state == "interrupted"
    assert not find_contradictions(history) and history.result is not None
    assert best is None or history.result_value == best
    assert json.loads((path / "best.json").read_text()) == json.loads(
        (path / "plans" / f"{(history.handed_over or history.result)['plan']}.json").read_text()
    )
    assert not replay_broken(run)
    return run


def replay_broken(run: RunFolder) -> list[object]:
    return list(replay(run).broken)


@pytest.mark.parametrize("number", ALL)
def test_the_first_asks(tmp_path: Path, number: signal.Signals) -> None:
    process, value = started(tmp_path, "Patient", LIBRARY)
    process.send_signal(number)
    out, err = process.communicate()
    if number == signal.SIGINT:
        assert process.returncode == 4 and out == "interrupted True\n" and not err
    else:  # the process ends as it would have, once the run is closed
        assert process.returncode == -number and not out and not err
    check_whole(tmp_path, value)


def test_the_second_insists(tmp_path: Path) -> None:
    process, value = started(tmp_path, "Deaf", LIBRARY)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 3 and out == "raised\n"
    check_whole(tmp_path, value)


@pytest.mark.parametrize("number", ALL)
def test_a_main_thread_that_compiles_is_not_waited_for(tmp_path: Path, number: signal.Signals) -> None:
    process, value = started(tmp_path, "Compiles", WATCHED.format(grace=0.05))
    process.send_signal(number)
    out, err = process.communicate()
    run = check_whole(tmp_path, value)
    assert process.returncode == 128 + number and not err
    assert out.splitlines() == ["answered True", f"left {run.path}"]


def test_it_is_answered_before_the_grace_is_over_and_a_second_ends_it(tmp_path: Path) -> None:
    process, value = started(tmp_path, "Compiles", WATCHED.format(grace=10**6))
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "answered True\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    run = check_whole(tmp_path, value)
    assert process.returncode == 128 + signal.SIGTERM and out == f"left {run.path}\n"


def test_a_main_thread_that_comes_back_ends_the_run_itself(tmp_path: Path) -> None:
    process, value = started(tmp_path, "Patient", WATCHED.format(grace=10**6))
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate()
    assert process.returncode == 0 and out == "answered True\n" and not err
    check_whole(tmp_path, value)


def test_a_signal_before_the_run_ends_it_at_once(tmp_path: Path) -> None:
    """Whoever was interrupted, such as a baseline's solver, went on all the same."""
    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    with signals.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        found = run_solver(toy.Climb(), toy.Toy(), Budget(10**9), folder=tmp_path)
    assert found.interrupted and signal.getsignal(signal.SIGINT) == before
    (path,) = tmp_path.iterdir()
    assert History(RunFolder.open(path).read_log().lines).state == "interrupted"


@pytest.fixture
def hup_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ALL]


@pytest.mark.usefixtures("hup_ignored")
def test_what_nohup_ignores_stays_ignored_and_all_is_put_back() -> None:
    before = handlers()
    with signals.listening():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) != before[1]
        with signals.listening():  # within: nothing more to do
            pass
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert handlers() == before


def test_other_threads_than_the_main_one_set_no_handlers() -> None:
    before, seen = handlers(), []

    class Looks(toy.Climb):
        def run(self, meter, seed, state):  # type: ignore[no-untyped-def]
            seen.append(handlers())
            return super().run(meter, seed, state)

    thread = threading.Thread(target=lambda: run_solver(Looks(), toy.Toy(), Budget(20)))
    thread.start()
    thread.join()
    assert seen == [before]


# JAX, where another test of this process has loaded it, warns of any fork; this child only looks and ends.
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_child_hears_for_itself_alone() -> None:
    before = handlers()
    with signals.listening():
        child = os.fork()
        if child == 0:
            os._exit(0 if handlers() == before and not signals.heard() else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_command_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "loadmaster",
        "plan",
        "resnet50",
        "--machine",
        "nnp-i",
        "--solver",
        "search",
        "--budget",
        "1000000000",
        "--exact-seconds",
        "0",
        "--json",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while not process.stderr.readline().startswith("best "):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert "stopping: the best so far is kept" in err
    assert process.returncode == 143 == json.loads(out)["exit"]
    check_whole(tmp_path / "runs")
