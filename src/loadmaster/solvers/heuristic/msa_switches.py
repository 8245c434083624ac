"""What can be set about memory space assignment, and three ways to set it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from loadmaster.errors import LoadmasterError, nearest


class BadSwitch(LoadmasterError):
    """There is no such style or switch, or its value makes no sense."""


@dataclass(frozen=True)
class Switches:
    """The defaults are those of XLA in 2023 with the ratios that its TPU compiler uses."""

    min_ratio: float = 1.0
    """A copy in has at least so many times its own duration between start and use."""
    preferred_ratio: float = 2.0
    max_ratio: float = 8.0
    """Unused in fast memory for so many times the duration of a copy that fills it, at most."""
    most_in: int = 40
    """Copies under way at once."""
    most_out: int = 40
    retries: int = 2
    repacks: int = 4
    inefficient_ratio: float = 0.0
    """A place in fast memory must serve so many times the bytes that are copied for it."""
    cross_program: int = 0
    """So many given tensors, the largest, are fetched before the first op."""
    loop_factor: float = 5.0
    """How often a loop is taken to run."""
    async_factor: float = 1.0
    """Of the rate at which copies are taken to run."""
    slices: int = 1
    """Copies in of large tensors go in so many parts, so that others can pass between them."""
    slice_bytes: int = 2**20
    """From this size on a tensor is large."""
    slice_need: float = 1.8
    """A copy in parts is only issued where so many times its own duration is left."""
    refinements: int = 0
    """So often it is run again with the times of ops that its own placement gives them."""
    strict_order: bool = False
    """A copy that starts earlier must not end later."""


STYLES = {
    "2023": Switches(),
    "test": Switches(min_ratio=0.8, preferred_ratio=1.5, max_ratio=10.0),
    "production": Switches(inefficient_ratio=0.5, cross_program=1, slices=4),
    "refined": Switches(refinements=4),
}
"""'test': the ratios of XLA's own tests. 'production': the switches of the TPU compiler. 'refined':
ours, no longer XLA's: its copies fit what the simulator leaves to them."""


def switches_of(style: str | int, changes: dict[str, Any]) -> Switches:
    """A style with some switches set anew; '2023' may come as a number."""
    style = str(style)
    known = [field.name for field in fields(Switches)]
    for name, names in [(style, list(STYLES)), *((change, known) for change in changes)]:
        if name not in names:
            what = "style" if names is not known else "switch"
            raise BadSwitch(
                f"msa has no {what} '{name}'{nearest(name, names)}",
                object=name,
                remedy=f"use {', '.join(names)}",
            )
    chosen = replace(STYLES[style], **changes)
    for name, value in asdict(chosen).items():
        if value < 0 or (name in ("loop_factor", "async_factor", "slices") and value <= 0):
            raise BadSwitch(
                f"msa's switch '{name}' is {value}", object=name, number=value, remedy="give a number above 0"
            )
    return chosen
