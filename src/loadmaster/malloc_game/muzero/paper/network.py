"""The networks of mallocMuZero: what a position is (`represent`), what a move makes of it
(`dynamics`), and what is to be expected from there (`predict`).

All three speak of one position; `jax.vmap` makes batches. Shapes do not depend on the program, so
that one network plays any game. W = width; every other size follows from it (`Settings`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from loadmaster.malloc_game.games import PUBLISHED, SHAPES

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.paper import Settings

# The layers of mallocMuZero's networks. Weights are drawn by NumPy: the same on every device, and
# without a compiler.

Rng = np.random.Generator


def drawn(rng: Rng, shape: tuple[int, ...], scale: float) -> Array:
    """Normal numbers of a standard deviation."""
    return jnp.asarray((scale * rng.standard_normal(shape)).astype(np.float32))


def filled(value: float, width: int) -> Array:
    """float32[width] of one value."""
    return jnp.asarray(np.full(width, value, dtype=np.float32))


class Dense(eqx.Module):  # type: ignore[misc]
    """[..., in] -> [..., out]"""

    weight: Array
    bias: Array

    def __init__(self, inputs: int, outputs: int, rng: Rng, scale: float = 1.0) -> None:
        self.weight = drawn(rng, (inputs, outputs), scale / math.sqrt(inputs))
        self.bias = filled(0, outputs)

    def __call__(self, x: Array) -> Array:
        return x @ self.weight + self.bias


class Norm(eqx.Module):  # type: ignore[misc]
    """LayerNorm over the last axis."""

    scale: Array
    shift: Array

    def __init__(self, width: int) -> None:
        self.scale, self.shift = filled(1, width), filled(0, width)

    def __call__(self, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * self.scale + self.shift


class Block(eqx.Module):  # type: ignore[misc]
    """LayerNorm, W -> 2W -> W, added to what came in."""

    norm: Norm
    first: Dense
    second: Dense

    def __init__(self, width: int, rng: Rng) -> None:
        self.norm = Norm(width)
        self.first = Dense(width, 2 * width, rng)
        self.second = Dense(2 * width, width, rng)

    def __call__(self, x: Array) -> Array:
        return x + self.second(jax.nn.gelu(self.first(self.norm(x))))


class Patches(eqx.Module):  # type: ignore[misc]
    """[tokens, in] -> [tokens, out]: what is seen, patch by patch, then mixed between patches and within
    them. No convolutions: on a CPU they would take most of a move's time, and more of a gradient's."""

    first: Dense
    between: list[Dense]
    within: list[Block]

    def __init__(self, tokens: int, inputs: int, channels: int, blocks: int, rng: Rng) -> None:
        self.first = Dense(inputs, channels, rng)
        # Nothing at first, so that depth costs no training.
        self.between = [Dense(tokens, tokens, rng, scale=0.0) for _ in range(blocks)]
        self.within = [Block(channels, rng) for _ in range(blocks)]

    def __call__(self, x: Array) -> Array:
        x = self.first(x)
        for between, within in zip(self.between, self.within, strict=True):
            x = within(x + between(jax.nn.gelu(x).T).T)
        return jax.nn.gelu(x)


class Head(eqx.Module):  # type: ignore[misc]
    """W -> W/2 -> logits, which are near zero at first: every move and every value is likely."""

    first: Dense
    second: Dense

    def __init__(self, width: int, outputs: int, rng: Rng) -> None:
        self.first = Dense(width, width // 2, rng)
        self.second = Dense(width // 2, outputs, rng, scale=0.1)

    def __call__(self, x: Array) -> Array:
        return self.second(jax.nn.gelu(self.first(x)))


# Values and rewards as distributions over bins: a number is the mean of its two nearest bins, and a
# prediction is the mean of all of them. Bins lie densely around zero and sparsely far from it: what most
# moves earn is a thousandth of what the largest tensors do, and it is what play is about.

VALUES = (-7.0, 8.5)
"""Ends of the bins, as sign(x) log(1 + |x|); the unit is an optimal game's mean reward."""
REWARDS = (-7.0, 7.0)
"""The same, of one move."""


