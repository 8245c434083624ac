"""The checker: plain Python, apart from the simulator and from every solver."""

from loadmaster.plan.check.checker import RULES, check
from loadmaster.plan.check.facts import MOST_PER_RULE, Violation
from loadmaster.plan.check.memory import check_offsets
from loadmaster.plan.check.timeline import TimelineLike

__all__ = ["MOST_PER_RULE", "RULES", "TimelineLike", "Violation", "check", "check_offsets"]
