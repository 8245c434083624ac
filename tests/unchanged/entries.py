"""All entries: recorded, computed again, compared."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from typing import Any

from unchanged import commands, learned, old_files, parts, policies, programs, solvers
from unchanged.normal import differences

SECTIONS: dict[str, Any] = {
    "programs": programs,
    "solvers": solvers,
    "learned": learned,
    "commands": commands,
    "policies": policies,
    "old_files": old_files,
}
"""Section -> a module with `names()` and `compute(name)`; one file of `recorded/` each."""
RECORDED = parts.HERE / "recorded"
TOLERANCE = {"policies": 2e-3}
"""Relative difference of numbers with a fraction; those of networks depend on the processor."""


def recorded() -> dict[str, Any]:
    """section/name -> what it was"""
    found = {}
    for section in SECTIONS:
        path = RECORDED / f"{section}.json"
        if path.exists():
            for name, value in json.loads(path.read_text(encoding="utf-8")).items():
                found[f"{section}/{name}"] = value
    return found


def compute(entry: str) -> Any:
    """What an entry is now."""
    section, _, name = entry.partition("/")
    answer = SECTIONS[section].compute(name)
    return json.loads(json.dumps(answer))


def skipped(entry: str, before: Any) -> str | None:
    """Why an entry can't be compared here and now."""
    section, _, name = entry.partition("/")
    if section == "programs":
        return programs.waits(name)
    if isinstance(before, dict) and before.get("cpu", parts.cpu()) != parts.cpu():
        return f"it was recorded on another processor ({before['cpu']})"
    return None


def changes(entry: str, before: Any, now: Any) -> list[str]:
    """How an entry differs from what it was."""
    return differences(before, now, TOLERANCE.get(entry.partition("/")[0], 1e-9))


def _write(found: dict[str, Any]) -> None:
    RECORDED.mkdir(exist_ok=True)
    for section in SECTIONS:
        start = f"{section}/"
        its = {name.removeprefix(start): value for name, value in found.items() if name.startswith(start)}
        rows = [f"{json.dumps(name)}: {json.dumps(its[name], sort_keys=True)}" for name in sorted(its)]
        (RECORDED / f"{section}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Parse, compute, write or compare."""
    parser = argparse.ArgumentParser(prog="python -m tests.unchanged", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", nargs="?", const="*", metavar="PATTERN", help="these entries anew [all]")
    what.add_argument("--check", nargs="?", const="*", metavar="PATTERN", help="compare these [all]")
    what.add_argument("--remove", metavar="PATTERN", help="forget these entries")
    what.add_argument("--alone", metavar="ENTRY", help="compute a learned entry in this process")
    parser.add_argument("--files", action="store_true", help="record also run folders and plans anew")
    words = parser.parse_args()
    with parts.clock.stopped():
        if words.alone:
            print(json.dumps(learned.compute_alone(words.alone)))
            return 0
        if words.record:
            return _record(words.record, files=words.files)
        if words.remove:
            _write({k: v for k, v in recorded().items() if not fnmatch.fnmatchcase(k, words.remove)})
            return 0
        return _check(words.check)


def _record(pattern: str, *, files: bool) -> int:
    if files:
        old_files.record_files()
    known = [f"{section}/{name}" for section, module in SECTIONS.items() for name in module.names()]
    chosen = [entry for entry in known if fnmatch.fnmatchcase(entry, pattern)]
    found = {k: v for k, v in recorded().items() if not fnmatch.fnmatchcase(k, pattern)}
    for entry in chosen:
        found[entry] = compute(entry)
    commands.clear()
    _write(found)
    print(f"{len(chosen)} entries recorded")
    return 0


def _check(pattern: str) -> int:
    wrong = 0
    for entry, before in recorded().items():
        if fnmatch.fnmatchcase(entry, pattern):
            lines = changes(entry, before, compute(entry))
            wrong += bool(lines)
            for line in lines:
                print(f"{entry}: {line}", file=sys.stderr)
    commands.clear()
    print(f"{wrong} entries differ" if wrong else "nothing changed")
    return 1 if wrong else 0
