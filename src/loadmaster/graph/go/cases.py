"""Which graphs GO is trained on, on which machines, deciding what. Held-out graphs are not here."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import read_npz
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.graph import TASKS, UNFIT, Base, GraphOptimization
from loadmaster.graph.go.actions import Actions, actions_of, vectors_of
from loadmaster.graph.go.graph import hinted_devices
from loadmaster.graph.pipeline import variants
from loadmaster.machine import Machine, load_machine
from loadmaster.program.models import load_model
from loadmaster.program.program import PERSISTENT, Program
from loadmaster.program.zoo import MODELS
from loadmaster.program.zoo.random_graphs import FAMILIES, TRAINING_FAMILIES, synthetic_graph
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate

# Random graphs with a machine that is short of memory: what agents train on.

SHARES = (0.4, 1.2)
"""Of what the whole graph needs on one device, a device holds a share between these."""


def synthetic_case(family: str, seed: int, machine: str | Machine = "p100x4") -> tuple[Program, Machine]:
    """A graph, and the machine with the capacities drawn for it: always the same."""
    program = synthetic_graph(family, seed)
    whole = load_machine(machine) if isinstance(machine, str) else machine
    rng = np.random.default_rng([31_000, list(FAMILIES).index(family), seed])
    peak = int(simulate(program, whole).memory_peak[whole.home[0]])
    drawn = rng.uniform(*SHARES) * peak
    capacity = min(max(drawn, _least(program, len(whole.devices))), SHARES[1] * peak)
    memories = [
        replace(memory, capacity=int(capacity)) if number in whole.home else memory
        for number, memory in enumerate(whole.memories)
    ]
    name = f"{whole.name}:{family}-{seed}"
    return program, replace(whole, name=name, memories=tuple(memories), text="")


def _least(program: Program, devices: int) -> float:
    """Less proves that no plan exists: an even share of what is kept, and the largest op."""
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    used = np.zeros(program.n_ops, dtype=np.int64)
    np.add.at(used, program.read_op, program.tensor_bytes[program.read_tensor])
    np.add.at(used, program.write_op, program.tensor_bytes[program.write_tensor])
    share = int(program.tensor_bytes[kept].sum()) / devices
    return 1.05 * (share + int(used.max(initial=0)))


SPLITS = {
    "train": (
        (
            "rnnlm-2",
            "rnnlm-4",
            "gnmt-2",
            "txl-2",
            "txl-4",
            "inception-b32",
            "wavenet-2x9",
            "vit-l16",
            "llama",
        ),
        0,
    ),
    "validation": (("gnmt-4",), 10_000),
}
"""Workloads, and the first seed of the synthetic families; as in benchmarks/splits/go.toml."""
MACHINES = ("p100x2", "p100x4", "p100x8", "p100nv-x8", "v100nv-x4", "v100nv-x8", "a100-40x4", "h100x8")
PLACED = (("placement",), Base(fusion="none", schedule="fifo"))
JOINT = (TASKS, Base())
ALONE = ((("fusion",), Base()), (("schedule",), Base()))


@dataclass(frozen=True)
class Case:
    """One problem by its name: 'rnnlm-2@p100x4/joint' or 'cells:17@p100x4/placement'."""

    graph: str
    machine: str
    tasks: tuple[str, ...] = TASKS
    base: Base = JOINT[1]

    @property
    def name(self) -> str:
        return f"{self.graph}@{self.machine}/{'joint' if len(self.tasks) == 3 else '+'.join(self.tasks)}"

    def load(self) -> GraphOptimization:
        family, _, seed = self.graph.partition(":")
        if seed:
            program, machine = synthetic_case(family, int(seed), self.machine)
        else:
            program, machine = load_model(self.graph), load_machine(self.machine)
        return GraphOptimization(program, machine, tasks=self.tasks, base=self.base)


def cases_of(split: str, synthetic: int = 60, seed: int = 0) -> list[Case]:
    """Every workload of a split on every machine, placed alone and jointly; on its own machine fused
    and ordered alone too; and so many graphs of each synthetic family, each on one machine."""
    if split not in SPLITS:
        raise LoadmasterError(
            f"there is no split '{split}' to train on", object="split", remedy=f"use {' or '.join(SPLITS)}"
        )
    workloads, first = SPLITS[split]
    found = []
    for graph in workloads:
        own = MODELS[graph].machine
        machines = (own, *(name for name in MACHINES if name != own)) if split == "train" else (own,)
        found += [Case(graph, machine, *what) for machine in machines for what in (JOINT, PLACED)]
        found += [Case(graph, own, *what) for what in ALONE]
    rng = np.random.default_rng([seed, 77])
    for family in TRAINING_FAMILIES:
        for number in range(synthetic):
            what = JOINT if rng.random() < 0.6 else PLACED
            found.append(Case(f"{family}:{first + number}", str(rng.choice(MACHINES)), *what))
    return found


# Good plans for training cases: the best of constructive solvers and annealing, in GO's levels. They are what a new policy imitates before it learns from rewards. A plan is kept as levels, with the
# time that these levels give, so that what is imitated is what was measured.

EVALUATIONS = 3_000
LARGE, LARGE_EVALUATIONS = 20_000, 1_000
"""Above so many nodes, so many evaluations."""


@dataclass(frozen=True)
class KnownPlan:
    """A case's best known plan."""

    actions: Actions
    value: int
    """Its time; from `UNFIT` on: none fits."""
    reference: int
    hinted: npt.NDArray[np.int32]
    seconds: float


