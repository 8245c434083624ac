"""`loadmaster demo`, which `make demo` runs, and the examples: their figures are those of the command line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import loadmaster.cli
from loadmaster.cli import demo
from loadmaster.cli.main import app

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TPU_PLANS", 2_000)
        patch.chdir(folder)
        done = CliRunner().invoke(app, ["demo", "--out", "shown", "--json"])
    assert done.exit_code == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_the_makefile_runs_it() -> None:
    assert "\t$(BIN)/loadmaster demo\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_three_scenes_end_in_one_page(shown: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = shown
    assert [row["name"] for row in answer["rows"]] == ["microcontroller", "tpu", "stopwatch"]
    for row in answer["rows"]:
        before, ours, least = row["values"].values()
        assert before > ours >= least > 0 and all((folder / file).is_file() for file in row["files"])
    page = (folder / answer["page"]).read_text(encoding="utf-8")
    assert page.count("<section") == 3 and page.count("<h2>") == 3
    # The two arenas are drawn to one scale: the limit is at one height, and only one is above it.
    limits = re.findall(r'y1="([0-9.]+)" y2="[0-9.]+" stroke="#c00"', page)
    assert len(limits) == 2 and limits[0] == limits[1]
    assert "as it is: does not fit<" in page and "in another order: fits<" in page
    lines = re.findall(r"<code>loadmaster ([^<]*)</code>", page)
    assert len(lines) == 3
    with pytest.MonkeyPatch.context() as patch:  # what the page says is typed, where the demo was
        patch.chdir(folder)
        typed = CliRunner().invoke(app, [*shlex.split(unescape(lines[0])), "--json"])
    assert typed.exit_code == 0 and json.loads(typed.stdout)["rows"][0]["fits"]
    for link in re.findall(r'href="([^"]*)"', page):
        assert (folder / "shown" / link).is_file(), link
    assert "<script" not in page and "http" not in page.replace("http-equiv", "").replace(
        "http://www.w3.org", ""
    )


def test_the_model_that_did_not_fit_runs(shown: tuple[Path, dict[str, Any]]) -> None:
    pytest.importorskip("tflite_micro")
    from loadmaster.export.tflm_measure import measure_least

    folder, answer = shown
    before, ours, _ = answer["rows"][0]["values"].values()
    assert before > demo.ARENA >= ours and "interpreter" in answer["rows"][0]["line"]
    planned = next(name for name in answer["rows"][0]["files"] if name.endswith(".planned.tflite"))
    written = (folder / planned).read_bytes()
    assert measure_least(written, ours) <= ours
    own = Path(loadmaster.cli.__file__).with_name(demo.MODEL).read_bytes()
    assert measure_least(own, before) > demo.ARENA


def test_its_scenes_are_what_the_commands_say(shown: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    words = f"plan {demo.CELL} -m {demo.CHIP} --solver egrl --set view=strict --budget {demo.MEASUREMENTS}"
    done = CliRunner().invoke(app, [*words.split(), "--no-run", "--json"])
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    compiler, ours, least = shown[1]["rows"][2]["values"].values()
    assert (compiler, ours) == (rows["compiler"]["picoseconds"], rows["egrl"]["picoseconds"])
    assert least == rows["optimum"]["picoseconds"]


def test_the_onnx_example_tells_its_story() -> None:
    pytest.importorskip("onnx")
    example = ROOT / "examples" / "place_onnx.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "checked: ok"
    slowest, first_fit, bound = (
        next(line for line in lines if line.startswith(name))
        for name in ("all in the slowest memory", "first fit", "lower bound")
    )
    assert "1.00 ×" in slowest and slowest.split()[5] == "6.37"
    assert bound.rstrip().endswith("0.0%")
    assert float(first_fit.split()[4]) > 4
