"""`loadmaster watch`: what the server answers and what it refuses, folders of every kind, and the page in a browser."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import toy
from generate_mapping import layers, three_memories
from hostile_names import HOSTILE, renamed
from loadmaster.mapping.problem import Mapping
from loadmaster.program import load, save
from loadmaster.report import watch as watch_module
from loadmaster.report.watch import Watch, WatchServer
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.history import compute_gap, describe_run
from loadmaster.runs.log import Log
from loadmaster.search.problem import Problem
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.request import BadRequest
from loadmaster.search.solver import Budget, Meter, Solution, State
from loadmaster.units import show_time

Ask = Callable[..., tuple[http.client.HTTPResponse, bytes]]


@pytest.fixture
def folder(runs: dict[str, Path], tmp_path: Path) -> Path:
    """Runs of five kinds that have ended."""
    return Path(shutil.copytree(runs["mapping"].parent, tmp_path / "runs"))


@pytest.fixture
def served(folder: Path) -> Iterator[WatchServer]:
    with WatchServer(Watch(folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def ask(served: WatchServer) -> Ask:
    def call(
        path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", served.server_port)
        connection.putrequest(method, path, skip_host="Host" in (headers or {}))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response, body

    return call


def chosen(folder: Path, **wanted: str) -> dict[str, Any]:
    return next(
        row for row in Watch(folder).rows() if all(row.get(name) == value for name, value in wanted.items())
    )


def search(problem: Problem, budget: int, **where: Path) -> Path:
    """The run of a random search for a mapping."""
    run = run_solver(make_labelled("mapping", "random"), problem, Budget(budget), 0, **where).run
    assert run is not None
    return run


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_answers_and_their_headers(served: WatchServer, ask: Ask, folder: Path) -> None:
    assert (
        served.server_address[0] == "127.0.0.1"
        and served.address == f"http://127.0.0.1:{served.server_port}/"
    )
    run = chosen(folder, problem="mapping")["id"]
    before = contents(folder)
    kinds = {
        "/": "text/html",
        "/state.json": "application/json",
        f"/view.json?run={run}": "application/json",
        f"/report.html?run={run}": "text/html",
    }
    for path, kind in kinds.items():
        response, body = ask(path)
        assert response.status == 200 and response.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert int(response.headers["Content-Length"]) == len(body) > 100
        rules = response.headers["Content-Security-Policy"]
        assert rules.startswith("default-src 'none'") and rules.endswith("frame-ancestors 'none'")
        assert "unsafe" not in rules and "http" not in rules
        for name, value in {
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            assert response.headers[name] == value
        assert "Access-Control-Allow-Origin" not in response.headers
        head, nothing = ask(path, "HEAD")
        assert head.status == 200 and nothing == b"" and head.headers["Content-Length"]
    page = ask("/")[1].decode()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page) and "http://" not in page.replace(
        "http://www.w3.org/2000/svg", ""
    )
    assert contents(folder) == before  # it only reads


def test_only_this_computer_s_names_are_answered(ask: Ask, served: WatchServer) -> None:
    port = served.server_port
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        "localhost",
        "LOCALHOST:99",
        "[::1]:8080",
        "127.0.0.1",
    ):
        assert ask("/state.json", headers={"Host": host})[0].status == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        "localhost.evil.example",
        "localhost:80:80",
        "127.0.0.1:x",
        "",
        "0.0.0.0",
    ):
        for path in ("/", "/state.json", "/nothing"):
            response, body = ask(path, headers={"Host": host})
            assert response.status == 403 and b"this computer alone" in body, host
            assert b"rows" not in body and "Content-Security-Policy" in response.headers


def raw(served: WatchServer, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", served.server_port)) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_what_is_no_proper_request_is_refused(served: WatchServer, ask: Ask) -> None:
    twice = b"GET /state.json HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    for request, said in (
        (twice, b"HTTP/1.1 403 "),
        (b"GET /state.json HTTP/1.1\r\n\r\n", b"HTTP/1.1 403 "),
        (b"GET /state.json HTTP/1.0\r\n\r\n", b"HTTP/1.1 403 "),
        (b"<script>x</script>\r\n\r\n", b"Bad Request\n"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"HTTP Version Not Supported\n"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"URI Too Long\n"),
    ):
        answer = raw(served, request)
        assert said in answer and b"script" not in answer and b"rows" not in answer, request[:60]
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"):
        response, body = ask("/state.json", method)
        assert (
            response.status == 405
            and response.headers["Allow"] == "GET, HEAD"
            and body == b"Method Not Allowed\n"
        )
    assert raw(served, b"") == b"" and ask("/state.json")[0].status == 200  # and it goes on


def test_no_address_leads_to_a_file(ask: Ask, folder: Path) -> None:
    (folder.parent / "secret").write_text("secret of the house")
    name = next(folder.iterdir()).name
    for path in (
        "/../secret",
        "/..%2fsecret",
        "/%2e%2e/secret",
        "//secret",
        f"/{name}/run.json",
        f"/runs/{name}/log.jsonl",
        "/view.json?run=../secret",
        f"/view.json?run={name}",
        f"/report.html?run={name}",
        "/report.html?run=",
        "/view.json",
        "/state.json/../../secret",
        "/favicon.ico",
        "/page%00",
    ):
        response, body = ask(path)
        assert response.status == 404 and b"secret" not in body and len(body) < 40, path
    response, body = ask("/state.json?run=../secret&run=%00")
    assert response.status == 200 and b"secret" not in body


def test_rows_are_those_of_the_logs_and_the_newest_is_looked_at(ask: Ask, folder: Path) -> None:
    state = json.loads(ask("/state.json")[1])
    rows = state["rows"]
    assert len(rows) == 5 and state["left_out"] == 0
    order = [(row["started"], row["run"]) for row in rows]
    assert order == sorted(order, reverse=True) and state["chosen"]["run"] == rows[0]["run"]
    for row in rows:
        run = RunFolder.open(folder / row["run"])
        own = describe_run(run, History(run.read_log().lines))
        assert {key: row[key] for key in own} == own
        assert row["gap"] == compute_gap(row["value"], row["bound"]) and row["seconds_left"] is None
        state = json.loads(ask(f"/state.json?run={row['id']}")[1])
        assert state["chosen"]["run"] == row["run"]
        curves = state["chosen"]["curves"]
        history = History(run.read_log().lines)
        if curves is not None:
            assert (
                list(zip(curves["runs"][0]["evaluations"], curves["runs"][0]["values"], strict=True))
                == history.curve
            )
        view = json.loads(ask(f"/view.json?run={row['id']}")[1])
        assert view["error"] is None and view["plan"] == row["plan"] and view["views"][0]["role"] == "after"
    assert {row["problem"] for row in rows} == {"mapping", "malloc-game", "graph", "allocation", "order"}


def test_a_known_method_s_better_plan_is_what_is_shown(tmp_path: Path) -> None:
    problem = toy.Toy()
    good = run_solver(toy.Climb(), problem, Budget(300), 3).decision
    assert good is not None
    solution = run_solver(toy.Climb(), problem, Budget(3), 5, folder=tmp_path, baselines={"known": good})
    (row,) = Watch(tmp_path).rows()
    assert row["origin"] == "known" == solution.baseline and row["value"] == problem.evaluate(good)
    assert row["solver_value"] > row["value"] and row["plan"] == problem.plan(good).hash
    view = json.loads(Watch(tmp_path).view(row["id"]))
    assert view["head"]["name"].startswith("known, beside climb") and view["plan"] == row["plan"]


class Held(toy.Climb):
    """Waits, in the middle of its search, until it may go on."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.reached, self.go = at, threading.Event(), threading.Event()

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        improved = meter.observer.improved

        def hold(now: Meter) -> None:
            improved(now)
            if now.evaluations >= self.at and not self.reached.is_set():
                self.reached.set()
                self.go.wait()

        meter.observer.improved = hold  # type: ignore[method-assign]
        return super().run(meter, seed, state)


