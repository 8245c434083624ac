"""Ops that run again: the same numbers to the last bit, wherever their results were dropped or moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from generate_offload import OffloadPlans, machine_with
from loadmaster.errors import BadProgram
from loadmaster.plan import Plan
from loadmaster.program.repeats import repeatable

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from torch import nn  # noqa: E402

from benchmarks.suites.gpu_models import GPU_MODELS  # noqa: E402
from loadmaster.execute.executor import Executor  # noqa: E402
from loadmaster.program.importers.torch.captured import Captured, capture  # noqa: E402

ROOM = machine_with(2**26)


class Dropping(nn.Module):
    """Dropout of its own, and inside attention."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        x = nn.functional.dropout(torch.tanh(self.one(x)), 0.5)
        x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        return torch.tanh(x).square().mean()


def numbers(captured: Captured, plan: Plan, weights: Any, inputs: Any) -> dict[str, Any]:
    """Loss, gradients and new values of buffers."""
    with Executor(captured, plan, ROOM, "cpu", weights) as executor:
        found = executor.run(*inputs)
        named = {**{f"out {i}": v for i, v in enumerate(found.outputs)}, **found.gradients, **found.updates}
        return {name: value.clone() for name, value in named.items() if value is not None}


@pytest.mark.parametrize("name", ["gpt_train", "resnet50_train"])
def test_results_gradients_and_updates_are_the_same(name: str) -> None:
    torch.manual_seed(0)
    module, args = GPU_MODELS[name].build("tiny")
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    captured = capture(module, args, name=name, training=True)
    inputs = captured.inputs(args)
    wanted = numbers(captured, OffloadPlans(captured.program, 0).make(1.0), weights, inputs)
    assert name != "resnet50_train" or any("running_var" in each for each in wanted)
    able = np.flatnonzero(repeatable(captured.program))
    rng = np.random.default_rng(7)
    for seed, share in enumerate((1.0, 0.4)):
        again = captured.repeated(able[rng.random(len(able)) < share].tolist())
        assert again.program.n_ops > captured.program.n_ops
        assert sum(again.program.op_name[op].endswith("@again") for op in again.renamed) > 5
        plan = OffloadPlans(again.program, seed).make(0.3)
        found = numbers(again, plan, weights, inputs)
        assert found.keys() == wanted.keys()
        for each, value in wanted.items():
            assert torch.equal(found[each], value), f"{each} differs"


def test_what_is_drawn_is_not_drawn_again() -> None:
    captured = capture(Dropping(), (torch.randn(2, 4, 8),), name="dropping", training=True)
    program = captured.program
    random = [op for op in range(program.n_ops) if program.attributes(op).get("random")]
    assert {program.op_kind[op] for op in random} >= {"random"}
    assert random and not repeatable(program)[random].any() and repeatable(program).any()
    with pytest.raises(BadProgram, match="--no-recompute"):
        captured.repeated(random[:1])
