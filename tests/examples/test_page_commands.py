"""Every command that the README or a page of docs/ shows: its words exist, and it runs.

Models that a reader would bring are stand-ins made here, large workloads are cut to a few ops, and
budgets to a few evaluations. What needs a GPU, PyTorch, a cluster or minutes of training is only
held to its words; the tests of those parts run it.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from generate_tflite import branchy
from loadmaster.cli.main import COMMANDS, app
from loadmaster.machine import load_machine
from loadmaster.search.registry import kinds_with

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACEHOLDERS = {"MODEL", "PLAN", "M", "NAME", "DIR", "OUT", "…"}
ELSEWHERE = {
    "net:build": "PyTorch: tests/execute, tests/program/importers",
    "gpt:build": "PyTorch: tests/execute",
    "mymodule:function": "a module of the reader's own: tests/program/importers",
    "executorch": "ExecuTorch: tests/export",
    "tflm": "needs the package tflite_micro: tests/export/test_tflm.py",
    "net.npz": "measured on a GPU: tests/cli/test_gpu_flow.py",
    "calibrate": "tests/execute/test_calibration.py",
    "train": "tests/cli/test_train_*.py",
    "transfer": "tests/mapping/egrl",
    "policy=policy.npz": "tests/mapping/egrl",
    "bench": "tests/benchmarks",
    "graph.json": "other people's file: tests/program/importers/test_dnn_partitioning.py",
    "--tensorboard": "tests/cli/test_tensorboard.py",
    "--room": "minutes: tests/export/test_figures.py",
    "--measured": "tests/report/test_measured.py",
    "module.after_optimizations.txt": "tests/program/importers/test_hlo.py",
    "ray:": "tests/runs/test_workers_ray.py",
    "ray://": "tests/runs/test_workers_ray.py",
    "--pin": "names of the reader's own tensors: tests/cli/test_plan.py",
    "--evaluator": "tests/search/test_evaluator.py",
}
"""A word of a command -> where what it needs is tested."""
LEARNED = {"profile=paper", "muzero", "go"}
"""Solvers that are compiled for half a minute: the tests of the agents run them."""
SMALL = {
    "bert": "bert:layers=1",
    "bert-base": "alexnet-inf",
    "gnmt-4": "gnmt-2:steps=2",
    "rnnlm-4": "rnnlm-2:steps=3",
    "txl-8": "txl-2:segments=1",
    "p100x8": "p100x4",
    "llama:layers=1": "bert:layers=1",
    "llama:layers=1,batch=1,tokens=512": "bert:layers=1",
    "resnet101": "resnet50",
    "keyword_spotting.tflite": "model.tflite",
    "light_shufflenet.onnx": "model.onnx",
    "MODEL": "resnet50",
    "PLAN": "plan.json",
    "M": "nnp-i",
}
"""What takes the place of a large model, or of a name that stands for any."""


def shown(page: Path) -> list[str]:
    """The commands of a page, in its order, without what comments say."""
    found = re.findall(
        r"^(?:    |\$ |)loadmaster (.*)$|`loadmaster ([^`\n]*)`", page.read_text(encoding="utf-8"), re.M
    )
    lines = [(block or inline).partition("  #")[0].partition(" # ")[0].strip() for block, inline in found]
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("-")))


@cache
def options_of(command: str) -> frozenset[str]:
    """The options that a command takes."""
    group = typer.main.get_command(app)
    made = group.get_command(None, command)  # type: ignore[attr-defined]
    own = {word for param in made.params for word in (*param.opts, *param.secondary_opts)}
    return frozenset(own | {"--json", "--quiet", "--help"})


def words_of(line: str) -> list[str]:
    return shlex.split(line.partition(" && ")[0].partition(" > ")[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_options_solvers_and_machines_exist(page: Path) -> None:
    for line in shown(page):
        words = words_of(line)
        assert words[0] in COMMANDS, line
        wrong = {word.partition("=")[0] for word in words if word.startswith("--")} - options_of(words[0])
        assert not wrong, (line, wrong)
        for option, value in itertools.pairwise(words):
            if value in PLACEHOLDERS:
                continue
            if option == "--solver":
                assert kinds_with(value), line
            if option == "--machine" and not value.endswith(".toml"):
                load_machine(value)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (page.parent / target).exists()]


CHIP = """
name = "chip"
[[memory]]
name = "sram"
capacity = "96KiB"
bandwidth = "16GB/s"
[[memory]]
name = "dram"
capacity = "64MiB"
bandwidth = "1GB/s"
[[device]]
name = "npu"
memories = ["sram", "dram"]
matrix = "100Gflop/s"
vector = "10Gflop/s"
"""


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what readers bring: models, machines, buffers, a plan and two runs."""
    onnx = pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("brought")
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for name in ("squeezenet", "resnet50", "densenet121"):
        shutil.copy(light / f"light_{name}.onnx", folder)
    for name in ("model.onnx", "squeezenet.onnx"):
        shutil.copy(light / "light_squeezenet.onnx", folder / name)
    (folder / "model.tflite").write_bytes(branchy(3, 20))
    for name in ("chip.toml", "mychip.toml"):
        (folder / name).write_text(CHIP)
    rng = np.random.default_rng(0)
    rows = ["id,lower,upper,size"]
    for i, start in enumerate(rng.integers(0, 20, 30)):
        rows.append(f"b{i},{start},{start + rng.integers(1, 9)},{rng.integers(1, 40)}")
    (folder / "buffers.csv").write_text("\n".join([*rows, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "runs").mkdir()
        solving = "--budget 4 --exact-seconds 0 --overwrite --run made"
        for name, solver, out in (("B", "heuristic", "b.json"), ("A", "density", "plan.json")):
            run(f"plan resnet50 --machine nnp-i --solver {solver} --out {out} {solving}".split())
            (made,) = (folder / "made").iterdir()
            made.rename(folder / "runs" / name)
        run(f"plan model.onnx --machine nnp-i --solver density --out onnx.json {solving}".split())
    return folder


def run(words: list[str], codes: tuple[int, ...] = (0,)) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in codes, (words, result.output)


def prepared(line: str) -> list[str]:
    """The words to run in a folder like `brought`: stand-ins for large models, few evaluations."""
    words = words_of(line)
    if "model.onnx" in words:
        words = ["onnx.json" if word == "PLAN" else word for word in words]
    words = [SMALL.get(word, word) for word in words]
    words = [word for old in words for word in (["runs/A", "runs/B"] if old == "runs/*" else [old])]
    if "--resume" in words:
        words[1], words[words.index("--resume") + 1] = "resnet50", "runs/A"
    newest = max(Path("runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    words = [f"{newest}/best.json" if word == "runs/…/best.json" else word for word in words]
    words = [re.sub(r"^runs/(…|RUN)$", "runs/A", word) for word in words]
    if words[0] in ("plan", "allocate") and "--fits" not in words:
        for option in ("--budget", "--time-limit", "--exact-seconds"):
            if option in words:
                del words[words.index(option) : words.index(option) + 2]
        words += ["--budget", "8"]
        words += ["--exact-seconds", "0"] if words[0] == "plan" and "--resume" not in words else []
    if "--overwrite" in options_of(words[0]):
        words.append("--overwrite")
    return words


def runs_here(line: str) -> bool:
    """Whether a command can be run by this test."""
    words = words_of(line)
    named = any(word in ELSEWHERE or word.startswith("ray:") for word in words)
    template = len(words) < 2 or words[1].startswith("--") or {"NAME", "DIR", "OUT", "…"} & set(words)
    return not named and not template and not LEARNED & set(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_they_run(page: Path, brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(brought, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for line in filter(runs_here, shown(page)):
        # --fits answers by its exit code: 1 is a proven no.
        run(prepared(line), codes=(0, 1) if "--fits" in line else (0,))


def test_the_library_of_the_readme_runs(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(brought, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert Path("plan.json").is_file() and Path("report.html").is_file()
