"""The traced workloads: counts, scopes, updates, and that the models compute what they say."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from loadmaster.program.program import Program, TensorKind, TieKind
from loadmaster.program.zoo.traced import TRACED, trace

jax = pytest.importorskip("jax")
PINNED_JAX = "0.10.2"

# name -> ops with the pinned JAX, weights in M, TFLOP (the last two: the table of the spec)
GOLDEN = {
    "rnnlm-2": (5782, 108, 1.4),
    "txl-2": (2325, 60, 6.3),
    "inception-b32": (8389, 27, 1.1),
    "amoebanet": (23970, 125, 2.8),
    "wavenet-2x9": (2182, 7.2, 2.8),
    "llama": (5405, 886, 43.7),
    "vit-l16": (11001, 304, 23.6),
    "unet": (20121, 860, 39.0),
    "moe": (21289, 2532, 20.3),
    "mamba": (27334, 686, 35.5),
    "gnmt-8:steps=5": (5863, 275, 0.41),
}


@functools.cache
def program_of(name: str) -> Program:
    base, _, steps = name.partition(":steps=")
    workload = TRACED[base]
    return trace(workload.with_parameters(steps=int(steps)) if steps else workload)


def scopes_of(program: Program) -> set[str]:
    return {program.op_scope[op] for op in range(program.n_ops)}


def test_the_table_names_all_workloads() -> None:
    paper = [f"{family}-{size}" for family in ("rnnlm", "gnmt", "txl") for size in (2, 4, 8)]
    paper += ["inception-b32", "inception-b64", "amoebanet", "wavenet-2x9", "wavenet-4x9"]
    assert set(TRACED) == {*paper, "llama", "vit-l16", "unet", "moe", "mamba"}
    assert all(TRACED[name].machine.startswith("p100x") for name in paper)
    assert all(workload.machine.endswith(f"x{workload.devices}") for workload in TRACED.values())


def test_the_table_is_there_without_jax() -> None:
    code = "import sys, loadmaster.program.zoo.traced; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["gnmt-2:steps=3", "rnnlm-2:steps=3", "mamba:layers=1,chunks=2"])
def test_parts_that_recur_are_as_if_written_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jitted step is traced once; ops, names and order are those of a step that is not jitted."""
    from loadmaster.program.zoo import layers, sequence

    base, _, changes = name.partition(":")
    parameters = {key: int(value) for key, value in (change.split("=") for change in changes.split(","))}
    workload = TRACED[base].with_parameters(**parameters)
    once = trace(workload)
    for module, part in (
        (layers, "_lstm_step"),
        (sequence, "_dense_loss"),
        (sequence, "_weighted_mean"),
        (sequence, "_chunk"),
    ):
        monkeypatch.setattr(module, part, getattr(module, part).__wrapped__)
    assert trace(workload).named_hash == once.named_hash


def weight_count(program: Program) -> int:
    weights = (program.tensor_kind == TensorKind.WEIGHT).nonzero()[0]
    return sum(math.prod(program.shape(tensor)) for tensor in weights)


@pytest.mark.parametrize("name", GOLDEN)
def test_counts(name: str) -> None:
    ops, weights, tera = GOLDEN[name]
    program = program_of(name)
    if jax.__version__ == PINNED_JAX:
        assert program.n_ops == ops
    else:
        assert program.n_ops == pytest.approx(ops, rel=0.03)
    assert weight_count(program) / 1e6 == pytest.approx(weights, rel=0.02)
    assert program.op_flops[:, 0].sum() / 1e12 == pytest.approx(tera, rel=0.1)
    assert not program.warnings


@pytest.mark.parametrize("name", GOLDEN)
def test_every_weight_is_updated_in_place_with_its_moments(name: str) -> None:
    program = program_of(name)
    weights = np.flatnonzero(program.tensor_kind == TensorKind.WEIGHT)
    moments = np.flatnonzero(program.tensor_kind == TensorKind.STATE)
    assert len(moments) == 2 * len(weights)
    updated = program.tie_source[program.tie_kind == TieKind.INPLACE]
    assert {*weights.tolist(), *moments.tolist()} <= set(updated.tolist())
    groups = program.tensor_group[weights]
    assert len(set(groups.tolist())) == len(weights) and groups.min() >= 0
    assert sorted(program.tensor_group[moments].tolist()) == sorted(2 * groups.tolist())
    in_update = [program.op_scope[op].startswith("update/") for op in range(program.n_ops)]
    assert set(program.op_group[in_update].tolist()) == set(groups.tolist())
    modern = TRACED[name.partition(":")[0]].machine == "a100-40x4"
    assert {program.tensor_dtype[t] for t in weights} == {"bf16" if modern else "f32"}
    assert {program.tensor_dtype[t] for t in moments} == {"f32"}


