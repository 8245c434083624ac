"""What a release is made of: its notes, the workflows, the pages of the site, and the package's own list of wheels."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools.release_notes import notes, package_version

ROOT = Path(__file__).parents[2]
CHANGES = """# Changelog

## 0.2.0 (2027-01-05)

* New.

## 0.1.0 (unreleased)

* First.
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    assert notes("v0.2.0", CHANGES, "0.2.0") == "* New."
    with pytest.raises(ValueError, match=r"still has '0.1.0 .unreleased.': put the date"):
        notes("v0.1.0", CHANGES, "0.1.0")
    with pytest.raises(
        ValueError, match=r"the tag is 'v0.2.1' and the package is version 0.2.0: tag it v0.2.0"
    ):
        notes("v0.2.1", CHANGES, "0.2.0")
    with pytest.raises(ValueError, match=r"has no section '## 0.3.0'"):
        notes("v0.3.0", CHANGES, "0.3.0")


def test_the_changelog_has_this_version() -> None:
    version = package_version((ROOT / "src/loadmaster/__init__.py").read_text(encoding="utf-8"))
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == version
    done = subprocess.run(
        [sys.executable, ROOT / "tools/release_notes.py", "v9"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and f"is version {version}" in done.stderr


@pytest.fixture(scope="module")
def workflows() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def test_workflows_run_what_there_is(workflows: dict[str, Any]) -> None:
    """Targets of make and scripts that they name exist, and nothing may write but who publishes."""
    assert set(workflows) == {"docs", "release", "test"}
    targets = set(re.findall(r"^([a-z ]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    known = {word for line in targets for word in line.split()}
    for name, content in workflows.items():
        assert content["permissions"] == {"contents": "read"}, name
        for job, body in content["jobs"].items():
            assert "permissions" not in body or job == "publish", (name, job)
            for step in body["steps"]:
                for script in re.findall(r"tools/\w+\.py", step.get("run", "")):
                    assert (ROOT / script).is_file(), script
    parts = workflows["test"]["jobs"]["checks"]["strategy"]["matrix"]["part"]
    assert {word for part in parts for word in part.split()} | {"docs"} <= known


def test_every_system_of_the_issue_has_a_wheel(workflows: dict[str, Any]) -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    assert built["linux"]["archs"] == ["x86_64", "aarch64"] and built["macos"]["archs"] == ["x86_64", "arm64"]
    assert built["windows"]["archs"] == ["AMD64"] and "first_steps.py" in built["test-command"]
    systems = workflows["release"]["jobs"]["wheels"]["strategy"]["matrix"]["os"]
    assert {system.partition("-")[0] for system in systems} == {"ubuntu", "macos", "windows"}


def test_the_site_has_every_page_of_docs() -> None:
    yaml = pytest.importorskip("yaml")
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    def pages(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [
            page for each in (entry.values() if isinstance(entry, dict) else entry) for page in pages(each)
        ]

    listed = pages(site["nav"])
    assert all((ROOT / page).is_file() for page in listed)
    assert {page for page in listed if page.startswith("docs/")} == {
        f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")
    }
