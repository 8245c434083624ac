"""The sweep over other people's models: what its processes hand to each other, and how weights are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.fit_models import FAMILIES, SCALES  # noqa: E402
from benchmarks.fit_sweep import CheapNoise, Finding, difference, judge, largest, last_lines, written_values  # noqa: E402

ROOT = Path(__file__).parents[2]


def test_large_weights_are_noise_of_their_own_from_a_table() -> None:
    torch.manual_seed(0)
    with CheapNoise():
        wide, other = (torch.empty(1500, 1000).normal_(0.5, 0.02) for _ in range(2))
        layer = torch.nn.Linear(400, 300)
        half = torch.empty(70_000, dtype=torch.bfloat16).uniform_(-2, 1)
        small = torch.empty(10).normal_()
    for each in (wide, other):
        assert abs(float(each.mean()) - 0.5) < 1e-3 and abs(float(each.std()) - 0.02) < 1e-3
    assert not torch.equal(wide, other) and not torch.equal(wide[0], wide[1])
    assert len(wide.unique(dim=0)) == len(wide), "no row comes twice"
    bound, weight = 400**-0.5, layer.weight.detach()  # as nn.Linear begins
    assert float(weight.abs().max()) <= bound
    assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=0.02)
    assert half.dtype == torch.bfloat16 and -2 <= float(half.min()) < -1.9 and 0.9 < float(half.max()) <= 1
    assert len(small.unique()) == 10


FORKS = """
import os
import torch
from benchmarks.fit_sweep import Reference, in_child

def work():
    return Reference({"output/0": torch.arange(3.0)}, {"output/0": 0.5}, extra={"pid": os.getpid()})

found = in_child(work)
assert found.extra["pid"] != os.getpid()
assert torch.equal(found.values["output/0"], torch.arange(3.0)) and found.limits == {"output/0": 0.5}
try:
    in_child(lambda: os._exit(3))
except RuntimeError as error:
    print(error)
"""


def test_a_reference_comes_from_a_process_of_its_own_and_its_death_is_an_error() -> None:
    # In an interpreter without the threads that other tests have begun: one must not fork beside them.
    done = subprocess.run(
        [sys.executable, "-c", FORKS], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "its process died (3)"), done.stderr


def test_where_an_error_was_raised_does_not_say_where_this_computer_keeps_its_files() -> None:
    def raised() -> None:
        torch._dynamo.config.patch(no_such_option=1).__enter__()

    with pytest.raises(AttributeError) as caught:
        raised()
    text = last_lines(caught.value, count=20)
    assert 'File "torch' in text and 'File "tests' in text
    assert str(ROOT) not in text and "site-packages" not in text


def test_no_result_says_where_a_computer_keeps_its_files() -> None:
    for path in sorted((ROOT / "benchmarks/results").glob("*.json")):
        assert 'File \\"/' not in path.read_text(encoding="utf-8"), path.name


def test_a_tensor_may_be_as_far_as_rounding_of_the_weights_moves_it_and_that_is_said() -> None:
    def judged(far: float, itself: float = 0.0, moved: float = 0.0) -> Finding:
        finding = Finding()
        judge(finding, [{"output/0": 0.0, "gradient/w": far}], {"gradient/w": itself}, {"gradient/w": moved})
        return finding

    assert judged(5e-5, 1e-3, 1e-2).extra["judged_by"] == "tolerance"
    assert judged(5e-4, 1e-3, 1e-2).extra["judged_by"] == "itself"
    assert judged(5e-3, 1e-3, 1e-2).extra["judged_by"] == "rounding of weights"
    for differs in (judged(5e-2, 1e-3, 1e-2), judged(float("inf"), moved=float("inf"))):
        assert differs.outcome == "differs" and "judged_by" not in differs.extra
        assert differs.extra["worst"]["tensor"] == "gradient/w"


def test_values_that_are_not_finite_agree_only_with_their_like() -> None:
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([1.0, nan, inf, -2.0])
    assert largest(values) == 2.0
    assert difference(values, values.clone(), 2.0) == 0.0
    assert difference(values, torch.tensor([1.5, nan, inf, -2.0]), 2.0) == 0.25
    assert difference(values, torch.tensor([1.0, 0.0, inf, -2.0]), 2.0) == inf
    assert difference(values[::3], torch.tensor([1.0, -1.0]), 2.0) == 0.5
    assert difference(torch.arange(4), torch.tensor([0, 1, 3, 2]), 3.0) == 0.5


def test_a_wide_model_has_few_layers_and_no_more_tokens_than_its_scale() -> None:
    wide = SCALES["wide"]
    rows = {row.name: row.sized(wide, train=False) for row in FAMILIES}
    assert all(each.layers <= wide.layers for each in rows.values())
    assert (rows["mixtral"].layers, rows["bert"].layers) == (2, 3)
    assert (rows["longformer"].tokens, rows["longformer"].batch) == (1024, 2)
    bert = next(row for row in FAMILIES if row.name == "bert")
    assert bert.sized(wide, train=True).batch == wide.batch // 2


def test_results_that_a_command_wrote_have_the_names_of_the_ordinary_ones(tmp_path: Path) -> None:
    one = np.ones(2, np.float32)
    np.savez(tmp_path / "forward.npz", output_0=one, update_seen=one)
    assert [*written_values(tmp_path / "forward.npz")] == ["output/0", "buffer/seen"]
    named = {"gradient_model.w": one, "update_model.seen": one}
    np.savez(tmp_path / "step.npz", output_0=one, output_1=one, **named)
    assert [*written_values(tmp_path / "step.npz")] == [
        "output/loss",
        "output/0",
        "gradient/w",
        "buffer/seen",
    ]
