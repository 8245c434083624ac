"""`check`: is a plan sound? Every defect is named, or the list is empty.

It is written apart from the simulator and from every solver and shares no code with them, so a
mistake in one of them does not hide behind the same mistake here. A plan may hold anything: this
never raises because of it. The rules:

| rule | what must hold |
| --- | --- |
| shape | lengths, index ranges, names; residencies, copies and transfers need the queue 'order' |
| order | a permutation; nothing is read before it is written; no circle among fused steps |
| device | the op can run there; a link for every transfer; listed transfers are those needed |
| colocation | hard groups and in-place ops on one device |
| fusion | members have one device, one loop, at most one hard group |
| residency | a root, in a memory that is reached and allowed, aligned, inside, not reversed |
| overlap | no two tensors at one address at one time, but tied ones at one offset |
| copy | a link, a byte range, issued before needed, from where the bytes are to where there is room |
| data | every read finds the bytes where it is served; outputs are there at the end |
| reach | where ops work in their device's first memory alone: every access is served there |
| tie | in-place and loop-carried tensors are accessed in one spot |
| capacity | bytes held never exceed a memory |
| timeline | if one is given: causes before effects, one user at a time, peaks and total as the times say |

If a plan can't be read (`shape`, or an order that is no permutation), nothing else is checked.
"""

from __future__ import annotations

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from reference.check.data import check_data, check_ties
from reference.check.facts import MOST_PER_RULE, Facts, Report, Violation
from reference.check.memory import check_capacity, check_overlap, check_residency
from reference.check.placement import (
    check_colocation,
    check_device,
    check_fusion,
    check_order,
    check_permutation,
    check_reach,
    check_shape,
)
from reference.check.timeline import TimelineLike, check_timeline

RULES = (
    "shape",
    "order",
    "device",
    "colocation",
    "fusion",
    "residency",
    "overlap",
    "copy",
    "data",
    "reach",
    "tie",
    "capacity",
    "timeline",
)

__all__ = ["MOST_PER_RULE", "RULES", "TimelineLike", "Violation", "check"]


def check(
    program: Program, machine: Machine, plan: Plan, timeline: TimelineLike | None = None
) -> list[Violation]:
    """All violations of a plan, and of its timeline if given; none: the plan is sound.

    The capacity is exact for one device in order. There a copy counts from its issue to its need;
    a timeline says better. For several devices, or a queue that is no order, only a timeline
    tells who is in a memory together: without one, what is sure to be is checked.

    Args:
      program, machine: what the plan is about.
      plan: what is judged.
      timeline: when its ops and copies run, as `simulate` gives it; it is judged too.

    Returns:
      violations, each with its rule, its ops and tensors, and what would mend it.
    """
    report = Report()
    if check_shape(program, machine, plan, report) and check_permutation(program, plan, report):
        facts = Facts(program, machine, plan)
        check_order(facts, report)
        check_device(facts, report)
        check_colocation(facts, report)
        check_fusion(facts, report)
        check_residency(facts, report)
        check_overlap(facts, report)
        relies = check_data(facts, report)
        check_reach(facts, report)
        check_ties(facts, report)
        if timeline is None or not check_timeline(facts, timeline, relies, report):
            check_capacity(facts, report)
    return report.violations()
