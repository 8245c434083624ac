"""A run folder from elsewhere: whatever it names, no command runs, imports or contacts it."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from generate_mapping import layers, three_memories
from loadmaster.cli.main import COMMANDS
from loadmaster.machine.presets import standalone_text
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.plan import save_plan
from loadmaster.program import save
from loadmaster.runs import RunFolder
from loadmaster.runs.compare import read_side
from loadmaster.runs.replay import replay
from loadmaster.search.registry import load_problem

EVALUATOR = "sh measure.sh"
PLAN = ("--solver", "search", "--set", "method=random", "--budget", "4", "--repeats", "1")

WITH_RUN: dict[str, list[str]] = {
    "demo": ["--out RUN/run.json"],
    "models": ["RUN", "net:build"],
    "machines": ["RUN", "RUN/machine.toml"],
    "import": ["RUN --out new.npz", "RUN/program.npz --out new.npz"],
    "inspect": ["RUN", "RUN/program.npz -m RUN/machine.toml"],
    "simulate": ["RUN/program.npz RUN/best.json -m RUN/machine.toml", "RUN", "RUN RUN"],
    "fits": ["RUN/program.npz -m RUN/machine.toml", "RUN"],
    "check": ["RUN/program.npz RUN/best.json -m RUN/machine.toml", "RUN", "RUN RUN"],
    "solvers": ["RUN"],
    "runs": ["RUN", "runs"],
    "watch": ["RUN --once", "runs --once"],
    "compare": ["RUN RUN", "RUN RUN/best.json", "RUN/best.json plan.json"],
    "replay": ["RUN", "RUN/best.json"],
    "validate": ["RUN", "RUN/best.json"],
    "plan": [
        "RUN/program.npz --resume RUN --budget 9",
        "RUN/program.npz --resume RUN --workers local:1",
        "RUN/program.npz --resume RUN --evaluator true",
        "RUN/program.npz --resume RUN --evaluator executor:cpu",
        "RUN -m RUN/machine.toml",
        "RUN/program.npz -m RUN/machine.toml --budget 3 --no-run --exact-seconds 0",
    ],
    "resume": ["RUN --budget 9", "RUN --workers local:1", "RUN --evaluator true"],
    "calibrate": ["RUN --device cpu"],
    "export": [
        "csv RUN/program.npz RUN/best.json -m RUN/machine.toml --out new.csv",
        "trace RUN RUN",
        "trace RUN",
        "tflm RUN",
    ],
    "run": ["RUN RUN/best.json --device cpu", "RUN --device cpu", "RUN"],
    "train": [
        "egrl RUN -m RUN/machine.toml --budget 1 --set cases=4 --set validation=2 --set pairs=1 --set batch=2 --out policy.npz"
    ],
    "transfer": ["RUN RUN/program.npz -m RUN/machine.toml", "pretrained:scores RUN"],
    "report": ["RUN --out new.html", "RUN RUN --out both.html", "RUN/best.json --out plan.html"],
    "figures": ["RUN --out figures", "runs --out more"],
    "allocate": ["RUN", "RUN --resume RUN"],
    "bench": ["RUN"],
    "bank": ["RUN", "runs"],
}
"""Command -> arguments that hand it the folder in every way it could take one."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Stands for a worker's address; whether anybody came shows afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def folder(run: Any, elsewhere: Path, listener: socket.socket) -> Path:
    """A run that was measured by a command which leaves a mark, and names more that would."""
    save(layers(4), elsewhere / "model.npz")
    (elsewhere / "machine.toml").write_text(standalone_text(three_memories()))
    (elsewhere / "measure.sh").write_text("echo ran >> marker\necho 0.25\n")
    (elsewhere / "net.py").write_text("open('marker', 'a').write('imported')\ndef build(): ...\n")
    made = run("plan", "model.npz", "-m", "machine.toml", "--evaluator", EVALUATOR, *PLAN)
    assert made.exit == 0 and marked(elsewhere), made.err
    (folder,) = (elsewhere / "runs").iterdir()
    shutil.copy(elsewhere / "net.py", folder)
    about = json.loads((folder / "run.json").read_text())
    host, port = listener.getsockname()
    about["command"] = ["python", "net:build", "--workers", f"ray://{host}:{port}", "--evaluator", EVALUATOR]
    about["model"] = {"source": "net:build", "file": {"path": "net.py", "sha256": 64 * "0"}}
    (folder / "run.json").write_text(json.dumps(about))
    shutil.copy(folder / "best.json", elsewhere / "plan.json")
    return folder


