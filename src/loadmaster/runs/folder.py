"""`RunFolder`: a run as a folder that can be moved, copied, resumed, replayed and compared.

| file | content |
| --- | --- |
| `run.json` | command, model, versions, kind of computer, solver, options, seed, budget, keys; written last |
| `program.npz`, `machine.toml` | what was solved, and the problem's own files |
| `costs.json` | the table of measured op times, where one was given |
| `log.jsonl` | what happened (`loadmaster.runs.log`) |
| `plans/HASH.json`, `best.json` | each improvement, and a copy of the latest |
| `checkpoints/N/` | where the solver can go on (`loadmaster.runs.checkpoint`) |

Whoever reads a folder trusts nothing in it: links are refused, hashes are compared.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.files import naming, read_regular, replacing
from loadmaster.machine.presets import standalone_text
from loadmaster.machine.toml import parse_machine
from loadmaster.plan import Plan, load_plan, plan_to_json
from loadmaster.program.storage import save as save_program
from loadmaster.runs.log import BadRun, Log, LogText, read_log
from loadmaster.search.problem import Problem
from loadmaster.search.solver import rename_options

FORMAT = 1
_MOST_BYTES = 2**24
_REQUIRED = {
    "command": list,
    "solver": dict,
    "seed": int,
    "budget": dict,
    "keys": dict,
    "unit": str,
    "names": dict,
    "created": str,
}


CHAMPION = "champion.json"
"""The plan that is handed over, where that is not one of the log: measured again, or an optimum found beside it."""
COSTS = "costs.json"


def utc() -> str:
    """Now, as ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class RunFolder:
    """One run. `log` is set while this process writes it."""

    path: Path
    about: dict[str, Any]
    """The content of run.json."""
    log: Log | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan_file(self) -> Path:
        """The plan that the run hands over."""
        champion = self.path / CHAMPION
        return check_plain_file(champion if champion.exists() else self.path / "best.json")

    @property
    def costs(self) -> Path | None:
        """The table of measured op times that the model was read with."""
        path = self.path / COSTS
        return check_plain_file(path) if path.exists() else None

    @classmethod
    def create(
        cls, parent: Path, problem: Problem, about: dict[str, Any], costs: Path | None = None
    ) -> RunFolder:
        """A new folder below `parent`, and its log, open for writing."""
        parent.mkdir(parents=True, exist_ok=True)
        program, machine = problem.program, problem.machine
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
        parts = (program.name, machine.name, about["solver"]["name"], str(about["seed"]))
        path = _new_folder(parent, "-".join([now, *map(_file_name, parts)]))
        with naming(path):
            save_program(program, path / "program.npz")
            _save_machine(problem, path / "machine.toml")
            problem.save(path)
            if costs is not None:
                shutil.copyfile(costs, path / COSTS)
        (path / "plans").mkdir()
        (path / "checkpoints").mkdir()
        log = Log(path / "log.jsonl", create=True)
        for file in path.iterdir():
            sync(file)
        content = {"loadmaster_run": FORMAT, "created": utc(), **about}
        # Last, so that a folder with a run.json is whole.
        write_durable(path / "run.json", (json.dumps(content, indent=1) + "\n").encode())
        sync(parent)
        return cls(path, content, log)

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> RunFolder:
        """A folder that is there. Only `write` takes the log's lock."""
        if not path.is_dir():
            raise BadRun(f"there is no run '{path}'", object=str(path), remedy="see 'loadmaster runs'")
        for name in ("plans", "checkpoints"):
            if (path / name).is_symlink() or not (path / name).is_dir():
                raise BadRun(
                    f"run '{path}' has no folder '{name}'",
                    object=str(path),
                    remedy="give a run's whole folder, without links",
                )
        about = _read_about(path)
        for name in ("program.npz", "machine.toml", "log.jsonl"):
            check_plain_file(path / name)
        return cls(path, about, Log(path / "log.jsonl") if write else None)

    def read_log(self) -> LogText:
        """The log as it is now; takes no lock."""
        return read_log(check_plain_file(self.path / "log.jsonl"))

    def close(self) -> None:
        if self.log is not None:
            self.log.close()
            self.log = None

    def store_plan(self, plan: Plan, problem: Problem) -> str:
        """Keep a plan, durably; returns its hash, which names it."""
        path = self.path / "plans" / f"{plan.hash}.json"
        if not path.exists():
            text = plan_to_json(plan, problem.program, problem.machine)
            write_durable(path, (text + "\n").encode("utf-8"))
        return plan.hash

    def set_best(self, plan_hash: str) -> None:
        """Make best.json a copy of a stored plan."""
        text = (self.path / "plans" / f"{plan_hash}.json").read_bytes()
        if not (self.path / "best.json").exists() or (self.path / "best.json").read_bytes() != text:
            write_durable(self.path / "best.json", text)

    def load_plan(self, plan_hash: str, problem: Problem) -> Plan:
        """A stored plan; raises `BadRun` if it is not the one that its name says."""
        path = check_plain_file(self.path / "plans" / f"{plan_hash}.json")
        plan = load_plan(path, problem.program, problem.machine)
        if plan.hash != plan_hash:
            raise BadRun(
                f"plan '{path}' was changed: its hash is {plan.hash[:12]}",
                object=str(path),
                number=plan.hash,
                remedy="restore the file from a copy",
            )
        return plan


