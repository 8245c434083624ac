"""How a workload becomes a train step: weights declared where they are used, and Adam.

A family is a function that returns a `Model`: a loss over weights and a batch. The loss asks for
its weights by name and shape, so that nothing is written down twice; tracing it once over shapes
says which there are. A Program needs no more than that: nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

Array = Any
"""A traced value, or in its place a `jax.ShapeDtypeStruct`."""
Batch = Mapping[str, Array]

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
"""Adam's numbers; the corrections of its first steps are part of the learning rate."""


class Weights:
    """The model's weights by name. `weights(name, shape)` declares one and returns its value."""

    def __init__(self, values: Mapping[str, Array] | None = None, dtype: str = "float32") -> None:
        self.values = values
        self.dtype = dtype
        self.declared: dict[str, Array] = {}
        self._zeros: dict[str, Array] = {}

    def __call__(self, name: str, shape: Sequence[int]) -> Array:
        if self.values is not None:
            return self.values[name]
        if name not in self.declared:
            self.declared[name] = jax.ShapeDtypeStruct(tuple(shape), self.dtype)
            self._zeros[name] = lax.full(tuple(shape), 0, self.dtype)
        return self._zeros[name]


Loss = Callable[[Weights, Batch], Array]


class Model(NamedTuple):
    """A workload before its train step: what it computes, in which type, on which batch."""

    loss: Loss
    batch: dict[str, Array]
    dtype: str = "float32"


def inputs(**shapes: tuple[str, Sequence[int]]) -> dict[str, Array]:
    """`inputs(tokens=("int32", (64, 40)))`: the shapes of a batch."""
    return {name: jax.ShapeDtypeStruct(tuple(size), dtype) for name, (dtype, size) in shapes.items()}


def declared_weights(model: Model) -> dict[str, Array]:
    """The shapes of all weights that the loss asks for, in the order in which it does."""
    weights = Weights(dtype=model.dtype)
    jax.eval_shape(lambda batch: model.loss(weights, batch), model.batch)
    return weights.declared


def train_step(model: Model) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """One step of Adam: the function, its arguments and how `import_jax` should read them."""

    def step(
        params: dict[str, Array], m: dict[str, Array], v: dict[str, Array], batch: Batch
    ) -> tuple[Array, dict[str, Array], dict[str, Array], dict[str, Array]]:
        loss, gradients = jax.value_and_grad(lambda p: model.loss(Weights(p), batch))(params)
        updated: dict[str, tuple[Array, Array, Array]] = {}
        for name, weight in params.items():
            with jax.named_scope(f"update/{name}"):
                updated[name] = adam(weight, m[name], v[name], gradients[name])
        new_params, new_m, new_v = ({n: u[i] for n, u in updated.items()} for i in range(3))
        return loss, new_params, new_m, new_v

    params = declared_weights(model)
    moments = {name: jax.ShapeDtypeStruct(p.shape, "float32") for name, p in params.items()}
    options = {
        "weights": [0],
        "state": [1, 2],
        "updates": {0: 1, 1: 2, 2: 3},
        "group_scope": "update",
        "sum_early": True,
    }
    return step, (params, moments, moments, model.batch), options


def adam(weight: Array, m: Array, v: Array, gradient: Array) -> tuple[Array, Array, Array]:
    """The new weight and moments. Moments are f32; a bf16 weight has no f32 copy."""
    gradient = cast(gradient, "float32")
    m = lax.add(lax.mul(m, BETA1), lax.mul(gradient, 1 - BETA1))
    v = lax.add(lax.mul(v, BETA2), lax.mul(lax.square(gradient), 1 - BETA2))
    change = lax.div(lax.mul(m, RATE), lax.add(lax.sqrt(v), EPSILON))
    return cast(lax.sub(cast(weight, "float32"), change), str(weight.dtype)), m, v


def cast(x: Array, dtype: str) -> Array:
    """`x` in another type; no op where it already has it."""
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)
