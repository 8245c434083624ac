"""`Script`: a plan and a graph as one flat list of actions. Plain data; nothing is decided later.

A *slot* is the number of a tensor of the Program; a run keeps one value per slot. Moments are
ranks: the step that runs k-th has rank k, -1 is before the first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

ALONE = -1
"""As a part: the call's result is one tensor, not a tuple."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an argument of a call is a tensor."""

    number: int


@dataclass(frozen=True, slots=True)
class Call:
    """One op of the graph with its arguments; `Slot`s stand for tensors."""

    op: int
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[int, int], ...]
    """(part of the result or ALONE, slot)."""


class Stay(NamedTuple):
    """A tensor in fast memory, from the first to the last rank; first = -1: between runs too."""

    tensor: int
    first: int
    last: int
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes [low, high) of a tensor go into fast memory, or out of it."""

    row: int
    slot: int
    inward: bool
    low: int
    high: int
    stay: int
    """The stay that it fills or reads."""
    opens: bool = False
    """The stay begins with it."""
    after: tuple[int, ...] = ()
    """Copies out of room that this one may be given: it waits for them too."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens around one op, in this order."""

    waits: tuple[int, ...]
    """Rows of the copies that the op waits for."""
    views: tuple[Call, ...]
    call: Call
    stays: tuple[int, ...]
    """The stays that its results begin, one per result."""
    sends: tuple[Move, ...]
    drops: tuple[int, ...]
    fetches: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One of the results: a root's value, and the views that lead from it."""

    what: str
    name: str
    slot: int
    """-1: no tensor of the Program."""
    root: int
    views: tuple[Call, ...]
    at_host: bool
    node: str
    """Of what was given and comes back as it is."""


@dataclass(frozen=True, slots=True)
class Script:
    """All of a run."""

    fetches: tuple[Move, ...]
    """Those issued before the first step."""
    steps: tuple[Step, ...]
    waits: tuple[int, ...]
    """Awaited at the end."""
    stays: tuple[Stay, ...]
    leaves: tuple[Leaf, ...]
    copies: int
    """How many rows of copies there are."""
    moved: tuple[int, ...]
    """Tensors that need room on the host beside what is given: those copied out."""
    peak: int
    """Most bytes of fast memory that are held at once."""
