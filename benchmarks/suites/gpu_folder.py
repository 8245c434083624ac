"""The folder in which the stages of the GPU suite hand things to each other, and turns on the device."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.suites import Row
from loadmaster.host import host, versions
from loadmaster.machine import Machine, load_machine
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.program import Program
from loadmaster.program.storage import load

MACHINE = "machine.toml"
MEASURED, PLANS, ROWS = "measured.jsonl", "plans.jsonl", "rows.jsonl"
_POLL = 0.05


class Folder:
    """`machine.toml`, `speeds.json`, `MODEL.npz`, `MODEL.costs.json`, `measured.jsonl`, `plans/`,
    `plans.jsonl`, `rows.jsonl`. Lines are appended as they are made, by several processes at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for part in ("plans", "waiting"):
            (path / part).mkdir(parents=True, exist_ok=True)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        path = self.path / name
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except ValueError:
                continue  # torn when the computer stopped

    def append(self, name: str, content: dict[str, Any]) -> None:
        path = self.path / name
        before = path.read_bytes() if path.exists() else b""
        torn = bool(before) and not before.endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + json.dumps(content) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def measured(self) -> dict[str, dict[str, Any]]:
        """By model; the latest counts."""
        return {line["model"]: line for line in self.lines(MEASURED)}

    def machine(self) -> Machine:
        return load_machine(str(self.path / MACHINE))

    def costs(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / f"{model}.costs.json").read_text())
        return found

    def program(self, model: str) -> Program:
        """The model's program with its measured costs; nothing in it runs again."""
        return apply_costs(load(self.path / f"{model}.npz"), read_costs(self.path / f"{model}.costs.json"))

    def plan_file(self, model: str, percent: int, solver: str) -> Path:
        return self.path / "plans" / f"{model}-{percent}-{solver}.json"

    def done(self, name: str = ROWS, *, retry: bool = False) -> set[tuple[str, str]]:
        """(case, solver) of the rows that there are; to `retry`, without those that failed."""
        return {
            (line["job"][0], line["job"][1])
            for line in self.lines(name)
            if not (retry and line["rows"][0]["status"] == "failed")
        }

    def keep(self, row: Row, name: str = ROWS) -> None:
        """Add a row, with the computer and the versions that made it."""
        self.append(name, {"job": [row.case, row.solver, row.seed], "made": made(), "rows": [row.as_dict()]})


@contextmanager
def alone(folder: Folder, urgency: int = 0) -> Iterator[None]:
    """One process has the device at a time: of those that wait, one with the lowest urgency number.
    What needs no device, such as capturing, goes on beside it."""
    import fcntl

    waiting = folder.path / "waiting"
    mine = waiting / f"{urgency}.{os.getpid()}"
    mine.touch()
    try:
        with (folder.path / "device.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            while _more_urgent(waiting, urgency):
                fcntl.flock(file, fcntl.LOCK_UN)
                time.sleep(_POLL)
                fcntl.flock(file, fcntl.LOCK_EX)
            mine.unlink(missing_ok=True)
            yield
    finally:
        mine.unlink(missing_ok=True)


def _more_urgent(waiting: Path, urgency: int) -> bool:
    """Whether somebody who still lives waits for a more urgent turn."""
    for path in waiting.iterdir():
        number, _, process = path.name.partition(".")
        if int(number) < urgency:
            try:
                os.kill(int(process), 0)
            except ProcessLookupError:
                path.unlink(missing_ok=True)
            except PermissionError:
                return True
            else:
                return True
    return False


def made() -> dict[str, Any]:
    """Computer and versions, PyTorch's and the GPU's too."""
    import importlib.metadata

    found: dict[str, Any] = {"versions": dict(versions()), "host": dict(host())}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["versions"]["torch"] = importlib.metadata.version("torch")
        if torch.cuda.is_available():
            found["host"]["gpu"] = torch.cuda.get_device_name()
    return found


def free(device: Any) -> None:
    """Give back what nobody holds any more: other processes wait for the device's memory."""
    import gc

    gc.collect()
    if device.type == "cuda":
        import torch

        from loadmaster.execute import own_allocator

        torch.cuda.synchronize()
        if (own := own_allocator.current()) is not None:
            own.release()
        else:
            torch.cuda.empty_cache()


def free_host(device: Any) -> None:
    """The same of pinned memory, which PyTorch would keep for the next tensors of the same size."""
    free(device)
    if device.type == "cuda":
        import torch

        getattr(torch._C, "_host_emptyCache", lambda: None)()


class Step:
    """A context that says what is done and how long it took; an error is shown, and the next goes on."""

    def __init__(self, what: str) -> None:
        self.what, self.failed = what, False

    def __enter__(self) -> Step:
        self.began = time.perf_counter()
        print(f"{self.what} …", flush=True)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is not None and issubclass(kind, Exception):
            self.failed = True
            print("".join(traceback.format_exception(kind, error, trace)[-6:]), flush=True)
            print(f"{self.what}: FAILED", flush=True)
            return True
        print(f"{self.what}: {time.perf_counter() - self.began:.1f} s", flush=True)
        return False