def test_a_run_is_followed_while_it_is_written(folder: Path) -> None:
    watch = Watch(folder)
    assert len(watch.rows()) == 5
    solver = Held(at=5)
    searching = threading.Thread(
        target=run_solver,
        args=(solver, toy.Toy(), Budget(400), 3),
        kwargs={"folder": folder, "checkpoint_seconds": 0.0},
    )
    searching.start()
    solver.reached.wait()
    state = watch.state()
    row = state["chosen"]  # it appeared, and is what is looked at
    assert row["solver"] == "climb" and row["state"] == "running" and len(state["rows"]) == 6
    assert 0 < row["budget_share"] < 1 and row["value"] is not None and row["gap"] > 0
    early = json.loads(watch.view(row["id"]))["plan"]
    assert early == row["plan"]
    solver.go.set()
    seen = [row["evaluations"]]
    while searching.is_alive():  # whatever moment it is read at, every row makes sense
        row = next(row for row in watch.rows() if row.get("solver") == "climb")
        assert row["error"] is None and row["state"] in ("running", "budget", "killed")
        seen.append(row["evaluations"])
    searching.join()
    row = next(row for row in watch.rows() if row["solver"] == "climb")
    assert seen == sorted(seen) and row["evaluations"] == 400 and row["state"] == "budget"
    assert row["budget_share"] == 1.0 and row["seconds_left"] is None
    assert json.loads(watch.view(row["id"]))["plan"] == row["plan"] != early


