"""What is known of a real stack of layers comes out of the simulation; no search loses to a rule."""

from __future__ import annotations

import numpy as np
import pytest

from clocks import Ticking
from loadmaster.offload import search
from loadmaster.offload.heuristics import layer_spans
from loadmaster.offload.problem import Offload
from loadmaster.offload.search import PRICE
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import Budget, Solution, solve
from offload_stack import LAYER_BYTES, gpu, stack

ACT = 80_000_000


def solved(problem: Offload, name: str, evaluations: int | None = None, **options: object) -> Solution:
    found = solve(make_labelled("offload", name, options), problem, Budget(evaluations), seed=1)
    if found.decision is not None:
        assert problem.violations(problem.plan(found.decision)) == []
        assert problem.evaluate(found.decision) == found.value
    return found


@pytest.fixture(scope="module")
def half() -> Offload:
    """Half of the layers resident, and room for two on their way."""
    return Offload(stack(), gpu(14 * LAYER_BYTES + 4 * ACT))


def test_half_resident_layers_run_as_they_were_measured(half: Offload) -> None:
    """Measured: 182 ms resident, 222 with prefetch behind leading layers, 187 if every other one stays."""
    assert half.limit_ps / 1e9 == pytest.approx(182, rel=0.001)
    value = {name: solved(half, name).value / 1e9 for name in ("layerwise", "prefetch", "spread")}
    assert value["prefetch"] == pytest.approx(222, rel=0.03)
    assert value["spread"] == pytest.approx(187, rel=0.03)
    assert value["layerwise"] > value["prefetch"]
    assert solved(half, "all-resident").value is None


def test_short_sequences_are_bound_by_the_link() -> None:
    """Measured: 138 ms at 512 tokens, whatever the policy."""
    problem = Offload(stack(layer_ms=1.2, act_bytes=5_000_000), gpu(14 * LAYER_BYTES))
    assert problem.bound().method == "bytes that must come in"
    assert problem.bound().value / 1e9 == pytest.approx(138, rel=0.25)
    for name in ("layerwise", "prefetch", "spread"):
        assert solved(problem, name).value / 1e9 == pytest.approx(138, rel=0.25)


def test_everything_resident_takes_the_time_of_its_ops_and_its_input() -> None:
    problem = Offload(stack(layers=4), gpu(2**33))
    found = solved(problem, "all-resident")
    assert found.value is not None and found.value - problem.limit_ps < 2 * ACT * 10**12 // 51 // 2**30


def test_leading_layers_stay_only_if_that_is_wanted(half: Offload) -> None:
    first, none = solved(half, "prefetch"), solved(half, "prefetch", resident="none")
    assert none.value > first.value
    plan = half.plan(none.decision)
    assert all(row.first >= 0 for row in plan.residency_rows)
    assert sum(row.target == half.model.fast for row in plan.copy_rows) == 1 + 24 * 6


