"""Make our counterpart of a published figure or table.

    python reproduce/run.py                        # what there is
    python reproduce/run.py egrl-curves            # all of it: the minutes that README.md says
    python reproduce/run.py egrl-curves --quick    # a small part of it, under a minute
    python reproduce/run.py egrl-curves --recorded # nothing is run: the table and the picture of what is on record

Rows and pictures go to `build/reproduce` (`--out`). A full run goes on where it was left. `--page` writes the tables and
pictures of what is on record, and of the last full runs of commands that draw, into README.md.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from reproduce.entries import ENTRIES, WITHOUT, Entry

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- made by reproduce/run.py --page -->", "<!-- end of what is made -->"


def recorded(entry: Entry) -> list[dict[str, Any]]:
    """The rows on record that an entry is made of, each with the commit that made it."""
    rows = []
    for name in entry.records:
        document = json.loads((RESULTS / name).read_text(encoding="utf-8"))
        for row in document["rows"]:
            if not (among(row["case"], entry.cases) and among(str(row["solver"]), entry.solvers)):
                continue
            made = row["extra"].get("made")
            known = (
                document["commit"]
                if made is None
                else document["made"][made].get("commit", document["commit"])
            )
            rows.append(row | {"commit": row["extra"].get("commit", known)[:7]})
    return rows


def among(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def words_of(command: str, out: Path) -> list[str]:
    """What to run: this Python, with a script or the package."""
    words = [word.format(rows=out / "rows.jsonl", folder=out) for word in shlex.split(command)]
    if words[0] == "loadmaster":
        return [sys.executable, "-m", "loadmaster", *words[1:]]
    return [sys.executable, str(ROOT / words[0]), *words[1:]]


def run(commands: tuple[str, ...], out: Path) -> list[dict[str, Any]]:
    """Run them one after another; the rows that they wrote."""
    out.mkdir(parents=True, exist_ok=True)
    for command in commands:
        words = words_of(command, out)
        print(
            "$",
            shlex.join(["loadmaster", *words[3:]] if words[1] == "-m" else ["python", *words[1:]]),
            flush=True,
        )
        subprocess.run(words, check=True, cwd=ROOT)
    return read_rows(out / "rows.jsonl")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """What the benchmarks wrote, a line for each job; none where pictures were made instead."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [row for line in lines for row in json.loads(line)["rows"]]


def show(entry: Entry, rows: list[dict[str, Any]]) -> str:
    """The tables of an entry that have rows."""
    return "\n\n".join(text for make in entry.tables if (text := make(rows)))


def minutes(entry: Entry) -> str:
    """What the recorded rows took, on one core, but for those of code that is gone."""
    rows = [row for row in recorded(entry) if "commit" not in row["extra"]]
    taken = entry.minutes + sum(row["seconds"] or 0.0 for row in rows) / 60
    return f"{taken:,.0f}" if taken >= 1.5 else f"{taken:.1f}"


def page() -> str:
    """What README.md has between its marks."""
    head = ["name", "paper", "shows", "the paper printed", "minutes of one core"]
    lines = [
        [f"[`{name}`](#{name})", each.paper, each.shows, each.printed, minutes(each)]
        for name, each in ENTRIES.items()
    ]
    parts = [table(head, lines), "", "**Without a counterpart**", ""]
    parts.append(table(["", "why"], [[what, why] for what, why in WITHOUT.items()]))
    for name, each in ENTRIES.items():
        parts += ["", f"## {name}", "", f"{each.paper}: {each.shows}. *Printed:* {each.printed}.", ""]
        parts += [f"    python reproduce/run.py {name}", "", each.remark, ""]
        rows = recorded(each)
        if each.tables:
            parts += [show(each, rows), ""]
        if rows:
            commits = sorted({row["commit"] for row in rows})
            parts += [f"Recorded at {', '.join(commits)}, in {', '.join(each.records)}.", ""]
        if (PAGE.parent / f"{name}.svg").exists():
            parts += [f"![{each.shows}]({name}.svg)", ""]
    return "\n".join(parts).rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", choices=list(ENTRIES))
    parser.add_argument("--quick", action="store_true", help="a small part, under a minute")
    parser.add_argument("--recorded", action="store_true", help="what is on record; nothing is run")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reproduce")
    parser.add_argument(
        "--page", action="store_true", help="write README.md and its pictures from what is on record"
    )
    args = parser.parse_args()
    if args.page:
        for name, each in ENTRIES.items():
            drawn = args.out / name / (each.picture or "")
            if each.draw is not None:
                each.draw(recorded(each), PAGE.parent / f"{name}.svg")
            elif drawn.is_file():
                shutil.copyfile(drawn, PAGE.parent / f"{name}.svg")
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN, 1)
        PAGE.write_text(f"{before}{BEGIN}\n{page()}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")
        return 0
    if args.name is None:
        for name, each in ENTRIES.items():
            print(f"{name:20} {each.paper}: {each.shows}")
        return 0
    entry = ENTRIES[args.name]
    out = args.out / (f"{args.name}-quick" if args.quick else args.name)
    if args.recorded:
        rows = recorded(entry)
    else:
        rows = run(entry.quick if args.quick else entry.full, out)
    out.mkdir(parents=True, exist_ok=True)
    print(f"\n{entry.paper}: {entry.shows}\nthe paper printed: {entry.printed}\n\n{show(entry, rows)}")
    if entry.draw is not None:
        entry.draw(rows, out / f"{args.name}.svg")
        print(f"wrote {out / f'{args.name}.svg'}")
    if args.quick:
        print("quick: the smallest case and few evaluations, to see that it runs; no result")
    else:
        print(f"on record: {entry.remark}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
