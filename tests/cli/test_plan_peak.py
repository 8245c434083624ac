"""`plan --objective peak-memory` and `export`: a real graph from the file to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from loadmaster.machine import read_machine
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.simulate import simulate

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
MODEL = str(LIGHT / "light_shufflenet.onnx")
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize(
    ("solver", "words"),
    [
        ("auto", "auto"),
        ("peak-dp", "exact"),
        ("peak-cut", "exact --set method=peak-cut"),
        ("peak-beam", "search --set method=peak-beam"),
        ("anneal", "search"),
        ("program-order", "heuristic --set rule=program-order"),
    ],
)
def test_an_order_is_planned_checked_and_kept(run_json: Any, run: Any, solver: str, words: str) -> None:
    answer = run_json(
        "plan",
        MODEL,
        "--objective",
        "peak-memory",
        "--solver",
        *words.split(),
        "--budget",
        "50",
        "--out",
        "plan.json",
    )
    rows = {row["name"]: row for row in answer["rows"]}
    ours, bound = rows[solver], rows["bound"]["peak_bytes"]
    assert ours["what"] == "order" and ours["peak_bytes"] >= answer["after_bytes"] >= bound
    assert answer["after_bytes"] == rows[answer["origin"]]["peak_bytes"]
    assert answer["before_bytes"] == 3_110_912 and answer["ops"] == 170
    if solver == "auto":
        assert ours["peak_bytes"] == bound == 2_885_120 and ours["status"] == "optimal"
    machine, program = read_machine(Path(answer["run"]) / "machine.toml"), load_model(MODEL)
    plan = load_plan(Path("plan.json"), program, machine)
    assert check(program, machine, plan) == []
    peak = int(simulate(program, machine, plan).memory_peak.max())
    assert peak == answer["after_bytes"] + answer["resident_bytes"]
    assert run("replay", answer["run"]).exit == 0


def test_a_run_can_be_resumed(run_json: Any) -> None:
    first = run_json("plan", MODEL, "--objective", "peak-memory", "--solver", "search", "--budget", "20")
    more = run_json("plan", MODEL, "--resume", first["run"], "--budget", "60")
    assert more["after_bytes"] <= first["after_bytes"]


@pytest.mark.parametrize("options", [("method=anneal", "length=700"), ("method=random-best", "orders=80")])
def test_a_resumed_run_has_its_options(run_json: Any, options: tuple[str, str]) -> None:
    chosen = [word for option in options for word in ("--set", option)]
    words = ("plan", MODEL, "--objective", "peak-memory", "--solver", "search", *chosen)
    first = run_json(*words, "--budget", "60")
    resumed = run_json("plan", MODEL, "--resume", first["run"], "--budget", "900")
    whole = run_json(*words, "--budget", "900")
    ours, theirs = (next(row for row in each["rows"] if row["what"] == "order") for each in (resumed, whole))
    assert ours["evaluations"] == theirs["evaluations"] == int(options[1].partition("=")[2])
    assert resumed["after_bytes"] == whole["after_bytes"]


def test_what_makes_no_sense_is_refused(run: Any) -> None:
    assert "no objective 'speed'" in run("plan", MODEL, "--objective", "speed").error_line
    refused = run("plan", MODEL, "--objective", "peak-memory", "--problem", "mapping")
    assert refused.exit == 2 and "--problem" in refused.error_line
    assert (
        "no solver 'msa'"
        in run("plan", MODEL, "--objective", "peak-memory", "--solver", "msa", "--quiet").error_line
    )
    small = run("plan", MODEL, "--objective", "peak-memory", "-m", "arena:1MiB", "--budget", "9", "--quiet")
    assert small.exit == 1 and "too many, whatever the order" in small.out


def test_an_order_reaches_a_file_for_the_runtime(run_json: Any, run: Any, tmp_path: Path) -> None:
    planned = run_json("plan", MODEL, "--objective", "peak-memory", "--out", "plan.json")
    machine = str(Path(planned["run"]) / "machine.toml")
    words = ("export", MODEL, "plan.json", "-m", machine, "--to", "ort", "--out", "ordered.onnx")
    as_good = run_json(*words)["rows"][0]
    assert as_good["verdict"] == "already as good" and not as_good["files"]
    assert as_good["runtime_peak_bytes"] == as_good["measured_peak_bytes"]
    (tmp_path / "ordered.py").write_text("print('mine')")
    assert "'ordered.py' is there already" in run(*words, "--force").error_line
    (tmp_path / "ordered.py").unlink()
    told = run_json(*words, "--force")
    assert told["rows"][0]["moved"] > 0 and (tmp_path / "ordered.py").exists()
    assert "there already" in run(*words, "--force").error_line
    assert run(*words, "--force", "--overwrite").exit == 0
    other = run("export", MODEL, "plan.json", "-m", machine, "--to", "tflite", "--out", "x.onnx")
    assert other.exit == 2 and "tflite" in other.error_line
