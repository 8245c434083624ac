"""Plans of the GPU suite on a CPU: run under their budget, and compared with the ordinary run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from benchmarks.suites.gpu_execute import CLOSE, Bench, PeerBench, prepare  # noqa: E402
from benchmarks.suites.gpu_plans import Planned, needed_bytes, plan_model, roomy  # noqa: E402
from loadmaster.execute.executor import Executor, Results  # noqa: E402
from loadmaster.execute.ready import difference as apart  # noqa: E402
from loadmaster.machine import load_machine  # noqa: E402
from loadmaster.offload.problem import Offload  # noqa: E402
from loadmaster.program.repeats import repeat, repeatable  # noqa: E402


class Shifted(torch.nn.Module):  # type: ignore[misc]
    """A loss that does not depend on `idle`, whose gradient is rounding and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.idle = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Any) -> Any:
        y = self.last(torch.tanh(self.first(x)))
        return ((y + self.idle).softmax(-1) * x).sum()


def build() -> tuple[Any, tuple[Any, ...]]:
    return Shifted(), (torch.empty(8, 16),)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(prepare("shifted", build, torch.device("cpu"), training=True), load_machine("h200"))


@pytest.fixture(scope="module")
def planned(bench: Bench) -> Planned:
    found = plan_model(bench.workload.captured.program, bench.machine, 75, "spread", None)
    assert found.plan is not None, found.note
    return found


def run(bench: Bench, planned: Planned) -> Results:
    """Results of a plan, in memory of their own."""
    assert planned.plan is not None
    with Executor(
        bench.workload.captured,
        planned.plan,
        roomy(bench.machine, planned.capacity),
        "cpu",
        bench.weights,
        capacity=planned.capacity,
    ) as executor:
        found = executor.run(*bench.host_inputs)
        gradients = {name: value.clone() for name, value in found.gradients.items()}
        return replace(found, outputs=tuple(each.clone() for each in found.outputs), gradients=gradients)


def changed(found: Results, name: str, gradient: Any) -> Results:
    return replace(found, gradients={**found.gradients, name: gradient})


def test_a_plan_is_run_measured_and_found_equal(bench: Bench, planned: Planned) -> None:
    row = bench.run_plan(planned, 0, repeats=2)
    assert row.status == "ok" and row.value > 0 and row.extra["equal"]
    assert row.extra["peak"] <= planned.capacity and row.extra["largest_difference"] == 0
    with Executor(
        bench.workload.captured,
        planned.plan,
        roomy(bench.machine, planned.capacity),
        "cpu",
        bench.weights,
        capacity=planned.capacity,
    ) as executor:
        assert bench.verified_exactly(executor) == {
            "equal": True,
            "largest_difference": 0.0,
            "furthest": "",
            "by_itself": {},
        }


def test_a_gradient_of_rounding_alone_is_held_against_the_largest(bench: Bench, planned: Planned) -> None:
    found = run(bench, planned)
    idle = found.gradients["idle"]
    assert 0 <= float(idle.abs().max()) < 1e-5 * bench.steepest
    other = changed(found, "idle", idle + 1e-6 * bench.steepest)
    alone, scaled = bench.verified(other), bench.verified(other, bench.steepest)
    assert not alone["equal"] and alone["largest_difference"] > CLOSE and alone["furthest"] == "idle"
    assert not scaled["equal"] and 0 < scaled["largest_difference"] < 1e-5
    assert list(scaled["by_itself"]) == ["idle"]  # it is said which ones needed the scale


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_that_is_wrong_is_found(bench: Bench, planned: Planned, scaled: bool) -> None:
    found, scale = run(bench, planned), bench.steepest if scaled else 0.0
    steep = max(found.gradients, key=lambda name: float(found.gradients[name].abs().max()))
    wrong = bench.verified(changed(found, steep, found.gradients[steep] * 0.9), scale)
    assert wrong["largest_difference"] == pytest.approx(0.1, rel=1e-3) and wrong["furthest"] == steep
    lost = bench.verified(replace(found, outputs=(found.outputs[0] * 1.5,)), scale)
    assert lost["largest_difference"] == pytest.approx(0.5) and lost["furthest"] == "loss"


