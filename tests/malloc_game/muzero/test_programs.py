"""Programs made from others: parts that are whole programs, and training steps that say what they keep."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.malloc_game.muzero.cases import cut, train_step
from loadmaster.program.program import TensorKind, TieKind
from loadmaster.program.zoo import load_workload
from loadmaster.program.zoo.random_nets import random_convnet, random_transformer


@pytest.mark.parametrize("name", ["alexnet-train", "transformer-2-train", "wavenet"])
def test_a_part_reads_and_writes_as_the_whole_does(name: str) -> None:
    whole = load_workload(name)
    first, last = whole.n_ops // 3, 2 * whole.n_ops // 3
    part = cut(whole, first, last)
    assert part.n_ops == last - first + 1
    inside = slice(int(whole.read_start[first]), int(whole.read_start[last + 1]))
    assert np.array_equal(part.read_bytes, whole.read_bytes[inside])
    assert np.array_equal(part.op_flops, whole.op_flops[first : last + 1])
    # What is read and not made is given; what the rest of the whole reads is an output.
    made = np.isin(np.arange(part.n_tensors), part.write_tensor)
    assert np.array_equal(part.is_given, ~made)
    names = {each: number for number, each in enumerate(part.tensor_name)}
    later = set(whole.read_tensor[whole.read_op > last].tolist())
    for tensor in whole.write_tensor[(whole.write_op >= first) & (whole.write_op <= last)].tolist():
        if tensor in later:
            assert part.tensor_kind[names[f"t{tensor}"]] == TensorKind.OUTPUT


def test_all_of_a_program_is_the_program() -> None:
    whole = load_workload("alexnet-train")
    part = cut(whole, 0, whole.n_ops - 1)
    assert np.array_equal(np.sort(part.tensor_bytes), np.sort(whole.tensor_bytes))
    assert np.array_equal(part.read_bytes, whole.read_bytes) and len(part.tie_kind) == len(whole.tie_kind)


@pytest.mark.parametrize("make", [random_convnet, random_transformer])
def test_a_training_step_changes_every_weight_and_keeps_what_its_gradients_need(make: object) -> None:
    assert callable(make)
    net = make(np.random.default_rng(3))
    step = train_step(net)
    weights = np.flatnonzero(step.tensor_kind == TensorKind.WEIGHT)
    donated = step.tie_source[step.tie_kind == TieKind.DONATED]
    assert set(weights.tolist()) == set(donated.tolist())
    assert (step.tensor_kind[step.tie_target] == TensorKind.OUTPUT).all()
    assert step.op_backward.sum() > net.n_ops // 2 and not step.op_backward[: net.n_ops].any()
    # Most activations of the forward pass are read again by the backward pass.
    forward = np.flatnonzero((step.tensor_kind == TensorKind.ACTIVATION) & (step.producer < net.n_ops))
    read_back = np.isin(forward, step.read_tensor[step.read_op >= net.n_ops])
    assert read_back.mean() > 0.4
