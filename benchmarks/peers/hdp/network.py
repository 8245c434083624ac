"""HDP's two networks: the grouper is linear in an op's features, the placer is a sequence model over
groups: a bidirectional LSTM reads them, another one with attention names a device for each in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax import Array

from loadmaster.graph import GraphOptimization
from loadmaster.learn.session import check_settings, keep_only
from loadmaster.program.program import Program

# Every number of HDP, with the values of its published code.

MOST_GROUPS = 256
GROUPS_PER_DEVICE = 20
_COUNTS = ("grouper", "neighbours", "results", "dimensions", "decay_every")


@dataclass(frozen=True)
class Settings:
    """`hidden` and `grouper` are widths; steps are evaluations, one plan each."""

    hidden: int = 512
    grouper: int = 64
    groups: int = 0
    """That ops are put into; 0: 20 per device, at most 256."""
    neighbours: int = 20
    """Numbers that tell an op's neighbours: an index and a direction each."""
    results: int = 5
    dimensions: int = 5
    """Results of an op that are looked at, and dimensions of each."""
    rate: float = 0.1
    decay: float = 0.95
    decay_every: int = 50
    decay_from: int = 400
    gradient_bound: float = 1.0
    noise: float = 0.5
    """On logits, as a share of their size."""
    noise_until: int = 750
    sampling_until: int = 500
    """From here on the groups stay where they were put last; only the grouping is drawn."""
    failures_until: int = 1000
    """From here on nothing is learned from plans that do not fit."""
    failure: float = 10.0
    """The cost of a plan that does not fit, and the baseline at the start."""
    baseline: float = 0.9
    """Decay of the moving mean of costs."""
    tanh: float = 1.0
    """Bound of the placer's logits; 0: none."""
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        check_settings("HDP", self, self._rules, counts=_COUNTS, shares=("decay", "baseline"))

    def _rules(self) -> dict[str, bool]:
        return {
            "hidden": self.hidden >= 2 and self.hidden % 2 == 0,
            "groups": self.groups <= 4096,
            "gradient_bound": self.gradient_bound > 0,
            "failure": self.failure > 0,
        }

    @property
    def compiled(self) -> Settings:
        """With only what compiled code reads beside shapes: runs that differ in nothing else share it."""
        return keep_only(self, ("tanh", "gradient_bound"))

    def groups_for(self, devices: int) -> int:
        return self.groups or min(MOST_GROUPS, GROUPS_PER_DEVICE * devices)

    def rate_at(self, step: int) -> float:
        """It falls in steps."""
        return self.rate * self.decay ** max(0, (step - self.decay_from) // self.decay_every)


# What HDP sees: of an op its kind, its results' shapes and its neighbours; of a group their sums.
#
# The ops of HDP are the placement groups of the problem: an op is told by its first node, and a
# group of ops by all of their nodes and edges.

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
UNKNOWN = -1.0


@dataclass(frozen=True)
class Features:
    """Of `ops` ops; `group_rows` follows the grouping."""

    ops: Float32
    """[ops, 1 + results · dimensions + neighbours], unscaled as in the published code."""
    node_op: Int32
    """[nodes]"""
    node_kind: Int32
    node_shape: Float32
    """[nodes, results · dimensions]; 0 where there is no dimension"""
    edges: Int32
    """[2, edges] of ops, within an op too"""
    kinds: int

    def group_rows(self, grouping: Int32, groups: int) -> Float32:
        """[groups, 2 · groups + kinds + results · dimensions] of ops in groups: edges to and from
        every group, how many nodes of each kind, and the sums of their shapes; each row scaled."""
        links = np.zeros((groups, groups), dtype=np.float32)
        np.add.at(links, (grouping[self.edges[0]], grouping[self.edges[1]]), 1)
        of_node = grouping[self.node_op]
        kinds = np.zeros((groups, self.kinds), dtype=np.float32)
        np.add.at(kinds, (of_node, self.node_kind), 1)
        shapes = np.zeros((groups, self.node_shape.shape[1]), dtype=np.float32)
        np.add.at(shapes, of_node, self.node_shape)
        rows: Float32 = np.concatenate([links, links.T, kinds, shapes], axis=1)
        rows /= rows.max(axis=1, keepdims=True) + 1
        return rows

    def width(self, groups: int) -> int:
        """Columns of `group_rows`."""
        return 2 * groups + self.kinds + int(self.node_shape.shape[1])


def features_of(problem: GraphOptimization, settings: Settings) -> Features:
    """The features of a problem's groups."""
    program, nodes = problem.program, problem.node_op
    kinds, node_kind = np.unique(program.op_kind.codes[nodes], return_inverse=True)
    shape = _shapes(program, nodes, settings)
    _, first = np.unique(problem.node_group, return_index=True)
    edges = problem.node_group[problem.edges]
    columns = [
        node_kind[first][:, None],
        np.where(shape[first] > 0, shape[first], UNKNOWN),
        _neighbours(edges, problem.groups, settings.neighbours),
    ]
    return Features(
        np.concatenate(columns, axis=1).astype(np.float32),
        problem.node_group,
        node_kind.astype(np.int32),
        shape,
        edges,
        len(kinds),
    )


def _shapes(program: Program, nodes: Int32, settings: Settings) -> Float32:
    rows = np.zeros((len(nodes), settings.results, settings.dimensions), dtype=np.float32)
    for row, op in enumerate(nodes.tolist()):
        for place, tensor in enumerate(program.writes(op)[: settings.results].tolist()):
            sizes = program.shape(tensor)[: settings.dimensions]
            rows[row, place, : len(sizes)] = sizes
    return rows.reshape(len(nodes), -1)


def _neighbours(edges: Int32, ops: int, width: int) -> Float32:
    """[ops, width] index and direction (1: it reads from here, -1: from there) of each neighbour, in
    the order of the edges, as many as there is room for."""
    between = np.unique(edges[:, edges[0] != edges[1]], axis=1)
    rows: list[list[int]] = [[] for _ in range(ops)]
    for source, target in between.T.tolist():
        rows[source] += [target, 1]
        rows[target] += [source, -1]
    return np.array([(row + [0] * width)[:width] for row in rows], dtype=np.float32)


Carry = tuple[Array, Array]


class Network(eqx.Module):
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
    query: Array
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
        query=draw(hidden, hidden),
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
    query = jnp.tanh((states @ network.query)[:, None] + memory[None])
    focus = jax.nn.softmax(query @ network.weigh)
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


# Drawing plans and learning from what they cost (REINFORCE), compiled once per shape.

_ADAM = optax.scale_by_adam()


class Learner(NamedTuple):
    """What learning changes."""

    network: Network
    optimizer_state: optax.OptState


def make_learner(
    seed: int, op_width: int, group_width: int, groups: int, devices: int, settings: Settings
) -> Learner:
    key = jax.random.key(seed)
    network = make_network(key, op_width, group_width, groups, devices, settings)
    return Learner(network, _ADAM.init(eqx.filter(network, eqx.is_array)))


def step_key(seed: int, step: int) -> Array:
    """Draws and noise of a step depend on these alone, so that learning sees the same noise."""
    return jax.random.fold_in(jax.random.key(seed), step + 1)


@eqx.filter_jit  # type: ignore[untyped-decorator]
def draw_grouping(network: Network, ops: Array, key: Array, noise: Array) -> Array:
    """[ops] a group for each op."""
    noise_key, draw_key, _ = jax.random.split(key, 3)
    return jax.random.categorical(draw_key, group_logits(network, ops, noise_key, noise))


@eqx.filter_jit  # type: ignore[untyped-decorator]
def draw_devices(network: Network, rows: Array, key: Array, noise: Array, settings: Settings) -> Array:
    """[groups] a device for each group."""
    return draw_places(network, rows, _place_noise(network, key), noise, settings)


def _place_noise(network: Network, key: Array) -> Noise:
    groups, devices = network.group_out.shape[1], network.choose.shape[1]
    return Noise.of(jax.random.split(key, 3)[2], groups, devices)


class Batch(NamedTuple):
    """A plan as it was drawn, and by how much it cost more than was expected."""

    ops: Array
    grouping: Array
    rows: Array
    devices: Array
    key: Array
    noise: Array
    excess: Array


@eqx.filter_jit  # type: ignore[untyped-decorator]
def improve(learner: Learner, batch: Batch, rate: Array, settings: Settings) -> Learner:
    """Make what cost less than expected likelier; the gradient's norm is bounded."""

    def loss(network: Network) -> Array:
        noise_key, _, _ = jax.random.split(batch.key, 3)
        logits = group_logits(network, batch.ops, noise_key, batch.noise)
        log_prob = jax.nn.log_softmax(logits)
        grouped = jnp.take_along_axis(log_prob, batch.grouping[:, None], axis=1).sum()
        placed = log_probability(
            network, batch.rows, batch.devices, _place_noise(network, batch.key), batch.noise, settings
        )
        return batch.excess * (grouped + placed)

    gradient = eqx.filter_grad(loss)(learner.network)
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradient)))
    scale = jnp.maximum(norm / settings.gradient_bound, 1.0)
    bounded = jax.tree.map(lambda each: each / scale, gradient)
    direction, state = _ADAM.update(bounded, learner.optimizer_state)
    changes = jax.tree.map(lambda each: -rate * each, direction)
    return Learner(eqx.apply_updates(learner.network, changes), state)
