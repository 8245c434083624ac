"""Set-up counts against a time limit, by a clock that the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster import clock
from loadmaster.machine import load_machine
from loadmaster.planner import source
from loadmaster.planner.planner import plan
from loadmaster.planner.source import ModelSource
from loadmaster.program.models import load_model
from loadmaster.program.program import Program
from loadmaster.search import kind as kinds
from loadmaster.search.solver import Budget, Meter, Solution, Solver


class Slow:
    """A clock on which every method that is solved takes ten seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds, self.solved = 0.0, list[str]()
        solve = kinds.solve

        def slowly(solver: Solver, *given: Any, **more: Any) -> Solution:
            self.seconds += 10.0
            self.solved.append(solver.name)
            return solve(solver, *given, **more)

        monkeypatch.setattr(kinds, "solve", slowly)

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("seconds", "known"), [(1000.0, 3), (45.0, 2), (30.0, 1), (1.0, 1)])
def test_known_methods_without_time_are_left_out(
    seconds: float, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    with clock.reading(slow):
        found = plan(
            load_model("resnet50"), load_machine("nnp-i"), solver="density", budget=Budget(1, seconds)
        )
    assert slow.solved == ["all-slowest", "compiler", "density"][:known]
    assert found.plan is not None and found.error is None


def test_what_the_user_holds_plans_against_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.planner.planner import solve_request
    from loadmaster.planner.search import SearchOptions
    from loadmaster.search.request import PlanRequest

    slow = Slow(monkeypatch)
    request = PlanRequest(load_model("resnet50"), load_machine("nnp-i"))
    with clock.reading(slow):
        search = SearchOptions(solver="density", seconds=1.0, seed=0, before="density", exact_seconds=0.0)
        found = solve_request(request, search)
    assert slow.solved == ["all-slowest", "compiler", "density"] and found.before == "density"


def test_set_up_is_over_before_the_search_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[float | None]()
    run = kinds.Bounded.run

    def first(self: Any, meter: Meter, seed: int, state: Any) -> Solution:
        begun.append(meter.seconds_left)
        return run(self, meter, seed, state)

    monkeypatch.setattr(kinds.Bounded, "run", first)
    with clock.reading(Slow(monkeypatch)):
        plan(load_model("resnet50"), load_machine("nnp-i"), solver="density", budget=Budget(1, 1000.0))
    assert begun == [970.0]


def test_what_is_kept_back_ends_a_search() -> None:
    from loadmaster.mapping.problem import Mapping

    meter = Meter(
        Mapping(load_model("resnet50"), load_machine("nnp-i")),
        Budget(seconds=10.0),
        seconds=6.0,
        clock=lambda: 0.0,
    )
    assert meter.seconds_left == 4.0 and not meter.spent
    meter.reserve = 4.0
    assert meter.seconds_left == 0.0 and meter.spent


@pytest.mark.parametrize(("name", "known"), [("net:build", 3), ("net.onnx", 1)])
def test_a_function_of_the_users_takes_nothing_of_the_limit(
    name: str, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    def load(*_: Any) -> Program:
        slow.seconds += 500.0
        return load_model("resnet50")

    monkeypatch.setattr(source, "load_model", load)
    monkeypatch.setattr(ModelSource, "captured_for", lambda *_: None)
    with clock.reading(slow):
        plan(name, "nnp-i", solver="density", budget=Budget(1, 100.0))
    assert len(slow.solved) == known
