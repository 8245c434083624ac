"""Problems by kind: `load_problem(folder)` makes the problem of a run folder again."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from loadmaster.errors import BadProgram, LoadmasterError
from loadmaster.machine.presets import read_machine
from loadmaster.problems.problem import COST_MODEL, Problem, keys
from loadmaster.program.storage import load

KINDS: dict[str, str] = {
    "allocation": "loadmaster.problems.allocation:Allocation",
    "mapping": "loadmaster.problems.mapping:Mapping",
    "malloc-game": "loadmaster.problems.malloc_game.problem:MallocGame",
    "offload": "loadmaster.problems.offload.problem:Offload",
    "order": "loadmaster.problems.order.problem:PeakOrder",
    "graph": "loadmaster.problems.graph.problem:GraphOptimization",
}
"""Kind -> 'module:class'; the class has a method `load(folder)`, the inverse of `save(folder)`."""


def load_problem(folder: Path) -> Problem:
    """The problem that a run was about.

    Raises if the files in the folder are not those that its run.json speaks of. The version of
    the cost model may differ: whoever compares values has to say so.
    """
    for path in folder.iterdir():
        if path.is_symlink():
            raise _bad(path, "is a link", "put the file itself there")
    about = folder / "run.json"
    try:
        claimed = json.loads(about.read_bytes())["keys"]
        kind = str(claimed["problem"]["kind"])
    except FileNotFoundError:
        raise _bad(folder, "is no run: it has no run.json", "see 'loadmaster runs'") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise _bad(about, "does not say what was solved", "restore it from a copy") from None
    if kind not in KINDS:
        raise _bad(
            about, f"is about the unknown kind of problem '{kind}'", f"this version knows {', '.join(KINDS)}"
        )
    module, _, name = KINDS[kind].partition(":")
    # Some problems are made from other files; these two are claims of the run all the same.
    stored = {
        "program": load(folder / "program.npz").hash,
        "machine": read_machine(folder / "machine.toml").hash,
    }
    _compare(folder, {key: claimed.get(key) for key in stored}, stored)
    try:
        problem = cast(Problem, getattr(import_module(module), name).load(folder))
        found = json.loads(json.dumps(keys(problem), default=str))
    except LoadmasterError:
        raise
    except FileNotFoundError as error:
        missing = Path(str(error.filename))
        raise _bad(missing, "is not there", "give the whole folder of a run") from None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        RecursionError,
        OverflowError,
        AttributeError,
    ) as error:
        raise _bad(folder, f"holds no {kind} problem: {error}", "restore it from a copy") from None
    _compare(folder, claimed, {**found, "cost_model": claimed.get("cost_model", COST_MODEL)})
    return problem


def _compare(folder: Path, claimed: dict[str, Any], found: dict[str, Any]) -> None:
    for key in dict.fromkeys([*claimed, *found]):
        if claimed.get(key) != found.get(key):
            raise _bad(folder, f"holds another {key} than its run.json says", "restore its files from a copy")


def _bad(path: Path, what: str, remedy: str) -> BadProgram:
    return BadProgram(f"'{path}' {what}", object=str(path), remedy=remedy)
