"""What can be chosen about the game's rules, and two named choices."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from loadmaster.errors import LoadmasterError, nearest

PROFILES: dict[str, dict[str, Any]] = {
    "loadmaster": {
        "supply": "idle",
        "ledger": "fifo",
        "reward": "telescoping",
        "backup": "retroactive",
        "offsets": "considerate",
    },
    "paper": {
        "supply": "elapsed",
        "ledger": "latest",
        "reward": "static",
        "backup": "rewind",
        "offsets": "best-fit",
    },
}
"""'paper': the published game as far as its rules are known."""
_VALUES: dict[str, tuple[str, ...]] = {
    "supply": ("idle", "elapsed"),
    "ledger": ("fifo", "latest"),
    "reward": ("telescoping", "static", "judged"),
    "backup": ("retroactive", "rewind", "none"),
    "offsets": ("considerate", "best-fit"),
}


@dataclass(frozen=True)
class Switches:
    """The rules of a game."""

    supply: str = "idle"
    """What copies may use of a step: the time in which it leaves slow memory idle (where copies
    have engines of their own: all of it), as far as is decided; or its all-slow time."""
    ledger: str = "fifo"
    """Copies in order of issue, and nobody is made late; or each as late as it can."""
    reward: str = "telescoping"
    """The time that a move saves, so that rewards add up to what the judge says; what it would save
    alone ('static'); or the difference of judged times."""
    backup: str = "retroactive"
    """At a dead end: drop what blocks; go back to the decision that began it and drop there; or
    ('none') the game is lost, and everything is slow."""
    offsets: str = "considerate"
    """Where a tensor is put: best fit that leaves others where they will be read again, as far as
    there is room; or best fit alone."""
    stall_term: bool = True
    """The last move pays for all stalls (telescoping rewards only)."""
    min_overlap: float = 1.0
    """Share of a copy that steps must hide."""
    max_idle_s: float | None = None
    """The longest time, at all-slow speed, that a tensor may wait in fast memory for its next use."""

    def values(self) -> dict[str, Any]:
        """As the native core and a run's keys take them."""
        return asdict(self)


def switches_of(profile: str, chosen: dict[str, Any]) -> Switches:
    """A profile with some switches set otherwise."""
    if profile not in PROFILES:
        raise _bad("profile", profile, tuple(PROFILES))
    known = tuple(Switches.__dataclass_fields__)
    for name, value in chosen.items():
        if name not in known:
            raise LoadmasterError(
                f"the game has no switch '{name}'{nearest(name, known)}",
                object=name,
                remedy=f"use one of {', '.join(known)}",
            )
        if name in _VALUES and value not in _VALUES[name]:
            raise _bad(name, value, _VALUES[name])
    switches = Switches(**{**PROFILES[profile], **chosen})
    if not 0 <= switches.min_overlap <= 1_000:
        raise LoadmasterError(
            f"min_overlap is {switches.min_overlap}",
            object="min_overlap",
            number=switches.min_overlap,
            remedy="give 0 to 1000",
        )
    if switches.max_idle_s is not None and not switches.max_idle_s >= 0:
        raise LoadmasterError(
            f"max_idle_s is {switches.max_idle_s}",
            object="max_idle_s",
            number=switches.max_idle_s,
            remedy="give at least 0, or None",
        )
    return switches


def _bad(name: str, value: object, known: tuple[str, ...]) -> LoadmasterError:
    return LoadmasterError(
        f"{name} can't be '{value}'", object=name, number=str(value), remedy=f"use one of {', '.join(known)}"
    )