def test_a_run_that_was_killed_is_told_from_one_that_runs(tmp_path: Path) -> None:
    run = run_solver(toy.Climb(), toy.Toy(), Budget(50), 3, folder=tmp_path).run
    assert run is not None
    lines = (run / "log.jsonl").read_bytes().splitlines(keepends=True)
    (run / "log.jsonl").write_bytes(b"".join(lines[:-1]))  # without its 'stop'
    watch = Watch(tmp_path)
    row = watch.state()["chosen"]
    assert row["state"] == "killed" and row["resume"] == f"loadmaster resume {run}"
    log = Log(run / "log.jsonl")
    row = watch.state()["chosen"]
    assert row["state"] == "running" and row["resume"] is None
    log.close()
    assert watch.state()["chosen"]["state"] == "killed"
    run_solver(toy.Climb(), toy.Toy(), Budget(50), 3, resume=run)
    assert watch.state()["chosen"]["state"] == "budget"


@pytest.mark.parametrize(
    ("budget", "rate", "left", "share"),
    [
        ({"evaluations": 100, "seconds": None}, 10.0, 6.0, 0.4),
        ({"evaluations": 100, "seconds": None}, None, None, 0.4),
        ({"evaluations": None, "seconds": 20.0}, None, 15.0, 0.25),
        ({"evaluations": 100, "seconds": 8.0}, 10.0, 3.0, 0.625),
        ({"evaluations": 10, "seconds": 1.0}, 10.0, 0.0, 1.0),
        ({"evaluations": 0, "seconds": 0}, None, 0.0, 1.0),
        ({}, 10.0, None, None),
        ({"seconds": float("nan")}, 10.0, None, None),
        ({"seconds": float("inf")}, 10.0, None, None),
        ("none", 10.0, None, None),
    ],
)
def test_time_left_is_by_seconds_or_by_pace(budget: Any, rate: float | None, left: Any, share: Any) -> None:
    line = {"event": "start", "budget": budget, "t": 0.0, "evals": 0}
    history = History([line, {"event": "progress", "t": 5.0, "evals": 40}])
    assert watch_module._budget_left(history, rate) == (left, share)


