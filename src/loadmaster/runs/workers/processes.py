"""Workers in processes of this computer, which run `loadmaster.runs.workers.serve`.

Their standard input and output carry messages, each after its length in eight bytes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import IO

from loadmaster.runs.workers.pool import WorkerLost, unpacked

SERVE = "loadmaster.runs.workers.serve"
_LENGTH = 8
_END_SECONDS = 2.0


class ProcessWorker:
    """A process that has been handed the problem and is ready."""

    def __init__(self, setup: bytes) -> None:
        # A session of its own: Ctrl-C is for the run to hear, not for its workers.
        self.process = subprocess.Popen(
            [sys.executable, "-m", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        ready = unpacked(self.ask(setup)).about
        if "error" in ready:
            self.close()
            raise WorkerLost(
                f"a worker could not begin: {ready['error']}",
                object="worker",
                remedy="see to it and start again",
            )

    def ask(self, request: bytes) -> bytes:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            write_message(stdin, request)
            reply = read_message(stdout)
        except (OSError, ValueError):
            reply = None
        if reply is None:
            self.close()
            raise WorkerLost(
                f"process {self.process.pid} ended with {self.process.returncode}",
                object="worker",
                number=self.process.returncode,
                remedy="see what killed it",
            )
        return reply

    def close(self) -> None:
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def write_message(file: IO[bytes], data: bytes) -> None:
    """Its length, then itself."""
    file.write(len(data).to_bytes(_LENGTH, "big"))
    file.write(data)
    file.flush()


def read_message(file: IO[bytes]) -> bytes | None:
    """The next message; None at the end."""
    head = file.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    length = int.from_bytes(head, "big")
    data = file.read(length)
    return data if len(data) == length else None
