"""The cells of the mapping suite: which model on which machine, and how the machine misbehaves.

A cell is plain names, so that any of them can be run as `loadmaster plan MODEL --machine MACHINE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.suites.mapping_solvers import EGRL, MAPS, PAPER, PIECES, SCHEDULED, SCORES, WHITE
from benchmarks.suites.mapping_wrong import Misdescribed, misdescribe
from benchmarks.suites.problems import make_as
from loadmaster.errors import require
from loadmaster.machine import Machine, load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Program
from loadmaster.program.models import load_model

BUDGET = 1_000
SEEDS, FEWER = 10, 5
WORKLOADS = ("resnet50", "resnet101", "bert")
MACHINES = ("nnp-i", "nnp-i-half", "nnp-i-12")
NOISES = (0.01, 0.03, 0.1)
WRONG = 0.5
"""Standard deviation of the logarithm by which a description is off."""
TIMED_SECONDS = 1.0

AnyMapping = TypeVar("AnyMapping", bound=Mapping)


@dataclass(frozen=True)
class Cell:
    """One problem, and how it is solved in it."""

    case: str
    model: str
    machine: str
    solvers: tuple[str, ...] = (*EGRL, "probe", *SCORES, *MAPS, *PIECES, *WHITE, *PAPER)
    budget: int | None = BUDGET
    seconds: float | None = None
    """In place of evaluations."""
    solver: dict[str, Any] = field(default_factory=dict)
    """Options of the solver."""
    problem: dict[str, Any] = field(default_factory=dict)
    """Options of `Mapping`."""
    parallel_ports: bool = False
    """With ports side by side instead of one after the other."""
    noise: float = 0.0
    wrong: float = 0.0
    """How far off the description of the machine is; which way, a run's seed says."""

    def load_machine(self) -> Machine:
        # Maps and games let ops work in host memory in place, on a GPU too.
        machine = load_machine(self.machine).with_reach("all")
        if not self.parallel_ports:
            return machine
        rules = replace(machine.rules, ports="parallel")
        return replace(machine, name=f"{machine.name}-parallel", rules=rules, text="")

    def load(self, seed: int = 0) -> Mapping:
        """The problem."""
        return self.load_as(Mapping if not self.wrong else Misdescribed, seed)

    def load_as(self, kind: type[AnyMapping], seed: int = 0) -> AnyMapping:
        """The problem, as a subclass of `Mapping` (of `Misdescribed` where the description is wrong); the
        seed is that of noise and of the description's errors."""
        options = dict(self.problem)
        program, machine = load_cell_model(self.model), self.load_machine()
        if self.wrong:
            options["truth"] = make_as(Mapping, program, machine)
            machine = misdescribe(machine, self.wrong, seed)
        return make_as(kind, program, machine, noise=self.noise, seed=seed, options=options)


def load_cell_model(name: str) -> Program:
    """A model by name; 'onnx:NAME' is one of the real models inside the onnx package."""
    return load_model(str(onnx_file(name)) if name.startswith("onnx:") else name)


def onnx_file(name: str) -> Path:
    """The file of 'onnx:NAME'."""
    package = Path(str(require("onnx", "onnx").__file__)).parent
    return package / "backend/test/data/light" / f"{name.removeprefix('onnx:')}.onnx"


def _nine() -> list[Cell]:
    """The nine cells that the method is judged by."""
    return [Cell(f"{model}/{machine}", model, machine) for machine in MACHINES for model in WORKLOADS]


def _room() -> list[Cell]:
    """Where a compiler leaves something to gain. Chosen by what white-box solvers find there."""
    pairs = (
        ("resnet50-batch4", "resnet50:batch=4", "nnp-i"),
        ("resnet50-batch16", "resnet50:batch=16", "nnp-i"),
        ("resnet50-16bit", "resnet50:element_bytes=2", "nnp-i"),
        ("resnet101-batch4", "resnet101:batch=4", "nnp-i"),
        ("bert-16bit", "bert:element_bytes=2", "nnp-i"),
        ("bert-batch16-16bit", "bert:batch=16,element_bytes=2", "nnp-i"),
        ("bert-512-tokens-batch4", "bert:tokens=512,batch=4", "nnp-i"),
        ("resnet50", "resnet50", "tpu-v4i-16m"),
        ("shufflenet", "onnx:light_shufflenet", "imxrt1170"),
        ("shufflenet", "onnx:light_shufflenet", "ethos-u65"),
        # One training step of a Llama layer with its loss, on a GPU that has to share its memory.
        ("llama-layer", "llama:layers=1,batch=1,tokens=512", "h200:hbm=1GiB"),
    )
    return [Cell(f"room/{name}/{machine}", model, machine) for name, model, machine in pairs]


