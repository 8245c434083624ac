"""Run folders and plan files that were written when the fixture was recorded: they still load.

Their files are never written again, not even by `--record`, unless `--files` asks for it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from unchanged import parts, solvers
from unchanged.normal import normal

RUNS = parts.HERE / "recorded" / "runs"
PLANS = parts.HERE / "recorded" / "plans"
BUFFERS = RUNS / "buffers.csv"
MADE_BY = {
    "mapping": "plan bert:layers=1 -m nnp-i --solver search --set method=random --budget 12 --exact-seconds 0",
    "malloc-game": "plan alexnet-inf -m tpu-v4i-16m --solver search --set method=es-moves --budget 70",
    "offload": "plan bert:layers=2 -m h200 --capacity hbm=70% --problem offload --solver search --budget 20",
    "graph": "plan resnet50 -m p100x2 --solver search --budget 60",
    "order": "plan inception-v3 --objective peak-memory --solver search --set method=peak-beam",
    "allocation": "allocate buffers.csv --minimize --solver anneal --budget 40",
}
RESUMED_BY = {
    "mapping": "plan bert:layers=1 --resume {} --budget 24 --exact-seconds 0",
    "malloc-game": "plan alexnet-inf --resume {} --budget 140",
    "offload": "plan bert:layers=2 --resume {} --budget 40",
    "graph": "plan resnet50 --resume {} --budget 120",
    "allocation": "allocate buffers.csv --resume {} --budget 80",
}
"""An order by beam has nothing to go on with."""
PLANNED = {
    "resnet50@nnp-i": ("mapping", "resnet50@nnp-i", "density"),
    "alexnet-train@tpu-v4i-16m": ("malloc-game", "alexnet-train@tpu-v4i-16m", "msa"),
    "resnet50@p100x4": ("graph", "resnet50@p100x4", "heft"),
}


def record_files() -> None:
    """Make the runs and the plans anew."""
    shutil.rmtree(RUNS, ignore_errors=True)
    shutil.rmtree(PLANS, ignore_errors=True)
    RUNS.mkdir(parents=True)
    PLANS.mkdir(parents=True)
    BUFFERS.write_text(_some_buffers())
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        shutil.copy(BUFFERS, "buffers.csv")
        for kind, line in MADE_BY.items():
            code, printed = parts.run_command(*line.split(), "--run", kind, "--json")
            assert code == 0, printed
            (made,) = Path(kind).iterdir()
            shutil.copytree(made, RUNS / kind)
    for name, (kind, instance, solver) in PLANNED.items():
        problem = solvers.LARGE[kind, instance]()
        found = parts.run_solver(problem, kind, solver, {}, 1000, 0)
        (PLANS / f"{_file_name(name)}.json").write_text(
            json.dumps(parts.plan_document(problem, found.decision))
        )


def _some_buffers() -> str:
    rows = ((i * 7 % 40, 3 + i * 5 % 11, 1 + i * 13 % 37) for i in range(30))
    return "id,lower,upper,size\n" + "".join(
        f"b{i},{start},{start + length},{size}\n" for i, (start, length, size) in enumerate(rows)
    )


def _file_name(name: str) -> str:
    return name.replace(":", "-").replace("=", "-")


def names() -> list[str]:
    """run/kind/command, and plan/model@machine"""
    found = [f"run/{kind}/{what}" for kind in MADE_BY for what in ("runs", "replay", "report", "compare")]
    return [*found, *(f"run/{kind}/resume" for kind in RESUMED_BY), *(f"plan/{name}" for name in PLANNED)]


def compute(entry: str) -> dict[str, Any]:
    """What is said of an old run or an old plan."""
    what, _, rest = entry.partition("/")
    if what == "plan":
        return _plan(rest)
    kind, command = rest.split("/")
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        shutil.copy(BUFFERS, "buffers.csv")
        for name in ("old", kind):
            shutil.copytree(RUNS / kind, name)
            Path(name, "checkpoints").mkdir(exist_ok=True)  # git keeps no empty folders
        lines = {
            "runs": "runs old",
            "replay": "replay old",
            "report": "report old --out report.html",
            "compare": f"compare {kind} old/best.json",
            "resume": RESUMED_BY.get(kind, "").format("old"),
        }
        code, printed = parts.run_command(*lines[command].split(), "--json")
        document = normal(json.loads(printed), str(RUNS))
    assert code == document["exit"]
    for row in document["rows"] if isinstance(document["rows"], list) else []:
        if row.get("what") == "report":
            row.pop("bytes")
    if command == "compare":
        document = {"ok": document["ok"], "exit": code, "rows": document["rows"]}
    return dict(document)


def _plan(name: str) -> dict[str, Any]:
    model, _, machine_name = name.partition("@")
    program, machine = parts.load_model(model), parts.load_machine(machine_name)
    plan = parts.load_plan(PLANS / f"{_file_name(name)}.json", program, machine)
    timeline = parts.simulate(program, machine, plan)
    return {
        "hash": plan.hash,
        "violations": len(parts.check(program, machine, plan)),
        "picoseconds": int(timeline.total_ps),
        "peaks": [int(peak) for peak in timeline.memory_peak],
    }
