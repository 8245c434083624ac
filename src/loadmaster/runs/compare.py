"""`compare`: two runs or plans side by side, and what changed from one plan to the other."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.errors import BadPlan
from loadmaster.files import read_regular
from loadmaster.json_text import read_json
from loadmaster.plan import load_plan
from loadmaster.runs.folder import RunFolder, check_plain_file
from loadmaster.runs.history import History, compute_gap, find_handed_over
from loadmaster.runs.log import BadRun
from loadmaster.search.problem import Problem
from loadmaster.search.registry import load_problem

Document = dict[str, Any]
"""A plan's JSON: it names its tensors and memories, so no program is needed to compare two."""
HOME = "home"
"""Where a tensor lives that a plan does not mention."""


@dataclass(frozen=True)
class Change:
    """One tensor in both plans. `kind` is 'moved', 'offset' or 'lifetime'."""

    kind: str
    tensor: int
    name: str
    before: str
    after: str


@dataclass
class Difference:
    """Empty for two equal plans."""

    tensors: list[Change] = field(default_factory=list)
    copies_added: list[Document] = field(default_factory=list)
    copies_gone: list[Document] = field(default_factory=list)
    ops: dict[str, int] = field(default_factory=dict)
    """'device', 'order', 'fusion', 'priority' -> ops for which it changed"""
    others: list[str] = field(default_factory=list)
    """Of 'queue', 'tie' and 'transfers', those that changed."""

    @property
    def is_empty(self) -> bool:
        return not (self.tensors or self.copies_added or self.copies_gone or self.ops or self.others)

    def of(self, kind: str) -> list[Change]:
        return [change for change in self.tensors if change.kind == kind]


def compare_plans(before: Document, after: Document) -> Difference:
    """All that differs, tensors by number."""
    found = Difference()
    old, new = _by_tensor(before), _by_tensor(after)
    for tensor in sorted({*old, *new}):
        change = _change(tensor, old.get(tensor, []), new.get(tensor, []))
        if change is not None:
            found.tensors.append(change)
    gone, added = _copies(before), _copies(after)
    found.copies_gone = [_copy(row) for row in (gone - added).elements()]
    found.copies_added = [_copy(row) for row in (added - gone).elements()]
    for column in ("device", "order", "fusion", "priority"):
        a, b = before.get(column), after.get(column)
        if a != b:
            found.ops[column] = _count(a, b)
    found.others = [key for key in ("queue", "tie", "transfers") if before.get(key) != after.get(key)]
    return found


def _by_tensor(document: Document) -> dict[int, list[Document]]:
    rows: dict[int, list[Document]] = defaultdict(list)
    for row in document.get("residencies") or []:
        if type(row.get("tensor")) is int:
            rows[row["tensor"]].append(row)
    for entries in rows.values():
        entries.sort(key=lambda row: repr((row.get("first"), row.get("last"), row.get("memory"))))
    return rows


def _change(tensor: int, old: list[Document], new: list[Document]) -> Change | None:
    name = str((old or new)[0].get("name", tensor))
    for kind, keys in (
        ("moved", ("memory",)),
        ("lifetime", ("memory", "first", "last")),
        ("offset", ("memory", "first", "last", "offset")),
    ):
        before, after = ([tuple(row.get(key) for key in keys) for row in rows] for rows in (old, new))
        if before != after:
            return Change(kind, tensor, name, _text(old, kind), _text(new, kind))
    return None


def _text(rows: list[Document], kind: str) -> str:
    if not rows:
        return HOME
    if kind == "moved":
        return ", ".join(str(row.get("memory")) for row in rows)
    if kind == "lifetime":
        return ", ".join(f"{row.get('memory')} {row.get('first')}..{row.get('last')}" for row in rows)
    return ", ".join(str(row.get("offset")) for row in rows)


_COPY = ("tensor", "name", "from", "to", "issued_after", "needed_by", "bytes")


def _copies(document: Document) -> Counter[tuple[Any, ...]]:
    rows = document.get("copies") or []
    return Counter(
        tuple(repr(row.get(key)) if key == "bytes" else _plain(row.get(key)) for key in _COPY) for row in rows
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str | None) else repr(value)


def _copy(row: tuple[Any, ...]) -> Document:
    return dict(zip(_COPY, row, strict=True))


def _count(a: Any, b: Any) -> int:
    """Entries that differ; all of them if one side leaves the column out."""
    before: list[Any] = a if isinstance(a, list) else []
    after: list[Any] = b if isinstance(b, list) else []
    changed = sum(1 for x, y in zip(before, after, strict=False) if x != y)
    return changed + abs(len(before) - len(after))


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
    origin: str | None = None
    """Of a run: who has found the plan that it hands over."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def gap(self) -> float | None:
        return compute_gap(self.value, self.bound)


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
    if not problem.repeatable:
        side.value = _logged(home, path, problem)
    return side


def run_of(path: Path) -> RunFolder | None:
    """The run that a file lies in."""
    for folder in (path.resolve().parent, path.resolve().parent.parent):
        if (folder / "run.json").is_file():
            return RunFolder.open(folder)
    return None


def compare_keys(a: Side, b: Side) -> list[str]:
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
        if side.problem is None and other.problem is not None and not compare_keys(a, b):
            _score(side, other.problem)


def find_when_reached(side: Side, other: Side) -> tuple[int | None, float | None]:
    """Evaluations and seconds after which a run was as good as the other side's best; a known method's plan that it
    hands over was there before the search."""
    if side.history is None or other.value is None:
        return None, None
    for line in side.history.of("baseline"):
        if line["name"] == side.origin and line["value"] <= other.value:
            return int(line["evals"]), float(line["t"])
    return side.history.find_when_reached(other.value) or (None, None)


def _run_side(run: RunFolder) -> Side:
    history, problem = History(run.read_log().lines), load_problem(run.path)
    side = Side(run.path, run.about["keys"], None, history, problem)
    side.bound = None if history.bound is None else history.bound.value
    found = find_handed_over(run, history, problem)
    if found is not None:
        known, beside = found
        file = run.plan_file if beside is not None else run.path / "plans" / f"{known.plan}.json"
        side.document = _document(check_plain_file(file))
        side.value, side.origin = known.value, known.origin
    return side


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
    if problem.repeatable:  # else it would have to be measured, by a command out of the folder
        side.value = problem.value_of(plan)


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
