"""Workers on a Ray cluster of several nodes, one of which is killed during the run."""

from __future__ import annotations

import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generate_mapping import layers, three_memories
from loadmaster.errors import LoadmasterError
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.runs import run_solver
from loadmaster.runs.workers import distribute
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.problem import Scores
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own, in threads of its own
PROGRAM, MACHINE = layers(6), three_memories()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without room for workers; tests add nodes."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def solved(score: Any = None) -> Solution:
    problem = Mapping(PROGRAM, MACHINE, noise=0.05, noise_seed=3)
    return run_solver(make_labelled("mapping", "random"), problem, Budget(640), seed=5, score=score)


def same(ours: Solution, theirs: Solution) -> bool:
    return (
        ours.value == theirs.value
        and ours.evaluations == theirs.evaluations
        and np.array_equal(np.asarray(ours.decision), np.asarray(theirs.decision))
    )


def same_scores(ours: Scores, theirs: Scores) -> bool:
    return bool((ours.value == theirs.value).all() and (ours.reward == theirs.reward).all())


def test_a_node_is_killed_during_a_run(cluster: Any, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(3)]
    alone = solved()
    problem = Mapping(PROGRAM, MACHINE, noise=0.05, noise_seed=3)
    with distribute(problem, f"ray:{cluster.address}") as work:
        assert work.pool.size == work.pool.alive == 3 and work.score is not None
        score, batches = work.score, 0

        def scored(decisions: Any, first: int) -> Scores:
            nonlocal batches
            batches += 1
            if batches == 3:
                cluster.remove_node(nodes[1], allow_graceful=False)
                while not work.pool.lost:  # its worker lives on for a moment
                    assert same_scores(score(decisions, first), problem.score(decisions, first))
            return score(decisions, first)

        assert same(solved(scored), alone) and work.pool.lost == 1
        assert batches == 10 and sum(work.pool.answered) >= 30 and all(work.pool.answered)
    _measuring(cluster, nodes, tmp_path)


def _measuring(cluster: Any, nodes: list[Any], folder: Path) -> None:
    """The same with measurements, on the nodes that are left, and one killed while it measures."""
    script = folder / "measure.py"
    script.write_text(
        "import json, sys, time\nrows = json.load(sys.stdin)['residencies']\ntime.sleep(0.2)\n"
        "print(1e-3 * (1 + sum(row['memory'] == 'large' for row in rows)))\n"
    )
    evaluator = CommandEvaluator(shlex.join([sys.executable, "-S", str(script)]))
    alone = MeasuredMapping(PROGRAM, MACHINE, evaluator, repeats=1, warmups=0)
    rng = np.random.default_rng(2)
    maps = rng.integers(0, 3, (40, 2 * alone.nodes)).astype(np.int8)
    maps = maps[alone.rectify(maps)[1] == 0][:6]
    maps = np.concatenate([maps, alone.compiler[None], alone.all_slowest()[None]])
    problem = MeasuredMapping(PROGRAM, MACHINE, evaluator, repeats=1, warmups=0)
    with distribute(problem, f"ray:{cluster.address}?workers=2") as work:
        assert work.pool.alive == 2
        problem.score(maps[:1])  # and the baselines
        expected = alone.score(maps).value
        killer = threading.Timer(0.3, lambda: cluster.remove_node(nodes[2], allow_graceful=False))
        killer.start()
        while not work.pool.lost:
            assert np.array_equal(problem.score(maps, 1).value, expected)
        killer.join()
        assert work.pool.lost == 1 and problem.failures == 0
        back = cluster.add_node(num_cpus=1, include_dashboard=False)  # the place is filled again
        deadline = time.monotonic() + 60
        while work.pool.alive < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert work.pool.alive == 2 and back is not None


def test_a_cluster_on_this_computer_and_a_wrong_address() -> None:
    for address in ("ray:127.0.0.1:9", "ray://127.0.0.1:9"):
        with (
            pytest.raises(LoadmasterError, match="nothing answers at"),
            distribute(Mapping(PROGRAM, MACHINE), address),
        ):
            pass
    with distribute(Mapping(PROGRAM, MACHINE, noise=0.05, noise_seed=3), "ray:2") as work:
        assert work.pool.size == 2 and same(solved(work.score), solved())
    assert not ray.is_initialized()


def _children(pid: int) -> Iterator[int]:
    """This process and all that it or they have started."""
    yield pid
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    for child in [child for child, parent in parents.items() if parent == pid]:
        yield from _children(child)


def _listening(pids: set[int]) -> set[str]:
    """The addresses at which these processes listen, as the kernel writes them."""
    sockets = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink()))
            except OSError:
                continue
            if found:
                sockets.add(found[1])
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {line[1].partition(":")[0] for line in lines if line[3] == "0A" and line[9] in sockets}


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same among addresses of version 6, and ::1."""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads what Linux says of sockets")
def test_a_cluster_on_this_computer_is_for_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # that of another cluster
    tokens = []
    for _ in range(2):
        with distribute(Mapping(PROGRAM, MACHINE), "ray:1"):
            pids = set(_children(os.getpid()))
            addresses = _listening(pids)
            assert len(pids) > 3 and addresses and addresses <= LOOPBACK
            assert os.environ["RAY_AUTH_MODE"] == "token"
            tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len(set(tokens)) == 2 and all(len(token) == 64 for token in tokens)
    assert os.environ["RAY_AUTH_MODE"] == "disabled" and "RAY_AUTH_TOKEN" not in os.environ
    assert not (tmp_path / ".ray").exists()  # where Ray would leave one for others to read
