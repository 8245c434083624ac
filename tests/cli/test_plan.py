"""`loadmaster plan`, `train` and `transfer` as a user meets them: tables, files, refusals, resumes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cli.answer import Usage
from loadmaster.cli.plan import parse_settings
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan import load_plan
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.search import problem as recorded
from loadmaster.search.problem import bound_key
from loadmaster.simulate import simulate

SMALL = "bert:layers=1"
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def no_ortools(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mapping.kind", "mapping.search"):
        monkeypatch.setattr(f"loadmaster.{module}.can_prove", lambda problem: False)


def rows_of(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in answer["rows"]}


@pytest.mark.usefixtures("no_ortools")
def test_a_plan_is_made_checked_and_kept(run_json: Any, elsewhere: Path) -> None:
    answer = run_json("plan", SMALL, "-m", "nnp-i-half", "--solver", "search", "--budget", "300")
    rows = rows_of(answer)
    assert list(rows)[:4] == ["all-slowest", "compiler", "density", "annealing"]
    assert [rows[name]["white_box"] for name in list(rows)[:5]] == [True, True, True, False, True]
    ours, bound = rows["annealing"], rows["bound"]
    assert ours["evaluations"] == 300 and rows["density"]["evaluations"] == 0
    assert ours["speedup"] == pytest.approx(rows["compiler"]["picoseconds"] / ours["picoseconds"])
    assert ours["gap"] == pytest.approx(ours["picoseconds"] / bound["picoseconds"] - 1)
    program, machine = load_model(SMALL), load_machine("nnp-i-half")
    plan = load_plan(Path(answer["plan"]), program, machine)
    assert check(program, machine, plan) == []
    assert answer["origin"] == "density" and answer["before"] == "compiler"
    assert simulate(program, machine, plan).total_ps == rows["density"]["picoseconds"] < ours["picoseconds"]
    assert answer["plan"] == f"{answer['run']}/best.json" and answer["run"].startswith("runs/")
    assert rows["sram"]["peak_bytes"] <= rows["sram"]["capacity_bytes"] == 2 * 2**20
    logged = [json.loads(line) for line in (elsewhere / answer["run"] / "log.jsonl").read_text().splitlines()]
    baselines = {line["name"]: line["value"] for line in logged if line["event"] == "baseline"}
    assert baselines == {name: rows[name]["picoseconds"] for name in ("all-slowest", "compiler", "density")}


@pytest.mark.usefixtures("no_ortools")
def test_the_table_tells_kinds_gaps_and_where_to_look(run: Any) -> None:
    shown = run(
        "plan", SMALL, "-m", "nnp-i-half", "--solver", "search", "--set", "method=random", "--budget", "50"
    )
    lines = shown.out.splitlines()
    assert lines[0] == f"{SMALL} on nnp-i-half"
    assert "gap to bound" in lines[1] and "over compiler" in lines[1] and "simulated time" in lines[1]
    assert any(line.startswith("random") and "black box" in line for line in lines)
    assert any(line.startswith("density") and "white box" in line for line in lines)
    assert "35 nodes, 53 tensors to place" in shown.err.splitlines()[0]
    seen = next(line for line in lines if line.startswith("see it:")).split("loadmaster ")[1]
    assert run(*seen.split()).exit == 0
    replayed = next(line for line in lines if line.startswith("again:")).split("loadmaster ")[1]
    assert run(*replayed.split()).exit == 0


@pytest.mark.usefixtures("no_ortools")
def test_out_no_run_and_capacity(run_json: Any, run: Any, elsewhere: Path) -> None:
    words = (
        "plan",
        SMALL,
        "-m",
        "nnp-i",
        "--capacity",
        "sram=1MiB",
        "--solver",
        "search",
        "--set",
        "method=greedy-dp",
        "--budget",
        "60",
    )
    answer = run_json(*words, "--no-run", "--out", "mine.json")
    assert answer["machine"] == "nnp-i:sram=1MiB" and answer["run"] is None
    assert answer["plan"] == "mine.json" and [p.name for p in elsewhere.iterdir()] == ["mine.json"]
    assert rows_of(answer)["sram"]["capacity_bytes"] == 2**20
    assert run("simulate", SMALL, "mine.json", "-m", "nnp-i:sram=1MiB").exit == 0
    assert "there already" in run(*words, "--out", "mine.json").error_line
    assert "no plan was written" in run(*words, "--no-run").out


@pytest.mark.usefixtures("no_ortools")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ageing-evolution", ()),
        ("ageing-evolution", ("--set", "population=20", "--set", "sample=3")),
        ("random", ("--set", "uniform=true")),
    ],
)
def test_a_resumed_run_equals_an_unbroken_one(run_json: Any, method: str, options: tuple[str, ...]) -> None:
    solver = ("--solver", "search", "--set", f"method={method}", *options)
    words = ("plan", SMALL, "-m", "nnp-i-half", "--seed", "3", *solver)
    first = run_json(*words, "--budget", "150")
    resumed = run_json("plan", SMALL, "--resume", first["run"], "--budget", "400")
    whole = run_json(*words, "--budget", "400")
    ours, theirs = rows_of(resumed)[method], rows_of(whole)[method]
    assert ours["evaluations"] == 400 and ours["picoseconds"] == theirs["picoseconds"]
    assert resumed["run"] == first["run"] != whole["run"]
    made = [json.loads(Path(each["run"], "run.json").read_text()) for each in (first, whole)]
    assert made[0]["solver"] == made[1]["solver"]
    best = [Path(each["run"], "best.json").read_text() for each in (resumed, whole)]
    assert best[0] == best[1]


@pytest.mark.usefixtures("no_ortools")
def test_a_run_that_recorded_no_options_goes_on_with_their_defaults(run: Any, run_json: Any) -> None:
    words = ("plan", SMALL, "--solver", "search", "--set", "method=random", "--budget")
    made = run_json(*words, "128")["run"]
    about = Path(made, "run.json")
    document = json.loads(about.read_text())
    assert document["solver"].pop("options") == {"uniform": False}
    about.write_text(json.dumps({**document, "solver": {**document["solver"], "options": {}}}))
    refused = run("plan", SMALL, "--resume", made, "--set", "uniform=true", "--budget", "200")
    assert refused.exit == 2 and "'uniform' in solver's options" in refused.err
    again = run_json("plan", SMALL, "--resume", made, "--budget", "200")
    assert rows_of(again)["random"] == rows_of(run_json(*words, "200"))["random"]


@pytest.mark.usefixtures("no_ortools")
def test_what_can_t_be_resumed(run: Any, run_json: Any) -> None:
    made = run_json("plan", SMALL, "--solver", "search", "--set", "method=random", "--budget", "20")["run"]
    assert "is not about" in run("plan", "resnet50", "--resume", made).error_line
    assert "leave them out" in run("plan", SMALL, "--resume", made, "-m", "nnp-i").error_line
    assert "its seed is 0" in run("plan", SMALL, "--resume", made, "--seed", "4").err.splitlines()[-1]
    assert "there is no run" in run("plan", SMALL, "--resume", "nowhere").error_line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--solver", "anealing"), "did you mean 'annealing'?"),
        (("--solver", "annealing"), "use --solver search --set method=annealing"),
        (("--solver", "search", "--set", "method=random", "--set", "unifrm=true"), "has no option 'unifrm'"),
        (("--solver", "search", "--set", "method=random", "--set", "uniform"), "is not NAME=VALUE"),
        (
            ("--solver", "search", "--set", "method=random", "--init", "pretrained:bert"),
            "has no option 'init'",
        ),
        (("--capacity", "dram=1MiB"), "must hold all of 'bert'"),
        (("--capacity", "srm=1MiB"), "did you mean 'sram'?"),
        (("--capacity", "sram=big"), "write sram=2MiB"),
        (("--time-limit", "soon"), "--time-limit"),
        (("--noise", "2"), "noise must be in [0, 1)"),
        (("--noise", "0.1", "--evaluator", "true"), "give one of them"),
        (("--out", "no/where.json"), "there is no folder"),
        (("-m", "nnp"), "did you mean 'nnp-i'?"),
    ],
)
def test_wrong_usage_is_one_line(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("plan", SMALL, *words)
    assert result.exit == 2 and said in result.error_line


def test_a_machine_with_one_memory_is_refused(run: Any, elsewhere: Path) -> None:
    (elsewhere / "one.toml").write_text(
        'name = "one"\n[[memory]]\nname = "ram"\ncapacity = "1GiB"\nbandwidth = "1GB/s"\n'
        '[[device]]\nname = "core"\nmatrix = "1Gflop/s"\nvector = "1Gflop/s"\n'
    )
    result = run("plan", SMALL, "-m", "one.toml")
    assert result.exit == 2 and "one memory" in result.error_line


@pytest.mark.usefixtures("no_ortools")
def test_no_map_that_fits_is_no_answer(run_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.mapping.kind.known_values", lambda problem, names, seconds: [])
    answer = run_json(
        "plan",
        "resnet50",
        "-m",
        "nnp-i",
        "--solver",
        "search",
        "--set",
        "method=ageing-evolution",
        "--budget",
        "2",
    )
    assert answer["exit"] == 4 and "no plan that fits" in answer["error"]["message"]
    assert rows_of(answer)["ageing-evolution"]["picoseconds"] is None


@pytest.mark.usefixtures("no_ortools")
def test_without_or_tools_auto_improves_on_density(run_json: Any) -> None:
    rows = rows_of(run_json("plan", SMALL, "-m", "nnp-i-half", "--budget", "200", "--no-run"))
    # It may end before: where nothing near the best is new, nothing is left to try.
    assert rows["auto"]["white_box"] and 1 < rows["auto"]["evaluations"] <= 200
    assert rows["auto"]["picoseconds"] <= rows["density"]["picoseconds"]


def test_auto_proves_the_optimum(run_json: Any) -> None:
    pytest.importorskip("ortools")
    rows = rows_of(run_json("plan", SMALL, "-m", "nnp-i-half", "--no-run"))
    assert rows["auto"]["status"] == "optimal" and rows["auto"]["gap"] == 0
    assert "bound" not in rows and rows["auto"]["picoseconds"] <= rows["density"]["picoseconds"]


def test_the_optimum_stands_beside_a_black_box_solver(run_json: Any) -> None:
    pytest.importorskip("ortools")
    words = (
        "plan",
        SMALL,
        "-m",
        "nnp-i-half",
        "--solver",
        "search",
        "--set",
        "method=random",
        "--budget",
        "30",
        "--no-run",
    )
    rows = rows_of(run_json(*words))
    assert rows["optimum"]["status"].startswith("optimal") and rows["optimum"]["gap"] == 0
    assert rows["random"]["gap"] > 0 and rows["optimum"]["white_box"]
    quick = rows_of(run_json(*words, "--exact-seconds", "0"))
    assert "optimum" not in quick
    assert quick["bound"]["picoseconds"] <= rows["optimum"]["picoseconds"]


def test_a_recorded_optimum_is_shown_at_once(run_json: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    key = bound_key(load_model(SMALL), load_machine("nnp-i-half"))
    row = {"bound": 1_000, "best": 1_000, "method": "HiGHS"}
    monkeypatch.setattr(recorded, "_table", lambda: {key: row})
    rows = rows_of(
        run_json(
            "plan",
            SMALL,
            "-m",
            "nnp-i-half",
            "--solver",
            "search",
            "--set",
            "method=random",
            "--budget",
            "30",
            "--no-run",
        )
    )
    assert rows["optimum"]["picoseconds"] == 1_000 and "on record" in rows["optimum"]["status"]
    assert rows["random"]["gap"] == pytest.approx(rows["random"]["picoseconds"] / 1_000 - 1)


@pytest.mark.usefixtures("no_ortools")
def test_noise_is_measured_again_and_reported_without(run_json: Any) -> None:
    answer = run_json(
        "plan",
        SMALL,
        "-m",
        "nnp-i-half",
        "--solver",
        "search",
        "--set",
        "method=random",
        "--budget",
        "40",
        "--noise",
        "0.3",
    )
    ours = rows_of(answer)["random"]
    assert ours["champion"]["simulated_ps"] == ours["picoseconds"] != ours["champion"]["first_ps"]
    program, machine = load_model(SMALL), load_machine("nnp-i-half")
    plan = load_plan(Path(answer["plan"]), program, machine)
    assert simulate(program, machine, plan).total_ps == ours["picoseconds"]
    assert answer["plan"].endswith("champion.json")


def test_a_command_measures(run_json: Any, run: Any, elsewhere: Path) -> None:
    script = elsewhere / "measure.py"
    script.write_text(
        "import json, sys\nplan = json.load(sys.stdin)\n"
        "fast = sum(row['memory'] == 'sram' for row in plan['residencies'])\n"
        "print(1.0 / (1 + fast))\n"
    )
    command = f"{sys.executable} measure.py"
    answer = run_json(
        "plan",
        "bert:layers=1",
        "-m",
        "nnp-i",
        "--solver",
        "search",
        "--budget",
        "6",
        "--evaluator",
        command,
        "--repeats",
        "1",
    )
    ours = rows_of(answer)["annealing"]
    assert ours["gap"] is None and "bound" not in rows_of(answer)
    assert ours["picoseconds"] == round(ours["champion"]["median_ps"])
    slowest, density = (rows_of(answer)[name] for name in ("all-slowest", "density"))
    assert slowest["seconds"] == 1.0 >= ours["seconds"] > density["seconds"]  # six maps, not its
    missing = run("plan", SMALL, "--evaluator", "no-such-command-here")
    assert missing.exit == 2 and "no-such-command-here" in missing.error_line


def test_hardware_is_let_go_of_at_the_end(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(MeasuredMapping, "close", lambda self: closed.append(self.gauge.name))
    words = ("plan", "bert:layers=1", "-m", "nnp-i", "--solver", "search", "--budget", "2", "--repeats", "1")
    assert run(*words, "--evaluator", "echo 1.5").exit == 0 and closed == ["echo 1.5"]
    assert run(*words, "--evaluator", "false").exit != 0 and closed == ["echo 1.5", "false"]


def test_settings_are_numbers_booleans_or_text() -> None:
    texts = ["a=3", "b=0.5", "c=true", "d=False", "e=sharp", "f=1e-3", "g=x=y", "h="]
    assert parse_settings(texts) == {
        "a": 3,
        "b": 0.5,
        "c": True,
        "d": False,
        "e": "sharp",
        "f": 1e-3,
        "g": "x=y",
        "h": "",
    }
    for wrong in ("a", "=3", "a b=3"):
        with pytest.raises(Usage, match="NAME=VALUE"):
            parse_settings([wrong])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("annealing", SMALL, "--out", "p.npz"), "has no policy to train"),
        (("egrl", SMALL, "--out", "p.bin"), "must end in .npz"),
        (("egrl", SMALL, "--out", "p.npz", "--set", "popularity=3"), "has no option 'popularity'"),
        (("egrl", "--out", "p.npz", "--set", "pairs=0"), "pairs = 0"),
        (("egrl", "--out", "p.npz", "--set", "view=clear"), "there is no view 'clear'"),
        (("egrl", "bret", "--out", "p.npz"), "did you mean 'bert'?"),
        (("egrl", "--out", "p.npz", "--resume", "nothing.npz"), "nothing.npz"),
        (
            ("egrl", "--out", "p.npz", "--budget", "1", "--workers", "cloud:9"),
            "says not where the workers are",
        ),
    ],
)
def test_training_refuses_in_one_line(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("train", *words)
    assert result.exit == 2 and said in result.err.splitlines()[-1]


TINY = (
    "--set",
    "cases=8",
    "--set",
    "validation=4",
    "--set",
    "pairs=2",
    "--set",
    "batch=4",
    "--set",
    "hidden=4",
)


def test_a_policy_is_trained_tried_started_from_and_gone_on_with(run_json: Any, run: Any) -> None:
    words = ("train", "egrl", SMALL, "-m", "nnp-i", *TINY, "--out")
    trained = run_json(*words, "p.npz", "--budget", "2")
    assert [(row["view"], row["generations"]) for row in trained["rows"]] == [("nominal", 2), ("strict", 2)]
    assert "there already" in run("train", "egrl", "--out", "p.npz").error_line
    tried = run_json("transfer", "p.npz", SMALL, "-m", "nnp-i")
    assert {row["name"] for row in tried["rows"]} >= {"nominal", "strict, untrained", "compiler"}
    plan = run_json("plan", SMALL, "-m", "nnp-i", "--solver", "egrl", "--init", "p.npz", "--budget", "8")
    assert rows_of(plan)["egrl"]["picoseconds"] <= rows_of(plan)["compiler"]["picoseconds"]
    again = run(*words, "q.npz", "--budget", "3", "--resume", "p.state.npz")
    assert again.exit == 2 and "other options" in again.error_line and "generations = 2" in again.error_line
    policy = run(*words, "q.npz", "--budget", "2", "--resume", "p.npz")
    assert policy.exit == 2 and "give the .state.npz" in policy.error_line
    ended = run(*words, "r.npz", "--budget", "1").out  # all that it was to do: there is nothing to go on with
    assert "go on:" not in ended and "--init r.npz" in ended


def test_the_walk_in_contributing_is_true(run_json: Any) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = re.findall(r"^\d\. `([\w/]+\.py)`: `(\w+)`", text.partition("**A walk")[2], re.MULTILINE)
    walked: list[tuple[str, str]] = []

    def note(frame: Any, event: str, arg: object) -> None:
        file = frame.f_code.co_filename.rpartition("/loadmaster/")[2]
        step = (file, frame.f_code.co_name)
        if event == "call" and step in walk and step not in walked:
            walked.append(step)

    sys.setprofile(note)
    try:
        run_json("plan", SMALL, "--machine", "nnp-i", "--no-run")
    finally:
        sys.setprofile(None)
    assert len(walk) <= 6 and walked == walk


@pytest.mark.usefixtures("no_ortools")
def test_plans_are_held_against_what_the_user_names(run: Any, run_json: Any) -> None:
    words = ("plan", SMALL, "-m", "nnp-i-half", "--solver", "density")
    answer = run_json(*words, "--before", "all-slowest")
    rows = rows_of(answer)
    assert answer["before"] == "all-slowest" and rows["all-slowest"]["speedup"] == 1
    assert rows["sram"]["before_peak_bytes"] == 0
    page = run_json("report", answer["run"])
    assert [row["name"] for row in page["rows"] if row.get("role") == "before"] == ["all-slowest"]
    page = run_json("report", answer["run"], "--before", "compiler")
    assert [row["name"] for row in page["rows"] if row.get("role") == "before"] == ["compiler"]
    unknown = run(*words, "--before", "compilr").err
    assert "no plan of 'compilr'" in unknown and "did you mean 'compiler'" in unknown
    assert "no baseline 'nobody'" in run("report", answer["run"], "--before", "nobody").error_line


def test_optimal_names_its_space_and_copies_that_were_not_decided(run: Any) -> None:
    pytest.importorskip("ortools")
    shown = run("plan", SMALL, "-m", "ethos-u65", "--no-run").out
    assert "optimal among maps: one memory for each tensor's whole life" in shown
    assert "not sought: copies, tiles, other orders" in shown
    assert "copies over the links of ethos-u65 were not decided; --problem malloc-game decides them" in shown
    assert "were not decided" not in run("plan", SMALL, "-m", "nnp-i", "--no-run").out
    # The game knows no objective but time, so that it is no remedy there.
    moved = run("plan", SMALL, "-m", "ethos-u65", "--objective", "bytes-moved").out
    assert "copies over the links of ethos-u65 were not decided\n" in moved


def test_what_is_not_optimal_is_not_called_so(run: Any) -> None:
    """The optimum of the table is another plan's, or only a number on record."""
    words = ("--solver", "search", "--budget", "2", "--exact-seconds", "0", "--no-run")
    shown = run("plan", "bert:tokens=512,batch=4", "-m", "nnp-i", *words).out
    assert "\nthe optimum is among maps: one memory for each" in shown and "\noptimal among" not in shown
