"""Whole run folders, any file of which may be changed; and checkpoints that a run is resumed from.

A folder travels as a zip. Half of the changed ones are made consistent again before they are read, as somebody
who means harm would: hashes, digests and names fit what the files hold."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import zipfile
import zlib
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from loadmaster.machine import load_machine, read_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan import load_plan
from loadmaster.planner import make_problem
from loadmaster.program import Builder, Program, load
from loadmaster.report import write_report
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.compare import compare_keys, compare_plans, read_side, score_alone
from loadmaster.runs.history import describe_run
from loadmaster.runs.log import compute_digest
from loadmaster.runs.replay import replay
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.problem import Problem, keys
from loadmaster.search.registry import KINDS, load_problem, make_labelled
from loadmaster.search.solver import Budget

from . import machines, mutate, npz_files
from .use import may_refuse

Files = dict[str, bytes]
_RUNS = (
    ("nnp-i:sram=64", "mapping", "annealing"),
    ("tpu-v4i:cmem=8KiB", "malloc-game", "climb"),
    ("toy2", "graph", "anneal"),
    ("arena:64KiB", "order", "anneal"),
    ("arena:64KiB", "allocation", "first-fit"),
    ("h200:hbm=1MiB", "offload", "belady"),
)
_EVALUATIONS = 40
_RESUMED = {"mapping", "malloc-game", "graph", "order"}
MARK = "a-stored-command-was-run"
_FORGED = "consistent"
"""An entry of the zip that says: make it consistent first."""


def _program() -> Program:
    """A chain with skips, without loops: every kind of problem takes it."""
    rng = np.random.default_rng(3)
    build = Builder("chain")
    tensors = [build.tensor("x", shape=(8,), dtype="f32", kind="input")]
    weight = build.tensor("w", shape=(16,), dtype="f32", kind="weight")
    for i in range(7):
        size = int(rng.integers(2, 30))
        kind = "output" if i == 6 else "activation"
        tensors.append(build.tensor(f"t{i}", shape=(size,), dtype="f32", kind=kind))
        reads = sorted({tensors[i], tensors[int(rng.integers(0, i + 1))]}) + ([weight] if i % 3 == 0 else [])
        build.op(f"op{i}", "add", reads=reads, writes=[tensors[i + 1]], vector=size)
    return build.build()


@cache
def _seed(number: int, place: Path) -> bytes:
    if number == len(_RUNS):
        problem: Problem = MeasuredMapping(
            _program(),
            load_machine("nnp-i:sram=64"),
            CommandEvaluator(f"{sys.executable} -c print(1e-6)"),
            repeats=1,
            warmups=0,
        )
        name, budget = "random", Budget(3)
    else:
        machine, kind, name = _RUNS[number]
        problem, budget = make_problem(_program(), load_machine(machine), problem=kind), Budget(_EVALUATIONS)
    solver = make_labelled(problem.kind, name)
    parent = place / str(number)
    parent.mkdir()
    solution = run_solver(solver, problem, budget, 0, folder=parent, command=["plan"], checkpoint_seconds=0.0)
    folder = solution.run
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    return _zipped(_timeless(files))


def _timeless(files: Files) -> Files:
    """The same bytes whenever and wherever a folder is made."""
    about = json.loads(files["run.json"])
    about.update(created="2027-01-14T09:15:02Z", versions={}, host={})
    log = [json.loads(line) for line in files["log.jsonl"].splitlines()]
    for line in log:
        line["t"] = line["seq"] / 8
        line.update(
            {
                key: value
                for key, value in (("utc", "2027-01-14T09:15:02Z"), ("evals_per_s", 8.0))
                if key in line
            }
        )
        if "seconds" in line:
            line["seconds"] = [1e-6 for _ in line["seconds"]]
    problem = files["problem.json"].replace(json.dumps(sys.executable).encode()[1:-1], b"python3")
    return {
        **files,
        "run.json": json.dumps(about).encode(),
        "log.jsonl": _digested(log),
        "problem.json": problem,
    }


def _digested(lines: list[Any]) -> bytes:
    text, before = b"", ""
    for line in lines:
        if isinstance(line, dict):
            line.pop("digest", None)
            before = line["digest"] = compute_digest(line, before)
        text += json.dumps(line).encode() + b"\n"
    return text


def _zipped(files: Files) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def _files(data: bytes) -> Files:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def seeds(place: Path) -> list[bytes]:
    return [_seed(number, place) for number in range(len(_RUNS) + 1)]


def checkpoints(place: Path) -> list[bytes]:
    found = [_seed(number, place) for number, (_, kind, _) in enumerate(_RUNS) if kind in _RESUMED]
    return [data for data in found if any(name.startswith("checkpoints/") for name in _files(data))]


def changed(rng: Random, data: bytes) -> bytes:
    files = _files(data)
    for _ in range(rng.choice((1, 1, 1, 2))):
        name = rng.choice([name for name in files if not name.startswith("checkpoints/")])
        kind = rng.random()
        if kind < 0.04:
            del files[name]
        elif kind < 0.06:
            files[name] = rng.choice(list(files.values()))
        elif kind < 0.08:
            files[f"{name}/x"] = files.pop(name)
        else:
            files[name] = _changed_file(rng, name, files[name])
    if rng.random() < 0.5:
        files[_FORGED] = b""
    return _zipped(files)


def changed_checkpoint(rng: Random, data: bytes) -> bytes:
    files = _files(data)
    inside = [name for name in files if name.startswith("checkpoints/")]
    last = max(int(name.split("/")[1]) for name in inside)
    name = rng.choice([name for name in inside if name.startswith(f"checkpoints/{last}/")])
    files[name] = _changed_file(rng, name, files[name])
    if rng.random() < 0.8:
        files[_FORGED] = b""
    return _zipped(files)


def _changed_file(rng: Random, name: str, content: bytes) -> bytes:
    if rng.random() < 0.08:
        return mutate.octets(rng, content)
    if name.endswith(".npz"):
        return npz_files.changed(rng, content)
    if name.endswith(".toml"):
        return machines.changed(rng, content)
    if name.endswith(".csv") or rng.random() < 0.1:
        return mutate.encoded(rng, mutate.lines(rng, content.decode("utf-8", "replace")))
    try:
        if name.endswith(".jsonl"):
            lines = [json.loads(line) for line in content.splitlines()]
            at = rng.randrange(len(lines))
            lines[at] = mutate.tree(rng, lines[at])
            if rng.random() < 0.2:
                lines.insert(rng.randrange(len(lines)), lines[at])
            return _digested(lines)
        return json.dumps(mutate.tree(rng, json.loads(content))).encode()
    except (ValueError, IndexError):
        return mutate.octets(rng, content)


def _written(data: bytes, place: Path) -> Path:
    folder = place / "run"
    for name in ("plans", "checkpoints"):
        (folder / name).mkdir(parents=True)
    files = _files(data)
    forged = files.pop(_FORGED, None) is not None
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if forged:
        _forge(folder)
    return folder


def _forge(folder: Path) -> None:
    """Make names, hashes and digests fit, as far as the files can be read at all."""
    log = folder / "log.jsonl"
    with contextlib.suppress(Exception):
        about = json.loads((folder / "run.json").read_bytes())
        module, _, name = KINDS[about["keys"]["problem"]["kind"]].partition(":")
        found = {
            "program": load(folder / "program.npz").hash,
            "machine": read_machine(folder / "machine.toml").hash,
        }
        with contextlib.suppress(Exception):
            found = json.loads(
                json.dumps(keys(getattr(import_module(module), name).load(folder)), default=str)
            )
        about["keys"].update(found)
        (folder / "run.json").write_text(json.dumps(about))
    with contextlib.suppress(Exception):
        program, machine = load(folder / "program.npz"), read_machine(folder / "machine.toml")
        for path in (folder / "plans").iterdir():
            document = json.loads(path.read_bytes())
            document["program"]["hash"], document["machine"]["hash"] = program.hash, machine.hash
            path.write_text(json.dumps(document))
            digest = load_plan(path, program, machine).hash
            path.rename(path.with_stem(digest))
            log.write_bytes(log.read_bytes().replace(path.stem.encode(), digest.encode()))
    for place in (folder / "checkpoints").iterdir():
        with contextlib.suppress(Exception):
            manifest = json.loads((place / "manifest.json").read_bytes())
            for name in manifest["files"]:
                manifest["files"][name] = hashlib.sha256((place / name).read_bytes()).hexdigest()
            old = hashlib.sha256((place / "manifest.json").read_bytes()).hexdigest()
            (place / "manifest.json").write_text(json.dumps(manifest, indent=1))
            new = hashlib.sha256((place / "manifest.json").read_bytes()).hexdigest()
            claimed = [json.loads(line) for line in log.read_bytes().splitlines()]
            for line in claimed:
                if line.get("path") == f"checkpoints/{place.name}" or line.get("sha256") == old:
                    line["sha256"] = new
            log.write_bytes(_digested(claimed))
    with contextlib.suppress(Exception):
        log.write_bytes(_digested([json.loads(line) for line in log.read_bytes().splitlines()]))


def _armed(folder: Path, mark: Path) -> None:
    """Put a command that leaves a mark wherever a stored command stands."""
    with contextlib.suppress(Exception):
        path = folder / "problem.json"
        path.write_bytes(path.read_bytes().replace(b"print(1e-6)", f"open('{mark}','w')".encode()))


def read(data: bytes, place: Path) -> None:
    """What `runs`, `replay`, `compare`, `report` and `figures` do with a folder."""
    folder, mark = _written(data, place), place / MARK
    _armed(folder, mark)
    run = RunFolder.open(folder)
    str(describe_run(run, History(run.read_log().lines)))
    # One command a folder, and another for another: each reads the whole folder again.
    commands = (_replay, _compare, _report, _figures, _bound)
    with may_refuse():
        commands[zlib.crc32(data) % len(commands)](folder, place)
    if mark.exists():
        raise AssertionError("a command that is stored in a run's folder was run")


def _replay(folder: Path, place: Path) -> None:
    str([str(claim) for claim in replay(RunFolder.open(folder)).claims])


def _compare(folder: Path, place: Path) -> None:
    sides = (read_side(folder), read_side(folder))
    compare_keys(*sides)
    score_alone(*sides)
    documents = [side.document for side in sides]
    if documents[0] is not None and documents[1] is not None:
        compare_plans(documents[0], documents[1])


def _report(folder: Path, place: Path) -> None:
    write_report(folder, place / "report.html")


def _bound(folder: Path, place: Path) -> None:
    load_problem(folder).bound()


def _figures(folder: Path, place: Path) -> None:
    """What pictures are drawn from; drawing them takes seconds."""
    from loadmaster.export.figures.data import find_runs, read_cells

    for path in find_runs([folder]):
        if load_problem(path).kind == "mapping":
            for cell in read_cells([path]):
                str(cell.name)


def resume(data: bytes, place: Path) -> None:
    """Go on with a run from its checkpoint, for some evaluations."""
    folder = _written(data, place)
    run = RunFolder.open(folder)
    problem = load_problem(folder)
    solver = make_labelled(problem.kind, run.about["solver"]["name"])
    run_solver(
        solver, problem, Budget(_EVALUATIONS + 8), 0, resume=folder, command=["plan"], checkpoint_seconds=1e9
    )
