"""The executor as an evaluator: plans of two problems run for real, failures are failures of a plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.offload.problem import Offload, with_room
from loadmaster.plan import Plan
from loadmaster.search.champion import remeasure
from loadmaster.search.evaluator import EvaluationError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from benchmarks.suites.gpu_loop import Loop, loop_rows, static_map  # noqa: E402
from loadmaster.execute.evaluator import ExecutorEvaluator  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.execute.pinned import HostMemory, shared_rows  # noqa: E402
from loadmaster.offload.measured import Archive, Refined, refine  # noqa: E402
from loadmaster.plan.plan import lifetimes_in_loops  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402
from loadmaster.search.registry import make_labelled  # noqa: E402
from loadmaster.search.solver import Budget, solve  # noqa: E402


class Case:
    """A small net on a machine with room for less than half of its weights."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers: list[Any] = []
        for _ in range(6):
            layers += [nn.Linear(64, 64), nn.Tanh()]
        self.module = nn.Sequential(*layers).eval()
        self.inputs = (torch.randn(8, 64),)
        self.captured: Captured = capture(self.module, self.inputs, name="net")
        self.program = self.captured.program
        self.machine = load_machine("h200").with_capacity("hbm", 48 * 1024)
        # Maps are about machines whose ops may work in any memory.
        self.any_memory = load_machine("h200-zero-copy").with_capacity("hbm", 48 * 1024)
        self.weights = dict(self.module.named_parameters())
        self.evaluator = self.made()

    def made(self, **options: Any) -> ExecutorEvaluator:
        return ExecutorEvaluator(self.captured, self.machine, "cpu", self.weights, self.inputs, **options)


def legal(mapping: MeasuredMapping) -> Any:
    """The compiler's map, made to fit."""
    return mapping.rectify(mapping.compiler[None])[2][0]


@pytest.fixture
def case() -> Any:
    made = Case()
    yield made
    made.evaluator.close()


def test_offload_decisions_are_measured_by_running_them(case: Case) -> None:
    problem = MeasuredOffload(case.program, case.machine, case.evaluator, repeats=2, warmups=0)
    value = problem.evaluate(problem.baseline)
    assert value is not None and value > 0 and problem.measurements == 4
    assert 0 < case.evaluator.peak_bytes <= 48 * 1024
    assert problem.gauge.name == "executor:cpu" and problem.options()["evaluator"] == "executor:cpu"


def test_a_map_becomes_a_plan_that_streams_the_rest(case: Case, monkeypatch: Any) -> None:
    run: list[Plan] = []
    made = Executor.__init__

    def noted(self: Any, captured: Any, plan: Plan, *rest: Any, **options: Any) -> None:
        run.append(plan)
        made(self, captured, plan, *rest, **options)

    monkeypatch.setattr(Executor, "__init__", noted)
    mapping = MeasuredMapping(case.program, case.any_memory, case.evaluator, repeats=1, warmups=0)
    problem, fetched = Offload(case.program, case.machine), []
    for decision in (mapping.all_slowest(), legal(mapping)):
        plan = mapping.plan(decision)
        assert mapping.evaluate(decision) is not None
        assert plan.copies is None and run[-1].copies is not None
        assert not problem.violations(run[-1]), "it passes the checker, and ops work in hbm alone"
        fetched.append({copy.tensor for copy in run[-1].copy_rows if copy.target == 0})
    # What the map has in fast memory for life is not fetched, as long as there is room beside it.
    assert fetched[1] < fetched[0]


def test_the_numbers_are_those_of_the_model(case: Case) -> None:
    problem = MeasuredOffload(case.program, case.machine, case.evaluator, repeats=1, warmups=0)
    rng = np.random.default_rng(3)
    with torch.no_grad():
        wanted = case.module(*case.inputs)
    for _ in range(5):
        decision = with_room(problem, problem.vector(rng.random(problem.gaps) < 0.5))
        assert decision is not None
        case.evaluator(problem.plan(decision))
        assert case.evaluator._executor is not None
        found = case.evaluator._executor.run(*case.inputs)
        assert torch.equal(found.outputs[0].to("cpu"), wanted)


def test_host_memory_is_taken_once_for_all_plans(case: Case) -> None:
    problem = MeasuredOffload(case.program, case.machine, case.evaluator, repeats=1, warmups=0)
    rows = case.evaluator._weights.rows
    weights = {tensor: row.data_ptr() for tensor, row in rows.items()}
    decisions = [with_room(problem, problem.vector(np.full(problem.gaps, keep))) for keep in (False, True)]
    for decision in (*decisions, *decisions):
        assert decision is not None
        case.evaluator(problem.plan(decision))
    first = {tensor: row.data_ptr() for tensor, row in rows.items()}
    assert weights.items() <= first.items() and len(first) > len(weights)
    case.evaluator(problem.plan(problem.baseline))
    assert {t: row.data_ptr() for t, row in rows.items()} == first


