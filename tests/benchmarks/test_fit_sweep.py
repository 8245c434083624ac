"""The sweep over other people's models: what its processes hand to each other, and how weights are made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from benchmarks.fit_sweep import CheapNoise, last_lines  # noqa: E402

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
