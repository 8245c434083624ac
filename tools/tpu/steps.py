"""A suite's model function as what is compiled: inference, or one step of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax

from loadmaster.program.zoo.layers import cross_entropy
from loadmaster.program.zoo.training import (
    Array,
    Batch,
    Model,
    Weights,
    cast,
    declared_weights,
    inputs,
    train_step,
)
from tools.tpu.suite import TpuProgram

Made = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
RATE = 1e-3


def made(program: TpuProgram, function: Callable[..., Any]) -> Made:
    """The function to compile, the shapes of its arguments, and which of them are donated."""
    forward = partial(function, **program.options)
    batch = inputs(**program.batch)
    count, shape = program.caches
    if count:
        return _with_caches(
            forward, batch, [jax.ShapeDtypeStruct(shape, program.dtype)] * count, program.dtype
        )
    if program.step == "adam":
        step, arguments, _ = train_step(Model(forward, batch, program.dtype))
        return step, arguments, (0, 1, 2)
    if program.step == "sgd":
        return _sgd(Model(_loss(forward), batch, program.dtype))
    weights = declared_weights(Model(forward, batch, program.dtype))
    return lambda values, data: forward(Weights(values), data), (weights, batch), ()


def _loss(forward: Callable[..., Array]) -> Callable[[Weights, Batch], Array]:
    def loss(weights: Weights, data: Batch) -> Array:
        labels = data["labels"]
        return lax.mul(cross_entropy(forward(weights, data), labels), 1 / labels.size)

    return loss


def _sgd(model: Model) -> Made:
    def step(weights: dict[str, Array], data: Batch) -> tuple[Array, dict[str, Array]]:
        loss, slopes = jax.value_and_grad(lambda values: model.loss(Weights(values), data))(weights)
        change = {name: lax.mul(cast(slopes[name], "float32"), RATE) for name in weights}
        new = {
            name: cast(lax.sub(cast(weight, "float32"), change[name]), str(weight.dtype))
            for name, weight in weights.items()
        }
        return loss, new

    return step, (declared_weights(model), model.batch), (0,)


def _with_caches(
    forward: Callable[..., Any], batch: dict[str, Array], caches: list[Array], dtype: str
) -> Made:
    everything = {**batch, "caches": caches}
    weights = declared_weights(Model(forward, everything, dtype))

    def run(values: dict[str, Array], data: Batch, given: list[Array]) -> Any:
        return forward(Weights(values), {**data, "caches": given})

    return run, (weights, batch, caches), (2,)