def centres(low: float, high: float, bins: int) -> Array:
    """[bins] what each bin stands for."""
    at = np.linspace(low, high, bins)
    return jnp.asarray(np.sign(at) * np.expm1(np.abs(at)), jnp.float32)


def two_hot(x: Array, low: float, high: float, bins: int) -> Array:
    """[...] -> [..., bins]: shares of the two bins around each number, which is clipped first."""
    middle = centres(low, high, bins)
    x = jnp.clip(x, middle[0], middle[-1])
    below = jnp.clip(jnp.searchsorted(middle, x, side="right") - 1, 0, bins - 2)
    share = ((x - middle[below]) / (middle[below + 1] - middle[below]))[..., None]
    return (1 - share) * jax.nn.one_hot(below, bins) + share * jax.nn.one_hot(below + 1, bins)


def expectation(logits: Array, low: float, high: float) -> Array:
    """[..., bins] -> [...]: the mean of the distribution that logits stand for."""
    # A sum of products and no matrix product, which accelerators round to a few bits: values of
    # moves differ in the third digit.
    return (jax.nn.softmax(logits) * centres(low, high, logits.shape[-1])).sum(-1)


FAR = -1e9
HEADS = 4
PATCH = 8
"""Columns, and rows of the grid, that are seen as one."""
POSITION_BLOCKS = 2
GRID_PLANES = 8
"""Numbers that are left of a patch of the grid when it is flattened."""
Observation = Mapping[str, Array]
"""Arrays by name as in `SHAPES`, without the mask."""


