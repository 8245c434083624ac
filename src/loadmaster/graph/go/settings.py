"""Every number of GO: the network's, and how it learns on a user's graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

PROFILES: dict[str, dict[str, object]] = {
    "loadmaster": {},
    "paper": {
        "hints": False,
        "device_head": "dense",
        "warm_start": "none",
        "imitation": 0.0,
        "plain_start": True,
    },
}


@dataclass(frozen=True)
class Shape:
    """The network. Parameters depend on it alone, so that one checkpoint serves any graph."""

    width: int = 128
    rounds: int = 3
    """Of passing messages between neighbours."""
    layers: int = 2
    heads: int = 4
    inner: int = 512
    segment: int = 128
    """Nodes that attend to each other and to the segment before."""
    attention: bool = True
    modulation: bool = True
    """Whether the graph's own embedding gates the input of every dense layer (superposition)."""
    hints: bool = True
    """Whether constructive placements are shown to the placement head."""
    device_head: str = "dot"
    """'dot': with a vector made of the device's own numbers; 'dense': one column per device."""
    plain_start: bool = False
    """Whether an untrained policy is uniform; else it begins near the base plan, longest path first."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads")
        if self.device_head not in ("dot", "dense"):
            raise ValueError(f"there is no device_head '{self.device_head}': use 'dot' or 'dense'")
        for name in ("width", "heads", "inner", "segment"):
            if getattr(self, name) < 1:
                raise ValueError(f"GO can't work with {name} = {getattr(self, name)}")
        if self.rounds < 0 or self.layers < 0:
            raise ValueError("rounds and layers can't be below 0")


@dataclass(frozen=True)
class Settings:
    """`profile` 'loadmaster', or 'paper': what is recalled of the published method (no hints, no warm
    start, a dense device head)."""

    profile: str = "loadmaster"
    mode: str = "fine-tune"
    """'zero-shot': no update; 'fine-tune': from the checkpoint; 'one': this graph from scratch."""
    updates: int = 50
    """Of fine-tuning; 0 or mode 'one': until the budget is spent."""
    samples: int = 32
    """Plans drawn per update, on graphs up to 10,000 nodes; half as many above."""
    greedy_samples: int = 16
    """Plans drawn of the policy before it learns, beside the likeliest."""
    warm_start: str = "imitate"
    """Of mode 'one': 'imitate' the best constructive plan first, or 'none'."""
    warm_steps: int = 200
    rate: float = 3e-4
    rate_end: float = 1e-4
    tuning_rate: float = 1e-4
    clip: float = 0.2
    entropy: float = 1e-2
    entropy_end: float = 1e-3
    imitation: float = 0.1
    """Weight of the likelihood of the best plan so far beside the clipped objective."""
    epochs: int = 4
    minibatch: int = 64
    """Segments."""
    most_minibatches: int = 4
    kl_stop: float = 0.02
    decay: float = 0.9
    """Of the running mean and deviation of the rewards."""
    advantage: float = 5.0
    """Bound of the normalised advantage."""
    gradient_bound: float = 1.0
    ratio: str = "node"
    """'node': a ratio per decision; 'graph': one per plan, which does not scale."""
    attention: bool = True
    modulation: bool = True
    hints: bool = True
    width: int = 128
    rounds: int = 3
    layers: int = 2
    heads: int = 4
    inner: int = 512
    segment: int = 128
    device_head: str = "dot"
    plain_start: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("profile", tuple(PROFILES)),
            ("mode", ("zero-shot", "fine-tune", "one")),
            ("warm_start", ("imitate", "none")),
            ("ratio", ("node", "graph")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"there is no {name} '{getattr(self, name)}': use {', '.join(known)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, float) and (
                not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0
            ):
                raise ValueError(f"GO can't work with {field.name} = {value!r}")
            whole = isinstance(field.default, int) and not isinstance(field.default, bool)
            if whole and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"GO can't work with {field.name} = {value!r}")
        if min(self.samples, self.epochs, self.minibatch, self.most_minibatches) < 1:
            raise ValueError("samples, epochs, minibatch and most_minibatches must be at least 1")
        for name, value in PROFILES[self.profile].items():
            object.__setattr__(self, name, value)
        _ = self.shape

    @property
    def shape(self) -> Shape:
        return Shape(**{field.name: getattr(self, field.name) for field in fields(Shape)})

    def samples_for(self, nodes: int) -> int:
        return self.samples if nodes <= 10_000 else max(1, self.samples // 2)

    def epochs_for(self, nodes: int) -> int:
        return self.epochs if nodes <= 10_000 else 1
