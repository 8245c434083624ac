"""Signals end a run cleanly: the first asks, the second insists, and neither waits for long.

Python runs a signal's handler in the main thread, between two of its own instructions: not while
XLA compiles there or a prover works, for as long as that takes. On the command line a thread
beside it therefore hears every signal at once (`signal.set_wakeup_fd`), answers, and ends the process
itself if the main thread does not come back.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
GRACE_SECONDS = 3.0
"""So long the main thread has to end a run after the first signal."""
LAST_SECONDS = 0.5
"""The same after the second."""
_BRIEFLY = 0.5
_MOMENT = 0.05
_CLOSED, _SILENCE = 0, -1


class Stoppable(Protocol):
    """A run, as those see it who end it."""

    where: Path | None
    """Its folder."""

    @property
    def busy(self) -> bool:
        """Whether something is being written that must not be cut in two."""
        ...

    def ask(self) -> None:
        """To stop soon; from any thread."""
        ...

    def settle(self) -> None:
        """Check and store the best, should that be owed, in place of the main thread."""
        ...

    def cut(self) -> None:
        """Bring the log to its end in place of the main thread, and let nobody write after that."""
        ...


class Listener:
    """What is known of signals in this process, and the handlers' own side."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal that came; 0: none."""
        self.run: Stoppable | None = None
        """The run that is going on."""
        self.handled = 0
        """How often the main thread has heard of one."""
        self.ending = False
        """The main thread has said what it had to say, and only leaves."""
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """SIGINT always; others only where nobody else handles or ignores them, as nohup does."""
        for number in SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) == signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._heard)

    def restore(self) -> None:
        """The handlers that were there before."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def install_again(self) -> None:
        """After somebody else has set handlers."""
        for number in self._before:
            signal.signal(number, self._heard)

    def ask(self) -> None:
        """The run that is going on, if one is."""
        if self.run is not None:
            self.run.ask()

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self.handled += 1
        if self.run is None:
            raise KeyboardInterrupt
        if self.handled == 1:
            self.run.ask()
        elif self.run.busy:
            self._insist(number)
        else:
            raise KeyboardInterrupt

    def _insist(self, number: int) -> None:
        """Have the signal come again in a moment: now it would cut a line in two."""
        later = threading.Timer(_MOMENT, os.kill, (os.getpid(), number))
        later.daemon = True
        later.start()


_active: Listener | None = None


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Hear signals for the time of a run, where the command line does not do so anyway. SIGTERM and
    SIGHUP then end the process as they would have, once the run is closed. Outside of the main
    thread, which alone may set handlers, nothing is done."""
    global _active
    if _active is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _active = listener = Listener()
    listener.install()
    try:
        yield
    finally:
        listener.restore()
        _active = None
        if listener.number not in (0, signal.SIGINT):
            signal.raise_signal(listener.number)


@contextlib.contextmanager
def stoppable(run: Stoppable) -> Iterator[None]:
    """While this lasts, signals are about this run."""
    listener = _active
    if listener is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, listener.run = listener.run, run
    if listener.number:  # it came before the run, and whoever it was raised in went on
        listener.ask()
    try:
        yield
    finally:
        listener.run = outer


def take_back() -> None:
    """Hear signals again, after a library has set handlers of its own without being asked to."""
    if _active is not None and threading.current_thread() is threading.main_thread():
        _active.install_again()


def heard() -> bool:
    """Whether a signal has come."""
    return _active is not None and _active.number != 0


def exit_code() -> int:
    """Of a process that was interrupted: 128 and the signal's number; Ctrl-C if none is known."""
    known = 0 if _active is None else _active.number
    return 128 + (known or signal.SIGINT)


class Watcher(Listener):
    """A listener with a thread that does not wait for the main thread."""

    def __init__(
        self,
        answer: Callable[[bool], None],
        farewell: Callable[[Path | None], None],
        *,
        grace: float = GRACE_SECONDS,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        """
        Args:
          answer: says at once that a signal was heard, and whether a run is to be stopped.
          farewell: says in place of the main thread that it ended, and where the run is.
          grace: seconds that the main thread has after the first signal.
          leave: ends the process with a code.
        """
        super().__init__()
        self._answer, self._farewell, self._grace, self._leave = answer, farewell, grace, leave
        self._hears, self._notifies = socket.socketpair()
        for end in (self._hears, self._notifies):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="loadmaster signals", daemon=True)

    def install(self) -> None:
        super().install()
        signal.set_wakeup_fd(self._notifies.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def restore(self) -> None:
        signal.set_wakeup_fd(-1)
        super().restore()
        self._notifies.send(bytes([_CLOSED]))
        self._thread.join(_BRIEFLY)

    def _insist(self, number: int) -> None:
        """The watching thread does so itself."""

    def _watch(self) -> None:
        number = self._next(None)
        if number == _CLOSED:
            return
        self.number = self.number or number
        running = self.run is not None  # now: it may be over before anything is said
        self.ask()
        if running or not self._is_heard():
            _briefly(lambda: self._answer(running))
        while (number := self._next(self._grace)) != _CLOSED:
            if number != _SILENCE:  # a second one
                if self._next(LAST_SECONDS) == _CLOSED:
                    return
                break
            if self.run is not None or self.ending or not self.handled:
                break
        else:
            return
        run = self.run
        if run is not None:
            _briefly(run.settle)
            _briefly(run.cut)
        if not self.ending:
            _briefly(lambda: self._farewell(None if run is None else run.where))
        end_children()
        self._leave(128 + self.number)

    def _is_heard(self) -> bool:
        """Whether the main thread is not in the middle of something long, and says itself that it ends."""
        threading.Event().wait(_MOMENT)
        return self.handled > 0

    def _next(self, seconds: float | None) -> int:
        """The next of our signals, `_CLOSED`, or `_SILENCE` for so long."""
        while select.select([self._hears], [], [], seconds)[0]:
            number = self._hears.recv(1)[0]
            if number == _CLOSED or number in SIGNALS:
                return number
        return _SILENCE


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """For the whole of a process: its main thread enters this."""
    global _active
    _active = watcher
    watcher.install()
    try:
        yield
    finally:
        if watcher.number:  # watched to the end: the interpreter waits for threads of its own
            watcher.ending = True
            end_children()
        else:
            watcher.restore()
            _active = None


def end_children() -> None:
    """Kill what this process, or its children, have started and not ended."""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for child, parent in _parents().items():
        children.setdefault(parent, []).append(child)
    found, left = [], [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def _parents() -> dict[int, int]:
    """Process -> its parent: as Linux tells it, else as `ps` does."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            # The name of a program comes before, in parentheses, and may hold anything.
            found[int(path.parent.name)] = int(path.read_bytes().rpartition(b")")[2].split()[1])
    if found:
        return found
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        lines = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, timeout=_BRIEFLY)
        return dict(tuple(map(int, line.split())) for line in lines.stdout.splitlines())  # type: ignore[misc]
    return {}


def _briefly(act: Callable[[], None]) -> None:
    """Do something that may block or fail, such as writing where nobody reads, without waiting for it."""

    def tried() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=tried, daemon=True)
    thread.start()
    thread.join(_BRIEFLY)


def _forget() -> None:
    """A forked child hears signals of its own, and must not answer for its parent."""
    global _active
    if _active is not None:
        signal.set_wakeup_fd(-1)
        Listener.restore(_active)
        _active = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
