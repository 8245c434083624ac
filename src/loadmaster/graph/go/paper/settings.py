"""Every number of the published GO: the network's, and how it learns on a graph."""

from __future__ import annotations

from dataclasses import dataclass, fields

from loadmaster.search.solver import MOST_OF_AN_OPTION


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

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of {self.heads} heads")
        for name in ("width", "heads", "inner", "segment"):
            if getattr(self, name) < 1:
                raise ValueError(f"GO can't work with {name} = {getattr(self, name)}")
        if self.rounds < 0 or self.layers < 0:
            raise ValueError("rounds and layers can't be below 0")


@dataclass(frozen=True)
class Settings:
    """As far as the publication tells: no hints, no warm start, one column of the device head for each device."""

    samples: int = 32
    """Plans drawn per update, on graphs up to 10,000 nodes; half as many above."""
    rate: float = 3e-4
    rate_end: float = 1e-4
    clip: float = 0.2
    entropy: float = 1e-2
    entropy_end: float = 1e-3
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
    width: int = 128
    rounds: int = 3
    layers: int = 2
    heads: int = 4
    inner: int = 512
    segment: int = 128

    def __post_init__(self) -> None:
        if self.ratio not in ("node", "graph"):
            raise ValueError(f"there is no ratio '{self.ratio}': use node, graph")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, float) and (
                not isinstance(value, (int, float)) or not 0 <= value <= MOST_OF_AN_OPTION
            ):
                raise ValueError(f"GO can't work with {field.name} = {value!r}")
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise ValueError(f"GO can't work with {field.name} = {value!r}: give true or false")
            whole = isinstance(field.default, int) and not isinstance(field.default, bool)
            if whole and (type(value) is not int or not 0 <= value <= MOST_OF_AN_OPTION):
                raise ValueError(f"GO can't work with {field.name} = {value!r}")
        if min(self.samples, self.epochs, self.minibatch, self.most_minibatches) < 1:
            raise ValueError("samples, epochs, minibatch and most_minibatches must be at least 1")
        _ = self.shape

    @property
    def shape(self) -> Shape:
        return Shape(**{field.name: getattr(self, field.name) for field in fields(Shape)})

    def samples_for(self, nodes: int) -> int:
        return self.samples if nodes <= 10_000 else max(1, self.samples // 2)

    def epochs_for(self, nodes: int) -> int:
        return self.epochs if nodes <= 10_000 else 1
