"""Vectors evaluated one after another, each from the one before, against full runs."""

from __future__ import annotations

import numpy as np
import pytest

from generate import Rng, chance, pick, whole
from generate_graph import random_graph, random_keys, roomy
from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.graph import TASKS, GraphOptimization

CASES = 400
Proposal = list[tuple[int, int, float]]
"""(index, source or -1, value) of each change."""


def _problem(seed: int) -> tuple[Rng, GraphOptimization] | None:
    rng = np.random.default_rng(seed)
    program, machine = random_graph(rng, 60)
    tasks = [task for task in TASKS if chance(rng, 0.75)] or ["placement"]
    try:
        problem = GraphOptimization(
            program,
            roomy(machine) if chance(rng, 0.3) else machine,
            tasks=tasks,
            groups=pick(rng, ("op", "auto")),
            tie=pick(rng, ("fifo", "critical_path")),
        )
    except LoadmasterError:
        return None
    return (rng, problem) if problem.width else None


def _vector(rng: Rng, problem: GraphOptimization) -> np.ndarray:
    return problem.vector(
        random_keys(rng, problem.nodes),
        rng.integers(0, problem.devices, problem.groups),
        random_keys(rng, problem.nodes),
    )


def _proposal(rng: Rng, problem: GraphOptimization) -> Proposal:
    """A few changes within one part, or anywhere."""
    parts = [problem.part(name) for name in ("fusion", "device", "schedule")]
    parts = [part for part in parts if part.stop > part.start]
    changes: Proposal = []
    for _ in range(pick(rng, (1, 1, 2, 4))):
        part = pick(rng, parts)
        index = whole(rng, part.start, part.stop - 1)
        device = part == problem.part("device")
        value = float(rng.integers(0, problem.devices)) if device else rng.random()
        source = whole(rng, part.start, part.stop - 1) if chance(rng, 0.2) else -1
        if source >= 0:  # what stands there, and for keys a little more or less
            shift = float(rng.uniform(-0.5, 0.5))
            value = (value if device else shift) if chance(rng, 0.5) else 0.0
        changes.append((index, source, value))
    return changes


def _run(climb: _core.GraphClimb, proposals: list[Proposal], slack: list[float]):
    rows = np.cumsum([0, *(len(row) for row in proposals)])
    flat = [change for row in proposals for change in row]
    index, source, value = (np.array(column) for column in zip(*flat, strict=True))
    return climb.run(rows, index, source, value.astype(np.float64), np.array(slack))


@pytest.mark.parametrize("block", range(8))
def test_proposals_are_timed_as_in_full(block: int) -> None:
    runs = full = 0
    for seed in range(block * CASES // 8, (block + 1) * CASES // 8):
        made = _problem(seed)
        if made is None:
            continue
        rng, problem = made
        climb, vector = problem.climb(), _vector(rng, problem)
        total, over, fault = climb.start(vector)
        expected = problem.measure(vector[None], 1)
        assert (fault[0, 0] != 0) == (expected[2][0, 0] != 0), seed
        if not fault[0, 0]:
            assert total[0] == expected[0][0] and np.array_equal(over, expected[1]), seed
        for _ in range(3):
            proposals = [_proposal(rng, problem) for _ in range(6)]
            slack = [np.inf if chance(rng, 0.4) else -np.inf for _ in proposals]
            (total, over, fault), accepted = _run(climb, proposals, slack)
            for row in range(len(proposals)):
                there = climb.vector(row)
                expected = problem.measure(there[None], 1)
                assert (fault[row, 0] != 0) == (expected[2][0, 0] != 0), (seed, row)
                if fault[row, 0]:
                    assert not accepted[row]
                    continue
                assert accepted[row] == (slack[row] > 0)
                assert total[row] == expected[0][0], (seed, row)
                assert np.array_equal(over[row], expected[1][0]), (seed, row)
                if accepted[row]:
                    vector = there
            assert np.array_equal(climb.vector(), vector)
        runs, full = runs + climb.counts()[0], full + climb.counts()[1]
    assert runs > full > 0


def test_wrong_changes_are_refused() -> None:
    _, problem = next(made for seed in range(50) if (made := _problem(seed)) and made[1].tasks == TASKS)
    climb = problem.climb()
    climb.start(problem.vector())
    device = problem.part("device").start
    for change in (
        (problem.width, -1, 0.0),
        (device, -1, 99.0),
        (device, 0, 0.0),
        (device, device, 99.0),
        (-1, -1, 0.0),
    ):
        with pytest.raises(ValueError, match=r"there is no such"):
            _run(climb, [[change]], [0.0])
