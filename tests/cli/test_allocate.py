"""`loadmaster allocate` as a user meets it: answers, files, refusals, exit codes."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.suites.packings import perfect_packing
from loadmaster.allocation.buffers_csv import read_buffers, write_buffers
from loadmaster.cli.main import app

TIGHT = "id,lower,upper,size\na,0,4,40\nb,0,4,40\nc,2,6,20\nd,5,9,60\n"


def run(*words: object, folder: Path) -> tuple[int, dict, str]:
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, ["allocate", *map(str, words), "--json"])
    return done.exit_code, json.loads(done.stdout), done.stderr


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "buffers.csv"
    path.write_text(TIGHT)
    return path


def test_the_least_capacity(csv: Path, tmp_path: Path) -> None:
    code, answer, _ = run(
        csv, "--minimize", "--out", "placed.csv", "--plan", "plan.json", "--plot", "p.svg", folder=tmp_path
    )
    ours = answer["rows"][1]
    assert code == 0 and (ours["bytes"], ours["status"], ours["gap"]) == (100, "optimal", 0.0)
    placed, _ = read_buffers(tmp_path / "placed.csv")
    assert (placed.pinned >= 0).all()
    assert (tmp_path / "p.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "plan.json").read_text())["loadmaster_plan"] == 1


def test_fitting_and_not_fitting(csv: Path, tmp_path: Path) -> None:
    assert run(csv, "--capacity", "100", folder=tmp_path)[0] == 0
    code, answer, _ = run(csv, "--capacity", "99", folder=tmp_path)
    row = answer["rows"][0]
    assert code == 1 and row["status"] == "infeasible"
    assert sorted(row["blamed"]) == ["a", "b", "c"] and row["excess_bytes"] == 1 and row["instant"] == 2
    assert "1 too many" in answer["error"]["message"]


@pytest.mark.parametrize("way", [["--minimize"], ["--capacity", "100"]])
def test_pins_that_overlap_are_named(way: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id,lower,upper,size,offset\na,0,9,5,0\nb,0,9,5,2\n")
    code, answer, _ = run("x.csv", *way, folder=tmp_path)
    assert code == 1 and answer["rows"][0]["status"] == "infeasible"
    assert answer["rows"][0]["blamed"] == ["a", "b"]
    assert "the pins of 'a' to offset 0 and 'b' to 2 overlap" in answer["error"]["message"]


@pytest.mark.parametrize(("name", "count"), [("p.pdf", 4), ("p.svg", 20_001)])
def test_a_picture_that_cannot_be_is_refused_before_the_search(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"b{i},{i},{i + 1},4\n" for i in range(count))
    (tmp_path / "x.csv").write_text(f"id,lower,upper,size\n{rows}")
    monkeypatch.setattr(
        "loadmaster.runs.session.solve_with_bank", lambda *_, **__: pytest.fail("it searches")
    )
    code, answer, _ = run("x.csv", "--plot", name, folder=tmp_path)
    assert code == 2 and "name" in answer["error"]["remedy"]


def test_whether_it_fits_is_not_asked_without_a_capacity(csv: Path, tmp_path: Path) -> None:
    assert run(csv, "--minimize", folder=tmp_path)[1]["rows"][1]["fits"] is None
    assert run(csv, "--capacity", "100", folder=tmp_path)[1]["rows"][1]["fits"] is True


def test_no_buffers_are_placed_by_all(tmp_path: Path) -> None:
    (tmp_path / "none.csv").write_text("id,lower,upper,size\n")
    code, answer, _ = run("none.csv", "--minimize", folder=tmp_path)
    assert code == 0 and [(row["bytes"], row["status"]) for row in answer["rows"][:2]] == [(0, "optimal")] * 2


def test_the_capacity_in_the_name(tmp_path: Path) -> None:
    (tmp_path / "x.99.csv").write_text(TIGHT)
    assert run("x.99.csv", folder=tmp_path)[0] == 1
    assert run("x.99.csv", "--minimize", folder=tmp_path)[0] == 0


@pytest.mark.parametrize("way", [["--solver", "exact"], ["--solver", "exact", "--off", "hatless"]])
def test_options_of_the_exact_search_are_kept(way: list[str], tmp_path: Path) -> None:
    buffers, height = perfect_packing(np.random.default_rng(1), 300, "pinwheel")
    write_buffers(buffers, None, tmp_path / "hard.csv")
    code, answer, _ = run("hard.csv", "--capacity", height, *way, "--set", "nodes=5", folder=tmp_path)
    assert code == 4 and answer["rows"][0]["status"] == "unknown"


def test_no_answer_in_no_time(tmp_path: Path) -> None:
    buffers, height = perfect_packing(np.random.default_rng(1), 300, "pinwheel")
    write_buffers(buffers, None, tmp_path / "hard.csv")
    code, answer, _ = run("hard.csv", "--capacity", height, "--time-limit", "0s", folder=tmp_path)
    assert code == 4 and answer["error"]["remedy"] == "give more --time-limit"


def test_memories_banks_pairs_and_little_change(csv: Path, tmp_path: Path) -> None:
    code, answer, _ = run(
        csv, "--memory", "fast=60", "--memory", "slow=1KiB", "--out", "two.csv", folder=tmp_path
    )
    assert code == 0 and sum(row["buffers"] for row in answer["rows"]) == 4
    assert (tmp_path / "two.csv").read_text().splitlines()[0].endswith(",offset,memory")
    assert run(csv, "--memory", "fast=10", folder=tmp_path)[0] == 1
    assert run(csv, "--banks", 2, "--capacity", 160, folder=tmp_path)[0] == 0
    (tmp_path / "pairs.csv").write_text("a,b\na,d\n")
    code, answer, _ = run(csv, "--minimize", "--pairs", "pairs.csv", folder=tmp_path)
    # a, c and d must all be apart then: 40 + 20 + 60
    assert code == 0 and answer["rows"][1]["bytes"] == 120
    run(csv, "--capacity", 120, "--out", "old.csv", folder=tmp_path)
    code, answer, _ = run(csv, "--capacity", 120, "--out", "old.csv", folder=tmp_path)
    assert code == 2 and "is there already" in answer["error"]["message"]
    code, answer, _ = run(csv, "--capacity", 120, "--previous", "old.csv", folder=tmp_path)
    assert code == 0 and answer["rows"][1]["moved"] == []


WRONG = {
    "no file": (["none.csv"], "can't be read"),
    "no picture": (["buffers.csv", "--plot", "p.jpeg"], "name it .svg or .png"),
    "both": (["buffers.csv", "--minimize", "--capacity", "5"], "exclude each other"),
    "size": (["buffers.csv", "--capacity", "lots"], "write 4096, 512KiB or 1MiB"),
    "time": (["buffers.csv", "--time-limit", "soon"], "write 10s, 500ms or none"),
    "solver": (["buffers.csv", "--solver", "exakt"], "did you mean 'exact'"),
    "switch": (["buffers.csv", "--off", "magic"], "there is no technique 'magic'"),
    "switch of another": (
        ["buffers.csv", "--solver", "large", "--off", "hatless"],
        "--off needs solver 'exact'",
    ),
    "two ways": (["buffers.csv", "--banks", "2", "--memory", "a=5"], "can't be combined"),
    "banks alone": (["buffers.csv", "--banks", "2"], "--banks needs a capacity"),
    "memory": (["buffers.csv", "--memory", "fast"], "write fast=256KiB"),
    "memory twice": (["buffers.csv", "--memory", "a=5", "--memory", "a=6"], "two memories are named 'a'"),
    "folder": (["."], "'.' is a folder and no model file"),
    "previous": (["buffers.csv", "--capacity", "120", "--previous", "buffers.csv"], "has no offset"),
    "its own input": (["buffers.csv", "--out", "buffers.csv", "--overwrite"], "is what is read"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage(case: str, csv: Path, tmp_path: Path) -> None:
    words, message = WRONG[case]
    code, answer, _ = run(*words, folder=tmp_path)
    assert code == 2 and message in answer["error"]["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["buffers.csv"], "nothing is written"


def test_a_real_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    model = Path(onnx.__file__).parent / "backend/test/data/light/light_densenet121.onnx"
    code, answer, _ = run(model, "--minimize", folder=tmp_path)
    assert code == 0 and answer["rows"][1]["bytes"] == 8_429_568 and answer["rows"][1]["status"] == "optimal"


def test_a_model_that_leaves_sizes_open(csv: Path, tmp_path: Path) -> None:
    """Its error says to give --shape: the command that says so has to take it."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("batch", 8)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "open.onnx")
    code, answer, _ = run("open.onnx", "--minimize", folder=tmp_path)
    *_, option, shape = answer["error"]["message"].split()
    assert code == 2 and option == "--shape"
    code, answer, _ = run("open.onnx", "--minimize", option, shape, folder=tmp_path)
    assert code == 0 and answer["rows"][1]["bytes"] > 0
    code, answer, _ = run(csv, "--minimize", option, shape, folder=tmp_path)
    assert code == 2 and "has buffers: leave it out" in answer["error"]["message"]
