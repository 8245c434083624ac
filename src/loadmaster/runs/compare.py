"""`compare`: two runs or plans side by side, and what changed from one plan to the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import BadPlan
from loadmaster.files import read_regular
from loadmaster.json_text import read_json
from loadmaster.plan import load_plan
from loadmaster.problems.problem import Problem, plan_value, repeatable
from loadmaster.problems.registry import load_problem
from loadmaster.runs.folder import RunFolder, plain_file
from loadmaster.runs.history import History, gap_of
from loadmaster.runs.log import BadRun

_MOST_BYTES = 2**28


@dataclass
class Side:
    """One of the two: a run with its best plan, or a plan alone."""

    path: Path
    keys: dict[str, Any]
    """All of a run's; of a plan alone, its program and machine."""
    document: dict[str, Any] | None
    """The plan's JSON."""
    history: History | None = None
    problem: Problem | None = None
    value: int | None = None
    bound: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def gap(self) -> float | None:
        return gap_of(self.value, self.bound)


def read_side(path: Path) -> Side:
    """A run's folder, a plan inside one, or a plan's file."""
    if path.is_dir():
        return _run_side(RunFolder.open(path))
    document = _document(path)
    home = run_of(path)
    if home is None:
        keys = {what: document.get(what, {}).get("hash") for what in ("program", "machine")}
        return Side(path, keys, document)
    problem = load_problem(home.path)
    side = Side(path, home.about["keys"], document, problem=problem)
    _score(side, problem)
    if not repeatable(problem):
        side.value = _logged(home, path, problem)
    return side


def run_of(path: Path) -> RunFolder | None:
    """The run that a file lies in."""
    for folder in (path.resolve().parent, path.resolve().parent.parent):
        if (folder / "run.json").is_file():
            return RunFolder.open(folder)
    return None


def different_keys(a: Side, b: Side) -> list[str]:
    """The keys that both have and that are not equal."""
    found = []
    for key in dict.fromkeys([*a.keys, *b.keys]):
        ours, theirs = a.keys.get(key), b.keys.get(key)
        if ours is None or theirs is None or ours == theirs:
            continue
        if isinstance(ours, dict) and isinstance(theirs, dict):
            names = [n for n in dict.fromkeys([*ours, *theirs]) if ours.get(n) != theirs.get(n)]
            found.append(f"{key} ({', '.join(names)})")
        else:
            found.append(key)
    return found


def score_alone(a: Side, b: Side) -> None:
    """Give a plan that lies in no run the value that the other side's problem has for it."""
    for side, other in ((a, b), (b, a)):
        if side.problem is None and other.problem is not None and not different_keys(a, b):
            _score(side, other.problem)


def reached(side: Side, other: Side) -> tuple[int | None, float | None]:
    """Evaluations and seconds after which a run was as good as the other side's best."""
    if side.history is None or other.value is None:
        return None, None
    return side.history.reached(other.value) or (None, None)


def _run_side(run: RunFolder) -> Side:
    history = History(run.read_log().lines)
    document = None
    if history.result is not None:
        document = _document(plain_file(run.path / "plans" / f"{history.result['plan']}.json"))
    bound = None if history.bound is None else history.bound.value
    return Side(
        run.path, run.about["keys"], document, history, load_problem(run.path), history.result_value, bound
    )


def _score(side: Side, problem: Problem) -> None:
    plan = load_plan(side.path, problem.program, problem.machine)
    violations = problem.violations(plan)
    if violations:
        raise BadPlan(
            f"plan '{side.path}' is not sound: {violations[0]}",
            object=str(side.path),
            number=len(violations),
            remedy="see 'loadmaster check'",
        )
    side.bound = problem.bound().value
    if repeatable(problem):  # else it would have to be measured, by a command out of the folder
        side.value = plan_value(problem, plan)


def _logged(home: RunFolder, path: Path, problem: Problem) -> int | None:
    """What a run's log says of a plan."""
    plan = load_plan(path, problem.program, problem.machine).hash
    lines = History(home.read_log().lines).improvements
    return next((int(line["value"]) for line in lines if line["plan"] == plan), None)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = read_json(read_regular(path, _MOST_BYTES))
        if not isinstance(document, dict) or document.get("loadmaster_plan") != 1:
            raise ValueError("it is no plan of format 1")
        for key in ("program", "machine"):
            if not isinstance(document.get(key, {}), dict):
                raise ValueError(f"'{key}' is no object")
        for key in ("residencies", "copies"):
            rows = document.get(key) or []
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise ValueError(f"'{key}' is no list of objects")
    except FileNotFoundError:
        raise BadRun(
            f"there is no run or plan '{path}'", object=str(path), remedy="see 'loadmaster runs'"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadPlan(
            f"'{path}' is neither a run nor a plan: {reason}",
            object=str(path),
            remedy="give a run's folder or a plan's file",
        ) from None
    return document
