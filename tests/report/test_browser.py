"""The page in a browser: what it shows, what it does when touched, and that it asks nobody."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from generate_mapping import three_memories
from hostile_names import HOSTILE, renamed
from loadmaster.cli.demo import Scene, render_demo
from loadmaster.machine import load_machine
from loadmaster.offload.problem import Offload
from loadmaster.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.report import ReportFacts, write_plan_report, write_report
from loadmaster.search.registry import load_problem, make_solver
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate.simulator import simulate
from loadmaster.units import show_bytes, show_time
from offload_stack import gpu, stack

Open = Callable[..., Any]
ROW = "(i) => { const e = loadmasterReport.explorer, b = e.view.box, t = e.memories.find("
ROW += "(m) => m.memory.number === b.memory[i]); const p = t.placeOf(i), r ="
ROW += " t.map.canvas.getBoundingClientRect(); return [r.x + (p.left + p.right) / 2,"
ROW += " r.y + (p.top + p.bottom) / 2, b.tensor[i], b.address[i], b.decided[i]]; }"


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens a file; at the end nothing may have been said on the console, and nothing fetched."""
    faults: list[str] = []
    requests: list[str] = []
    pages = []

    def call(file: Path, width: int = 1280, scheme: str = "light") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("main[aria-busy=false]", timeout=20_000)
        pages.append(page)
        return page

    yield call
    assert not faults
    assert len(requests) == len(pages) and all(url.startswith("file://") for url in requests)
    for page in pages:
        page.close()


