"""`auto` ends with a plan that bears slower links, at next to no cost, and says what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadmaster.offload.problem import Offload
from loadmaster.offload.search import PRICE, ChooseSteady, Steady, make_auto, slower
from loadmaster.runs import History, RunFolder, run_solver
from loadmaster.runs.history import find_contradictions
from loadmaster.runs.replay import replay
from loadmaster.search.solver import Budget, Meter, Solution, Status, solve
from loadmaster.simulate.simulator import get_simulator
from offload_stack import LAYER_BYTES, gpu, stack
from search.conformance import conforms

ACT = 80_000_000


@pytest.fixture(scope="module")
def half() -> Offload:
    """Half of the layers are streamed, which can be hidden just so."""
    return Offload(stack(layers=8), gpu(4 * LAYER_BYTES + 4 * ACT))


def slow_ps(problem: Offload, found: Solution) -> int:
    plan = problem.plan(found.decision)
    return int(get_simulator(problem.program, slower(problem.machine)).run(plan).total_ps)


def fastest(problem: Offload, evaluations: int, seed: int = 0) -> Solution:
    """What `auto` would end with if it cared for the simulated time alone."""
    from loadmaster.search.registry import make_labelled

    return solve(make_labelled("offload", "anneal"), problem, Budget(evaluations), seed)


def test_the_choice_costs_little_and_bears_more(half: Offload) -> None:
    bears = []
    for seed in range(4):
        found = solve(make_auto(), half, Budget(300), seed)
        assert found.value is not None and found.evaluations <= 300
        assert half.evaluate(found.decision) == found.value
        assert found.best_value <= found.value <= found.best_value * (1 + PRICE)
        bears.append(slow_ps(half, found) < slow_ps(half, fastest(half, 300, seed)))
    assert sum(bears) >= 3


def test_a_slower_machine_differs_in_its_links_alone(half: Offload) -> None:
    machine = slower(half.machine)
    assert machine.memories == half.machine.memories and machine.devices == half.machine.devices
    for link, before in zip(machine.links, half.machine.links, strict=True):
        assert link.bandwidth == int(before.bandwidth * 0.9) and link.latency == 2 * before.latency


def test_the_value_is_the_slower_time_and_more_beyond_the_price(half: Offload) -> None:
    decision = half.vector(np.ones(half.gaps, dtype=bool))
    value = half.evaluate(decision)
    assert value is not None
    champion = solve(make_auto(), half, Budget(60)).decision
    assert champion is not None
    free, priced = Steady(half, champion, value), Steady(half, champion, value - 7)
    plan = half.plan(decision)
    cheap = get_simulator(half.program, slower(half.machine)).run(plan).total_ps
    assert free.evaluate(decision) == free.evaluate(half.decision(plan)) == cheap
    assert priced.evaluate(decision) == max(cheap, priced.champion_ps) + 70
    assert free.bound().value <= cheap


def test_without_evaluations_left_the_best_stays(half: Offload) -> None:
    meter = Meter(half, Budget(3))
    meter.evaluate(half.vector(np.ones(half.gaps, dtype=bool)))
    ChooseSteady().run(meter, 0, None)
    assert meter.choice is None and meter.evaluations == 1
    assert meter.solution().value == meter.best_value


def test_a_choice_must_have_a_plan(half: Offload) -> None:
    meter = Meter(half, Budget(3))
    with pytest.raises(ValueError, match="must have a plan"):
        meter.choose(np.zeros((1, 7), dtype=np.int64))


def test_auto_conforms(half: Offload) -> None:
    conforms(make_auto, half, evaluations=(1, 2, 7, 60), seeds=(0,))


def test_a_run_keeps_the_choice_and_goes_on_from_the_best(half: Offload, tmp_path: Path) -> None:
    first = run_solver(make_auto(), half, Budget(300), 3, folder=tmp_path, checkpoint_seconds=0.0)
    path = first.run

    def checked(found: Solution) -> History:
        run = RunFolder.open(path)
        history = History(run.read_log().lines)
        assert history.choice is not None and history.best is not None
        assert history.result_value == found.value >= history.value
        assert found.status == Status.FEASIBLE and not find_contradictions(history)
        assert run.load_plan(history.choice["plan"], half).hash == half.plan(found.decision).hash
        assert not replay(run).broken
        return history

    checked(first)
    again = run_solver(make_auto(), half, Budget(300), 3, resume=path)
    assert again.value == first.value
    more = run_solver(make_auto(), half, Budget(500), 3, resume=path)
    assert checked(more).value <= first.best_value
    log = path / "log.jsonl"
    line = next(x for x in log.read_text().splitlines() if '"choose"' in x)
    log.write_text(log.read_text().replace(line, line.replace('"value": ', '"value": 1')))
    assert any(claim.event == "choose" for claim in replay(RunFolder.open(path)).broken)