def test_a_small_gradient_that_is_wrong_is_named_whatever_the_scale(bench: Bench, planned: Planned) -> None:
    found = run(bench, planned)
    gone = changed(found, "first.bias", torch.zeros_like(found.gradients["first.bias"]))
    hidden = bench.verified(gone, 1e6 * bench.steepest)
    assert hidden["largest_difference"] < CLOSE and hidden["by_itself"] == {"first.bias": 1.0}


def test_how_far_apart_two_tensors_are() -> None:
    one = torch.tensor([1.0, -4.0])
    assert apart(one, one) == 0 and apart(one + 1, one) == 0.25 and apart(one + 1, one, 100.0) == 0.01
    assert apart(one + 1, one, 2.0) == 0.25  # a smaller scale than its own does not count
    assert apart(one, torch.zeros(2)) == float("inf") and apart(one, torch.zeros(2), 8.0) == 0.5
    assert apart(one, one[:1]) == float("inf")
    nan, inf = torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("inf")])
    assert apart(nan, nan) == 0 and apart(inf, inf) == 0
    for odd in (nan, inf):
        assert apart(odd, one, 1e9) == float("inf") == apart(one, odd, 1e9)
    assert apart(one, one.half()) == float("inf") == apart(torch.tensor([3]), torch.tensor([4]), 1e9)
    assert apart(inf, -inf) == float("inf") and apart(torch.zeros(0), torch.zeros(0)) == 0


def test_ops_run_again_and_the_gradients_are_the_same(bench: Bench) -> None:
    captured = bench.workload.captured
    ops = np.flatnonzero(repeatable(captured.program)).tolist()
    again = repeat(captured.program, ops)
    problem = Offload(again.program, roomy(bench.machine, needed_bytes(again.program, bench.machine)))
    planned = Planned(
        "shifted",
        75,
        "auto",
        problem.machine.memories[0].capacity,
        "ok",
        problem.plan(problem.vector(np.zeros(problem.gaps, dtype=bool))),
        simulated_ps=1,
        repeats=tuple(again.ops.tolist()),
    )
    assert planned.repeats
    row = bench.run_plan(planned, 0, repeats=1)
    assert row.status == "ok", row.extra
    assert row.extra["equal"] and row.extra["again"] == len(planned.repeats)


def test_what_an_earlier_plan_left_on_the_host_is_not_found(bench: Bench, planned: Planned) -> None:
    captured = bench.workload.captured
    problem = Offload(captured.program, roomy(bench.machine, planned.capacity))
    decided = problem.plan(problem.vector(np.zeros(problem.gaps, dtype=bool), squeeze=32))
    moving = replace(planned, plan=decided)
    assert bench.run_plan(moving, 0, repeats=1).extra["equal"]
    weights = bench._bound(moving)[1]
    roots = {int(captured.program.tensor_alias[each.tensor]) for each in captured.results}
    kept = [weights.rows[tensor] for tensor in roots if tensor in weights.rows]
    assert kept and all((row == 255).all() for row in kept)
    for tensor, layout in weights.layouts.items():
        assert layout.bytes == 0 or weights.value(tensor).isfinite().all()


def test_peers_have_the_same_weights_and_inputs(bench: Bench) -> None:
    peers = PeerBench("shifted", build, torch.device("cpu"), training=True, machine="m")
    for given in bench.workload.captured.given:
        if given.source:
            assert torch.equal(peers.values[given.source], bench.weights.value(given.tensor))
    assert all(torch.equal(a, b) for a, b in zip(peers.inputs, bench.host_inputs, strict=True))
    row = peers.row("checkpoint", 50, 2**20, 0, repeats=3, bound_ps=1.0)
    assert (row.status, row.case, row.extra["kind"]) == ("ok", "shifted@50", "peer") and row.value > 0
