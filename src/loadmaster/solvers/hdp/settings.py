"""Every number of HDP, with the values of its published code."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

MOST_GROUPS = 256
GROUPS_PER_DEVICE = 20


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
        wrong = [field.name for field in fields(self) if not self._possible(field.name, field.default)]
        if wrong:
            raise ValueError(f"HDP can't work with {wrong[0]} = {getattr(self, wrong[0])!r}")

    def _possible(self, name: str, default: object) -> bool:
        value = getattr(self, name)
        kinds = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        if name == "hidden":
            return value >= 2 and value % 2 == 0
        if name == "groups":
            return 0 <= value <= 4096
        if name in ("decay", "baseline"):
            return 0 <= value <= 1
        if name in ("grouper", "neighbours", "results", "dimensions", "decay_every"):
            return value >= 1
        return value > 0 if name in ("gradient_bound", "failure") else value >= 0

    @property
    def compiled(self) -> Settings:
        """With only what compiled code reads beside shapes: runs that differ in nothing else share it."""
        return Settings(tanh=self.tanh, gradient_bound=self.gradient_bound)

    def groups_for(self, devices: int) -> int:
        return self.groups or min(MOST_GROUPS, GROUPS_PER_DEVICE * devices)

    def rate_at(self, step: int) -> float:
        """It falls in steps."""
        return self.rate * self.decay ** max(0, (step - self.decay_from) // self.decay_every)