def _again(prefix: str, cells: list[Cell], **changes: Any) -> list[Cell]:
    return [replace(cell, case=f"{prefix}/{cell.case}", **changes) for cell in cells]


def _timed(cells: list[Cell]) -> list[Cell]:
    """The same with a second instead of evaluations."""
    solvers = (
        "egrl",
        "egrl-strict",
        "probe",
        *SCORES,
        *(label for label in PIECES if label.startswith(("egrl-only-", "egrl-plus-", "egrl-whole"))),
    )
    return _again("seconds", cells, budget=None, seconds=TIMED_SECONDS, solvers=solvers)


def _noisy(cells: list[Cell]) -> list[Cell]:
    """Evaluations with noise: the champion is what wins when the five best are measured again."""
    names = (
        "resnet101/nnp-i",
        "bert/nnp-i",
        "room/resnet50-batch4/nnp-i",
        "room/bert-512-tokens-batch4/nnp-i",
        "room/shufflenet/ethos-u65",
        "room/llama-layer/h200:hbm=1GiB",
    )
    few = [cell for cell in cells if cell.case in names]
    solvers = ("egrl", "egrl-strict", "probe", "density", "compiler")
    return [
        cell
        for noise in NOISES
        for budget in (50, 200)
        for cell in _again(f"noise-{noise:g}-{budget}", few, noise=noise, budget=budget, solvers=solvers)
    ]


def _wrong(cells: list[Cell]) -> list[Cell]:
    """A misdescribed machine, another one for each seed."""
    solvers = ("egrl", "egrl-untrained", "egrl-strict", "probe", "density", "compiler")
    return _again("wrong", cells, wrong=WRONG, budget=200, solvers=solvers)


def _held_out() -> list[Cell]:
    """Beside the twenty: models and machines that no training has seen (`egrl.cases.HELD_OUT_…`); models of
    the training's zoo on machines that it has not seen; and models that it has not seen on machines that it
    knows. All where a greedy rule gains 10 % or more over everything in the slowest memory."""
    long, short = "bert:tokens=384", "bert:tokens=64,batch=2"
    wide, deep = "bert:tokens=256,batch=16,element_bytes=2", "resnet152"
    light = {
        name: f"onnx:light_{name}"
        for name in (
            "densenet121",
            "inception_v1",
            "inception_v2",
            "resnet50",
            "squeezenet",
            "vgg19",
            "zfnet512",
        )
    }
    chosen: dict[str, list[tuple[str, tuple[str, ...]]]] = {
        "both": [
            (deep, ("nnp-i", "tpu-v4i-8m", "tpu-v4i-16m")),
            (long, ("nnp-i",)),
            (short, ("nnp-i", "tpu-v4i-4m", "ethos-u65")),
            (wide, ("nnp-i", "tpu-v4i-16m")),
            (light["densenet121"], ("nnp-i", "tpu-v4i-4m")),
            (light["inception_v1"], ("nnp-i", "tpu-v4i-8m", "ethos-u65")),
            (light["inception_v2"], ("nnp-i-half", "tpu-v4i-4m", "ethos-u65")),
            (light["resnet50"], ("nnp-i", "tpu-v4i-8m")),
            (light["squeezenet"], ("nnp-i-half", "tpu-v4i-4m", "ethos-u65")),
            (light["vgg19"], ("nnp-i",)),
            (light["zfnet512"], ("nnp-i",)),
        ],
        "machine": [
            ("vit-b16", ("nnp-i-half", "tpu-v4i-16m")),
            ("gpt-prefill", ("nnp-i",)),
            ("gpt-decode", ("nnp-i", "tpu-v4i-16m")),
            ("inception-v3", ("nnp-i", "tpu-v4i-16m")),
            ("mixer-b16", ("nnp-i",)),
            ("moe-4", ("nnp-i",)),
            ("diffusion-unet", ("nnp-i", "tpu-v4i-16m")),
            ("wavenet", ("nnp-i", "tpu-v4i-16m")),
        ],
        "model": [
            ("llama:layers=1,batch=1,tokens=256", ("h200:hbm=1GiB",)),
            ("llama:layers=2,batch=1,tokens=128", ("h200:hbm=1GiB",)),
            (deep, ("h200:hbm=16MiB",)),
            (short, ("h200:hbm=64MiB",)),
            (light["densenet121"], ("h200:hbm=8MiB",)),
            (light["resnet50"], ("h200:hbm=16MiB",)),
            (light["inception_v1"], ("h200:hbm=8MiB",)),
            (light["inception_v2"], ("h200:hbm=8MiB",)),
            (light["squeezenet"], ("h200:hbm=2MiB",)),
            (light["vgg19"], ("h200:hbm=64MiB",)),
        ],
    }
    solvers = (*EGRL, "probe", "density", "compiler")
    return [
        Cell(f"held-out-{kind}/{model}/{machine}", model, machine, solvers=solvers, budget=200)
        for kind, pairs in chosen.items()
        for model, machines in pairs
        for machine in machines
    ]


