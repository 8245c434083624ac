"""What training functions have in common: what made a policy, and how a training that goes on is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loadmaster.errors import LoadmasterError, require
from loadmaster.host import command_line, versions

Report = Callable[[str], None]
"""Takes a line about how it goes."""


class Unfinished(LoadmasterError):
    """Training was ended before it had made a policy."""

    exit_code = 130


def ignore(line: str) -> None:
    """A `Report` that says nothing."""


def require_agents(*packages: str) -> None:
    """Raise `MissingPackage` where what training needs is not installed."""
    for package in packages:
        require(package, "agents")


def policy_header(agent: str, seed: int, options: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What made a policy, for its file."""
    return {
        "agent": agent,
        "command": command_line(),
        "seed": seed,
        "settings": dict(options),
        "versions": versions(),
        **more,
    }
