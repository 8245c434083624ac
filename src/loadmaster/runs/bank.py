"""`Bank`: a folder of answers, so that no question is worked out twice.

A *question* is a program, a machine and a problem, by content: names do not count. Its answer is the best plan that
is known, a bound, and the searches that ended with nothing better. A *like* question has the same graph on a machine
with the same memories and devices, and other sizes, capacities or speeds: its plan, adapted, is what a search begins
with.

| file | content |
| --- | --- |
| `bank.json` | says that this is a bank |
| `LIKE-QUESTION.jsonl` | an answer: a line about it (`_HEADER`), a line with its plan; names are hashes |
| `.lock` | held by who writes |

Entries are data from people we do not know. A plan counts once the checker has accepted it, with the value that the
simulator gives it here. That nothing is better (a bound, a search that was made) can't be seen by looking: it is
taken as the bank's word, and said to be that, or not taken at all (`starts_only`). What can't be used is left out
with one warning. Entries are written whole or not at all, one writer at a time, and a better answer is never replaced
by a worse one. A bank has at most `MOST_BYTES`: what was not used for longest goes.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.files import locking, open_regular, replacing
from loadmaster.json_text import read_json
from loadmaster.machine.machine import Machine
from loadmaster.plan.json import nameless_document, plan_from_document
from loadmaster.plan.plan import Plan
from loadmaster.program.storage import structure_hash
from loadmaster.runs.folder import utc
from loadmaster.runs.resume import UNFIT
from loadmaster.search.problem import COST_MODEL, Bound, Decision, Problem
from loadmaster.search.solver import Recalled
from loadmaster.units import show_bytes

FORMAT = 1
MARK = "bank.json"
MOST_BYTES = 2**30
"""Of all entries together."""
MOST_ENTRIES = 10_000
MOST_ENTRY_BYTES = 2**25
"""Of one: a plan that takes more is not kept."""
RECORDED = "recorded in the bank"
"""Ends the method of a bound that was not proven here."""
_MOST_HEADER_BYTES = 2**16
_MOST_SEARCHES = 16
_MOST_LIKE = 256
"""Headers of like questions that are read, the latest first."""
_MOST_ADAPTED = 3
"""Of these, plans that are tried, the nearest first."""
_LEAST_ROW_BYTES = 60
"""Of the text of a residency or a copy."""
_LOCK = ".lock"
_ENTRY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{64}\.jsonl")
_LEFTOVER = re.compile(r"\.loadmaster-[0-9a-f]{16}\.tmp")
_UNUSABLE = (LoadmasterError, OSError, RecursionError, MemoryError, *UNFIT)
"""What reading, checking and adapting an entry may raise."""


class BadBank(LoadmasterError):
    """A folder that is no bank of plans."""


@dataclass(frozen=True)
class Search:
    """How an answer was sought, or is to be. None: without a limit."""

    solver: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    evaluations: int | None = None
    seconds: float | None = None
    optimum_seconds: float = 0.0
    """Beside it, to seek the optimum for comparison."""
    ended: bool = False
    """It had come to its own end: more would not have helped."""

    def covers(self, asked: Search) -> bool:
        """Whether what is asked for was done already. Time limits that are what is left of others differ a little."""
        if (self.solver, self.seed, _plain(self.options)) != (
            asked.solver,
            asked.seed,
            _plain(asked.options),
        ):
            return False
        enough = _within(asked.evaluations, self.evaluations) and _within(asked.seconds, self.seconds)
        return asked.optimum_seconds <= self.optimum_seconds and (self.ended or enough)


def _within(asked: float | None, had: float | None) -> bool:
    return had is None or (asked is not None and asked <= 1.01 * had)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back; what is long as its hash."""
    text = json.dumps(dict(options), sort_keys=True, default=str)
    if len(text) > 1_000:
        return {"sha256": hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()}
    plain: dict[str, Any] = json.loads(text)
    return plain