def settle(page: Any) -> None:
    """Let the page draw."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_demo_s_page_is_seen(browser: Any, tmp_path: Path) -> None:
    """Its bars have the lengths of their values, and nothing is fetched; it has no script to wait for."""
    scene = Scene(
        "a", "A scene", "a line", (("x", 4, "4 B"), ("y", 2, "2 B"), ("z", 1, "1 B")), "bytes", "how"
    )
    (tmp_path / "index.html").write_text(render_demo([scene], tmp_path), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "index.html").as_uri())
    widths = page.evaluate(
        "[...document.querySelectorAll('rect')].map((r) => r.getBoundingClientRect().width)"
    )
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01) == pytest.approx(4 * widths[2], rel=0.01)
    assert widths[0] > 300 and page.locator("h2").inner_text() == "1. A scene" and len(requests) == 1
    page.close()


@pytest.fixture(scope="module")
def mapping(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> ReportFacts:
    return write_report(runs["mapping"], tmp_path_factory.mktemp("report") / "r.html")


def test_hover_and_click_name_the_tensor_under_the_pointer(
    mapping: ReportFacts, runs: dict[str, Path], opened: Open
) -> None:
    program = load_problem(runs["mapping"]).program
    page = opened(mapping.path)
    seen = 0
    for row in range(0, page.evaluate("loadmasterReport.explorer.view.box.tensor.length"), 2):
        page.evaluate(
            "(i) => { const e = loadmasterReport.explorer; e.memories.find((m) =>"
            "m.memory.number === e.view.box.memory[i]).element.scrollIntoView({block: 'center'}); }",
            row,
        )
        settle(page)
        x, y, tensor, address, decided = page.evaluate(ROW, row)
        page.mouse.move(x, y)
        shown = page.locator("#tip").inner_text()
        assert f"tensor\n{program.tensor_name[tensor]}\n" in shown + "\n"
        assert f"({int(program.storage_bytes[tensor]):,} bytes)" in shown or (
            f"{int(program.storage_bytes[tensor]):,} bytes" in shown
        )
        assert (f"{int(address):,} (0x" if decided else "not decided") in shown
        page.mouse.click(x, y)
        assert page.locator(".details h3").inner_text() == program.tensor_name[tensor]
        page.keyboard.press("Escape")
        assert page.locator(".details h3").inner_text() == "Look closer"
        seen += 1
    assert seen > 8


def test_figures_on_the_page_are_those_of_the_facts(mapping: ReportFacts, opened: Open) -> None:
    page = opened(mapping.path)
    after, before = mapping.rows[:2]
    cards = {
        name: page.locator(f'.card[data-name="{name}"] strong').inner_text()
        for name in ("value", "before", "bound", "gap", "verdict")
    }
    assert cards["value"] == show_time(after["value"])
    assert cards["before"] == show_time(before["value"])
    assert cards["bound"] == show_time(after["bound"])
    assert float(cards["gap"].split()[0]) == pytest.approx(100 * after["gap"], abs=0.06)
    assert cards["verdict"] == "✓ sound"
    tables = page.evaluate(
        "Array.from(document.querySelectorAll('.panel')).filter((p) => p.querySelector(':scope > h3'))"
        ".map((p) => [p.querySelector('h3').textContent, Array.from(p.querySelectorAll('tbody tr'))"
        ".map((r) => Array.from(r.cells).map((c) => c.textContent))])"
    )
    shown = dict(tables)
    memories = [row for row in mapping.rows if row["what"] == "memory"]
    assert [(r[0], r[1], r[3]) for r in shown["Memories"]] == [
        (row["name"], row["plan"], f"{row['peak_bytes']:,}") for row in memories
    ]
    for row in memories[:3]:
        assert show_bytes(row["peak_bytes"]) in page.locator(".tracks").inner_text()
    changes = [row for row in mapping.rows if row["what"] == "change"]
    assert {(r[0], r[1]) for r in shown["What changed"]} >= {
        (row["name"], f"{row['count']:,}") for row in changes
    }
    matrix = page.locator(".matrix").inner_text()
    for row in mapping.rows:
        if row["what"] == "transition":
            assert show_bytes(row["bytes"]) in matrix


def test_zoom_pan_search_and_switches(mapping: ReportFacts, opened: Open) -> None:
    page = opened(mapping.path)
    axis = "[loadmasterReport.explorer.axis.low, loadmasterReport.explorer.axis.high, loadmasterReport.explorer.axis.end]"
    low, high, end = page.evaluate(axis)
    assert (low, high) == (0, end)
    box = page.locator(".track.memory .surfaces canvas").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    settle(page)
    low, high, end = page.evaluate(axis)
    assert 0 < low < end / 2 < high < end
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 - 100, box["y"] + 20, steps=4)
    page.mouse.up()
    assert page.evaluate(axis)[0] > low  # it was dragged to the left
    page.keyboard.press("0")
    assert page.evaluate(axis)[:2] == [0, end]
    page.get_by_role("button", name="ops", exact=True).click()
    assert page.evaluate("loadmasterReport.explorer.axis.end") == 12
    page.keyboard.press("/")
    page.keyboard.type("w1")
    assert page.locator(".search span").inner_text() == "3 found"  # w1, w10, w11
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator(".search span").inner_text() == "2 of 3"
    assert page.locator(".details h3").inner_text() in ("w1", "w10", "w11")
    page.keyboard.press("Escape")
    assert page.locator(".search span").inner_text() == ""
    page.locator(".track.memory .label button").first.click()
    assert "at its peak" in page.locator(".details").inner_text()
    name = page.evaluate("loadmasterReport.content.views[1].name")
    page.get_by_role("button", name=name, exact=True).click()
    assert page.evaluate("loadmasterReport.explorer.view.role") == "before"


def test_tables_sort_from_the_keyboard(mapping: ReportFacts, opened: Open) -> None:
    page = opened(mapping.path)
    sorter = page.locator(".panel", has_text="Tensors of").locator("th button", has_text="bytes")
    column = "(e) => Array.from(e.closest('table').tBodies[0].rows, (r) => Number(r.cells[2].textContent.replace(/,/g, '')))"
    falling = sorter.evaluate(column)
    assert falling == sorted(falling, reverse=True)
    sorter.focus()
    page.keyboard.press("Enter")
    rising = sorter.evaluate(column)
    assert rising == sorted(rising) and rising != falling
    assert sorter.evaluate("(e) => e.parentElement.getAttribute('aria-sort')") == "ascending"


@pytest.mark.parametrize("kind", ["malloc-game", "graph", "allocation", "order"])
def test_every_kind_opens_in_light_dark_and_narrow(
    kind: str, runs: dict[str, Path], tmp_path: Path, opened: Open
) -> None:
    facts = write_report(runs[kind], tmp_path / "r.html")
    for width, scheme in ((1280, "light"), (700, "dark")):
        page = opened(facts.path, width, scheme)
        assert page.locator(".track.memory").count() >= 1
        assert (page.locator(".track.lane").count() > 0) == (kind != "allocation")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert "NaN" not in page.locator("main").inner_text()
        assert "undefined" not in page.locator("main").inner_text()


def test_both_learning_curves_have_one_scale(mapping: ReportFacts, opened: Open) -> None:
    """By seconds a first value may be missing: the next came at the same moment."""
    run = {"group": "g", "solver": "s", "seed": 0, "last_evaluation": 9, "last_second": 9.0}
    run |= {"evaluations": [1, 2, 3], "values": [170, 155, 127], "seconds": [2.0, 5.0]}
    run |= {"values_by_seconds": [155, 127], "bounds": {"evaluations": [], "seconds": [], "values": []}}
    curves = {"runs": [run], "baselines": [["base", 170]], "bound": 124, "unit": "bytes"}
    heights = opened(mapping.path).evaluate(
        "(curves) => [...learningCurves(curves).querySelectorAll('figure')].map("
        "(figure) => [...figure.querySelectorAll('.tick.end')].map((tick) => tick.textContent))",
        curves,
    )
    assert len(heights) == 2 and heights[0] == heights[1]


def test_waiting_takes_as_much_of_a_lane_as_of_the_time(tmp_path: Path, opened: Open) -> None:
    """Six ops on a pixel, each of which waits a little: red was drawn over all of it."""
    program, machine = stack(layers=800), gpu(2 * 10**9).with_capacity("host", 2**40)
    problem = Offload(program, machine)
    found = solve(make_solver("offload", "heuristic", {"rule": "layerwise"}), problem, Budget(9))
    assert found.decision is not None
    plan = problem.plan(found.decision)
    timeline = simulate(program, machine, plan)
    facts = write_plan_report(program, machine, [("plan", plan)], tmp_path / "r.html")
    page = opened(facts.path)
    page.locator(".toolbar").get_by_role("button", name="time", exact=True).click()
    settle(page)
    red = page.evaluate(
        "() => { const lane = loadmasterReport.explorer.list.find((track) => track instanceof DeviceTrack);"
        " const { words, canvas, ratio } = lane.surface, alarm = word('alarm');"
        " return words.filter((pixel) => pixel === alarm).length / (canvas.width * Math.round(LANE * ratio)); }"
    )
    share = timeline.op_stall.sum() / timeline.total_ps
    assert 0.1 < share < 0.9 and abs(red - share) < 0.03, (red, share)


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path, opened: Open) -> None:
    build = Builder("n")
    last = build.tensor("x", bytes=640, kind="input")
    for i in range(len(HOSTILE) * 2):
        new = build.tensor(f"t{i}", bytes=64 * (i + 1))
        build.op(f"op{i}", "matmul", reads=[last], writes=[new], matrix=900)
        last = new
    program = renamed(build.build())
    facts = write_plan_report(program, three_memories(), [(HOSTILE[1], Plan())], tmp_path / "r.html")
    page = opened(facts.path)
    for row in range(page.evaluate("loadmasterReport.explorer.view.box.tensor.length")):
        x, y, *_ = page.evaluate(ROW, row)
        page.mouse.move(x, y)
        page.mouse.click(x, y)
    assert page.evaluate("window.harmed") is None
    assert page.locator("main img, main b b, main script").count() == 0
    text = page.locator("body").inner_text()
    assert "<img src=x onerror='window.harmed = 1'>" in text
    assert "\u202e" not in text and "\\u202e" in text
    assert "characters)" in text and "long" * 100 not in text
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_programs_of_next_to_nothing(tmp_path: Path, opened: Open) -> None:
    nothing, given = Builder("nothing"), Builder("given")
    given.tensor("x", bytes=64, kind="input")
    for build in (nothing, given):
        facts = write_plan_report(
            build.build(), load_machine("toy2"), [("plan", Plan())], tmp_path / "r.html"
        )
        assert "NaN" not in opened(facts.path).locator("main").inner_text()


def big(ops: int) -> Program:
    """Chains side by side, each op reading two results."""
    build = Builder("big")
    last = [build.tensor(f"input{i}", bytes=4096, kind="input") for i in range(50)]
    for i, chain in zip(range(ops), itertools.cycle(range(50)), strict=False):
        new = build.tensor(f"layer{i // 50}/unit{chain}/result", bytes=512 * (1 + i % 97))
        build.op(
            f"layer{i // 50}/unit{chain}/op",
            "matmul" if i % 3 else "add",
            reads=[last[chain], last[(chain + 7) % 50]],
            writes=[new],
            matrix=10**6 + i,
        )
        last[chain] = new
    return build.build()


def test_eighty_thousand_ops_open_at_once_and_stay_smooth(tmp_path: Path, opened: Open) -> None:
    facts = write_plan_report(big(80_000), load_machine("p100x2"), [("plan", Plan())], tmp_path / "r.html")
    assert facts.bytes < 8_000_000
    page = opened(facts.path, 1920)
    assert page.evaluate("loadmasterReport.ready") < 3_000
    worst = 0.0
    page.locator(".track.memory .surfaces canvas").first.hover()
    for key in ("+", "+", "-", "0"):
        page.keyboard.press(key)
        settle(page)
        worst = max(worst, page.evaluate("loadmasterReport.redraw"))
    page.locator(".toolbar").get_by_role("button", name="time", exact=True).click()
    settle(page)
    assert max(worst, page.evaluate("loadmasterReport.redraw")) < 200
