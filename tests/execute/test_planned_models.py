"""Planned, run, compared: small models of the GPU suite under half of the memory that they need."""

from __future__ import annotations

import pytest

from loadmaster.machine import load_machine
from loadmaster.offload.model import offload_model
from loadmaster.offload.problem import Offload
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from benchmarks.suites.gpu_models import GPU_MODELS  # noqa: E402
from loadmaster.execute.executor import Executor, Results  # noqa: E402
from loadmaster.execute.ready import Ready, agreement, ordinary_run  # noqa: E402
from loadmaster.program.importers.torch.captured import capture  # noqa: E402


@pytest.mark.parametrize("name", ["llama", "bert", "gpt_train"])
@pytest.mark.parametrize("solver", ["prefetch", "spread"])
def test_half_of_the_memory_gives_the_same_numbers(name: str, solver: str) -> None:
    torch.manual_seed(0)
    model = GPU_MODELS[name]
    module, args = model.build("tiny")
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {key: value.detach().clone() for key, value in state.items()}
    captured = capture(module, args, name=name, training=model.training)
    machine = load_machine("h200")
    half = offload_model(captured.program, machine).needed // 2
    small = machine.with_capacity("hbm", half)
    problem = Offload(captured.program, small)
    solution = solve(make_labelled("offload", solver), problem, Budget())
    assert solution.decision is not None
    plan = problem.plan(solution.decision)
    wanted = ordinary_run(Ready(module, args, {}, captured, weights, model.training), "cpu").values
    with Executor(captured, plan, small, "cpu", weights, capacity=half) as executor:
        results = executor.run(*captured.inputs(args))
        assert results.peak_bytes <= half
        found = agreement(results, wanted)
    assert found.compared == len(wanted) and found.identical, found


def test_gradients_that_vanish_are_no_difference() -> None:
    """A bias before a batch norm has a gradient of rounding errors: two runs have nothing in common there."""
    large, noise = torch.tensor([0.1, -0.2]), torch.tensor([1e-8, -2e-8])
    results = Results((), {"weight": large, "bias": noise}, {}, 0.0, 0, 0)
    found = agreement(results, {"gradient weight": large, "gradient bias": -noise})
    assert found.close and not found.identical and found.where == "gradient bias"
    far = agreement(results, {"gradient weight": large, "gradient bias": noise + 1e-3})
    assert not far.close and far.where == "gradient bias"
