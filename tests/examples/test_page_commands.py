"""Every command that the README or a page of docs/ shows: its words exist, and it runs.

Models that a reader would bring are stand-ins made here, large workloads are cut to a few ops, and
budgets to a few evaluations. Measurements are a script's, and PyTorch's programs are brought as it would have
traced them. What needs a GPU, PyTorch itself, a cluster or minutes of training is only held to its words; the
tests of those parts run it.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cost_files import write_costs
from generate_tflite import branchy
from loadmaster import __version__
from loadmaster.cli.main import COMMANDS, app
from loadmaster.machine import load_machine
from loadmaster.machine.presets import preset_names, standalone_text
from loadmaster.plan import load_plan
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.storage import load, save
from loadmaster.program.zoo import MODELS
from loadmaster.search.registry import kinds, kinds_with, solver_names
from offload_stack import stack

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PLACEHOLDERS = {"MODEL", "PLAN", "M", "NAME", "DIR", "OUT", "…"}
ELSEWHERE = {
    "net:build": "PyTorch: tests/execute, tests/program/importers",
    "mymodule:function": "PyTorch: tests/program/importers",
    "--train": "PyTorch: tests/execute",
    "executor:cuda": "a GPU: tests/execute",
    "executorch": "ExecuTorch: tests/export",
    "calibrate": "PyTorch: tests/execute/test_calibration.py",
    "train": "minutes: tests/cli/test_train_*.py",
    "bench": "minutes: tests/benchmarks",
    "--room": "minutes: tests/export/test_figures.py",
}
"""A word of a command -> what it needs, and where that is tested. Ray's clusters: tests/runs/test_workers_ray.py."""
LEARNED = {"profile=paper", "muzero", "go"}
"""Solvers that are compiled for half a minute: the tests of the agents run them."""
SMALL = {
    "bert": "bert:layers=1",
    "bert-base": "alexnet-inf",
    "gnmt-4": "gnmt-2:steps=2",
    "rnnlm-4": "rnnlm-2:steps=3",
    "txl-8": "txl-2:segments=1",
    "p100x8": "p100x4",
    "llama:layers=1,batch=1,tokens=512": "bert:layers=1",
    "resnet101": "resnet50",
    "rock_paper_scissors.tflite": "model.tflite",
    "keyword_spotting.tflite": "model.tflite",
    "light_shufflenet.onnx": "model.onnx",
    "MODEL": "resnet50",
    "PLAN": "plan.json",
    "M": "nnp-i",
    "conv2d=ocram": "conv3=ocram",
    "conv2d_1=tcm@4096": "conv6=tcm@4096",
}
"""What takes the place of a large model, or of a name that stands for any."""
TRACED = {"net:build": "net.npz", "gpt:build": "net.npz"}
"""For plans, a program as it is after PyTorch has traced it."""
MODULE = """
import jax.numpy as jnp

def function(x):
    return jnp.tanh(x @ x.T)
"""
HLO = """HloModule tiny, is_scheduled=true

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,2]{1,0} parameter(1)
  ROOT %y = f32[4,2]{1,0} dot(f32[4,8]{1,0} %x, f32[8,2]{1,0} %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""


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


LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "reproduce" / "README.md",
    *sorted((ROOT / "benchmarks" / "results").glob("*.md")),
]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    for target, part in targets:
        if "://" not in target:
            assert (page.parent / target).exists(), target
            assert not part or part in anchors(page.parent / target if target else page), (target, part)


def anchors(page: Path) -> set[str]:
    """What a link may have after its '#': the headings, as viewers of Markdown spell them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_tables_of_files_name_files(page: Path) -> None:
    """A table whose head says `file in `FOLDER`` lists files of that folder."""
    text = page.read_text(encoding="utf-8")
    for folder, rows in re.findall(r"^\| file in `([^`]+)` .*\n\| --- .*\n((?:\|.*\n)+)", text, re.M):
        for row in rows.splitlines():
            for name in re.findall(r"`(\w+\.py)`", row.split("|")[1]):
                assert (ROOT / folder / name).is_file(), (page.name, name)


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
        _bring_measured(folder)
    return folder


