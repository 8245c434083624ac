"""Evaluations by workers in other processes: the same run as without, and a death costs nothing else."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from generate_game import random_game
from generate_graph import random_graph
from generate_mapping import layers, random_mapping, random_maps, three_memories
from generate_order import random_straight
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.arrays import Message
from loadmaster.cli.main import app
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.order.problem import PeakOrder
from loadmaster.runs import run_solver
from loadmaster.runs.workers import distribute, search_islands
from loadmaster.runs.workers.clients import ProcessWorker
from loadmaster.runs.workers.server import VERSION, Server, pack, pack_problem, search_island, unpack
from loadmaster.search.champion import remeasure
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.problem import Scores
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution

MODULE = "loadmaster.runs.workers.distributed"
PROGRAM, MACHINE = layers(6), three_memories()


class HereWorker:
    """A server in this process: everything but the process."""

    def __init__(self, setup: bytes) -> None:
        self.server = Server(setup)

    def call(self, request: bytes) -> bytes:
        return self.server.answer(request)

    def close(self) -> None: ...


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.ProcessWorker", HereWorker)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[ProcessWorker]:
    """Those that are started."""
    started: list[ProcessWorker] = []

    class Watched(ProcessWorker):
        def __init__(self, setup: bytes) -> None:
            super().__init__(setup)
            started.append(self)

    monkeypatch.setattr(f"{MODULE}.ProcessWorker", Watched)
    return started


def assert_same(ours: Scores, theirs: Scores) -> None:
    assert np.array_equal(ours.value, theirs.value) and np.array_equal(ours.reward, theirs.reward)
    assert ours.value.dtype == theirs.value.dtype and (ours.failed is None) == (theirs.failed is None)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("seed", range(6))
def test_scores_are_those_of_the_problem_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    noisy = Mapping(*random_mapping(rng), noise=0.1, noise_seed=seed)
    game = MallocGame(*random_game(rng))
    graph = GraphOptimization(*random_graph(rng))
    order = PeakOrder(random_straight(rng, 12))
    asked: list[tuple[Any, Any]] = [
        (noisy, random_maps(rng, noisy, 11)),
        (game, rng.integers(0, 3, (7, game.moves)).astype(np.int8)),
        (graph, np.stack([graph.vector() for _ in range(5)])),
        (order, order.from_keys(rng.random((9, order.nodes)))),
    ]
    for problem, decisions in asked:
        with distribute(problem, f"local:{int(rng.integers(1, 4))}") as work:
            assert work.score is not None
            for rows in (decisions, decisions[:1], decisions[:0]):
                assert_same(work.score(rows, 17), problem.score(rows, 17))


def test_a_run_is_the_same_and_survives_a_kill(processes: list[ProcessWorker]) -> None:
    def solved(score: Any = None) -> Solution:
        problem = Mapping(PROGRAM, MACHINE, noise=0.05, noise_seed=3)
        solver = make_labelled("mapping", "random")
        return run_solver(solver, problem, Budget(400), seed=5, score=score)

    alone = solved()
    with distribute(Mapping(PROGRAM, MACHINE, noise=0.05, noise_seed=3), "local:2") as work:
        score, batches = work.score, 0
        assert score is not None and len(processes) == 2

        def scored(decisions: Any, first: int) -> Scores:
            nonlocal batches
            batches += 1
            if batches in (2, 5):
                os.kill(processes[batches % 2].process.pid, signal.SIGKILL)
            return score(decisions, first)

        together = solved(scored)
        assert work.pool.lost >= 1 and len(processes) > 2 and batches == 7
    assert together.value == alone.value and together.evaluations == alone.evaluations == 400
    assert np.array_equal(np.asarray(together.decision), np.asarray(alone.decision))
    assert all(worker.process.poll() is not None for worker in processes)  # none is left


@pytest.mark.parametrize("solver", ["random", "annealing"])
def test_islands_are_the_same_wherever_they_run(
    solver: str, processes: list[ProcessWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Mapping(PROGRAM, MACHINE)
    here = search_islands(problem, solver, 30, islands=5, seed=7)
    assert len({island.seed for island in here}) == 5 and all(island.evaluations == 30 for island in here)
    assert len({island.value for island in here}) > 1, "each searches by itself"
    first_three = search_islands(problem, solver, 30, islands=3, seed=7)
    assert [island.seed for island in first_three] == [island.seed for island in here[:3]]

    call, searches = ProcessWorker.call, 0

    def killed_once(self: ProcessWorker, request: bytes) -> bytes:
        nonlocal searches
        searches += unpack(request).about.get("do") == "search"
        if searches == 1:
            os.kill(self.process.pid, signal.SIGKILL)
        return call(self, request)

    monkeypatch.setattr(ProcessWorker, "call", killed_once)
    there = search_islands(problem, solver, 30, islands=5, seed=7, workers="local:2")
    assert -signal.SIGKILL in [worker.process.poll() for worker in processes]
    assert searches > 5, "another worker has done what the dead one had"
    for ours, theirs in zip(here, there, strict=True):
        assert (ours.seed, ours.value, ours.evaluations) == (theirs.seed, theirs.value, theirs.evaluations)
        assert np.array_equal(np.asarray(ours.decision), np.asarray(theirs.decision))


def test_an_island_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Mapping(PROGRAM, MACHINE)
    true = search_island(problem, {"solver": "random", "options": {}, "evaluations": 5, "seed": 1})
    better = Message({**true.about, "value": true.about["value"] - 1}, true.arrays)
    monkeypatch.setattr(f"{MODULE}.search_island", lambda *_: better)
    with pytest.raises(LoadmasterError, match="says that its plan has"):
        search_islands(problem, "random", 5, islands=1)
    nothing = Message({"value": None, "evaluations": 5}, {})
    monkeypatch.setattr(f"{MODULE}.search_island", lambda *_: nothing)
    assert search_islands(problem, "random", 5, islands=1)[0].decision is None


def command(folder: Path, text: str) -> CommandEvaluator:
    script = folder / "measure.py"
    script.write_text(
        "import json, os, signal, sys, time\nplan = json.load(sys.stdin)\n"
        f"slow = sum(row['memory'] == {MACHINE.memories[-1].name!r} for row in plan['residencies'])\n"
        "fast = len(plan['residencies']) - slow\n" + text
    )
    return CommandEvaluator(shlex.join([sys.executable, "-S", str(script)]), timeout_s=20.0)


def measured(evaluator: CommandEvaluator, **options: Any) -> MeasuredMapping:
    return MeasuredMapping(PROGRAM, MACHINE, evaluator, repeats=1, warmups=0, **options)


def test_measurements_are_shared_out(tmp_path: Path, processes: list[ProcessWorker]) -> None:
    evaluator = command(tmp_path, "print(1e-3 * (1 + slow))")
    maps = np.random.default_rng(1).integers(0, 3, (6, 2 * Mapping(PROGRAM, MACHINE).nodes))
    alone = measured(evaluator)
    expected = alone.score(maps.astype(np.int8))
    problem = measured(evaluator)
    own = problem.gauge
    with distribute(problem, "local:2") as work:
        assert work.score is None
        os.kill(processes[0].process.pid, signal.SIGKILL)
        assert_same(problem.score(maps.astype(np.int8)), expected)
        assert work.pool.lost == 1 and len(problem.baselines[0]) == 2
        best = maps[int(np.argmin(np.where(expected.value < 0, 2**62, expected.value)))]
        problem.recall(best.astype(np.int8), int(expected.value.max()))
        champion = remeasure(problem, times=2)
    assert champion.winner.samples_ps[0] == alone.evaluate(best.astype(np.int8))
    assert problem.gauge is own and problem.failures == 0


def test_failures_cost_evaluations_and_not_the_run(tmp_path: Path) -> None:
    problem = measured(command(tmp_path, "assert fast\nprint(1 + slow)"))
    good, bad = problem.compiler, problem.all_slowest()
    with distribute(problem, "local:2"):
        scores = problem.score(np.stack([good, bad, good, bad]))
    assert scores.failed is not None and scores.failed.tolist() == [False, True, False, True]
    assert scores.reward[1] == -1 and scores.reward[0] > 0 and problem.failures == 2
    notes = [note.message for note in problem.take_notes() if note.message]
    assert len(notes) == 2 and "AssertionError" in notes[0]


def test_a_measurement_that_kills_its_worker_is_a_failure(tmp_path: Path) -> None:
    text = "if not fast: os.kill(os.getppid(), signal.SIGKILL)\nprint(1 + slow)"
    problem = measured(command(tmp_path, text))
    good, bad = problem.compiler, problem.all_slowest()
    with distribute(problem, "local:2") as work:
        scores = problem.score(np.stack([good, bad, good]))
        assert work.pool.lost == 3
    assert scores.failed is not None and scores.failed.tolist() == [False, True, False]


def test_what_can_not_be_shared() -> None:
    with (
        pytest.raises(LoadmasterError, match="no command"),
        distribute(MeasuredMapping(PROGRAM, MACHINE, lambda plan: 1.0), "local:1"),
    ):
        pass
    allocation: Any = Allocation(Buffers.of([0], [2], [8]))
    with pytest.raises(LoadmasterError, match="not evaluated in batches"), distribute(allocation, "local:1"):
        pass


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    about, files = unpack(pack_problem(Mapping(PROGRAM, MACHINE)))
    assert about["version"] == VERSION
    with pytest.raises(LoadmasterError, match="install the same"):
        Server(pack({**about, "version": "0.0.1"}, files))
    with pytest.raises(LoadmasterError, match=r"could not begin: this worker has Loadmaster"):
        ProcessWorker(pack({**about, "version": "0.0.1"}, files))


def test_a_worker_tells_what_it_could_not_do() -> None:
    server = Server(pack_problem(Mapping(PROGRAM, MACHINE)))
    wrong = pack({"do": "score", "first": 0}, {"decisions": np.zeros((1, 3), np.int8)})
    assert "ValueError: maps must be" in unpack(server.answer(wrong)).about["error"]
    assert "error" in unpack(server.answer(b"nonsense")).about


def plan(*words: str) -> Any:
    return CliRunner().invoke(app, ["plan", "bert:layers=1", "-m", "nnp-i", "--no-run", "--json", *words])


@pytest.mark.usefixtures("here")
def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "--solver",
        "search",
        "--set",
        "method=random",
        "--budget",
        "200",
        "--exact-seconds",
        "0",
        "--seed",
        "4",
    )
    ours, theirs = plan(*words, "--workers", "local:2"), plan(*words)
    assert ours.exit_code == theirs.exit_code == 0, ours.output
    assert "workers: 2 of 2" in ours.stderr and "requests answered" in ours.stderr

    def values(result: Any) -> list[Any]:
        return [(row["name"], row.get("picoseconds")) for row in json.loads(result.stdout)["rows"]]

    assert values(ours) == values(theirs)
    wrong = plan(*words, "--workers", "elsewhere")
    assert wrong.exit_code == 2 and "ray://HOST:PORT" in wrong.stderr
    monkeypatch.setitem(sys.modules, "ray", None)
    missing = plan(*words, "--workers", "ray:2")
    assert missing.exit_code == 3 and "loadmaster[ray]" in missing.stderr
