"""Good plans for training cases: the best of constructive solvers and annealing, in GO's levels.

They are what a new policy imitates before it learns from rewards. A plan is kept as levels, with the
time that these levels give, so that what is imitated is what was measured.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.npz import read_npz
from loadmaster.problems.graph import UNFIT, GraphOptimization
from loadmaster.solvers.go.actions import Actions, actions_of, vectors_of
from loadmaster.solvers.go.cases import Case
from loadmaster.solvers.go.hints import hinted_devices
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.search.graph_candidates import variants
from loadmaster.solvers.solver import Budget, solve

EVALUATIONS = 3_000
LARGE, LARGE_EVALUATIONS = 20_000, 1_000
"""Above so many nodes, so many evaluations."""


@dataclass(frozen=True)
class Taught:
    """A case's best known plan."""

    actions: Actions
    value: int
    """Its time; from `UNFIT` on: none fits."""
    reference: int
    hinted: npt.NDArray[np.int32]
    seconds: float


def teach(problem: GraphOptimization, evaluations: int | None = None, seed: int = 0) -> Taught:
    """The best of constructive solvers and chains of annealing that no policy steers."""
    started = time.monotonic()
    budget = evaluations or (LARGE_EVALUATIONS if problem.nodes > LARGE else EVALUATIONS)
    solver = make_solver("graph", "go+anneal", {"prior": "seeds", "threads": 1})
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
    return Taught(
        candidates[best],
        int(values[best]),
        problem.reference_ps,
        hinted_devices(problem),
        time.monotonic() - started,
    )


def teach_all(
    cases: Sequence[Case],
    folder: Path,
    processes: int,
    until: float | None = None,
    told: Callable[[str], None] = print,
    evaluations: int | None = None,
) -> None:
    """Teach what is not in `folder` yet, several at a time; stop at `until` (monotonic seconds)."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [case for case in cases if not file_of(folder, case).exists()]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=_modest) as pool:
        for number, line in enumerate(
            pool.imap_unordered(_teach_one, [(case, folder, until, evaluations) for case in missing])
        ):
            if line:
                told(f"{number + 1}/{len(missing)} {line}")


def _modest() -> None:
    """One core each: a case is too small for more."""
    if hasattr(os, "sched_setaffinity"):
        free = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {free[os.getpid() % len(free)]})


def _teach_one(job: tuple[Case, Path, float | None, int | None]) -> str:
    case, folder, until, evaluations = job
    if until is not None and time.monotonic() > until:
        return ""
    taught = teach(case.load(), evaluations)
    save(file_of(folder, case), taught)
    fits = "does not fit" if taught.value >= UNFIT else f"{1 - taught.value / taught.reference:+.1%}"
    return f"{case.name}: {fits} in {taught.seconds:.1f} s"


def file_of(folder: Path, case: Case) -> Path:
    return folder / f"{case.name.replace('/', '_').replace(':', '-')}.npz"


def save(path: Path, taught: Taught) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            fusion=taught.actions.fusion,
            device=taught.actions.device,
            schedule=taught.actions.schedule,
            value=taught.value,
            reference=taught.reference,
            hinted=taught.hinted.astype(np.int8),
            seconds=taught.seconds,
        )


def load(path: Path) -> Taught:
    """A plan of `save`; its levels are checked against the case by whoever uses them."""

    def refuse(reason: str) -> LoadmasterError:
        return LoadmasterError(
            f"'{path}' is no plan to imitate: {reason}",
            object=str(path),
            remedy="remove it: it is made again",
        )

    kept = read_npz(path, refuse)
    vectors, numbers = ("fusion", "device", "schedule", "hinted"), ("value", "reference", "seconds")
    for names, dimensions in ((vectors, 1), (numbers, 0)):
        for name in names:
            if name not in kept or kept[name].ndim != dimensions:
                raise refuse(f"it has no '{name}' of {dimensions} dimensions")
    if not np.isfinite(kept["seconds"]):
        raise refuse(f"it took {kept['seconds']} seconds")
    actions = Actions(kept["fusion"], kept["device"], kept["schedule"])
    hinted = kept["hinted"].astype(np.int32)
    value, reference = int(kept["value"]), int(kept["reference"])
    return Taught(actions, value, reference, hinted, float(kept["seconds"]))