def _about(run: Path, **changes: Any) -> None:
    file = run / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _replace_log(run: Path, old: str, new: str) -> None:
    text = (run / "log.jsonl").read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1)
    assert changed != text
    (run / "log.jsonl").write_text(changed, encoding="utf-8")


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _moved(path: Path) -> Path:
    kept = path.parents[1] / "kept" if path.parent.name != "runs" else path.parent.parent / "kept"
    path.rename(kept)
    return kept


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no run.json": (lambda run: (run / "run.json").unlink(), "no run.json"),
    "run.json is half": (
        lambda run: (run / "run.json").write_text('{"loadmaster_run": 1, '),
        "can't be read",
    ),
    "run.json is deep": (lambda run: (run / "run.json").write_text("[" * 100_000), "can't be read"),
    "run.json is large": (lambda run: _sparse(run / "run.json", 2**40), "larger than"),
    "run.json is a link": (lambda run: (run / "run.json").symlink_to(_moved(run / "run.json")), "is a link"),
    "run.json is a pipe": (
        lambda run: ((run / "run.json").unlink(), os.mkfifo(run / "run.json")),
        "there is no file",
    ),
    "keys of another kind": (lambda run: _about(run, keys={"problem": 3}, names=[]), "no proper 'names'"),
    "log is gone": (lambda run: (run / "log.jsonl").unlink(), "there is no file"),
    "log is large": (lambda run: _sparse(run / "log.jsonl", 2**40), "larger than"),
    "log is a link": (lambda run: (run / "log.jsonl").symlink_to(_moved(run / "log.jsonl")), "is a link"),
    "log is a folder": (
        lambda run: ((run / "log.jsonl").unlink(), (run / "log.jsonl").mkdir()),
        "there is no file",
    ),
    "log is another's": (lambda run: (run / "log.jsonl").write_bytes(b"\xff\x00\n" * 9), "broken in line 1"),
    "a value that no number holds": (
        lambda run: _replace_log(
            run, r'"event": "improve", "value": \d+', '"event": "improve", "value": ' + "9" * 400
        ),
        "must be a whole",
    ),
    "the folder is a link": (lambda run: run.symlink_to(_moved(run)), "is a link"),
    "machine is gone": (lambda run: (run / "machine.toml").unlink(), "there is no file"),
    "plans are a link": (
        lambda run: (shutil.rmtree(run / "plans"), (run / "plans").symlink_to("/")),
        "no folder 'plans'",
    ),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_folder_that_is_damaged_is_one_line(how: str, ask: Ask, folder: Path) -> None:
    assert len(json.loads(ask("/state.json")[1])["rows"]) == 5
    damage, said = DAMAGE[how]
    row = chosen(folder, problem="mapping")
    damage(folder / row["run"])
    response, body = ask(f"/state.json?run={row['id']}")
    state = json.loads(body)
    assert response.status == 200 and len(state["rows"]) == 5
    (broken,) = [each for each in state["rows"] if each["error"] is not None]
    assert broken == state["rows"][-1] and set(broken) == {"id", "run", "error"} and broken["id"] == row["id"]
    assert said in broken["error"] and "\n" not in broken["error"] and len(broken["error"]) <= 300
    assert state["chosen"]["problem"] != "mapping"  # another one is shown
    assert ask(f"/view.json?run={row['id']}")[0].status == 404
    assert ask(f"/report.html?run={row['id']}")[0].status == 404


@pytest.mark.parametrize("name", ["program.npz", "plans"])
def test_a_plan_that_can_not_be_drawn_leaves_the_figures(name: str, ask: Ask, folder: Path) -> None:
    row = chosen(folder, problem="mapping")
    for path in (
        (folder / row["run"] / "plans").iterdir() if name == "plans" else [folder / row["run"] / name]
    ):
        path.write_bytes(b"PK")
    (folder / row["run"] / "best.json").write_bytes(b"PK")
    state = json.loads(ask(f"/state.json?run={row['id']}")[1])
    assert state["chosen"]["value"] == row["value"] and state["chosen"]["error"] is None
    response, body = ask(f"/view.json?run={row['id']}")
    assert response.status == 200 and json.loads(body)["error"]
    response, body = ask(f"/report.html?run={row['id']}")
    assert response.status == 500 and body.count(b"\n") == 1 and b"Traceback" not in body


def test_other_folders_and_files_are_none_of_its_business(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "notes").mkdir()
    (folder / "run.txt").write_text("")
    (folder / "loop").symlink_to("loop")
    assert len(Watch(folder).rows()) == 5
    monkeypatch.setattr(watch_module, "MOST_RUNS", 3)
    state = Watch(folder).state()
    assert len(state["rows"]) == 3 and state["left_out"] == 2
    one = Watch(next(folder / row["run"] for row in state["rows"]))
    assert [row["run"] for row in one.rows()] == [state["rows"][0]["run"]]


def test_a_port_that_is_taken_is_named(served: WatchServer, folder: Path) -> None:
    with pytest.raises(BadRequest, match=f"port {served.server_port} is in use: give another one") as caught:
        WatchServer(Watch(folder), served.server_port)
    assert caught.value.exit_code == 2 and caught.value.object == "--port"


def test_a_folder_that_goes_away_is_told(ask: Ask, folder: Path) -> None:
    shutil.rmtree(folder)
    response, body = ask("/state.json")
    assert response.status == 500 and body == b"No such file or directory\n"


# In a browser.