@dataclass(frozen=True)
class Entry:
    """The header of an entry: all that is said of an answer but the plan."""

    question: str
    like: str
    sizes: tuple[float, ...]
    """Logarithms of what like questions differ in: bytes, flops, capacities, speeds."""
    about: Mapping[str, Any]
    """Who found it: see `Recalled.about`; 'problem' and 'unit' beside that."""
    value: int
    bound: Bound
    searches: tuple[Search, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.like}-{self.question}.jsonl"

    def row(self) -> dict[str, Any]:
        """For a table: what it says of itself."""
        return {
            **self.about,
            "value": self.value,
            "bound": self.bound.value,
            "bound_method": self.bound.method,
            "searches": len(self.searches),
            "question": self.question,
            "like": self.like,
        }

    def line(self) -> str:
        header = {
            "loadmaster_bank": FORMAT,
            "question": self.question,
            "like": self.like,
            "sizes": list(self.sizes),
            "about": dict(self.about),
            "value": self.value,
            "bound": {"value": self.bound.value, "method": self.bound.method},
            "searches": [{**vars(each), "options": _plain(each.options)} for each in self.searches],
        }
        return json.dumps(header)


class Bank:
    """A folder of answers.

    Args:
      folder: made where there is none.
      starts_only: take plans to begin searches with, and neither bounds nor word of searches that were made.
      most_bytes: of all entries together.
      read_only: only look at what is there.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        starts_only: bool = False,
        most_bytes: int = MOST_BYTES,
        read_only: bool = False,
    ) -> None:
        self.folder, self.starts_only, self.most_bytes = Path(folder), starts_only, most_bytes
        self._left_out: dict[str, str] = {}
        self._not_kept: str | None = None
        if not read_only:
            _open(self.folder)

    @property
    def warnings(self) -> list[str]:
        """What could not be used, or not be kept: a line each."""
        found = []
        if self._left_out:
            more = f", and {len(self._left_out) - 1} more" if len(self._left_out) > 1 else ""
            first = next(iter(self._left_out.values()))
            found.append(f"bank '{self.folder}': an entry is left out: {first}{more}")
        if self._not_kept is not None:
            found.append(f"bank '{self.folder}': the answer was not kept: {self._not_kept}")
        return found

    def for_starts(self) -> Bank:
        """The same bank, of which plans to begin with are taken alone."""
        bank = copy.copy(self)
        bank.starts_only = True
        return bank

    # --- reading -----------------------------------------------------------------------------

    def recall(self, problem: Problem, asked: Search) -> Recalled | None:
        """The answer to a question, or the adapted plan of one like it; None: there is neither, or values are
        measured, so that nothing of another day compares."""
        if not problem.repeatable:
            return None
        ours = _describe(problem)
        path = self.folder / ours.name
        found = self._verified(path, problem, ours) if os.path.lexists(path) else None
        if found is None:
            return self._adapted(problem, ours)
        entry, _, decision = found
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        own = problem.bound()
        bound = None
        if not self.starts_only and entry.bound.value > own.value:
            bound = Bound(entry.bound.value, f"{entry.bound.method}, {RECORDED}")
        proven = entry.value <= (bound or own).value
        made = not self.starts_only and any(each.covers(asked) for each in entry.searches)
        return Recalled(decision, entry.value, True, bound=bound, proven=proven, made=made, about=entry.about)

    def _verified(self, path: Path, problem: Problem, ours: Entry) -> tuple[Entry, Plan, Decision] | None:
        """An entry of this very question, if it is all that it says."""
        try:
            entry, document = _read(path, with_plan=True)
            if (entry.question, entry.like) != (ours.question, ours.like):
                raise ValueError("it is about another question than its name says")
            if (entry.about["problem"], entry.about["unit"]) != (problem.kind, problem.unit):
                raise ValueError("it says that it is about another problem")
            plan = _plan_of(document, problem)
            if problem.invertible and (violations := problem.violations(plan)):
                raise ValueError(f"the checker refuses its plan: {violations[0].message}")
            value = problem.value_of(plan)
            if value != entry.value:
                raise ValueError(
                    f"it says that its plan has {entry.value:,}, and here it is {value or 'refused'}"
                )
            if entry.bound.value > entry.value:
                raise ValueError(f"it says that nothing is below {entry.bound.value:,}, and its plan is")
            return entry, plan, _decision_of(document, plan, problem)
        except _UNUSABLE as error:
            self._leave_out(path, error)
            return None

    def _adapted(self, problem: Problem, ours: Entry) -> Recalled | None:
        """The plan of the nearest like question that can be adapted."""
        near: list[tuple[float, str, Path]] = []
        for path in self._list(f"{ours.like}-")[:_MOST_LIKE]:
            try:
                entry, _ = _read(path)
                if path.name != entry.name:
                    raise ValueError("it is about another question than its name says")
                near.append((_distance(entry, ours), path.name, path))
            except _UNUSABLE as error:
                self._leave_out(path, error)
        for _, _, path in sorted(near)[:_MOST_ADAPTED]:
            try:
                entry, document = _read(path, with_plan=True)
                adapted = _adapt(document, problem)
            except _UNUSABLE as error:
                self._leave_out(path, error)
                continue
            if adapted is not None:
                decision, value = adapted
                return Recalled(decision, value, False, about=entry.about)
        return None

    def entries(self) -> list[Entry]:
        """What is known of all answers, the latest used first."""
        found = []
        for path in self._list():
            try:
                entry, _ = _read(path)
                if path.name != entry.name:
                    raise ValueError("it is about another question than its name says")
                found.append(entry)
            except _UNUSABLE as error:
                self._leave_out(path, error)
        return found

    def _list(self, prefix: str = "") -> list[Path]:
        """The files of entries, the latest used first."""
        rows = []
        with os.scandir(self.folder) as found:
            for each in found:
                if each.name.startswith(prefix) and _ENTRY.fullmatch(each.name):
                    with contextlib.suppress(OSError):  # gone since then
                        rows.append((-each.stat(follow_symlinks=False).st_mtime_ns, each.name))
        return [self.folder / name for _, name in sorted(rows)]

    def _leave_out(self, path: Path, error: BaseException) -> None:
        reason = " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())
        self._left_out.setdefault(path.name, f"'{path.name[:12]}…': {reason[:300]}")

    # --- writing -----------------------------------------------------------------------------

    def keep(
        self,
        problem: Problem,
        plan: Plan,
        decision: Decision | None,
        bound: Bound,
        search: Search | None,
        *,
        finder: str,
        seed: int,
        evaluations: int,
        seconds: float,
    ) -> None:
        """Keep an answer that was checked. Where there is a better one already, that stays, with what is new: a
        higher bound, one more search. What goes wrong is among `warnings`.

        Args:
          decision: needed where plans do not tell theirs (`Problem.invertible`).
          search: that found nothing better; None: it was not as long as it should have been.
          finder: the solver, or the known method, whose plan it is.
          seed, evaluations, seconds: of the search.
        """
        if not problem.repeatable:
            return
        rows = sum(len(table) for table in (plan.residencies, plan.copies) if table is not None)
        least = _LEAST_ROW_BYTES * rows
        if least > MOST_ENTRY_BYTES:  # seen before millions of rows are made into text
            self._not_kept = f"it takes more than {show_bytes(least)}, above {show_bytes(MOST_ENTRY_BYTES)}"
            return
        try:
            value = problem.value_of(plan)
            if value is None:
                return
            about = {
                "program": _short(problem.program.name),
                "machine": _short(problem.machine.name),
                "problem": problem.kind,
                "unit": problem.unit,
                "solver": _short(finder),
                "seed": seed,
                "evaluations": evaluations,
                "seconds": round(seconds, 3),
                "date": utc(),
            }
            if bound.method.endswith(RECORDED) or bound.value > value:
                bound = problem.bound()
            searches = () if search is None else (search,)
            entry = replace(
                _describe(problem), about=about, value=value, bound=_named(bound), searches=searches
            )
            document = nameless_document(plan, problem.program, problem.machine)
            if not problem.invertible and decision is not None:
                document["decision"] = np.asarray(decision, dtype=np.float64).tolist()
            with locking(self.folder / _LOCK) as alone:
                if not alone:
                    self._not_kept = "another process holds the lock"
                    return
                self._write(problem, entry, document)
                self._clear(entry.name)
        except _UNUSABLE as error:
            self._not_kept = getattr(error, "strerror", None) or str(error) or type(error).__name__

    def _write(self, problem: Problem, entry: Entry, document: dict[str, Any]) -> None:
        path = self.folder / entry.name
        before = None
        with contextlib.suppress(*_UNUSABLE):  # what can't be read is replaced
            before, theirs = _read(path, with_plan=True)
            if before.question != entry.question:
                before = None
        if before is not None:
            # Who claims to be as good or better is believed once the checker has seen it.
            if before.value <= entry.value and self._verified(path, problem, entry) is not None:
                document, entry = theirs, _merged(before, entry)
            elif before.value > entry.value and before.bound.value <= entry.value:
                entry = _merged(entry, before)
        text = f"{entry.line()}\n{json.dumps(document, separators=(',', ':'))}\n"
        if len(text) > MOST_ENTRY_BYTES:
            self._not_kept = f"it takes {show_bytes(len(text))}, above {show_bytes(MOST_ENTRY_BYTES)}"
            return
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def _clear(self, kept: str) -> None:
        """Remove what killed writers left (nobody else is writing), and what is too much."""
        for path in self.folder.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                path.unlink(missing_ok=True)
        total, count = 0, 0
        for path in sorted(self._list(), key=lambda each: each.name != kept):
            with contextlib.suppress(OSError):
                total, count = total + path.lstat().st_size, count + 1
                if path.name != kept and (total > self.most_bytes or count > MOST_ENTRIES):
                    total -= path.lstat().st_size
                    path.unlink()


def _merged(better: Entry, other: Entry) -> Entry:
    """The better answer with the higher bound, and the searches of both: the latest of each, and not too many."""
    bound = max(better.bound, other.bound, key=lambda each: each.value)
    if bound.value > better.value:
        bound = better.bound
    searches = [each for each in better.searches if not any(new.covers(each) for new in other.searches)]
    kept = (*other.searches, *searches)[:_MOST_SEARCHES]
    return replace(better, bound=bound, searches=tuple(kept))


def _open(folder: Path) -> None:
    """Make the bank, or see that it is one that can be written."""
    try:
        if not folder.exists():
            if folder.is_symlink():
                raise ValueError("it is a link that leads nowhere")
            folder.mkdir(exist_ok=True)  # another process may have made it by now
        if not folder.is_dir():
            raise BadBank(
                f"'{folder}' is no folder",
                object=str(folder),
                remedy="give the folder of a bank, or a new name",
            )
        mark = folder / MARK
        if os.path.lexists(mark):
            if not stat.S_ISREG(mark.lstat().st_mode) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                raise BadBank(
                    f"bank '{folder}' can't be written",
                    object=str(folder),
                    remedy="give one that is yours to write",
                )
            _check_mark(folder)
            return
        # Another process may be about to mark it, or to have done so since.
        foreign = any(not _LEFTOVER.fullmatch(each.name) for each in folder.iterdir())
        if foreign and not os.path.lexists(mark):
            raise BadBank(
                f"folder '{folder}' is no bank of plans and not empty",
                object=str(folder),
                remedy="give a bank, or a new name",
            )
        with replacing(mark) as temporary:
            temporary.write_text(json.dumps({"loadmaster_bank": FORMAT}) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadBank(
            f"bank '{folder}' can't be used: {getattr(error, 'strerror', None) or error}",
            object=str(folder),
            remedy="give a folder that can be read and written",
        ) from None


def _check_mark(folder: Path) -> None:
    """A file of that name may be somebody else's, or of a bank that later versions write."""
    with open_regular(folder / MARK, _MOST_HEADER_BYTES) as file:
        text = file.read(_MOST_HEADER_BYTES)
    try:
        found = read_json(text)
        format = found.get("loadmaster_bank") if isinstance(found, dict) else None
    except (LoadmasterError, ValueError, RecursionError):
        format = None
    if format != FORMAT:
        known = type(format) is int
        raise BadBank(
            f"bank '{folder}' is of format {format}, and this version knows {FORMAT}"
            if known
            else f"folder '{folder}' is no bank of plans: its {MARK} says nothing of one",
            object=str(folder),
            number=format if known else None,
            remedy="give another bank, or a new name",
        )