def _loose(cells: list[Cell]) -> list[Cell]:
    """Ports side by side: nobody has proven how good these are, so that their gaps say little."""
    few = [cell for cell in cells if cell.machine == "nnp-i" and not cell.case.startswith("room/")]
    solvers = ("egrl", "egrl-untrained", "probe", "scores-annealing", "density", "compiler")
    return _again("ports-parallel", few, parallel_ports=True, solvers=solvers)


def _fewer(cells: list[Cell]) -> list[Cell]:
    """The same with fewer evaluations from the start, for solvers that share out their budget: what they have
    after 50 evaluations of 1,000 is not what they would have had with 50."""
    return [
        cell
        for budget in (50, 200)
        for known in cells
        if known.budget is not None and budget < known.budget
        for own in [tuple(solver for solver in known.solvers if solver in SCHEDULED)]
        for cell in _again(f"budget-{budget}", [known], budget=budget, solvers=own)
    ]


def _all() -> dict[str, list[Cell]]:
    """By part: what is run with one word."""
    twenty = [*_nine(), *_room()]
    wrong, held_out = _wrong(twenty), _held_out()
    return {
        "main": twenty,
        "seconds": _timed(twenty),
        "noise": _noisy(twenty),
        "wrong": wrong,
        "held-out": held_out,
        "budgets": _fewer([*twenty, *wrong, *held_out]),
        "loose": _loose(twenty),
    }


_PARTS = _all()
CELLS: dict[str, Cell] = {cell.case: cell for cells in _PARTS.values() for cell in cells}
NINE = tuple(cell.case for cell in _nine())
ROOM = tuple(cell.case for cell in _room())
PAPER_CELLS = (
    "resnet50/nnp-i",
    "resnet101/nnp-i",
    "bert/nnp-i",
    "resnet50/nnp-i-half",
    "room/resnet50-batch4/nnp-i",
)

Part = tuple[tuple[str, ...], tuple[str, ...], int]
"""Cases, solvers (none: those of the cell), seeds."""


def _names(part: str) -> tuple[str, ...]:
    return tuple(cell.case for cell in _PARTS[part])


PARTS: dict[str, Part] = {
    "main": (
        _names("main"),
        ("egrl", "egrl-untrained", "probe", *SCORES, *MAPS, "density", "compiler"),
        SEEDS,
    ),
    "strict": (_names("main"), ("egrl-strict", "egrl-strict-untrained"), FEWER),
    "pieces": (_names("main"), PIECES, FEWER),
    "seconds": (_names("seconds"), (), 2),
    "noise": (_names("noise"), (), FEWER),
    "wrong": (_names("wrong"), (), FEWER),
    "held-out": (_names("held-out"), (), 3),
    "budgets": (_names("budgets"), (), 3),
    "loose": (_names("loose"), (), FEWER),
    "white": (_names("main"), ("all-slowest", "role-split", "exact"), 1),
    "paper": (PAPER_CELLS, PAPER, 3),
}
"""What `mapping_runs.py --part` takes; 'white' and 'paper' take longer than all others together."""