@pytest.fixture
def opened(browser: Any, served: WatchServer) -> Iterator[Callable[..., Any]]:
    """Opens the page; at the end nothing may have been said on the console, and nobody else asked."""
    faults: list[str] = []
    requests: list[str] = []
    pages = []

    def call(width: int = 1280, scheme: str = "light", part: str = "") -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(served.address + part)
        page.wait_for_selector("main[aria-busy=false]")
        pages.append(page)
        return page

    yield call
    assert not faults
    assert requests and all(url.startswith(served.address) for url in requests)
    for page in pages:
        page.close()


def text_of(page: Any, name: str) -> str:
    return str(page.locator(f'.card[data-name="{name}"] strong').inner_text())


def test_the_page_shows_figures_curves_and_what_lies_where(opened: Any, folder: Path) -> None:
    row = chosen(folder, problem="mapping")
    page = opened(part=f"#{row['id']}")
    page.wait_for_selector("section[data-plan]")
    assert text_of(page, "value") == show_time(row["value"]) and text_of(page, "bound") == show_time(
        row["bound"]
    )
    assert text_of(page, "evaluations") == "300" and text_of(page, "left") == "budget spent"
    assert page.locator(".runs .run").count() == 5 and page.locator(".charts svg[role=img]").count() == 2
    assert page.locator("section[data-plan]").get_attribute("data-plan") == row["plan"]
    program = load_problem(folder / row["run"]).program
    boxes = page.evaluate("[...loadmasterWatch.explorer.view.box.tensor]")
    assert boxes and max(boxes) < program.n_tensors
    drawn = page.evaluate(
        "(() => { const c = document.querySelector('.track.memory canvas'), p = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; return p.some((v) => v !== 0); })()"
    )
    assert drawn
    # From the keyboard: to another run, and back to the newest.
    page.locator(".runs .run").nth(4).focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".runs li:nth-child(5) .run[aria-current=true]")
    other = Watch(folder).rows()[4]
    assert page.evaluate("location.hash") == f"#{other['id']}"
    page.wait_for_selector(f"section[data-plan='{other['plan']}']")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.runs .run')[4]")
    page.get_by_role("button", name="follow the newest").click()
    page.wait_for_selector(".runs li:nth-child(1) .run[aria-current=true]")
    assert page.evaluate("location.hash") == ""


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "dark"), (1200, "light"), (390, "light"), (1900, "light")]
)
def test_it_fits_the_screen_in_both_colours(opened: Any, folder: Path, width: int, scheme: str) -> None:
    page = opened(width, scheme, f"#{chosen(folder, problem='mapping')['id']}")
    page.wait_for_selector("section[data-plan]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    heights = page.evaluate(
        "[...document.querySelectorAll('.card strong')].map((e) => { e.textContent = '127.00 ms';"
        " return e.offsetHeight / parseFloat(getComputedStyle(e).lineHeight); })"
    )
    assert heights and max(heights) < 1.5, "a number and its unit stand in one line"
    red = int(page.evaluate("getComputedStyle(document.body).backgroundColor").split("(")[1].split(",")[0])
    assert (red < 60) == (scheme == "dark")


def test_a_run_that_starts_or_grows_is_seen_without_a_reload(
    opened: Any, folder: Path, tmp_path: Path
) -> None:
    run = search(Mapping(layers(), three_memories()), 100, folder=tmp_path / "more")
    page = opened()
    assert page.locator(".runs .run").count() == 5
    shutil.copytree(run, folder / run.name)
    page.wait_for_selector(f'.runs li:nth-child(1) .run[title="{run.name}"]')
    page.wait_for_selector("section[data-plan]")
    first = page.locator("section[data-plan]").get_attribute("data-plan")
    page.evaluate(
        "loadmasterWatch.explorer.axis.set(loadmasterWatch.explorer.axis.end / 4, loadmasterWatch.explorer.axis.end / 2)"
    )
    page.locator(".toolbar input").fill("w")
    search(load_problem(folder / run.name), 3000, resume=folder / run.name)
    row = chosen(folder, run=run.name)
    assert row["plan"] != first
    page.wait_for_selector(f"section[data-plan='{row['plan']}']")
    low, high, end = page.evaluate(
        "[loadmasterWatch.explorer.axis.low, loadmasterWatch.explorer.axis.high, loadmasterWatch.explorer.axis.end]"
    )
    assert (low / end, high / end) == (pytest.approx(0.25), pytest.approx(0.5))  # what was looked at stays
    assert page.locator(".toolbar input").input_value() == "w"
    assert text_of(page, "value") == show_time(row["value"]) and text_of(page, "evaluations") == "3,000"


