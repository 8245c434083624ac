"""`loadmaster report`: runs, plans and models on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from generate_mapping import layers, three_memories
from loadmaster.mapping.problem import Mapping
from loadmaster.runs.session import run_solver
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run."""
    problem = Mapping(layers(), three_memories())
    solution = run_solver(
        make_labelled("mapping", "random"), problem, Budget(200), 0, folder=tmp_path_factory.mktemp("runs")
    )
    return solution.run


def test_a_run_gets_its_own_report_as_often_as_wanted(folder: Path, run_json: Any) -> None:
    for _ in range(2):
        rows = run_json("report", folder)["rows"]
        assert rows[0] == {
            "what": "report",
            "file": str(folder / "report.html"),
            "bytes": (folder / "report.html").stat().st_size,
        }
        assert {row["what"] for row in rows} == {
            "report",
            "plan",
            "transition",
            "change",
            "tensor",
            "memory",
            "device",
        }


def test_a_model_and_its_plan(plan_file: Path, tmp_path: Path, run: Any, run_json: Any) -> None:
    out = tmp_path / "r.html"
    document = run_json("report", "resnet50", plan_file, "--machine", "nnp-i", "--out", out)
    plans = [row for row in document["rows"] if row["what"] == "plan"]
    assert [plan["name"] for plan in plans] == ["plan.json", "nothing decided"]
    assert 0 < plans[0]["bound"] <= plans[0]["value"] < plans[1]["value"]
    refused = run("report", "resnet50", plan_file, "--machine", "nnp-i", "--out", out)
    assert refused.exit == 2 and "--overwrite" in refused.error_line
    said = run("report", "resnet50", "--machine", "nnp-i", "--out", out, "--overwrite")
    assert said.exit == 0 and said.out.startswith(f"wrote {out} (")


def test_wrong_usage(folder: Path, plan_file: Path, elsewhere: Path, run: Any) -> None:
    for args, words in (
        ((folder, "--machine", "nnp-i"), "has its own machine"),
        ((plan_file,), "report MODEL PLAN --machine MACHINE"),
        (("resnet50", *[plan_file] * 3), "too many"),
        ((folder, plan_file, "--out", "r.html"), "belongs to another program"),
        (("nowhere",), "nowhere"),
    ):
        result = run("report", *args)
        assert result.exit == 2 and words in result.error_line, result.err
