"""The checker as plain loops, rule by rule: slow, and the reference of `loadmaster.plan.check`."""

from reference.check.checker import RULES, check
from reference.check.facts import MOST_PER_RULE, Violation
from reference.check.memory import check_offsets
from reference.check.timeline import TimelineLike

__all__ = ["MOST_PER_RULE", "RULES", "TimelineLike", "Violation", "check", "check_offsets"]
