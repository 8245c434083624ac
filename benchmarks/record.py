"""Record a suite for a release: `python benchmarks/record.py allocation [--data DIR]`.

Runs `loadmaster bench SUITE --json`, adds the command and the commit, and writes
`benchmarks/results/SUITE.json`. The README's table is made from these files by `readme_table.py`.

A suite of hours is recorded in parts: `python benchmarks/record.py mapping --rows a.jsonl b.jsonl`
merges what `mapping_runs.py` wrote, on one computer or several, into the recorded rows by (case,
solver, seed); `--fresh` leaves out what was recorded before, and no file at all puts today's bounds
beside the rows that there are. Every row says which computer and
versions made it: `extra.made` is a place in the document's list `made`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites.graph_cells import CELLS as GRAPHS
from benchmarks.suites.malloc_cells import GAMES
from benchmarks.suites.mapping_cells import CELLS
from benchmarks.suites.mapping_summary import merged
from loadmaster.search.problem import Bound, recorded_bound

HERE = Path(__file__).parent
STAGES = {"gpu": "python benchmarks/gpu_runs.py measure, plan, execute, peers --folder gpu"}
"""Commands of suites that are not made by one."""


def main(suite: str, *options: str) -> None:
    if "--rows" in options:
        files = [Path(word) for word in options if not word.startswith("--")]
        write(suite, merge(suite, files, fresh="--fresh" in options))
        return
    public = [
        word for word in options if not Path(word).is_absolute()
    ]  # a folder of data is nobody's business
    run = [sys.executable, "-m", "loadmaster.cli.main", "bench", suite, *options, "--json"]
    answer = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    write(
        suite,
        {
            "suite": suite,
            "command": " ".join(["loadmaster", "bench", suite, *public, "--json"]),
            "commit": commit(),
            **{key: answer[key] for key in ("versions", "host", "rows")},
        },
    )


def merge(suite: str, files: list[Path], *, fresh: bool = False) -> dict[str, Any]:
    """The recorded document with the rows of the files in it."""
    path = HERE / "results" / f"{suite}.json"
    document = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not fresh else {}
    made: list[dict[str, Any]] = document.get("made", [])
    new = []
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                content = json.loads(line)
            except ValueError:
                continue  # torn when the computer stopped
            # A row of an earlier record keeps its own commit.
            maker = {"commit": commit(), **content["made"]}
            if maker not in made:
                made.append(maker)
            for row in content["rows"]:
                row["extra"]["made"] = made.index(maker)
                new.append(row)
    return {
        "suite": suite,
        "command": STAGES.get(suite, f"python benchmarks/{suite}_runs.py --out rows.jsonl")
        + f", then python benchmarks/record.py {suite} --rows rows.jsonl",
        "commit": commit(),
        "versions": made[-1]["versions"] if made else {},
        "host": made[-1]["host"] if made else {},
        "made": made,
        "rows": [with_gpu(with_best_bound(row), made) for row in merged(document.get("rows", []), new)],
    }


def with_gpu(row: Mapping[str, Any], made: list[dict[str, Any]]) -> Mapping[str, Any]:
    """The row, which says if a GPU helped: its seconds are not those of a CPU."""
    place = row["extra"].get("made")
    gpu = None if place is None else made[place]["host"].get("gpu")
    return {**row, "extra": row["extra"] | {"gpu": gpu}} if gpu else row


def with_best_bound(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row beside the best bound on record, which may have been proven after it was made."""
    bound = recorded(row["case"])
    if bound is None or row["value"] <= 0 or bound.value <= row["bound"]:
        return row
    if row["value"] < bound.value:
        raise SystemExit(
            f"bound {bound.value} of {row['case']} is above a plan of {row['value']:.0f}: one is wrong"
        )
    return {
        **row,
        "bound": float(bound.value),
        "gap": row["value"] / bound.value - 1,
        "extra": row["extra"] | {"bound_by": bound.method},
    }


@lru_cache
def recorded(case: str) -> Bound | None:
    """The recorded bound of a cell; of a graph, which is proven in seconds, that of today."""
    if case in GRAPHS:
        return GRAPHS[case].load().bound()
    if case in GAMES:
        game = GAMES[case].load()
        return recorded_bound(game.program, game.machine, game.kind)
    if case not in CELLS or CELLS[case].wrong:  # which machine was described depends on the seed
        return None
    problem = CELLS[case].load()
    return recorded_bound(problem.program, problem.machine)


def commit() -> str:
    """The short name of what is checked out."""
    found = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
    )
    return found.stdout.strip()


def write(suite: str, document: dict[str, Any]) -> None:
    """One line per row: a change of one row is a change of one line."""
    head = {key: value for key, value in document.items() if key != "rows"}
    if "made" in document:
        lines = ",\n  ".join(json.dumps(row) for row in document["rows"])
        text = json.dumps(head, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n'
    else:
        text = json.dumps(document, indent=1) + "\n"
    path = HERE / "results" / f"{suite}.json"
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.name}: {len(document['rows'])} rows")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
