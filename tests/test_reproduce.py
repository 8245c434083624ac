"""The papers' figures: every command can be run, every recorded row is there, and the page is made of them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from loadmaster.cli.main import COMMANDS, app
from loadmaster.search.registry import kinds, solver_names

pytest.importorskip("matplotlib")
from reproduce import run
from reproduce.entries import ENTRIES, WITHOUT

COMMANDS_OF = [
    (name, part, command)
    for name, entry in ENTRIES.items()
    for part in ("full", "quick")
    for command in getattr(entry, part)
]


@pytest.mark.parametrize(("name", "part", "command"), COMMANDS_OF)
def test_scripts_have_the_options_and_the_cells_exist(
    name: str, part: str, command: str, tmp_path: Path
) -> None:
    words = shlex.split(command)
    options = {word for word in words if word.startswith("--")}
    if words[0] == "loadmaster":
        assert words[1] in COMMANDS
        made = typer.main.get_command(app).get_command(None, words[1])  # type: ignore[attr-defined]
        assert options <= {word for param in made.params for word in param.opts}
        known = {solver for kind in kinds() for solver in solver_names(kind)}
        assert "--solver" not in words or words[words.index("--solver") + 1] in known
        return
    text = (run.ROOT / words[0]).read_text(encoding="utf-8")
    assert options <= set(re.findall(r"\"(--[\w-]+)\"", text))
    assert run.words_of(command, tmp_path)[-1] == str(tmp_path / "rows.jsonl")


def test_jobs_of_the_mapping_suite_are_what_the_page_says(tmp_path: Path) -> None:
    jobs = []
    for command in ENTRIES["egrl-curves"].full:
        words = [*run.words_of(command, tmp_path), "--list"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
        jobs += done.stdout.splitlines()[1:]
    listed = {tuple(job.split()[:2]) for job in jobs}
    assert {(case, "paper") for case in run.ENTRIES["egrl-curves"].cases[:3]} <= listed
    assert ("bert/nnp-i", "egrl-untrained") in listed


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.records])
def test_recorded_rows_make_the_page(name: str) -> None:
    entry, text = ENTRIES[name], run.PAGE.read_text(encoding="utf-8")
    rows = run.recorded(entry)
    assert rows and all(re.fullmatch(r"[0-9a-f]{7}", row["commit"]) for row in rows)
    for make in entry.tables:
        made = make(rows)
        assert made.count("\n") >= 2 and made in text


@pytest.mark.parametrize("name", ENTRIES)
def test_there_is_a_picture_of_what_is_drawn(name: str) -> None:
    drawn = ENTRIES[name].draw is not None or ENTRIES[name].picture is not None
    assert drawn == (run.PAGE.parent / f"{name}.svg").is_file()
    assert drawn == (f"({name}.svg)" in run.PAGE.read_text(encoding="utf-8"))


def test_the_page_is_as_it_would_be_made_now() -> None:
    text = run.PAGE.read_text(encoding="utf-8")
    assert f"{run.BEGIN}\n{run.page()}\n{run.END}" in text
    assert all(what in text and why in text for what, why in WITHOUT.items())


def test_numbers_of_the_papers_are_those_of_their_abstracts() -> None:
    numbers = {word for entry in ENTRIES.values() for word in re.findall(r"[\d–]+ [%×]", entry.printed)}
    assert numbers == {"28–78 %", "21 %", "18 %", "15 ×", "33–60 %"}


def test_quick_runs_say_that_they_are(tmp_path: Path) -> None:
    for name in ("egrl-transfer", "malloc-alexnet"):
        words = [
            sys.executable,
            str(run.ROOT / "reproduce" / "run.py"),
            name,
            "--quick",
            "--out",
            str(tmp_path),
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip().endswith(
            "quick: the smallest case and few evaluations, to see that it runs; no result"
        )
    assert "| `resnet50/nnp-i` | 1.025 × | 1.025 × | 1.025 × | 1.025 × |" in _table(tmp_path)
    assert list((tmp_path / "malloc-alexnet-quick").glob("*-muzero-memory.svg"))


def _table(out: Path) -> str:
    rows = run.read_rows(out / "egrl-transfer-quick" / "rows.jsonl")
    return run.show(ENTRIES["egrl-transfer"], rows)