class GridEye(eqx.Module):  # type: ignore[misc]
    """uint8[128, 64, 4] -> [W]: fast memory, time by address."""

    patches: Patches
    thin: Dense
    join: Dense

    def __init__(self, settings: Settings, rng: Rng) -> None:
        (columns, rows, planes), _ = SHAPES["grid"]
        tokens, channels = columns // PATCH * (rows // PATCH), settings.channels
        self.patches = Patches(tokens, PATCH * PATCH * planes, channels, settings.grid_blocks, rng)
        self.thin = Dense(channels, GRID_PLANES, rng)
        self.join = Dense(tokens * GRID_PLANES, settings.width, rng)

    def __call__(self, grid: Array) -> Array:
        columns, rows, planes = grid.shape
        x = grid.reshape(columns // PATCH, PATCH, rows // PATCH, PATCH, planes).swapaxes(1, 2)
        x = x.reshape(-1, PATCH * PATCH * planes).astype(jnp.float32) / 255
        return jax.nn.relu(self.join(jax.nn.relu(self.thin(self.patches(x))).reshape(-1)))


class SeriesEye(eqx.Module):  # type: ignore[misc]
    """[128, 8] -> [W/2]: what the columns of the grid have left to give."""

    patches: Patches
    join: Dense

    def __init__(self, settings: Settings, rng: Rng) -> None:
        (columns, inputs), _ = SHAPES["series"]
        tokens = columns // PATCH
        self.patches = Patches(tokens, PATCH * inputs, settings.channels, 1, rng)
        self.join = Dense(tokens * settings.channels, settings.width // 2, rng)

    def __call__(self, series: Array) -> Array:
        x = self.patches(series.reshape(-1, PATCH * series.shape[1]))
        return jax.nn.relu(self.join(x.reshape(-1)))


class DecisionsEye(eqx.Module):  # type: ignore[misc]
    """[32, 16] -> [W/4]: of the decisions around the current one, those that it asks for."""

    first: Dense
    second: Dense
    query: Dense
    key: Dense
    value: Dense

    def __init__(self, asking: int, width: int, rng: Rng) -> None:
        part = width // 4
        self.first = Dense(SHAPES["ahead"][0][1], part, rng)
        self.second = Dense(part, part, rng)
        self.query = Dense(asking, part, rng)
        self.key, self.value = Dense(part, part, rng), Dense(part, part, rng)

    def __call__(self, tokens: Array, asking: Array) -> Array:
        real = tokens[:, 0] > 0  # a tensor has a size; a row without is beyond the game's ends
        x = jax.nn.relu(self.second(jax.nn.relu(self.first(tokens))))
        keys, values = (layer(x).reshape(len(x), HEADS, -1) for layer in (self.key, self.value))
        query = self.query(asking).reshape(HEADS, -1)
        logits = (keys * query).sum(-1) / math.sqrt(query.shape[1])
        share = jax.nn.softmax(jnp.where(real[:, None], logits, FAR), axis=0) * real[:, None]
        return (share[..., None] * values).sum(0).reshape(-1)


class Network(eqx.Module):  # type: ignore[misc]
    """Every part of the model that search looks ahead with."""

    grid: GridEye
    series: SeriesEye
    decisions: DecisionsEye
    current: list[Dense]
    norm: Norm
    join: Dense
    position: list[Block]

    actions: Array
    move: Dense
    moved: list[Block]
    reward: Head

    outlook: list[Block]
    policy: Head
    value: Head
    legality: Head

    def __init__(self, settings: Settings, rng: Rng) -> None:
        width = settings.width
        about = SHAPES["current"][0][0] + SHAPES["globals"][0][0]

        def blocks(count: int) -> list[Block]:
            return [Block(width, rng) for _ in range(count)]

        self.grid, self.series = GridEye(settings, rng), SeriesEye(settings, rng)
        self.decisions = DecisionsEye(about, width, rng)
        self.current = [Dense(about, width // 2, rng), Dense(width // 2, width // 2, rng)]
        parts = width + 2 * (width // 2) + 2 * (width // 4)
        self.norm, self.join = Norm(parts), Dense(parts, width, rng)
        self.position = blocks(POSITION_BLOCKS)

        self.actions = drawn(rng, (len(PUBLISHED), width // 8), 1.0)
        self.move = Dense(width + width // 8, width, rng)
        self.moved = blocks(settings.dynamics_blocks)
        self.reward = _expecting_nothing(Head(width, settings.bins, rng), REWARDS)

        self.outlook = blocks(settings.prediction_blocks)
        self.policy = Head(width, len(PUBLISHED), rng)
        self.value = _expecting_nothing(Head(width, settings.bins, rng), VALUES)
        self.legality = Head(width, len(PUBLISHED), rng)

    def represent(self, observation: Observation) -> Array:
        """The latent [W] of a position, each number in [0, 1]."""
        about = jnp.concatenate([observation["current"], observation["globals"]])
        x = about
        for layer in self.current:
            x = jax.nn.relu(layer(x))
        seen = [self.grid(observation["grid"]), self.series(observation["series"]), x]
        seen += [self.decisions(observation[name], about) for name in ("ahead", "back")]
        return _through(self.position, self.join(self.norm(jnp.concatenate(seen))))

    def dynamics(self, latent: Array, action: Array) -> tuple[Array, Array]:
        """(the latent [W] after a move, logits [bins] of its reward)"""
        x = self.move(jnp.concatenate([latent, self.actions[action]]))
        latent = _through(self.moved, x)
        return latent, self.reward(latent)

    def predict(self, latent: Array) -> tuple[Array, Array, Array]:
        """Logits of (the policy [3], the value [bins], each move's legality [3])."""
        x = latent
        for block in self.outlook:
            x = block(x)
        return self.policy(x), self.value(x), self.legality(x)


def make_network(key: Array, settings: Settings) -> Network:
    """A network that has learned nothing."""
    return Network(settings, np.random.default_rng(np.asarray(jax.random.key_data(key))))


def _expecting_nothing(head: Head, ends: tuple[float, float]) -> Head:
    """Far bins are unlikely at first: all alike, their mean would be hundreds, and drown every reward."""
    bias = jnp.asarray(-2 * np.abs(np.linspace(*ends, len(head.second.bias))), jnp.float32)
    quiet: Head = eqx.tree_at(lambda tree: tree.second.bias, head, bias)
    return quiet


def _through(blocks: list[Block], x: Array) -> Array:
    """The blocks one after another, and the result stretched to [0, 1]: however often it is
    unrolled, a latent stays of one size."""
    for block in blocks:
        x = block(x)
    low, high = x.min(), x.max()
    return (x - low) / jnp.maximum(high - low, 1e-5)
