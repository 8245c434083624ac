"""The file itself: its rules, its data, and that names can't do any harm to it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from generate_mapping import layers, three_memories
from hostile_names import HOSTILE, renamed
from loadmaster.errors import LoadmasterError
from loadmaster.plan import Plan
from loadmaster.report import write_plan_report, write_report


def content(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    assert found is not None
    return dict(json.loads(found.group(1)))


def test_every_kind_of_problem_has_a_report(runs: dict[str, Path], tmp_path: Path) -> None:
    for kind, run in runs.items():
        facts = write_report(run, tmp_path / f"{kind}.html")
        plan = facts.rows[0]
        assert facts.bytes == facts.path.stat().st_size and facts.bytes < 400_000
        assert plan["problem"] == kind and plan["violations"] == 0 and plan["value"] is not None
        assert plan["bound"] is not None and plan["gap"] is not None
        assert content(facts.path)["rows"] == json.loads(json.dumps(facts.rows))


def test_the_policy_allows_this_script_and_this_style_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    text = write_report(runs["mapping"], tmp_path / "r.html").path.read_text(encoding="utf-8")
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)[0]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for tag in ("script", "style"):
        body = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert len(body) == 1
        digest = base64.b64encode(hashlib.sha256(body[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for word in ("http://", "https://", "innerHTML", "eval(", "document.write", "fetch("):
        assert word not in text.replace("http://www.w3.org/2000/svg", "")


def test_hostile_names_end_no_tag(tmp_path: Path) -> None:
    program = renamed(layers())
    facts = write_plan_report(program, three_memories(), [(HOSTILE[0], Plan())], tmp_path / "r.html")
    text = facts.path.read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and text.count("<script") == 3
    assert "<img" not in text and "\u202e" not in text
    assert content(facts.path)["head"]["program"] == program.name


def test_two_runs_are_compared_and_more_are_overlaid(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["mapping"]
    best = (run / "best.json").read_bytes()
    other = next(path for path in sorted((run / "plans").iterdir()) if path.read_bytes() != best)
    two = write_report([other, run], tmp_path / "two.html")
    assert [row["role"] for row in two.rows if row["what"] == "plan"] == ["after", "before"]
    assert any(row["what"] == "change" and row["count"] for row in two.rows)
    same = write_report([run, run], tmp_path / "same.html")
    assert any("equal plans" in warning for warning in same.warnings)
    three = write_report([run, run, run], tmp_path / "three.html")
    assert len(content(three.path)["curves"]["runs"]) == 3


def test_what_can_not_be_shown_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    alone = tmp_path / "plan.json"
    alone.write_bytes((runs["mapping"] / "best.json").read_bytes())
    with pytest.raises(LoadmasterError, match=r"lies in no run.*report MODEL PLAN"):
        write_report(alone, tmp_path / "r.html")
    with pytest.raises(LoadmasterError, match="differ in their program"):
        write_report([runs["mapping"], runs["graph"]], tmp_path / "r.html")
    with pytest.raises(LoadmasterError, match="there is nothing to report"):
        write_report([], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    # Beside a run its program is known.
    assert write_report([runs["mapping"], alone], tmp_path / "r.html").rows


def test_parts_of_the_page_are_small() -> None:
    assets = resources.files("loadmaster.report") / "assets"
    for file in assets.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 400, file.name
