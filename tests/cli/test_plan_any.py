"""`plan` on whatever a user has: fits or not, arenas, lists of buffers, pins, bytes moved, reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadmaster.machine import load_machine
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.models import load_model

onnx = pytest.importorskip("onnx")
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
SHUFFLE, RESNET = str(LIGHT / "light_shufflenet.onnx"), str(LIGHT / "light_resnet50.onnx")
BUFFERS = "id,lower,upper,size\na,0,3,40\nb,1,4,30\nc,2,6,30\nd,5,7,60\n"
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def buffers(tmp_path: Path) -> str:
    (tmp_path / "four.csv").write_text(BUFFERS)
    return "four.csv"


def test_a_no_names_the_excess_the_op_and_the_remedy(run: Any, run_json: Any) -> None:
    result = run("plan", RESNET, "-m", "arena:8MiB", "--fits", "--quiet")
    assert result.exit == 1
    assert result.out.splitlines() == [
        "NO   'arena' needs 9,633,792 bytes and has 8,388,608: 1,245,184 too many, whatever the order.",
        "     Op 14 'n14' (add) alone holds r11, r13, r14: 3 × 3,211,264.",
        "     Remedy: a capacity of 9,633,792 bytes, or a second memory.",
    ]
    answer = run_json("plan", RESNET, "-m", "arena:8MiB", "--fits")
    (row,) = answer["rows"]
    assert answer["exit"] == 1 and row["fits"] is False and row["excess_bytes"] == 1_245_184
    assert row["blamed"] == ["r11", "r13", "r14"] and row["op"] == "n14"
    assert answer["error"]["number"] == 1_245_184
    assert "9,633,792" in answer["error"]["remedy"]


def test_a_yes_has_a_plan_that_is_sound(run: Any, run_json: Any) -> None:
    answer = run_json("plan", SHUFFLE, "-m", "arena:2885120", "--fits", "--out", "p.json")
    assert answer["exit"] == 0 and answer["rows"][0]["enough_bytes"] == 2_885_120
    program, machine = load_model(SHUFFLE), load_machine("arena:2885120")
    plan = load_plan(Path("p.json"), program, machine)
    assert plan.order is not None and check(program, machine, plan) == []
    assert run("check", SHUFFLE, "p.json", "-m", "arena:2885120").exit == 0
    assert run("plan", SHUFFLE, "-m", "arena:2885119", "--fits").exit == 1
    kept = run("plan", SHUFFLE, "-m", "arena:2885120", "--fits", "--keep-order")
    assert kept.exit == 1 and "To blame: r3, r4, r5" in kept.out
    several = run("plan", SHUFFLE, "-m", "nnp-i", "--fits")
    assert several.exit == 0 and several.out.startswith("YES  sram, llc, dram together have ")


def test_fits_is_about_the_problem_that_is_named(run: Any, run_json: Any) -> None:
    asked = ("plan", SHUFFLE, "--problem", "order", "--fits")
    yes = run_json(*asked, "-m", "arena:2885120", "--out", "p.json")
    assert yes["exit"] == 0 and yes["rows"][0]["enough_bytes"] == 2_885_120
    assert run("check", SHUFFLE, "p.json", "-m", "arena:2885120").exit == 0
    no = run_json(*asked, "-m", "arena:2885119")
    assert no["exit"] == 1 and no["rows"][0]["any_order"] and no["rows"][0]["excess_bytes"] == 1
    several = run_json(*asked, "-m", "nnp-i")
    assert several["exit"] == 0 and several["rows"][0]["memory"] == "dram"
    other = run("plan", SHUFFLE, "-m", "arena:4MiB", "--problem", "mapping", "--fits")
    assert other.exit == 2 and "not about mapping" in other.err


def test_an_arena_is_planned_in_another_order_where_that_is_needed(run_json: Any, run: Any) -> None:
    own = run_json("plan", SHUFFLE, "-m", "arena:4MiB")
    rows = {row["name"]: row for row in own["rows"]}
    assert rows["auto"]["bytes"] == rows["bound"]["bytes"] == 3_110_912
    assert rows["auto"]["gap"] == 0 and rows["auto"]["status"] == "optimal"
    other = run_json("plan", SHUFFLE, "-m", "arena:2900000")
    assert {row["name"]: row["bytes"] for row in other["rows"]}["auto"] == 2_885_120
    for answer in (own, other):
        assert run("replay", answer["run"]).exit == 0
    again = run_json("plan", SHUFFLE, "--resume", other["run"])
    assert again["exit"] == 0 and again["rows"][-2]["bytes"] == 2_885_120
    refused = run("plan", SHUFFLE, "-m", "arena:2MiB", "--quiet")
    assert refused.exit == 1 and "787,968 too many, whatever the order" in refused.error_line


def test_buffers_are_planned_inspected_and_checked(run: Any, run_json: Any, buffers: str) -> None:
    answer = run_json("plan", buffers, "--out", "p.json")
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["auto"]["bytes"] == rows["bound"]["bytes"] == 100
    assert all(row["gap"] is not None for row in rows.values())
    assert run("replay", answer["run"]).exit == 0
    assert run("plan", buffers, "-m", "arena:100", "--fits").exit == 0
    no = run("plan", buffers, "-m", "arena:99", "--fits")
    assert no.exit == 1 and "1 too many." in no.out and "a, b, c: 40 + 30 + 30 = 100" in no.out
    assert run_json("inspect", buffers)["rows"][1]["bytes"] == 100
    assert "nothing to time" in run("simulate", buffers, "-m", "arena:100").error_line
    assert "has several" in run("plan", buffers, "-m", "nnp-i").error_line
    assert "buffers alone" in run("plan", buffers, "--pin", "a=arena").error_line
    assert "can't be read" in run("plan", "none.csv").error_line


def test_pins_are_kept_and_bad_ones_named(run: Any, run_json: Any) -> None:
    words = ("plan", SHUFFLE, "-m", "nnp-i", "--no-run", "--solver", "density", "--exact-seconds", "0")
    free = run_json(*words)
    pinned = run_json(*words, "--pin", "r4=dram", "--pin", "r6=sram@4096", "--out", "p.json")
    seconds = [next(row["seconds"] for row in a["rows"] if row["name"] == "density") for a in (free, pinned)]
    assert seconds[0] < seconds[1]
    program, machine = load_model(SHUFFLE), load_machine("nnp-i")
    plan = load_plan(Path("p.json"), program, machine)
    where = {program.tensor_name[row.tensor]: row for row in plan.residency_rows}
    assert machine.memories[where["r4"].memory].name == "dram"
    assert machine.memories[where["r6"].memory].name == "sram" and where["r6"].offset == 4096
    twice = run(*words, "--pin", "r4=dram", "--pin", "r4=sram", "--quiet")
    assert twice.exit == 1 and "'r4=dram' and --pin 'r4=sram'" in twice.error_line
    unknown = run(*words, "--pin", "r4=drum", "--quiet")
    assert unknown.exit == 2 and "did you mean 'dram'" in unknown.error_line
    order = run("plan", SHUFFLE, "--objective", "peak-memory", "--pin", "r4=dram", "--quiet")
    assert order.exit == 2 and "decides the order" in order.error_line


def test_an_op_is_pinned_to_a_device(run_json: Any) -> None:
    words = ("plan", "rnnlm-2", "-m", "p100x2", "--no-run", "--budget", "50", "--solver", "search")
    program, machine = load_model("rnnlm-2"), load_machine("p100x2")
    ops = [op for op in range(program.n_ops) if not program.op_view[op]]
    first, last = ops[0], ops[-1]
    pins = [
        word
        for op, device in ((first, 1), (last, 0))
        for word in ("--pin-op", f"{program.op_name[op]}={machine.devices[device].name}")
    ]
    answer = run_json(*words, *pins, "--out", "p.json")
    assert answer["exit"] == 0
    plan = load_plan(Path("p.json"), program, machine)
    assert plan.device is not None and (plan.device[first], plan.device[last]) == (1, 0)


def test_the_fewest_bytes_through_the_slowest_memory(run: Any, run_json: Any) -> None:
    words = ("plan", RESNET, "-m", "nnp-i:llc=2MiB", "--objective", "bytes-moved", "--no-run")
    answer = run_json(*words, "--out", "p.json")
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["bound"]["bytes"] <= rows["auto"]["bytes"] <= rows["compiler"]["bytes"]
    assert rows["auto"]["bytes"] < rows["all-slowest"]["bytes"]
    assert rows["all-slowest"]["bytes"] > 2 * 102_440_608  # every weight and activation goes through
    assert run("simulate", RESNET, "p.json", "-m", "nnp-i:llc=2MiB").exit == 0
    assert "is about the mapping" in run(*words, "--problem", "graph", "--quiet").error_line


def test_wrong_words_get_one_clear_line(run: Any) -> None:
    assert "no objective 'speed'" in run("plan", SHUFFLE, "--objective", "speed").error_line
    assert "no problem 'maping'" in run("plan", SHUFFLE, "-m", "nnp-i", "--problem", "maping").error_line
    assert "--report shows a run" in run("plan", SHUFFLE, "-m", "nnp-i", "--report", "--no-run").error_line
    assert "no machine for" in run("plan", SHUFFLE).error_line


def test_a_report_is_written_into_the_run(run_json: Any) -> None:
    answer = run_json("plan", "resnet50", "-m", "nnp-i", "--solver", "density", "--report")
    page = Path(answer["report"])
    assert page == Path(answer["run"]) / "report.html" and "<html" in page.read_text(encoding="utf-8")