def test_what_can_not_run_is_a_failure_of_that_plan(case: Case) -> None:
    tight = case.made(capacity=32 * 1024)
    tight.bind(case.program, case.machine)
    offload = Offload(case.program, case.machine)
    full = with_room(offload, offload.vector(np.ones(offload.gaps, dtype=bool)))
    assert full is not None
    with pytest.raises(EvaluationError, match="may have 32"):
        tight(offload.plan(full))
    small = Offload(case.program, case.machine.with_capacity("hbm", 30 * 1024))
    fits = with_room(small, small.vector(np.ones(small.gaps, dtype=bool)))
    assert fits is not None and tight(small.plan(fits)) > 0, "the next one runs"
    broken = Plan(residencies=small.plan(fits).residencies[1:], copies=small.plan(fits).copies)  # type: ignore[index]
    with pytest.raises(EvaluationError, match="not sound"):
        tight(broken)
    other = capture(nn.Linear(4, 4).eval(), (torch.randn(2, 4),), name="other")
    with pytest.raises(EvaluationError, match="is not the program that was captured"):
        tight.bind(other.program, case.machine)
    tight.close()


def test_workspace_is_left_free_for_maps_too(case: Case) -> None:
    evaluator = case.made(workspace=12 * 1024)
    mapping = MeasuredMapping(case.program, case.any_memory, evaluator, repeats=1, warmups=0)
    assert mapping.evaluate(legal(mapping)) is not None
    assert evaluator.peak_bytes <= 36 * 1024
    evaluator.close()


def test_searches_run_on_the_real_thing(case: Case, monkeypatch: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(MeasuredMapping, "score", _noted(seen, MeasuredMapping.score))
    problem = MeasuredOffload(case.program, case.machine, case.evaluator, repeats=1, warmups=0)
    found = refine(problem, Budget(12), solver=Refined(simulated=40, kept=4), times=4, together=2)
    assert found.failures == 0 and found.evaluations == 12
    mapping = MeasuredMapping(
        case.program, case.any_memory, case.evaluator, repeats=1, warmups=0, invalid="repair"
    )
    for name, options in (
        ("annealing", {}),
        ("ageing-evolution", {"population": 4, "sample": 2}),
        ("egrl", {"population": 4}),
    ):
        solver: Any = make_labelled("mapping", name, options)
        solver.start = legal(mapping)
        seen.clear()
        assert solve(solver, mapping, Budget(8)).value is not None, name
        tried = np.concatenate(seen)
        at = np.flatnonzero((tried == solver.start).all(axis=1))
        assert len(at) and (name == "egrl" or at[0] == 0), "it begins with what is known"
    assert remeasure(mapping, times=2).winner.failures == 0


def test_rows_of_the_benchmark(case: Case) -> None:
    archive = Archive(Offload(case.program, case.machine))
    candidates = Refined(simulated=30, kept=3).prepared(archive, 0)
    loop = Loop("net@50", case.program, case.machine, case.evaluator, candidates, {}, 6, 30.0, 1, 4, 2)
    rows: list[Any] = []
    searches = ["refined", "anneal", "annealing", "ageing-evolution"]
    loop_rows(loop, searches, lambda: 60.0, rows.append)
    assert [row.solver for row in rows] == [f"{name}+hardware" for name in searches]
    for row in rows:
        assert row.status == "ok" and row.value > 0 and row.extra["failures"] == 0, row
        assert row.evaluations == 6 and 0 < row.extra["best_ps"] <= row.extra["first_ps"]
        assert row.value == row.extra["median_ps"] and row.extra["times"] == 4
        low, high = row.extra["speedup_interval"]
        assert low <= high and row.extra["gained"] is (low > 1)
    loop_rows(loop, ["refined"], lambda: -1.0, rows.append)
    assert len(rows) == 4, "no time, no row"


def test_the_simulators_static_plan_as_a_map(case: Case) -> None:
    loop = Loop("net@50", case.program, case.machine, case.evaluator, [], {})
    simulated = Offload(case.program, case.machine)
    for name in ("annealing", "ageing-evolution"):
        mapping, solver = loop._mapping(name)
        start = static_map(mapping, simulated)
        assert np.array_equal(solver.start, start)  # type: ignore[attr-defined]
        assert (start[mapping.live] == 0).any() and (start[mapping.live] == 1).any()
        assert mapping.rectify(start[None])[1][0] == 0, "it fits as it is"


def _noted(seen: list[Any], score: Any) -> Any:
    def noted(self: Any, decisions: Any, first: int = 0) -> Any:
        seen.append(np.array(decisions))
        return score(self, decisions, first)

    return noted


def test_rows_that_are_shared_are_never_needed_at_once(case: Case) -> None:
    program = case.program
    rows = shared_rows(case.captured, HostMemory(pinned=False))
    first, last = lifetimes_in_loops(program)
    results = {int(program.tensor_alias[each.tensor]) for each in case.captured.results}
    assert len(rows) > 3 and not results & set(rows)
    starts = {tensor: row.data_ptr() for tensor, row in rows.items()}
    assert len(set(starts.values())) < len(rows), "some are shared"
    for one in rows:
        assert len(rows[one]) == program.storage_bytes[one]
        for other in rows:
            apart = last[one] < first[other] or last[other] < first[one]
            assert one == other or apart or starts[one] != starts[other]