def test_layers_that_stay_among_the_others_give_copies_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fetched overlaps with all layers then, not with those behind the leading ones alone."""
    many = Offload(stack(layers=96, layer_ms=7.6), gpu(64 * LAYER_BYTES + 4 * ACT))
    first, even = solved(many, "prefetch"), solved(many, "prefetch", resident="even")
    over = [found.value - many.limit_ps for found in (first, even)]
    assert over[1] < 0.7 * over[0]
    resident = [row.tensor for row in many.plan(even.decision).residency_rows if row.first < 0]
    half = len(many.program.tensor_name) // 2
    assert 0 < sum(tensor > half for tensor in resident) < len(resident)
    monkeypatch.setattr("loadmaster.offload.search.MANY_STEPS", 0)
    assert solved(many, "auto").value <= even.value


def training(layers: int = 6) -> Program:
    """Forward, and backward with what forward left."""
    build = Builder("train")
    value, costs, saved = build.tensor("x", bytes=2**20, kind="input"), [], []
    for layer in range(layers):
        weight = build.tensor(f"w{layer}", bytes=2**22, kind="weight")
        made = build.tensor(f"y{layer}", bytes=2**21)
        build.op(f"f{layer}", "matmul", reads=[value, weight], writes=[made], scope=f"l{layer}")
        saved.append((layer, value, weight))
        value = made
        costs.append([1e-4])
    for layer, kept, weight in reversed(saved):
        back = build.tensor(f"g{layer}", bytes=2**21)
        grad = build.tensor(f"gw{layer}", bytes=2**22, kind="output")
        build.op(f"b{layer}", "matmul", reads=[value, kept, weight], writes=[back, grad], scope=f"l{layer}")
        value = back
        costs.append([2e-4])
    build.set_kind(value, "output")
    return build.build(costs=np.array(costs))


APART = ("all-resident", "egrl", "muzero", "refined")


@pytest.mark.parametrize("name", [name for name in solver_labels("offload") if name not in APART])
def test_every_solver_plans_a_training_step_at_half_its_memory(name: str) -> None:
    roomy = Offload(training(), gpu(2**30))
    problem = Offload(training(), gpu(roomy.model.needed // 2))
    found = solved(problem, name, evaluations=300)
    assert found.value is not None and found.value >= problem.bound().value


def test_a_search_is_never_worse_than_the_rules_that_it_begins_with() -> None:
    roomy = Offload(training(), gpu(2**30))
    problem = Offload(training(), gpu(roomy.model.needed // 2))
    rules = [solved(problem, name).value for name in ("prefetch", "belady", "static", "spread", "msa")]
    best = min(value for value in rules if value is not None)
    found = solved(problem, "auto", evaluations=400)
    assert found.best_value <= best and found.value <= best * (1 + PRICE)


def test_layers_are_told_by_their_scopes_or_by_their_weights() -> None:
    model = Offload(stack(layers=3), gpu(2**33)).model
    assert layer_spans(stack(layers=3), model).tolist() == [[0, 5], [6, 11], [12, 17]]
    build = Builder("flat")
    value = build.tensor("x", bytes=256, kind="input")
    for number in range(4):
        made = build.tensor(f"y{number}", bytes=256, kind="output" if number == 3 else "activation")
        weights = [build.tensor(f"w{number}", bytes=256, kind="weight")] if number % 2 else []
        build.op(f"op{number}", "add", reads=[value, *weights], writes=[made])
        value = made
    program = build.build()
    assert layer_spans(program, Offload(program, gpu(2**20)).model).tolist() == [[0, 0], [1, 2], [3, 3]]


def test_a_search_goes_on_as_if_it_had_not_stopped() -> None:
    from loadmaster.search.solver import Meter, Observer, State

    class Keeps(Observer):
        state: State | None = None

        def checkpoint(self, meter: Meter, state: State) -> None:
            self.state, self.at, self.best = dict(state), meter.evaluations, meter.best
            self.stop = True

    problem = Offload(training(), gpu(Offload(training(), gpu(2**30)).model.needed // 2))
    for name in ("anneal", "evolution"):
        whole = solve(make_labelled("offload", name), problem, Budget(400), seed=3)
        watch = Keeps()
        solve(make_labelled("offload", name), problem, Budget(400), seed=3, observer=watch)
        meter = Meter(problem, Budget(400), evaluations=watch.at)
        meter.restore(watch.best)
        again = make_labelled("offload", name).run(meter, 3, watch.state)
        assert again.value == whole.value and (again.decision == whole.decision).all()


def test_no_rule_begins_that_can_not_end_in_time(half: Offload, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many steps: as far as the rules before it tell; the first is followed whatever the limit."""
    monkeypatch.setattr(search, "MANY_STEPS", 1)
    problem = Offload(half.program, half.machine)
    first = solve(search.make_auto(), problem, Budget(seconds=1e6), clock=Ticking(1.0))
    assert first.evaluations > 1 and problem.rule_seconds > 0
    problem.rule_seconds = 1e5
    assert solve(search.make_auto(), problem, Budget(seconds=1e4), clock=Ticking(1.0)).evaluations == 0
    assert solve(search.make_auto(), problem, Budget(seconds=1e6), clock=Ticking(1.0)).evaluations > 1