def _bring_measured(folder: Path) -> None:
    """What hardware, PyTorch and other tools would have made."""
    (folder / "measure.sh").write_text("#!/bin/sh\ncat > /dev/null\necho 0.001\n")
    (folder / "measure.sh").chmod(0o755)
    (folder / "traced.py").write_text(MODULE)
    (folder / "module.after_optimizations.txt").write_text(HLO)
    nodes = [
        {"id": number, "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 1.0, "size": 100.0}
        | {"isBackwardNode": False, "colorClass": number}
        for number in range(4)
    ]
    edges = [{"sourceId": number, "destId": number + 1, "cost": 0.5} for number in range(3)]
    limits = {"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 2}
    (folder / "graph.json").write_text(json.dumps({**limits, "nodes": nodes, "edges": edges}))
    program = stack(layers=4)
    save(program, folder / "net.npz")
    times = (10**9,) * program.n_ops
    write_costs(MeasuredCosts(costless_hash(program), "gpu", times, 0, 0, ()), folder / "net.json")
    (folder / "mine.toml").write_text(standalone_text(load_machine("h200")))
    run(["plan", "net.npz", "--machine", "mine.toml", "--out", "traced.json", "--budget", "4", "--no-run"])


def _measure(words: list[str]) -> None:
    """Write what `loadmaster run --json` would print of the plan that a command reads."""
    run = Path(words[1])
    files = [run / "best.json", run / "program.npz", run / "machine.toml"]
    if not run.is_dir():
        files = [Path(words[2]), run, Path(words[words.index("--machine") + 1])]
    plan = load_plan(files[0], load(files[1]), load_machine(str(files[2])))
    total = {"what": "total", "plan": plan.hash, "device": "cuda", "seconds": 0.5}
    Path(words[words.index("--measured") + 1]).write_text(json.dumps({"rows": [total]}))


def run(words: list[str], codes: tuple[int, ...] = (0,)) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code in codes, (words, result.output)


def stand_ins(line: str) -> list[str]:
    """The words of a command, with what was brought in place of what needs PyTorch."""
    words = words_of(line)
    if words[0] == "plan" and "executorch" not in words:
        words = [TRACED.get(word, word) for word in words]
    if words[0] == "report" and "net.npz" in words:
        words = ["traced.json" if word == "plan.json" else word for word in words]
    if "--arg" in words:
        words = ["traced:function" if word == "mymodule:function" else word for word in words]
    return words


def prepared(line: str) -> list[str]:
    """The words to run in a folder like `brought`: stand-ins for large models, few evaluations."""
    words = stand_ins(line)
    if "model.onnx" in words:
        words = ["onnx.json" if word == "PLAN" else word for word in words]
    words = [SMALL.get(word, word) for word in words]
    words = [word for old in words for word in (["runs/A", "runs/B"] if old == "runs/*" else [old])]
    if "--resume" in words:
        words[1], words[words.index("--resume") + 1] = "resnet50", "runs/A"
    newest = max(Path("runs").iterdir(), key=lambda run: run.stat().st_mtime_ns)
    words = [re.sub(r"^runs/(…|RUN)/(?=best|machine)", f"{newest}/", word) for word in words]
    words = [re.sub(r"^runs/(…|RUN)$", "runs/A", word) for word in words]
    if "--measured" in words:
        _measure(words)
    if words[0] in ("plan", "resume", "allocate") and "--fits" not in words:
        for option in ("--budget", "--time-limit", "--exact-seconds"):
            if option in words:
                del words[words.index(option) : words.index(option) + 2]
        words += ["--budget", "8"]
        words += ["--exact-seconds", "0"] if words[0] == "plan" and "--resume" not in words else []
    if "--overwrite" in options_of(words[0]):
        words.append("--overwrite")
    if words[0] == "watch":  # else it serves until somebody ends it
        words.append("--once")
    return words


def runs_here(line: str) -> bool:
    """Whether a command can be run by this test."""
    words = stand_ins(line)
    named = any(word in ELSEWHERE or word.startswith("ray:") for word in words)
    template = len(words) < 2 or words[1].startswith("--") or {"NAME", "DIR", "OUT", "…"} & set(words)
    named |= "tflm" in words and find_spec("tflite_micro") is None  # a package for few systems
    learned = LEARNED & set(words) and words[0] != "solvers" and "mode=zero-shot" not in words
    return not named and not template and not learned


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_they_run(page: Path, brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(brought, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for line in filter(runs_here, shown(page)):
        # --fits answers by its exit code: 1 is a proven no.
        run(prepared(line), codes=(0, 1) if "--fits" in line or " fits " in line else (0,))


def test_the_library_of_the_readme_runs(
    brought: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(brought, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    exec(compile(code, "README.md", "exec"), {})
    assert Path("plan.json").is_file() and Path("report.html").is_file()


def test_the_readme_takes_a_minute() -> None:
    text = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S)
    words = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|[|*#-]", " ", text).split()
    assert len(words) < 330, len(words)


def test_changelog_and_citation_say_what_there_is() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"{len(MODELS)} workloads; {len(preset_names())} machines" in changes
    assert f"{sum(len(solver_names(kind)) for kind in kinds())} solvers" in changes
    assert f"## {__version__}" in changes
    assert f"version: {__version__} " in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
