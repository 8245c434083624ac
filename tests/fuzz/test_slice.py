"""A short piece of the fuzzing with a fixed seed, and every input that once did harm.

make fuzz MINUTES=5     # all of it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fuzz.corpus import CASES, prepared
from fuzz.readers import READERS
from fuzz.runner import Campaign
from fuzz.use import small_program
from fuzz.worker import Limits
from loadmaster.cli.main import app
from loadmaster.program import save

INPUTS = 60
"""Of each reader. All of them together take some ten seconds of one core."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """All readers in one process. Its limit is far above what any input takes: it is there to end what hangs."""
    names = [name for name, reader in READERS.items() if reader.missing() is None]
    found = Campaign(
        names, seed=20, most=INPUTS, limits=Limits(seconds=60.0), folder=tmp_path_factory.mktemp("findings")
    )
    found.run()
    yield found


@pytest.mark.parametrize("name", READERS)
def test_hostile_inputs_are_read_or_refused(campaign: Campaign, name: str) -> None:
    if name not in campaign.rows:
        pytest.skip(f"needs {READERS[name].missing()}")
    row = campaign.rows[name]
    assert [str(finding) for finding in campaign.findings if finding.reader == name] == []
    assert row.inputs == INPUTS and row.accepted + row.refused == INPUTS
    assert row.accepted, "even the valid inputs were refused: nothing is tried in earnest"


@pytest.mark.parametrize("name", CASES)
def test_what_once_did_harm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, list(prepared(name, tmp_path)))
    lines = result.stderr.splitlines()
    assert result.exit_code == 2, (result.stdout, result.stderr)
    assert len(lines) == 1 and lines[0].startswith("error: ") and result.stdout == ""


def test_names_reach_no_terminal_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = "\x1b[2Jclear\x1b]0;title\x07"
    save(replace(small_program(), name=hostile), tmp_path / "small.npz")
    for command in (
        ["inspect", "small.npz", "--machine", "nnp-i"],
        ["plan", "small.npz", "--machine", "nnp-i", "--solver", "density", "--budget", "2"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
        assert "clear" in result.stdout
        assert "\x1b" not in result.output and "\x07" not in result.output
