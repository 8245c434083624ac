"""The cells of the mapping suite: which model on which machine, and which switch is turned.

A cell is plain names, so that any of them can be run as `loadmaster plan MODEL --machine MACHINE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.suites.problems import make_as
from loadmaster.errors import require
from loadmaster.machine import Machine, load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Program
from loadmaster.program.models import load_model

BUDGET = 4_000
BLACK = ("egrl", "ea", "pg", "ageing-evolution", "greedy-dp", "random", "annealing")
LEARNERS = ("egrl", "ea", "pg")
"""Solvers with the options of EGRL."""
WHITE = ("all-slowest", "role-split", "compiler", "density", "exact")
WORKLOADS = ("resnet50", "resnet101", "bert")
MACHINES = ("nnp-i", "nnp-i-half", "nnp-i-12")

AnyMapping = TypeVar("AnyMapping", bound=Mapping)


@dataclass(frozen=True)
class Cell:
    """One problem, and how it is solved in it."""

    case: str
    model: str
    machine: str
    solvers: tuple[str, ...] = BLACK + WHITE
    budget: int = BUDGET
    problem: dict[str, Any] = field(default_factory=dict)
    """Options of `Mapping`."""
    solver: dict[str, Any] = field(default_factory=dict)
    """Options of the solver."""
    parallel_ports: bool = False
    """With ports side by side instead of one after the other."""

    def load_machine(self) -> Machine:
        # Maps and games let ops work in host memory in place, on a GPU too.
        machine = load_machine(self.machine).with_reach("all")
        if not self.parallel_ports:
            return machine
        rules = replace(machine.rules, ports="parallel")
        return replace(machine, name=f"{machine.name}-parallel", rules=rules, text="")

    def load(self) -> Mapping:
        """The problem."""
        return self.load_as(Mapping)

    def load_as(self, kind: type[AnyMapping]) -> AnyMapping:
        """The problem, as a subclass of `Mapping`."""
        options = dict(self.problem)
        noise = options.pop("noise", 0.0)  # which requests have
        program = load_cell_model(self.model)
        return make_as(kind, program, self.load_machine(), noise=noise, options=options)


def load_cell_model(name: str) -> Program:
    """A model by name; 'onnx:NAME' is one of the real models inside the onnx package."""
    return load_model(str(onnx_file(name)) if name.startswith("onnx:") else name)


def onnx_file(name: str) -> Path:
    """The file of 'onnx:NAME'."""
    package = Path(str(require("onnx", "onnx").__file__)).parent
    return package / "backend/test/data/light" / f"{name.removeprefix('onnx:')}.onnx"


def _spec() -> list[Cell]:
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


def _ablations() -> list[Cell]:
    """One switch at a time, on ResNet-101 and nnp-i. 'default' is what all stand beside."""
    switches: dict[str, dict[str, Any]] = {
        "default": {},
        "boltzmann-0": {"solver": {"boltzmann": 0.0}},
        "boltzmann-0.5": {"solver": {"boltzmann": 0.5}},
        "boltzmann-0.8": {"solver": {"boltzmann": 0.8}},
        "no-learner": {"solver": {"learner": False}},
        "seeding-posterior": {"solver": {"seeding": "posterior"}},
        "seeding-none": {"solver": {"seeding": "none"}},
        "target-bootstrap": {"solver": {"target": "bootstrap"}},
        "updates-0": {"solver": {"updates": 0.0}},
        "updates-1": {"solver": {"updates": 1.0}},
        "no-screen": {"solver": {"screen": 1}},
        "no-anchor": {"solver": {"anchor": False, "screen": 1}},
        "no-recall": {"solver": {"recall": False}},
        "no-imitation": {"solver": {"imitation": 0.0}},
        "as-published": {"solver": {"anchor": False, "screen": 1, "imitation": 0.0, "updates": 1.0}},
        "depth-0": {"solver": {"depth": 0}},
        "depth-2": {"solver": {"depth": 2}},
        "plain-mean": {"solver": {"attention": False}},
        "reward-linear": {"problem": {"power": 1.0}},
        "invalid-repair": {"problem": {"invalid": "repair"}},
        "ports-parallel": {"parallel_ports": True},
        "noise-0.02": {"problem": {"noise": 0.02}},
        "noise-0.1": {"problem": {"noise": 0.1}},
        "budget-1000": {"budget": 1_000},
        "budget-16000": {"budget": 16_000},
    }
    return [
        Cell(f"ablation/{name}", "resnet101", "nnp-i", solvers=("egrl",), **changes)
        for name, changes in switches.items()
    ]


def _warm() -> list[Cell]:
    """Few evaluations from a policy trained elsewhere, beside starts from nothing."""
    cells = []
    for model, policy in (("resnet50", "bert"), ("resnet101", "bert"), ("bert", "resnet101")):
        common: dict[str, Any] = {"model": model, "machine": "nnp-i", "solvers": ("egrl",)}
        start = {"init": f"pretrained:{policy}"}
        cells.append(Cell(f"warm/{model}/200", budget=200, solver=start, **common))
        cells += [Cell(f"cold/{model}/{budget}", budget=budget, **common) for budget in (200, 2_000)]
    return cells


CELLS: dict[str, Cell] = {cell.case: cell for cell in [*_spec(), *_room(), *_ablations(), *_warm()]}
