"""Watches over processes that try inputs: gives them work, and attributes deaths and hangs to their inputs."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from . import ROOT
from .worker import PROGRESS, Limits

STUCK_SECONDS = 300.0
"""Without a new input: it waits for something that never comes. Processor time is limited elsewhere."""
KEPT = 3
"""Inputs of findings that look alike."""


@dataclass
class Row:
    """What came of one reader's inputs."""

    reader: str
    sanitized: bool
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    findings: int = 0
    seconds: float = 0.0
    """Spent by processes, starting them left out."""
    processor: float = 0.0
    """The same of processor time, what made the valid inputs left out."""
    slowest: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.reader} (sanitized)" if self.sanitized else self.reader

    @property
    def per_second(self) -> float:
        return self.inputs / self.processor if self.processor else 0.0


@dataclass
class Finding:
    """An input that was not answered as the rule says."""

    reader: str
    sanitized: bool
    seed: int
    number: int
    kind: str
    """exception, memory, slow, hang, stuck, crash or two lines"""
    where: str
    detail: str
    file: str = ""

    def __str__(self) -> str:
        under = ", sanitized" if self.sanitized else ""
        at = f" at {self.where}" if self.where else ""
        return f"{self.reader}{under}, input {self.number}: {self.kind}{at}: {self.detail} -> {self.file}"


@dataclass(frozen=True)
class Order:
    """A piece of work."""

    row: Row
    first: int
    last: int