def open_bank(given: Bank | str | Path | None, *, starts_only: bool = False) -> Bank | None:
    """What users give, as a bank."""
    if given is None or isinstance(given, Bank):
        return given
    return Bank(given, starts_only=starts_only)


def _describe(problem: Problem) -> Entry:
    """The question alone."""
    program, machine = problem.program, problem.machine
    content = {
        "program": program.hash,
        "machine": replace(machine, name="").hash,
        "cost_model": COST_MODEL,
        "problem": {"kind": problem.kind, **problem.options()},
    }
    shape = {
        "program": structure_hash(program),
        "machine": _shape(machine),
        "cost_model": COST_MODEL,
        "kind": problem.kind,
    }
    sizes = [int(program.tensor_bytes.sum()), int(program.op_flops.sum())]
    sizes += [each for memory in machine.memories for each in (memory.capacity, memory.read, memory.write)]
    logs = tuple(round(math.log2(1 + size), 6) for size in sizes)
    return Entry(_hash(content), _hash(shape)[:32], logs, {}, 0, Bound(0, ""))


def _shape(machine: Machine) -> dict[str, Any]:
    return {
        "memories": [memory.name for memory in machine.memories],
        "devices": [list(device.memories) for device in machine.devices],
        "links": [[link.source, link.target] for link in machine.links],
        "reach": machine.rules.reach,
    }


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _distance(entry: Entry, other: Entry) -> float:
    if len(entry.sizes) != len(other.sizes):
        raise ValueError("it has other sizes than its kind of question")
    return sum(abs(a - b) for a, b in zip(entry.sizes, other.sizes, strict=True))


