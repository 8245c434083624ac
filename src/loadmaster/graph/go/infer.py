"""Decisions of a trained policy with NumPy alone."""

from __future__ import annotations

import numpy as np

from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.graph import SCHEMA, Graph, graph_of, padded_sizes
from loadmaster.graph.go.network import Logits, Network, make_network, run
from loadmaster.graph.go.prior import Prior
from loadmaster.graph.go.settings import Shape
from loadmaster.host import cores
from loadmaster.learn.backend import NumpyBackend, single_threaded_products, softmax
from loadmaster.learn.policies import BadPolicy, fill_policy, read_policy

CHECKPOINT = "pretrained:go"


def load_network(name: str, shape: Shape) -> Network:
    """A trained network as NumPy arrays; `name` is 'pretrained:go' or a file of `train go`."""
    arrays, about = read_policy(name, "go")
    if about.get("schema") != SCHEMA:
        raise BadPolicy(
            f"policy '{name}' knows features of version {about.get('schema')}, not {SCHEMA}",
            object=name,
            number=SCHEMA,
            remedy="train it again with this version",
        )
    network: Network = fill_policy(name, make_network(0, shape), arrays)
    return network


def prior_of(problem: GraphOptimization, init: str = CHECKPOINT, shape: Shape | None = None) -> Prior:
    """The probabilities of every decision in one forward pass."""
    shape = shape or Shape()
    graph = graph_of(problem, padded_sizes(problem, shape.segment))
    return prior_from(problem, forward(load_network(init, shape), graph, shape))


def forward(network: Network, graph: Graph, shape: Shape) -> Logits:
    """One pass; tasks after the last decided one are left out."""
    decided = np.flatnonzero(graph.decided)
    with single_threaded_products() as limited:
        backend = NumpyBackend(cores() if limited else 1)
        return run(network, graph, shape, backend, int(decided.max(initial=0)) + 1)[0]


def prior_from(problem: GraphOptimization, logits: Logits) -> Prior:
    """Without the padding, and without what is not decided."""
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    kept = {
        "fusion": np.asarray(logits.fusion)[:n],
        "device": np.asarray(logits.device)[:groups, :devices],
        "schedule": np.asarray(logits.schedule)[:n],
    }
    for name in kept:
        at = problem.part(name)
        kept[name] = softmax(kept[name] if at.stop > at.start else kept[name][:0])
    return Prior(**kept)