@pytest.mark.parametrize(
    ("name", "layers", "cells"),
    [
        ("rnnlm-2", "embed lstm0 lstm1 softmax", "lstm0/t0 lstm1/t39 softmax/t17"),
        (
            "gnmt-8:steps=5",
            "embed enc0 enc1 enc7 dec0 dec7 attention softmax",
            "embed/source enc0/ahead/t0 enc0/back/t4 enc7/t4 dec3/t2 attention/t1 softmax/t4",
        ),
        ("txl-2", "embed layer0 layer1 softmax", "layer1/s3 softmax/s0"),
        ("inception-b32", "stem mixed0 mixed10 aux head", "mixed4/b2"),
        ("amoebanet", "stem cell0 cell21 head", "cell3/in0 cell21/n4"),
        ("wavenet-2x9", "embed stack0 stack1 softmax", "stack0/d1 stack1/d256"),
        ("llama", "embed layer0 layer15 head", ""),
        ("vit-l16", "embed block0 block23 head", ""),
        ("unet", "time in down0 down3 middle up3 up0 out", "down0/r1/attention up3/r2"),
        ("moe", "embed layer0 layer11 head", "layer3/attention layer3/router layer11/e15"),
        ("mamba", "embed layer0 layer23 head", "layer5/chunk7"),
    ],
)
def test_scopes(name: str, layers: str, cells: str) -> None:
    program = program_of(name)
    scopes = scopes_of(program)
    assert "" not in scopes
    assert {*layers.split(), "update"} <= {scope.split("/")[0] for scope in scopes}
    assert set(cells.split()) <= scopes
    backward = {program.op_scope[op].split("/")[0] for op in np.flatnonzero(program.op_backward)}
    assert set(layers.split()) <= backward


def test_gnmt_grows_by_the_step() -> None:
    per_step = (program_of("gnmt-8:steps=7").n_ops - program_of("gnmt-8:steps=5").n_ops) / 2
    whole = program_of("gnmt-8:steps=5").n_ops + 71 * per_step
    assert per_step == pytest.approx(1050, rel=0.03)
    assert 79_000 <= whole <= 81_000


def test_a_small_model_learns() -> None:
    from loadmaster.program.zoo.sequence import rnnlm
    from loadmaster.program.zoo.training import train_step

    function, (shapes, *_, batch_shapes), _ = train_step(rnnlm(2, hidden=16, steps=3, batch=4, vocabulary=9))
    draw = np.random.default_rng(0)
    params = {name: draw.normal(size=s.shape, scale=0.2).astype(s.dtype) for name, s in shapes.items()}
    m = {name: np.zeros(s.shape, "float32") for name, s in shapes.items()}
    v = dict(m)
    batch = {name: draw.integers(0, 9, s.shape).astype(s.dtype) for name, s in batch_shapes.items()}
    step = jax.jit(function)
    losses = []
    for _ in range(40):
        loss, params, m, v = step(params, m, v, batch)
        losses.append(float(loss))
    assert losses[0] == pytest.approx(math.log(9), rel=0.05)
    assert losses[-1] < 0.8 * losses[0]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def test_cross_entropy_is_the_negative_logarithm_of_the_chance() -> None:
    from loadmaster.program.zoo.layers import cross_entropy

    logits, labels = random(5, 7), np.array([0, 6, 3, 3, 1], dtype="int32")
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = -np.log(chances[np.arange(5), labels]).sum()
    assert float(cross_entropy(logits, labels)) == pytest.approx(expected, rel=1e-5)


def test_attention_with_shared_key_heads_is_that_of_each_head() -> None:
    from loadmaster.program.zoo.layers import attention, causal_mask

    queries, keys, values = (random(2, 4, 3, 2, 5), random(2, 4, 3, 5, seed=1), random(2, 4, 3, 5, seed=2))
    mask = np.asarray(causal_mask(4, 4))
    got = np.asarray(attention(queries, keys, values, 0.5, mask[None, None, :, None])).reshape(2, 4, 3, 2, 5)
    scores = np.einsum("btkgd,bskd->bkgts", queries, keys) * 0.5 + mask
    chances = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(got, np.einsum("bkgts,bskd->btkgd", chances, values), rtol=2e-5, atol=1e-6)


def test_relative_shift_moves_each_row_to_its_own_distance() -> None:
    from loadmaster.program.zoo.sequence import _shift

    by_distance = np.broadcast_to(np.arange(8, dtype="float32"), (1, 1, 4, 8))
    by_key = np.asarray(_shift(by_distance))[0, 0]
    for query in range(4):  # distance d of the last key a query may see is the last column
        assert by_key[query, : query + 5].tolist() == list(range(3 - query, 8))


def test_mamba_chunks_are_the_recurrence() -> None:
    from loadmaster.program.zoo.layers import causal_mask
    from loadmaster.program.zoo.sequence import _chunk

    x, b, c = random(2, 6, 3, 4), random(2, 6, 5, seed=1), random(2, 6, 5, seed=2)
    step, decay = np.abs(random(2, 6, 3, seed=3)), -np.abs(random(2, 6, 3, seed=4))
    state = random(2, 3, 4, 5, seed=5)
    mask = np.asarray(causal_mask(6, 6))[None, None]
    result, after = _chunk(*(jax.numpy.asarray(a) for a in (x, b, c, step, decay, state, mask)))
    for t in range(6):
        new = np.einsum("bh,bhp,bn->bhpn", step[:, t], x[:, t], b[:, t])
        state = np.exp(decay[:, t])[:, :, None, None] * state + new
        expected = np.einsum("bhpn,bn->bhp", state, c[:, t])
        np.testing.assert_allclose(np.asarray(result)[:, t], expected, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(np.asarray(after), state, rtol=2e-4, atol=1e-4)