def _short(text: str) -> str:
    return text[:200]


def _named(bound: Bound) -> Bound:
    return Bound(bound.value, _short(bound.method))


# Reading entries: every number is looked at before it is used.


def _read(path: Path, with_plan: bool = False) -> tuple[Entry, Any]:
    """An entry's header, and its plan's document if that is wanted (else None)."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError("it is no regular file")
    with open_regular(path, MOST_ENTRY_BYTES) as file:
        line = file.readline(_MOST_HEADER_BYTES)
        if not line.endswith(b"\n"):
            raise ValueError("its first line has no end")
        entry = _entry(read_json(line))
        if not with_plan:
            return entry, None
        text = file.read(MOST_ENTRY_BYTES)
    if not text.endswith(b"\n"):
        raise ValueError("its second line has no end")
    return entry, read_json(text, most_bytes=MOST_ENTRY_BYTES)


def _entry(header: Any) -> Entry:
    if not isinstance(header, dict) or header.get("loadmaster_bank") != FORMAT:
        raise ValueError(f"it is no entry of format {FORMAT}")
    sizes, bound = _typed(header, "sizes", list), _typed(header, "bound", dict)
    if len(sizes) > 4_096 or not all(type(size) in (int, float) and 0 <= size < 1_024 for size in sizes):
        raise ValueError("its sizes are no sizes")
    searches = _typed(header, "searches", list)
    if len(searches) > _MOST_SEARCHES:
        raise ValueError(f"it has {len(searches)} searches")
    return Entry(
        _typed(header, "question", str),
        _typed(header, "like", str),
        tuple(float(size) for size in sizes),
        _about(_typed(header, "about", dict)),
        _count(header, "value"),
        Bound(_count(bound, "value"), _short(_typed(bound, "method", str))),
        tuple(map(_search, searches)),
    )


def _about(found: dict[str, Any]) -> dict[str, Any]:
    texts = ("program", "machine", "problem", "unit", "solver", "date")
    return {
        **{name: _short(_typed(found, name, str)) for name in texts},
        **{name: _count(found, name) for name in ("seed", "evaluations")},
        "seconds": _seconds(found, "seconds"),
    }


def _search(found: Any) -> Search:
    if not isinstance(found, dict):
        raise ValueError("one of its searches is no object")
    return Search(
        _typed(found, "solver", str),
        _typed(found, "options", dict),
        _count(found, "seed"),
        None if found.get("evaluations") is None else _count(found, "evaluations"),
        None if found.get("seconds") is None else _seconds(found, "seconds"),
        _seconds(found, "optimum_seconds"),
        _typed(found, "ended", bool),
    )


def _typed(found: dict[str, Any], name: str, kind: type) -> Any:
    value = found.get(name)
    if type(value) is not kind:
        raise ValueError(f"its '{name}' is no {kind.__name__}")
    return value


def _count(found: dict[str, Any], name: str) -> int:
    value: int = _typed(found, name, int)
    if not 0 <= value < 2**63:
        raise ValueError(f"its '{name}' is {value}")
    return value


def _seconds(found: dict[str, Any], name: str) -> float:
    value: Any = found.get(name)
    if type(value) not in (int, float) or not 0 <= value < 1e12:
        raise ValueError(f"its '{name}' is no time")
    return float(value)


def _plan_of(document: Any, problem: Problem) -> Plan:
    return plan_from_document(document, problem.program, problem.machine, "of the bank")


def _decision_of(document: Any, plan: Plan, problem: Problem) -> Decision:
    """The decision behind a plan of this problem; where plans do not tell it, the one beside it, if it stands for
    the same plan."""
    if problem.invertible:
        return problem.decision(plan)
    decision = _stored_decision(document)
    if decision is None:
        return problem.decision(plan)
    if problem.plan(decision).hash != plan.hash:
        raise ValueError("its decision stands for another plan")
    return decision


def _stored_decision(document: Any) -> Decision | None:
    stored = document.get("decision")
    if stored is None:
        return None
    if not isinstance(stored, list) or not all(type(each) in (int, float) for each in stored):
        raise ValueError("its decision is no list of numbers")
    return np.array(stored, dtype=np.float64)


def _adapt(document: Any, problem: Problem) -> tuple[Decision, int] | None:
    """A legal decision near the plan of a like question, and its value."""
    plan = _plan_of(document, problem)
    tried: list[Decision] = []
    with contextlib.suppress(*UNFIT, LoadmasterError):
        tried.append(problem.adapt(plan))
    stored = None if problem.invertible else _stored_decision(document)
    tried += [] if stored is None else [stored]
    legal: list[tuple[int, int]] = []
    for number, decision in enumerate(tried):
        with contextlib.suppress(*UNFIT, LoadmasterError):
            value = problem.evaluate(decision)
            if (
                value is not None
                and problem.admits(decision)
                and not problem.violations(problem.plan(decision))
            ):
                legal.append((value, number))
    if not legal:
        return None
    value, number = min(legal)
    return tried[number], value
