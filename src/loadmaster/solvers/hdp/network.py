"""HDP's two networks: the grouper is linear in an op's features, the placer is a sequence model over
groups: a bidirectional LSTM reads them, another one with attention names a device for each in turn.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from loadmaster.solvers.hdp.settings import Settings

Carry = tuple[Array, Array]


class Network(eqx.Module):  # type: ignore[misc]
    """All weights; H is the hidden width, K the number of groups, D that of devices."""

    group_in: Array
    group_out: Array
    """[grouper, K]"""
    read_forward: Array
    """[features + H / 2, 2 H], and so backward"""
    read_backward: Array
    write: Array
    """[2 H, 4 H]"""
    read_forget: Array
    write_forget: Array
    remember: Array
    """[H, H]; attention's map of what was read"""
    ask: Array
    weigh: Array
    """[H]"""
    start: Array
    device: Array
    """[D, H]"""
    choose: Array
    """[2 H, D]"""


def make_network(
    key: Array, op_width: int, group_width: int, groups: int, devices: int, settings: Settings
) -> Network:
    """Fresh weights, uniform by Glorot's rule."""
    hidden, keys = settings.hidden, iter(jax.random.split(key, 11))

    def draw(*shape: int) -> Array:
        limit = (6 / (shape[0] + shape[-1])) ** 0.5
        return jax.random.uniform(next(keys), shape, minval=-limit, maxval=limit)

    return Network(
        group_in=draw(op_width, settings.grouper),
        group_out=draw(settings.grouper, groups),
        read_forward=draw(group_width + hidden // 2, 2 * hidden),
        read_backward=draw(group_width + hidden // 2, 2 * hidden),
        write=draw(2 * hidden, 4 * hidden),
        read_forget=jnp.float32(settings.forget_bias),
        write_forget=jnp.float32(settings.forget_bias),
        remember=draw(hidden, hidden),
        ask=draw(hidden, hidden),
        weigh=draw(hidden, 1)[:, 0],
        start=draw(1, hidden)[0],
        device=draw(devices, hidden),
        choose=draw(2 * hidden, devices),
    )


class Noise(NamedTuple):
    """What is random about placing groups, drawn at once."""

    normal: Array
    """[K, D] added to logits"""
    gumbel: Array
    """[K, D] decides what is chosen"""

    @classmethod
    def of(cls, key: Array, groups: int, devices: int) -> Noise:
        one, two = jax.random.split(key)
        return cls(jax.random.normal(one, (groups, devices)), jax.random.gumbel(two, (groups, devices)))


def group_logits(network: Network, ops: Array, key: Array, share: Array) -> Array:
    """[ops, K]; `share` of their size is noise."""
    logits = ops @ network.group_in @ network.group_out
    size = jnp.sqrt(jnp.mean(jax.lax.stop_gradient(logits) ** 2))
    return logits + share * size * jax.random.normal(key, logits.shape)


def draw_places(network: Network, groups: Array, noise: Noise, share: Array, settings: Settings) -> Array:
    """[K] a device for each group, one after another: each sees those before it."""
    carry, memory = _read(network, groups)
    width = network.start.shape[0]
    signals = network.device @ network.write[:width]

    def step(state: tuple[Carry, Array], at: Noise) -> tuple[tuple[Carry, Array], Array]:
        before, signal = state
        after = _lstm(signal + before[1] @ network.write[width:], before[0], network.write_forget)
        logits = _device_logits(network, after[1][None], memory, at.normal[None], share, settings)
        chosen = jnp.argmax(logits[0] + at.gumbel)
        return (after, signals[chosen]), chosen

    start = network.start @ network.write[:width]
    return jax.lax.scan(step, (carry, start), noise)[1]


def log_probability(
    network: Network, groups: Array, places: Array, noise: Noise, share: Array, settings: Settings
) -> Array:
    """Of the devices `places` [K], under the noise that they were drawn with."""
    carry, memory = _read(network, groups)
    width = network.start.shape[0]
    named = jnp.concatenate([network.start[None], network.device[places[:-1]]])
    states, _ = _unrolled(named @ network.write[:width], carry, network.write[width:], network.write_forget)
    logits = _device_logits(network, states, memory, noise.normal, share, settings)
    return jnp.take_along_axis(jax.nn.log_softmax(logits), places[:, None], axis=1).sum()


def _device_logits(
    network: Network, states: Array, memory: Array, normal: Array, share: Array, settings: Settings
) -> Array:
    """[rows, D] of decoder states [rows, H] that look back at the memory [K, H]."""
    asked = jnp.tanh((states @ network.ask)[:, None] + memory[None])
    focus = jax.nn.softmax(asked @ network.weigh)
    logits = jnp.concatenate([states, focus @ memory], axis=1) @ network.choose
    if settings.tanh > 0:
        logits = settings.tanh * jnp.tanh(logits)
    size = jnp.sqrt(jnp.mean(jax.lax.stop_gradient(logits) ** 2, axis=1, keepdims=True))
    return logits + share * size * normal


def _read(network: Network, groups: Array) -> tuple[Carry, Array]:
    """The last state of both directions, and the memory [K, H] for attention."""

    def over(rows: Array, weights: Array) -> tuple[Array, Carry]:
        width = rows.shape[1]
        empty = jnp.zeros(weights.shape[1] // 4)
        return _unrolled(rows @ weights[:width], (empty, empty), weights[width:], network.read_forget)

    ahead, last = over(groups, network.read_forward)
    back, last_back = over(groups[::-1], network.read_backward)
    memory = jnp.concatenate([ahead, back[::-1]], axis=1) @ network.remember
    return (jnp.concatenate([last[0], last_back[0]]), jnp.concatenate([last[1], last_back[1]])), memory


def _unrolled(signals: Array, carry: Carry, weights: Array, forget: Array) -> tuple[Array, Carry]:
    """(states [K, H], last carry) of an LSTM over projected signals [K, 4 H].

    The gradient of a loop's weights would be summed up step by step, at the cost of the whole matrix
    each time. So the loop holds them fixed, and a term that is zero carries their gradient: the
    product of all states with the weights, less itself.
    """
    fixed = jax.lax.stop_gradient(weights)

    def step(before: Carry, signal: Array) -> tuple[Carry, Array]:
        after = _lstm(signal + before[1] @ fixed, before[0], forget)
        return after, after[1]

    known = jax.lax.stop_gradient(jax.lax.scan(step, carry, signals)[1])
    earlier = jnp.concatenate([jax.lax.stop_gradient(carry[1])[None], known[:-1]])
    product = earlier @ weights
    last, states = jax.lax.scan(step, carry, signals + product - jax.lax.stop_gradient(product))
    return states, last


def _lstm(gates: Array, cell: Array, forget: Array) -> Carry:
    take, keep, show, new = jnp.split(gates, 4)
    cell = jax.nn.sigmoid(take) * jnp.tanh(new) + jax.nn.sigmoid(keep + forget) * cell
    return cell, jax.nn.sigmoid(show) * jnp.tanh(cell)