@dataclass
class Campaign:
    """Inputs for several readers, by several processes. `most`: inputs of each reader; `seconds`: for all."""

    readers: Iterable[str]
    seed: int = 0
    most: int | None = None
    seconds: float | None = None
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    sanitized: Mapping[str, str] | None = None
    """The environment in which the native core is the sanitized one; None: the installed one."""
    folder: Path = ROOT / "build" / "fuzz" / "findings"
    say: IO[str] | None = None
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = {name: Row(name, self.sanitized is not None) for name in self.readers}
        self._next = dict.fromkeys(self.rows, 0)
        self._active: dict[str, float] = dict.fromkeys(self.rows, 0.0)
        self._lock = threading.Lock()
        self._end = None if self.seconds is None else time.monotonic() + self.seconds
        self._alike: dict[tuple[str, str, str], int] = {}

    def run(self) -> None:
        """Try them all; returns when every process has ended."""
        threads = [threading.Thread(target=self._serve) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _order(self) -> Order | None:
        """The next piece of work: of the reader that had the least time, and for some seconds."""
        with self._lock:
            left = None if self._end is None else self._end - time.monotonic()
            if left is not None and left <= 0:
                return None
            open_ = [n for n in self.rows if self._next[n] < (self.most or sys.maxsize)]
            if not open_:
                return None
            name = min(open_, key=lambda n: (self.rows[n].seconds + self._active[n], n))
            row, first = self.rows[name], self._next[name]
            wanted = 4.0 if left is None else min(4.0, left)
            count = max(5, min(5000, int(row.inputs / row.seconds * wanted))) if row.inputs else 20
            last = first + count if self.most is None else min(first + count, self.most)
            self._next[name] = last
            self._active[name] += wanted
            return Order(row, first, last)

    def _serve(self) -> None:
        worker = Worker(self.limits, self.sanitized)
        try:
            while (order := self._order()) is not None:
                first = order.first
                while first < order.last:
                    first = self._piece(worker, order, first)
                with self._lock:
                    self._active[order.row.reader] = max(0.0, self._active[order.row.reader] - 4.0)
        finally:
            worker.close()

    def _piece(self, worker: Worker, order: Order, first: int) -> int:
        """Try inputs from `first` on; returns the first that was not tried."""
        worker.start()
        begun = time.monotonic()
        found = worker.ask(
            {"reader": order.row.reader, "seed": self.seed, "first": first, "last": order.last}
        )
        number, tried, accepted, refused, slowest, processor = worker.progress()
        with self._lock:
            row = order.row
            row.seconds += time.monotonic() - begun
            row.inputs, row.accepted, row.refused = (
                row.inputs + tried,
                row.accepted + accepted,
                row.refused + refused,
            )
            row.processor += processor
            row.slowest = max(row.slowest, slowest)
        for finding in found:
            self._note(order.row, finding)
        if worker.alive:
            return order.last
        kind, where, detail, trace = worker.death()
        if number < first:  # it did not come so far: there is nothing to go on with
            with self._lock:
                self._next[order.row.reader] = sys.maxsize
            self._note(
                order.row,
                {
                    "number": first,
                    "kind": kind,
                    "where": where,
                    "trace": trace,
                    "detail": f"before its first input, {detail}",
                },
            )
            return order.last
        with self._lock:
            order.row.inputs += 1
        self._note(
            order.row, {"number": number, "kind": kind, "where": where, "detail": detail, "trace": trace}
        )
        return number + 1

    def _note(self, row: Row, found: dict[str, Any]) -> None:
        with self._lock:
            row.findings += 1
            alike = (row.reader, found["kind"], found["where"] or found["detail"])
            self._alike[alike] = self._alike.get(alike, 0) + 1
            if self._alike[alike] > KEPT:
                return
        trace = found.pop("trace")
        finding = Finding(row.reader, row.sanitized, self.seed, **found)
        finding.file = str(self._kept(finding, trace))
        with self._lock:
            self.findings.append(finding)
            if self.say is not None:
                print(finding, file=self.say, flush=True)

    def _kept(self, finding: Finding, trace: str) -> Path:
        """The input in a file of its own, its trace beside it."""
        # Made in a process of its own: the runner itself imports no reader.
        code = (
            "import sys, tempfile, pathlib\nfrom tests.fuzz.readers import Made\n"
            "with tempfile.TemporaryDirectory() as place:\n"
            "    made = Made(sys.argv[1], pathlib.Path(place))\n"
            "    sys.stdout.buffer.write(made.input(int(sys.argv[2]), int(sys.argv[3])))\n"
        )
        command = [sys.executable, "-c", code, finding.reader, str(finding.seed), str(finding.number)]
        data = subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{finding.reader}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
        path.write_bytes(data)
        text = f"{finding.kind}\n{finding.detail}\n--seed {finding.seed}, input {finding.number}\n\n{trace}\n"
        path.with_suffix(".txt").write_text(text, encoding="utf-8", errors="backslashreplace")
        return path


class Worker:
    """A process of `worker.py`, started again whenever it has died."""

    def __init__(self, limits: Limits, environment: Mapping[str, str] | None) -> None:
        self._limits, self._environment = limits, environment
        self._process: subprocess.Popen[str] | None = None
        self._stuck = False
        self._file = tempfile.NamedTemporaryFile(prefix="loadmaster-fuzz-")  # noqa: SIM115
        self._file.write(bytes(PROGRESS.size))
        self._file.flush()
        self._progress = mmap.mmap(self._file.fileno(), PROGRESS.size)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.alive:
            return
        self._stuck = False
        self._errors.seek(0)
        self._errors.truncate()
        memory = 0 if self._environment else self._limits.memory
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.worker",
            self._file.name,
            str(self._limits.seconds),
            str(memory),
            "1" if self._environment else "0",
        ]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **threads, **(self._environment or {})}
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        """The findings of a piece of work, until it is done or the process has died."""
        process, found, done = self._process, [], False
        assert process is not None and process.stdin is not None and process.stdout is not None
        PROGRESS.pack_into(self._progress, 0, order["first"] - 1, 0, 0, 0, 0.0, 0.0)
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process, over))
        watch.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer.get("done"):
                    done = True
                    break
                found.append(answer["finding"])
        except (BrokenPipeError, ValueError):
            pass
        if not done:
            process.wait()
        over.set()
        watch.join()
        return found

    def _watch(self, process: subprocess.Popen[str], over: threading.Event) -> None:
        last, since = self.progress()[0], time.monotonic()
        while not over.wait(0.2) and process.poll() is None:
            number = self.progress()[0]
            if number != last:
                last, since = number, time.monotonic()
            elif time.monotonic() - since > STUCK_SECONDS:
                self._stuck = True
                process.kill()

    def progress(self) -> tuple[int, int, int, int, float, float]:
        return PROGRESS.unpack_from(self._progress, 0)

    def death(self) -> tuple[str, str, str, str]:
        """(kind, where, detail, trace) of the process's end."""
        assert self._process is not None
        code = self._process.returncode
        self._errors.seek(0)
        trace = self._errors.read().decode("utf-8", "replace")[-20_000:]
        lines = [line.strip() for line in trace.splitlines()]
        summary = next(
            (line for line in lines if line.startswith("SUMMARY:") or "runtime error:" in line), ""
        )
        frames = [line for line in lines if line.startswith("File ") and "/loadmaster/" in line]
        where = " ".join(frames[0].split("/")[-1].split('"')) if frames else ""
        if self._stuck:
            return "stuck", where, f"no answer within {STUCK_SECONDS:.0f} s", trace
        if code == -signal.SIGXCPU:
            return "hang", where, f"more than {self._limits.seconds:g} s of processor time", trace
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return "crash", where, summary or name, trace

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
        self._progress.close()
        self._file.close()
        self._errors.close()
