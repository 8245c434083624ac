"""Decisions of a trained policy with NumPy alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.backend import NumpyBackend
from loadmaster.graph.go.graph import SCHEMA, Graph, graph_of, padded_sizes
from loadmaster.graph.go.network import Logits, Network, make_network, run
from loadmaster.graph.go.prior import Prior
from loadmaster.graph.go.settings import Shape
from loadmaster.host import cores
from loadmaster.learn.policies import BadPolicy, read_policy

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
    network: Network = filled(make_network(0, shape), arrays, name)
    return network


def filled(like: Any, arrays: dict[str, Any], name: str, path: str = "") -> Any:
    """The tree `like` with the arrays of a file."""
    if isinstance(like, tuple):
        fields = getattr(like, "_fields", range(len(like)))
        parts = [
            filled(each, arrays, name, f"{path}.{field}" if path else str(field))
            for field, each in zip(fields, like, strict=True)
        ]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    stored = arrays.get(path)
    if stored is None or stored.shape != like.shape or not np.isfinite(stored).all():
        raise BadPolicy(
            f"policy '{name}' has no fitting '{path}'",
            object=name,
            number=str(like.shape),
            remedy="train it again with this version",
        )
    return stored.astype(np.float32)


def named_arrays(tree: Any, path: str = "") -> dict[str, Any]:
    """The inverse of `filled`."""
    if not isinstance(tree, tuple):
        return {path: np.asarray(tree)}
    fields = getattr(tree, "_fields", range(len(tree)))
    found: dict[str, Any] = {}
    for field, each in zip(fields, tree, strict=True):
        found |= named_arrays(each, f"{path}.{field}" if path else str(field))
    return found


def prior_of(problem: GraphOptimization, init: str = CHECKPOINT, shape: Shape | None = None) -> Prior:
    """The probabilities of every decision in one forward pass."""
    shape = shape or Shape()
    graph = graph_of(problem, padded_sizes(problem, shape.segment))
    return prior_from(problem, forward(load_network(init, shape), graph, shape))


def forward(network: Network, graph: Graph, shape: Shape) -> Logits:
    """One pass; tasks after the last decided one are left out."""
    wanted = np.flatnonzero(graph.decided)
    with _one_thread() as limited:
        backend = NumpyBackend(cores() if limited else 1)
        return run(network, graph, shape, backend, int(wanted.max(initial=0)) + 1)[0]


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
        kept[name] = _softmax(kept[name] if at.stop > at.start else kept[name][:0])
    return Prior(**kept)


def _softmax(logits: Any) -> Any:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-1e30))
    return (raised / np.maximum(raised.sum(axis=1, keepdims=True), 1e-30)).astype(np.float32)


@contextlib.contextmanager
def _one_thread() -> Iterator[bool]:
    """Matrix products on one thread each, so that blocks can be shared out; on a busy machine threads
    within small products wait for each other. Without `threadpoolctl` they do as they like."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        yield False
        return
    with threadpool_limits(1):
        yield True
