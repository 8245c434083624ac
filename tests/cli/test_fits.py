"""`loadmaster fits`: the whole arena, what would help, and exit codes for a build."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import loadmaster.cli
from fuzz.tflite_models import loop
from generate_tflite import F32, GraphMaker, branchy, convolutional, tflite
from loadmaster.machine import load_machine, preset_names

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def model(elsewhere: Path) -> str:
    (elsewhere / "net.tflite").write_bytes(convolutional(18, operators=9, side=40))
    return "net.tflite"


def test_yes_no_and_what_helps(run_json: Any, run: Any, model: str) -> None:
    large = run_json("fits", model, "-m", "arena:1MiB", "--no-measure")["rows"]
    first = large[0]
    assert first["fits"] and first["way"] == "as it is" and len(large) == 2
    assert (
        first["kTensorArenaSize"] == large[1]["arena_bytes"] % 2**40 and first["kTensorArenaSize"] % 16 == 0
    )
    parts = large[1]["planned_bytes"] + large[1]["persistent_bytes"]
    assert parts <= first["kTensorArenaSize"] < parts + 16
    every = run_json("fits", model, "-m", "arena:1MiB", "--no-measure", "--all")["rows"]
    size = {row["way"]: row["arena_bytes"] for row in every[1:]}
    assert size["bands of rows"] < size["shared places"] < size["as it is"] == first["kTensorArenaSize"]
    room = f"arena:{size['bands of rows']}"
    helped = run_json("fits", model, "-m", room, "--no-measure", "--out", "small.tflite")
    assert helped["rows"][0]["way"] == "bands of rows" and Path("small.tflite").is_file()
    again = run_json("fits", "small.tflite", "-m", room, "--as-it-is", "--no-measure")
    assert again["rows"][0]["kTensorArenaSize"] == helped["rows"][0]["kTensorArenaSize"]
    no = run("fits", model, "-m", "arena:2KiB", "--no-measure", "--out", "never.tflite", "--header", "n.h")
    assert "wrote no never.tflite and no n.h: no way was found that fits" in no.out
    assert no.exit == 1 and no.out.startswith("NO ") and "To blame: operator" in no.out
    assert "Proven: every order" in no.out and "bands of rows" in no.out
    kept = run("fits", model, "-m", room, "--as-it-is", "--no-measure")
    assert kept.exit == 1


def test_measured_by_the_interpreter(run_json: Any, model: str) -> None:
    pytest.importorskip("tflite_micro")
    computed = run_json("fits", model, "-m", "arena:1MiB", "--all", "--no-measure")["rows"]
    measured = run_json("fits", model, "-m", "arena:1MiB", "--all", "--out", "small.tflite")["rows"]
    assert [row["way"] for row in computed[1:]] == [row["way"] for row in measured[1:]]
    for ours, theirs in zip(computed[1:], measured[1:], strict=True):
        assert theirs["measured"] and not ours["measured"]
        assert theirs["arena_bytes"] <= ours["arena_bytes"] <= 1.02 * theirs["arena_bytes"] + 16
        for row in (ours, theirs):  # one account, which adds up
            parts = row["planned_bytes"] + row["persistent_bytes"]
            assert max(parts, row["startup_bytes"]) == row["arena_bytes"]


def test_a_machine_is_asked_for_in_the_words_of_microcontrollers(run: Any, model: str) -> None:
    none = run("fits", model)
    assert none.exit == 2 and "arena:256KiB" in none.err and "stm32h743" in none.err


def test_one_least_for_every_command(run_json: Any, run: Any, model: str) -> None:
    """`plan --fits` says the same as `fits` about order and offsets, and `export tflm` what to reserve."""
    rows = run_json("fits", model, "-m", "arena:1MiB", "--all", "--no-measure", "--no-rewrite")["rows"]
    planned = run_json("plan", model, "-m", "arena:1MiB", "--fits", "--out", "plan.json")["rows"][0]
    least = min(row["arena_bytes"] for row in rows[1:])
    assert 0.98 * least <= planned["kTensorArenaSize"] <= least
    assert planned["need_bytes"] <= planned["kTensorArenaSize"] == planned["enough_bytes"]
    done = run_json("export", "tflm", model, "plan.json", "-m", "arena:1MiB", "--no-verify")["rows"][0]
    assert 0.98 * least <= done["arena_bytes"] <= least + 16
    small = json.loads(run("allocate", model, "--minimize", "--json").out)["rows"][-1]
    assert small["what"] == "arena" and small["bytes"] >= 0.98 * least


def test_start_up_alone_may_be_too_much(run: Any, elsewhere: Path) -> None:
    (elsewhere / "tiny.tflite").write_bytes(branchy(3))
    for words in ("fits tiny.tflite --no-measure", "plan tiny.tflite --fits"):
        assert run(*words.split(), "-m", "arena:1KiB").exit == 1


@pytest.mark.parametrize("name", [name for name in preset_names() if "tflm" in load_machine(name).export])
def test_chips_have_memories_for_an_arena(run_json: Any, model: str, name: str) -> None:
    machine = load_machine(name)
    row = run_json("fits", model, "-m", name, "--header", "arena.h")["rows"][0]
    assert row["fits"] and row["memory"] in machine.export["tflm"]["arena"] and row["target"] != "host"
    schema = json.loads((Path(loadmaster.cli.__file__).parent / "schema.json").read_text())
    assert row["target"] in schema["$defs"]["fits.fits"]["properties"]["target"]["enum"]
    text = Path("arena.h").read_text()
    assert re.search(rf"LOADMASTER_ARENA_BYTES {row['kTensorArenaSize']}\n", text)
    assert machine.export["tflm"]["section"][row["memory"]] in text


def test_a_budget_of_ones_own(run: Any, model: str) -> None:
    words = ("fits", model, "-m", "stm32h743", "--as-it-is")
    assert run(*words).exit == 0
    assert run(*words, "--budget", "4KiB").exit == 1
    bad = run(*words, "--budget", "much")
    assert bad.exit == 2 and "--budget" in bad.error_line


def test_a_budget_is_of_the_arena_not_of_the_file_in_flash(run: Any, run_json: Any, model: str) -> None:
    flash = run_json("fits", model, "-m", "stm32h743", "--as-it-is")["rows"][0]["flash_capacity_bytes"]
    arena = run_json("fits", model, "-m", "stm32h743", "--as-it-is")["rows"][0]["kTensorArenaSize"]
    data = Path(model).read_bytes()
    Path("large.tflite").write_bytes(data + bytes(arena))
    words = ("fits", "large.tflite", "-m", "stm32h743", "--as-it-is", "--budget")
    row = run_json(*words, str(arena))["rows"][0]
    assert row["fits"] and row["flash_bytes"] > arena == row["capacity_bytes"]
    assert row["flash_capacity_bytes"] == flash
    less = run(*words, str(arena - 1))
    assert less.exit == 1 and f"the budget is {arena - 1:,} bytes and" in less.out


def test_a_header_is_of_a_model_that_is_there(run: Any, run_json: Any, model: str) -> None:
    """A firmware with the model as it is would not start in the bytes that another file needs."""
    rows = run_json("fits", model, "-m", "arena:1MiB", "--no-measure", "--all")["rows"]
    room = f"arena:{min(row['arena_bytes'] for row in rows[1:])}"
    words = ("fits", model, "-m", room, "--no-measure")
    assert "with the model that --out FILE writes" in run(*words).out
    alone = run(*words, "--header", "arena.h")
    assert alone.exit == 2 and "--out" in alone.err and not Path("arena.h").exists()
    both = run(*words, "--header", "arena.h", "--out", "small.tflite")
    assert both.exit == 0 and Path("arena.h").is_file() and "--out" not in both.out
    same = run(*words, "--header", "one", "--out", "one")
    assert same.exit == 2 and not Path("one").exists()


def test_what_makes_no_sense_is_refused(run: Any, model: str, elsewhere: Path) -> None:
    assert run("fits", "resnet50", "-m", "arena:1MiB").exit == 2
    assert "target" in run("fits", model, "-m", "arena:1MiB", "--target", "z80").error_line
    (elsewhere / "broken.tflite").write_bytes(b"1234TFL3" + bytes(40))
    broken = run("fits", "broken.tflite", "-m", "arena:1MiB")
    assert broken.exit == 2 and "broken.tflite" in broken.error_line
    over = run("fits", model, "-m", "arena:1MiB", "--out", model)
    assert over.exit == 2 and (elsewhere / model).read_bytes() == convolutional(18, operators=9, side=40)
    assert not list(elsewhere.glob("*.part*"))
    large = elsewhere / "large.toml"
    large.write_text('base = "stm32h743"\nname = "small"\n[[memory]]\nname = "flash"\ncapacity = "1KiB"\n')
    flash = run("fits", model, "-m", "large.toml")
    assert flash.exit == 1 and "0 too many" not in flash.out
    reason, arena = flash.out.splitlines()[:2]  # the reason first: an arena that fits is none
    assert reason.startswith("NO   the file has") and "flash 1,024: give a smaller" in reason
    assert arena.startswith("     'dtcm' has 131,072 bytes and the arena needs ")


def test_an_arena_alone_is_not_enough(run: Any, run_json: Any, elsewhere: Path) -> None:
    """A model without kernels fits and does not run: that is said, whatever the target."""
    pytest.importorskip("tflite_micro")
    graph = GraphMaker()
    x, y = graph.tensor("x", [1, 4], F32), graph.tensor("y", [1, 4], F32)
    graph.op("CUSTOM", [x], [y])
    graph.inputs, graph.outputs = [x], [y]
    (elsewhere / "custom.tflite").write_bytes(tflite(graph, custom="NobodyHasThis"))
    for machine in ("arena:64KiB", "stm32h743"):
        row = run_json("fits", "custom.tflite", "-m", machine)["rows"][0]
        assert row["fits"] and "op code CUSTOM" in row["hindrance"]
        assert "does not run it" in run("fits", "custom.tflite", "-m", machine).out
        assert (
            run_json("fits", "custom.tflite", "-m", machine, "--no-measure")["rows"][0]["hindrance"] is None
        )


def test_graphs_that_call_others_are_not_rewritten_and_it_is_said(run: Any, elsewhere: Path) -> None:
    (elsewhere / "loop.tflite").write_bytes(loop())
    said = run("fits", "loop.tflite", "-m", "arena:1KiB", "--no-measure")
    assert said.exit == 4 and "a model without WHILE" in said.out