def marked(place: Path) -> bool:
    """Whether the command has run, or the module was imported, since this was last asked."""
    marker = place / "marker"
    found = marker.exists()
    marker.unlink(missing_ok=True)
    return found


def test_the_table_has_every_command() -> None:
    assert set(WITH_RUN) == set(COMMANDS)


def test_no_command_runs_what_a_folder_names(
    run: Any, folder: Path, elsewhere: Path, listener: socket.socket
) -> None:
    exits = {}
    for name, lines in WITH_RUN.items():
        for line in lines:
            words = line.replace("RUN", str(folder.relative_to(elsewhere))).split()
            result = run(name, *words)
            exits[name, line] = result.exit
            # 'models net:build' is the user's own word for a module, and runs nothing either.
            assert not marked(elsewhere), (name, line)
            assert result.exit in (0, 1, 2, 3), (name, line, result.err)
    worked = ("figures", "report", "replay", "validate", "runs", "watch", "compare", "check", "simulate")
    assert all(exits[name, WITH_RUN[name][0]] == 0 for name in worked), exits
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_no_function_of_the_library_does(folder: Path, elsewhere: Path) -> None:
    problem = load_problem(folder)
    assert isinstance(problem, MeasuredMapping)
    assert not replay(RunFolder.open(folder)).broken and read_side(folder).value == 25 * 10**10
    plan = problem.plan(problem.compiler)
    save_plan(plan, problem.program, problem.machine, elsewhere / "compiler.json")
    tried = [
        lambda: problem.compiler_ps,
        lambda: problem.evaluate(problem.compiler),
        lambda: problem.gauge.once(plan),
        lambda: problem.sample(None, 0),
        lambda: problem.score(problem.compiler[None]),
    ]
    for attempt in tried:
        with pytest.raises(Exception, match="what a run names is not run"):
            attempt()
    assert not marked(elsewhere)


def test_resuming_wants_the_command_again(run: Any, folder: Path, elsewhere: Path) -> None:
    name = str(folder.relative_to(elsewhere))
    resume = ("plan", "model.npz", "--resume", name, "--budget", "6")
    line = run(*resume).error_line
    assert f"would run the command '{EVALUATOR}'" in line
    typed = f"loadmaster resume {name} --evaluator '{EVALUATOR}'"
    assert line.endswith(f"type {typed}")
    other = run(*resume, "--evaluator", "sh  other.sh").error_line
    assert f"measured by '{EVALUATOR}' and not by 'sh other.sh'" in other
    assert not marked(elsewhere)
    result = run(*resume, "--evaluator", "sh   measure.sh")  # the same words
    assert result.exit == 0 and marked(elsewhere)
    assert RunFolder.open(folder).read_log().lines[-1]["evals"] == 6


def test_a_command_with_escapes_is_shown_without_them(run: Any, folder: Path, elsewhere: Path) -> None:
    for file in ("problem.json", "run.json"):
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace(EVALUATOR, "sh \\u001b]0;owned\\u0007\\nmeasure.sh"))
    result = run("plan", "model.npz", "--resume", folder)
    assert result.exit == 2 and "\x1b" not in result.err and "\\x1b]0;owned" in result.error_line


def test_a_run_that_was_simulated_takes_no_evaluator(run: Any, elsewhere: Path) -> None:
    save(layers(4), elsewhere / "model.npz")
    (elsewhere / "machine.toml").write_text(standalone_text(three_memories()))
    assert run("plan", "model.npz", "-m", "machine.toml", "--exact-seconds", "0", *PLAN).exit == 0
    (folder,) = (elsewhere / "runs").iterdir()
    result = run("plan", "model.npz", "--resume", folder, "--evaluator", "true")
    assert result.exit == 2 and "was simulated, not measured" in result.error_line


def test_figures_draw_what_was_measured_then(run: Any, folder: Path, elsewhere: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = run("figures", folder, "--out", "figures")
    assert drawn.exit == 0 and not drawn.err
    assert "best speed-up over the compiler" in _texts(elsewhere / "figures")
    log = folder / "log.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [line for line in lines if "baseline" not in (line["event"], line.get("what"))]
    log.write_text("".join(json.dumps(line | {"seq": i}) + "\n" for i, line in enumerate(kept)))
    drawn = run("figures", folder, "--out", "old")
    assert drawn.exit == 0 and "drawn without the compiler's time" in drawn.err
    assert "best speed-up over the slowest map found" in _texts(elsewhere / "old")
    assert not marked(elsewhere)


def _texts(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*-curves.svg"))
