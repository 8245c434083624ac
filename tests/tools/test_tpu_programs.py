"""The TPU programs as functions: their shapes, and small ones of the same code run and compared."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.tpu.suite import SUITE

jax = pytest.importorskip("jax")


class Random:
    """Weights that are made up where they are asked for, the same for the same name."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __call__(self, name: str, shape: tuple[int, ...]) -> Any:
        if name not in self.made:
            numbers = np.random.default_rng(len(self.made)).normal(size=shape)
            self.made[name] = (numbers / shape[0] ** 0.5).astype("float32")
        assert self.made[name].shape == tuple(shape), name
        return self.made[name]


def test_the_table_is_there_without_jax() -> None:
    code = "import sys, tools.tpu.suite; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("alexnet-inf", [(32, 1000)]),
        ("resnet50-inf", [(32, 1000)]),
        ("bert-base", [(8, 768)]),
        ("transformer-6", [(8, 512, 2048)]),
        ("wavenet", [(1, 16_000, 256)]),
        ("alphatensor-net", [(256, 12, 64), (256, 8)]),
        ("inception-v3", [(16, 1000)]),
        ("vit-b16", [(16, 1000)]),
        ("mixer-b16", [(16, 1000)]),
        ("diffusion-unet", [(8, 64, 64, 3)]),
        ("moe-4", [(8, 256, 1024)]),
        ("gpt-prefill", [(4, 32_000)] + [(4, 512, 16, 64)] * 24),
        ("gpt-decode", [(16, 32_000)] + [(16, 1024, 16, 64)] * 24),
    ],
)
def test_shapes_of_results(name: str, results: list[tuple[int, ...]]) -> None:
    function, arguments, donated = SUITE[name].make()
    made = jax.eval_shape(function, *arguments)
    assert [leaf.shape for leaf in jax.tree.leaves(made)] == results
    assert donated == ((2,) if name == "gpt-decode" else ())


def test_training_gives_back_what_it_is_given() -> None:
    function, (weights, batch), donated = SUITE["alexnet-train"].make()
    loss, new = jax.eval_shape(function, weights, batch)
    assert loss.shape == () and donated == (0,)
    assert {name: w.shape for name, w in new.items()} == {n: w.shape for n, w in weights.items()}


def test_a_step_of_sgd_lowers_the_loss() -> None:
    from tools.tpu import steps
    from tools.tpu.suite import TpuProgram

    def model(weights: Any, data: Any) -> Any:
        return data["x"] @ weights("w", (8, 4))

    program = TpuProgram(
        "tiny", "", {"x": ("float32", (16, 8)), "labels": ("int32", (16,))}, "float32", "sgd"
    )
    step, _, _ = steps.made(program, model)
    key = np.random.default_rng(0)
    weights: Any = {"w": key.normal(size=(8, 4)).astype("float32")}
    data = {"x": key.normal(size=(16, 8)).astype("float32"), "labels": key.integers(0, 4, 16).astype("int32")}
    losses, run = [], jax.jit(step)
    for _ in range(5):
        loss, weights = run(weights, data)
        losses.append(float(loss))
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]


def test_decoding_continues_what_prefill_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.tpu import language

    sizes = {"LAYERS": 2, "WIDTH": 32, "HEADS": 4, "VOCABULARY": 50, "SCALE": 8**-0.5}
    for name, value in sizes.items():
        monkeypatch.setattr(language, name, value)
    tokens = np.random.default_rng(1).integers(0, 50, (3, 6)).astype("int32")
    weights = Random()
    weights("positions", (6, 32))
    whole, _ = _run(language.gpt_prefill, weights, {"tokens": tokens})
    # The same weights, with the positions that are read so far.
    shorter = functools.partial(_with_positions, weights, 5)
    _, kept = _run(language.gpt_prefill, shorter, {"tokens": tokens[:, :5]})
    caches = [np.pad(array, ((0, 0), (0, 1), (0, 0), (0, 0))) for array in kept]
    data = {"tokens": tokens[:, 5:], "position": np.int32(5), "caches": caches}
    logits, changed = _run(language.gpt_decode, weights, data)
    np.testing.assert_allclose(logits, whole, rtol=2e-3, atol=2e-3)
    assert all(not np.allclose(cache[:, 5], 0) for cache in changed)


def _run(function: Any, weights: Any, *rest: Any) -> Any:
    return jax.jit(functools.partial(function, weights))(*rest)


def _with_positions(weights: Random, count: int, name: str, shape: tuple[int, ...]) -> Any:
    return weights(name, (6, 32))[:count] if name == "positions" else weights(name, shape)


def test_a_mixture_is_its_two_best_experts() -> None:
    from tools.tpu.language import _mixture

    texts, tokens, width, count = 2, 8, 16, 4
    x = np.random.default_rng(3).normal(size=(texts, tokens, width)).astype("float32")
    weights = Random()
    found = _run(lambda w, x: _mixture(w, "m", x, count), weights, x)
    router, inside, back = (weights.made[f"m.{name}"] for name in ("router.w", "experts.w0", "experts.w1"))
    powers = np.exp(x @ router)
    chances = powers / powers.sum(-1, keepdims=True)
    room, expected = 2 * tokens // count, np.zeros_like(x)
    for text in range(texts):
        taken = np.zeros(count, int)
        for choice in range(2):  # first choices come before second ones
            for token in range(tokens):
                expert = np.argsort(-chances[text, token])[choice]
                if taken[expert] < room:
                    within = x[text, token] @ inside[expert]
                    within *= [0.5 * (1 + math.erf(value / 2**0.5)) for value in within]
                    expected[text, token] += chances[text, token, expert] * (within @ back[expert])
                taken[expert] += 1
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
