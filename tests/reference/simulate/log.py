"""What an engine of the slow reference writes down while time runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Log:
    """Times by step number and by copy row."""

    step_start: dict[int, int] = field(default_factory=dict)
    step_end: dict[int, int] = field(default_factory=dict)
    stall: dict[int, int] = field(default_factory=dict)
    copy_start: dict[int, int] = field(default_factory=dict)
    copy_end: dict[int, int] = field(default_factory=dict)
    transfers: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(tensor, device, start, end) in order of booking."""
    total: int = 0