def is_run(path: str | Path) -> bool:
    """Whether a path is the folder of a run."""
    return Path(path).is_dir() and (Path(path) / "run.json").exists()


def resume_line(run: Path) -> str:
    """The command that goes on with a run."""
    return shlex.join(["loadmaster", "resume", str(run)])


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def kept_before(about: dict[str, Any]) -> str | None:
    """The known method that a run's plans are held against."""
    options = about.get("options")
    name = options.get("before") if isinstance(options, dict) else None
    return name if isinstance(name, str) else None


@dataclass(frozen=True)
class ModelFile:
    """The file of the model that a run is about, as it was when the run began."""

    path: Path
    sha256: str

    def check(self, run: Path, remedy: str) -> None:
        """Raise `BadRun` unless the file is here, and as it was."""
        said = f"the model of run '{run}', '{self.path}' (SHA-256 {self.sha256[:16]}…),"
        if not self.path.is_file():
            raise BadRun(
                f"{said} is not in this folder", object=str(self.path), number=self.sha256, remedy=remedy
            )
        changed = self.change()
        if changed is not None:
            raise BadRun(f"{said} {changed}", object=str(self.path), number=self.sha256, remedy=remedy)

    def change(self) -> str | None:
        """That the file has changed since, if it is here and has."""
        now = hash_file(self.path) if self.path.is_file() else self.sha256
        return None if now == self.sha256 else f"has changed since: it is {now[:16]}… now"


def model_file(about: dict[str, Any]) -> ModelFile | None:
    """The file that a run's `run.json` says its model was; None: none, or it does not say."""
    model = about.get("model")
    file = model.get("file") if isinstance(model, dict) else None
    if not isinstance(file, dict):
        return None
    path, digest = file.get("path"), file.get("sha256")
    if not isinstance(path, str) or not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return None
    return ModelFile(Path(path), digest)


def check_plain_file(path: Path) -> Path:
    """The same path, if it is a file of its own: a link could lead anywhere."""
    if path.is_symlink():
        raise BadRun(f"'{path}' is a link", object=str(path), remedy="put the file itself there")
    if not path.is_file():
        raise BadRun(f"there is no file '{path}'", object=str(path), remedy="give the whole folder of a run")
    return path


def write_durable(path: Path, data: bytes) -> None:
    """Write beside, flush to the disk, rename: the file is whole or not there."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _new_folder(parent: Path, name: str) -> Path:
    for attempt in range(1, 1000):
        path = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise BadRun(f"there are 999 runs named '{name}'", object=name, remedy="give another folder")


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text)[:40].strip("._") or "unnamed"


def _save_machine(problem: Problem, path: Path) -> None:
    machine = problem.machine
    text = standalone_text(machine)
    if parse_machine(text, "machine.toml", _no_base).hash != machine.hash:
        raise BadRun(
            f"machine '{machine.name}' can't be written as TOML",
            object=machine.name,
            remedy="give a machine that can be read from a file",
        )
    write_durable(path, text.encode("utf-8"))


def _no_base(name: str) -> str:
    raise BadRun(f"a run's machine has the base '{name}'", object=name, remedy="it must stand alone")


def _read_about(path: Path) -> dict[str, Any]:
    file = path / "run.json"
    if not file.exists() and not file.is_symlink():
        raise BadRun(
            f"'{path}' is no run, or one that was killed while it was made: it has no run.json",
            object=str(path),
            remedy="start it again",
        )
    try:
        about = json.loads(read_regular(check_plain_file(file), _MOST_BYTES))
    except (ValueError, RecursionError, OSError) as error:
        raise BadRun(
            f"'{file}' can't be read: {error}", object=str(file), remedy="restore the file from a copy"
        ) from None
    if not isinstance(about, dict) or about.get("loadmaster_run") != FORMAT:
        raise BadRun(
            f"'{file}' is no run of format {FORMAT}",
            object=str(file),
            remedy="give a run made by this version",
        )
    for key, kind in _REQUIRED.items():
        if type(about.get(key)) is not kind:
            raise BadRun(
                f"'{file}' has no proper '{key}'", object=str(file), remedy="restore the file from a copy"
            )
    solver = about["solver"]
    if "switches" in solver:  # as the first runs called it
        solver["options"] = solver.pop("switches")
    if isinstance(solver.get("options"), dict):
        solver["options"] = rename_options(solver["options"])
    return about
