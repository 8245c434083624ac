"""Checkpoints: all that a solver and its meter need to go on exactly where they were.

`checkpoints/N/` holds `solver.npz` (the solver's arrays), `meter.npz` (the best decision) and
`manifest.json` with their SHA-256; the log has the SHA-256 of the manifest. The folder is made
beside and renamed into place. The last three are kept, and the first that had the best value.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import read_npz
from loadmaster.files import naming
from loadmaster.json_text import read_json
from loadmaster.runs.folder import RunFolder, check_plain_file, sync
from loadmaster.runs.log import BadRun, Line
from loadmaster.search.problem import Bound, Decision
from loadmaster.search.solver import Meter, State

KEPT = 3
_PREFIX = "array."
"""Before each name: NumPy's own parameters are names too."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run."""

    number: int
    evaluations: int
    best: Decision | None
    best_value: int | None
    bound: Bound
    unpackable: int
    state: State

    @property
    def path(self) -> str:
        return f"checkpoints/{self.number}"


def write_checkpoint(run: RunFolder, meter: Meter, state: State, identity: str) -> tuple[str, str]:
    """Store the moment durably; returns its path in the run and the SHA-256 of its manifest."""
    folder = run.path / "checkpoints"
    present = _numbers(folder)
    number = max(present, default=-1) + 1
    temporary = folder / f".{number}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        meter_arrays = {} if meter.best is None else {"best": meter.best}
        files = {
            "solver.npz": _write_arrays(temporary / "solver.npz", dict(state)),
            "meter.npz": _write_arrays(temporary / "meter.npz", meter_arrays),
        }
        manifest = {
            "identity": identity,
            "evals": meter.evaluations,
            "best": meter.best_value,
            "bound": meter.bound.value,
            "bound_method": meter.bound.method,
            "unpackable": meter.unpackable,
            "files": files,
        }
        text = json.dumps(manifest, indent=1).encode()
        _write(temporary / "manifest.json", text)
        sync(temporary)
        temporary.rename(folder / str(number))
        sync(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _drop_old(folder, [*present, number])
    return f"checkpoints/{number}", hashlib.sha256(text).hexdigest()


def find_last_good(run: RunFolder, identity: str, lines: list[Line]) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a warning for each newer one that is not.

    Only those that the log names: of others it is not known how far the log had come.
    """
    claimed = list_checkpoints(lines)
    folder = run.path / "checkpoints"
    warnings: list[str] = []
    for number in sorted(claimed.keys() & set(_numbers(folder)), reverse=True):
        try:
            return _read(folder, number, identity, claimed[number]), warnings
        except (BadRun, OSError, ValueError, KeyError, TypeError, MemoryError) as error:
            warnings.append(f"checkpoint {number} can't be used ({error}): going back to an older")
    return None, warnings


def list_checkpoints(lines: list[Line]) -> dict[int, Line]:
    """Number -> the line that names it."""
    return {int(line["path"].rpartition("/")[2]): line for line in lines if line["event"] == "checkpoint"}


def drop_unnamed(run: RunFolder, lines: list[Line]) -> None:
    """Remove the checkpoints that the log does not name (any more)."""
    for number in set(_numbers(run.path / "checkpoints")) - list_checkpoints(lines).keys():
        _drop(run.path / "checkpoints", number)


def read_evaluations(run: RunFolder, line: Line) -> int | None:
    """What the manifest says of a checkpoint that a line names; None: it is not there any more.
    Raises `BadRun` if it is another one."""
    number = int(line["path"].rpartition("/")[2])
    place = run.path / "checkpoints" / str(number)
    return int(_manifest(place, line)["evals"]) if place.exists() else None


def clear_leftovers(run: RunFolder) -> None:
    """Remove what a killed writer left half done; called by the one who holds the lock."""
    for place in (run.path, run.path / "plans", run.path / "checkpoints"):
        for path in place.glob(".*.tmp"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _manifest(place: Path, line: Line) -> dict[str, Any]:
    if place.is_symlink():
        raise BadRun("it is a link", object=str(place))
    text = check_plain_file(place / "manifest.json").read_bytes()
    if hashlib.sha256(text).hexdigest() != line["sha256"]:
        raise BadRun("its manifest was changed", object=str(place))
    manifest: dict[str, Any] = read_json(text)
    if manifest["evals"] != line["evals"]:
        raise BadRun(
            f"it was made after {manifest['evals']} evaluations, and the log says {line['evals']}",
            object=str(place),
            number=line["evals"],
        )
    return manifest


def _read(folder: Path, number: int, identity: str, line: Line) -> Checkpoint:
    place = folder / str(number)
    manifest = _manifest(place, line)
    if manifest["identity"] != identity:
        raise BadRun("it belongs to another run", object=str(place))
    state = _read_arrays(place / "solver.npz", manifest)
    best = _read_arrays(place / "meter.npz", manifest).get("best")
    value, evaluations = manifest["best"], int(manifest["evals"])
    if (best is None) != (value is None) or evaluations < 0:
        raise BadRun("its manifest contradicts itself", object=str(place))
    bound = Bound(int(manifest["bound"]), str(manifest["bound_method"]))
    unpackable = int(manifest.get("unpackable", 0))
    return Checkpoint(number, evaluations, best, value, bound, unpackable, state)


def _read_arrays(path: Path, manifest: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    data = check_plain_file(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["files"][path.name]:
        raise BadRun(f"{path.name} has another SHA-256 than its manifest says", object=str(path))
    arrays = read_npz(data, lambda reason: BadRun(f"{path.name}: {reason}", object=str(path)))
    return {name.removeprefix(_PREFIX): array for name, array in arrays.items()}


def _write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> str:
    buffer = io.BytesIO()
    named: dict[str, Any] = {_PREFIX + name: array for name, array in arrays.items()}
    np.savez(buffer, allow_pickle=False, **named)
    _write(path, buffer.getvalue())
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with naming(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _numbers(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if _NUMBER.fullmatch(path.name)]


def _drop_old(folder: Path, numbers: list[int]) -> None:
    numbers = sorted(numbers)
    values: dict[int, int] = {}
    for number in numbers:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            value = read_json((folder / str(number) / "manifest.json").read_bytes()).get("best")
            if type(value) is int:
                values[number] = value
    kept = set(numbers[-KEPT:])
    if values:
        kept.add(min(values, key=lambda number: (values[number], number)))
    for number in set(numbers) - kept:
        _drop(folder, number)


def _drop(folder: Path, number: int) -> None:
    # Out of sight under another name first: half a checkpoint must not look like one.
    gone = folder / f".{number}.gone.tmp"
    with contextlib.suppress(OSError):
        (folder / str(number)).rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
