"""The cells of the malloc suite: which program on which machine, and which solvers play it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.suites.mapping_cells import load_cell_model
from benchmarks.suites.problems import make_as
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.zoo.synthetic import COUNT, synthetic

BUDGET = 4_000
ONE_PLAN = (
    "all-slow",
    "greedy-order",
    "greedy-density",
    "msa",
    "msa-production",
    "msa-refined",
    "production",
)
"""They make one plan (the refined one in up to five passes) and need no seed."""
SEARCHES = ("msa-order", "msa-order-2023", "es-moves", "anneal-moves", "climb", "random-best", "rounded")
ONCE = (*ONE_PLAN, "rounded", "cp-sat")
"""Run with the first seed alone: nothing in them is left to chance, or a linear program takes most of
their time."""
WARM = ("es-moves-from-msa", "anneal-moves-from-msa")
"""Searches that begin with MSA's moves: labelled, and never called 'from scratch'."""
EXACT = ("cp-sat",)
PROGRAMS = (
    "alexnet-inf",
    "alexnet-train",
    "resnet50-inf",
    "resnet50-train",
    "bert-base",
    "transformer-6",
    "transformer-2-train",
    "gpt-prefill",
    "gpt-decode",
    "wavenet",
    "alphatensor-net",
    "inception-v3",
    "vit-b16",
    "mixer-b16",
    "diffusion-unet",
    "moe-4",
)
"""Compiled for TPU v4i by the production compiler."""
HELD_OUT = ("gpt-decode", "inception-v3", "diffusion-unet")
"""No learning, tuning or early stopping ever sees them."""
CURVE = ("alexnet-train", "transformer-6", "resnet50-inf")
OTHERS = (
    ("resnet50", "nnp-i-dma"),
    ("bert", "nnp-i-dma"),
    ("llama:layers=1,batch=1,tokens=512", "h200:hbm=64MiB"),
    ("llama:layers=1,batch=1,tokens=512", "h200:hbm=256MiB"),
    ("onnx:light_shufflenet", "imxrt1170"),
    ("onnx:light_squeezenet", "imxrt1170"),
)
"""The same game where another memory is the fast one."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "msa-production": ("msa", {"style": "production"}),
    "msa-refined": ("msa", {"style": "refined"}),
    "msa-order-2023": ("msa-order", {"style": "2023"}),
    "es-moves-from-msa": ("es-moves", {"start": "msa"}),
    "anneal-moves-from-msa": ("anneal-moves", {"start": "msa"}),
}
"""Name in the table -> solver and its options."""


@dataclass(frozen=True)
class GameCell:
    """One game, and who plays it."""

    case: str
    model: str
    machine: str
    solvers: tuple[str, ...] = ONE_PLAN + SEARCHES + WARM
    budget: int = BUDGET
    problem: dict[str, Any] = field(default_factory=dict)

    def load(self) -> MallocGame:
        """The problem."""
        stem, _, number = self.model.partition("-")
        program = synthetic(int(number)) if stem == "synthetic" else load_cell_model(self.model)
        machine = load_machine(self.machine).with_reach("all")
        return make_as(MallocGame, program, machine, options=self.problem)


def _cells() -> list[GameCell]:
    cells = [
        GameCell(f"{name}/{machine}", name, machine)
        for machine in ("tpu-v4i", "tpu-v4i-16m")
        for name in PROGRAMS
    ]
    cells += [
        GameCell(f"{name}/tpu-v4i-{size}", name, f"tpu-v4i-{size}")
        for name in CURVE
        for size in ("64m", "32m", "8m", "4m")
    ]
    cells += [
        GameCell(f"other/{name.partition(':')[2 if name.startswith('onnx') else 0]}/{machine}", name, machine)
        for name, machine in OTHERS
    ]
    small = ONE_PLAN[:-1] + SEARCHES + EXACT
    cells += [
        GameCell(f"synthetic-{i:02d}", f"synthetic-{i}", "tpu-v4i:cmem=1MiB", small, 1_000)
        for i in range(COUNT)
    ]
    return cells


GAMES: dict[str, GameCell] = {cell.case: cell for cell in _cells()}