def test_hostile_names_stay_text(opened: Any, folder: Path, tmp_path: Path) -> None:
    save(renamed(layers()), tmp_path / "hostile.npz")
    problem = Mapping(load(tmp_path / "hostile.npz"), three_memories())
    run = search(problem, 300, folder=tmp_path / "more")
    for number, name in enumerate(HOSTILE[:3]):
        place = folder / f"{name.replace('/', '_')}{number}"
        shutil.copytree(run, place)
        about = {"program": name, "machine": HOSTILE[number + 1]}
        _about(place, names=about, created=name, command=[name], unit=name if number == 2 else "ps")
    _replace_log(
        place,
        '"event": "stop"',
        '"event": "error", "what": "<b>", "plan": null, "message": "<i>", "x": "stop"',
    )
    shutil.copytree(run, folder / "<img src=x onerror='window.harmed = 1'>")
    (folder / "<img src=x onerror='window.harmed = 1'>" / "run.json").unlink()
    (folder / os.fsdecode(b"half\xff")).mkdir()
    (folder / os.fsdecode(b"half\xff") / "log.jsonl").write_text("")
    page = opened()
    assert page.locator(".runs .run").count() == 10 and page.locator(".run.broken").count() == 2
    for row in Watch(folder).rows():
        if row["error"] is None:
            page.evaluate(f"choose('{row['id']}')")
            page.wait_for_selector(f".detail[data-run='{row['id']}']")
            page.wait_for_selector("section[data-plan]")
    assert page.evaluate("window.harmed === undefined")
    assert page.locator("main img, main i:not(.dot):not(.item i), main script").count() == 0
    assert "<img src=x" in page.locator(".runs").inner_text()


def test_two_hundred_runs_are_found_and_one_is_plain(opened: Any, folder: Path) -> None:
    rows = Watch(folder).rows()
    for row in rows[1:]:
        shutil.rmtree(folder / row["run"])
    page = opened()
    assert page.locator(".runs .run").count() == 1 and not page.locator(".side input").is_visible()
    for number in range(199):
        shutil.copytree(
            folder / rows[0]["run"],
            folder / f"copy-{number:03}",
            ignore=shutil.ignore_patterns("checkpoints"),
        )
        (folder / f"copy-{number:03}" / "checkpoints").mkdir()
    page.wait_for_selector(".runs li:nth-child(200) .run", state="attached")
    assert page.locator(".runs").evaluate("(list) => list.scrollHeight > list.clientHeight")
    page.locator(".side input").fill("COPY-017")
    assert page.locator(".runs li:visible").count() == 1
    page.locator(".runs li:visible .run").click()
    page.wait_for_selector(".run[aria-current=true][title=copy-017]")


def test_an_empty_folder_and_a_server_that_ends_are_told(browser: Any, tmp_path: Path) -> None:
    with WatchServer(Watch(tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        page = browser.new_context().new_page()
        page.goto(server.address)
        page.wait_for_selector("main[aria-busy=false]")
        assert "No run here yet" in page.locator(".empty").inner_text()
        page.context.set_offline(True)
        page.wait_for_selector(".status.lost")
        assert "'loadmaster watch' has ended" in page.locator(".status").inner_text()
        page.context.set_offline(False)
        page.wait_for_selector(".status:not(.lost)")
        page.close()
        server.shutdown()
        thread.join()


def test_a_folder_that_is_being_made_is_a_run_once_it_is_whole(folder: Path) -> None:
    watch, row = Watch(folder), chosen(folder, problem="mapping")
    whole = folder / row["run"]
    part = folder / "part"
    part.mkdir()
    for name in ("program.npz", "machine.toml", "plans", "checkpoints", "log.jsonl", "best.json", "run.json"):
        (shutil.copytree if (whole / name).is_dir() else shutil.copy)(whole / name, part / name)
        found = [each for each in watch.rows() if each["run"] == "part"]
        assert not found or name in ("log.jsonl", "best.json", "run.json")
        assert not found or (found[0]["error"] is None) == (name == "run.json")