def find_plan(problem: GraphOptimization, evaluations: int | None = None, seed: int = 0) -> KnownPlan:
    """The best of constructive solvers and chains of annealing that no policy steers."""
    started = now()
    budget = evaluations or (LARGE_EVALUATIONS if problem.nodes > LARGE else EVALUATIONS)
    solver = make_labelled("graph", "go+anneal", {"prior": "seeds", "threads": 1})
    found = solve(solver, problem, Budget(budget), seed)
    vectors = [problem.vector()]
    if found.decision is not None:
        vectors.append(np.asarray(found.decision))
    vectors += variants(problem, np.stack(vectors))
    candidates = [actions_of(problem, vector) for vector in vectors]
    stacked = Actions(*(np.stack(part) for part in zip(*candidates, strict=True)))
    values = problem.score(vectors_of(problem, stacked), threads=1).value
    values = np.where(values < 0, np.iinfo(np.int64).max, values)
    best = int(values.argmin())
    return KnownPlan(
        candidates[best], int(values[best]), problem.reference_ps, hinted_devices(problem), now() - started
    )


def find_plans(
    cases: Sequence[Case],
    folder: Path,
    processes: int,
    until: float | None = None,
    report: Callable[[str], None] = print,
    evaluations: int | None = None,
) -> dict[Case, KnownPlan]:
    """Find what is not in `folder` yet, several at a time until `until` (as `clock.now` tells it); returns
    the plans that are there then."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [case for case in cases if not file_of(folder, case).exists()]
    jobs = [(case, folder, until, evaluations) for case in missing]
    if jobs:
        with multiprocessing.get_context("spawn").Pool(processes, initializer=_use_one_core) as pool:
            for number, line in enumerate(pool.imap_unordered(_find_one, jobs)):
                if line:
                    report(f"{number + 1}/{len(missing)} {line}")
    return {case: load(path) for case in cases if (path := file_of(folder, case)).exists()}


def _use_one_core() -> None:
    """A case is too small for more."""
    if hasattr(os, "sched_setaffinity"):
        free = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {free[os.getpid() % len(free)]})


def _find_one(job: tuple[Case, Path, float | None, int | None]) -> str:
    case, folder, until, evaluations = job
    if until is not None and now() > until:
        return ""
    plan = find_plan(case.load(), evaluations)
    save(file_of(folder, case), plan)
    fits = "does not fit" if plan.value >= UNFIT else f"{1 - plan.value / plan.reference:+.1%}"
    return f"{case.name}: {fits} in {plan.seconds:.1f} s"


def file_of(folder: Path, case: Case) -> Path:
    """Where the known plan of a case is kept."""
    return folder / f"{case.name.replace('/', '_').replace(':', '-')}.npz"


def save(path: Path, plan: KnownPlan) -> None:
    """Write a known plan, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            fusion=plan.actions.fusion,
            device=plan.actions.device,
            schedule=plan.actions.schedule,
            value=plan.value,
            reference=plan.reference,
            hinted=plan.hinted.astype(np.int8),
            seconds=plan.seconds,
        )


def load(path: Path) -> KnownPlan:
    """A plan of `save`; its levels are checked against the case by whoever uses them."""

    def refuse(reason: str) -> LoadmasterError:
        return LoadmasterError(
            f"'{path}' is no plan to imitate: {reason}",
            object=str(path),
            remedy="remove it: it is made again",
        )

    kept = read_npz(path, refuse)
    dimensions = {
        "fusion": 1,
        "device": 1,
        "schedule": 1,
        "hinted": 2,
        "value": 0,
        "reference": 0,
        "seconds": 0,
    }
    for name, count in dimensions.items():
        if name not in kept or kept[name].ndim != count:
            raise refuse(f"it has no '{name}' of {count} dimensions")
    if not np.isfinite(kept["seconds"]):
        raise refuse(f"it took {kept['seconds']} seconds")
    actions = Actions(kept["fusion"], kept["device"], kept["schedule"])
    hinted = kept["hinted"].astype(np.int32)
    value, reference = int(kept["value"]), int(kept["reference"])
    return KnownPlan(actions, value, reference, hinted, float(kept["seconds"]))
