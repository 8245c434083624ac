"""What is refused before anything runs: plans that can't be followed, budgets that don't suffice."""

from __future__ import annotations

from loadmaster.errors import BadMachine, BadPlan, Refused
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.check.facts import Facts
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.units import show_bytes


def refuse_plan(program: Program, plan: Plan, machine: Machine, *, checked: bool = True) -> Facts:
    """Look-ups on a plan that one device can follow. `checked=False` skips the plan checker."""
    if len(machine.devices) != 1 or len(machine.reach[0]) != 2:
        raise BadPlan(
            f"machine '{machine.name}' has {len(machine.devices)} devices and "
            f"{len(machine.memories)} memories",
            object=machine.name,
            number=len(machine.memories),
            remedy="run on a machine with one device, a fast memory and its home",
        )
    if plan.queue != "order" or (plan.fusion is not None and (plan.fusion >= 0).any()):
        raise BadPlan(
            "a real run takes ops one by one in the plan's order",
            object=plan.queue,
            remedy="use the queue 'order' and no fusion",
        )
    if checked:
        violations = check(program, machine, plan)
        if violations:
            raise Refused(
                f"the plan is not sound ({len(violations)} violations), first: {violations[0]}",
                object="plan",
                number=len(violations),
                remedy="see 'loadmaster check'",
            )
    facts = Facts(program, machine, plan)
    if facts.ties:
        raise BadPlan(
            f"{len(facts.ties)} tensors of '{program.name}' are written over others",
            object=program.name,
            number=len(facts.ties),
            remedy="capture the module again",
        )
    _refuse_slow_accesses(facts)
    return facts


def _refuse_slow_accesses(facts: Facts) -> None:
    """An op works in the first memory of its device and nowhere else."""
    fast = facts.machine.reach[0][0]
    for rank, step in enumerate(facts.steps):
        for tensor in (*step.reads, *step.writes):
            if facts.size[tensor] and facts.serves(rank, tensor)[0] != fast:
                raise Refused(
                    f"{facts.op_text(step.number)} finds {facts.tensor_text(tensor)} "
                    f"({facts.size[tensor]:,} bytes) in the home memory and works only in "
                    f"{facts.memory_text(fast)}",
                    object=facts.program.tensor_name[tensor],
                    number=facts.size[tensor],
                    remedy="plan with '--problem offload', or copy it in before",
                )


def refuse_capacity(peak: int, beside: int, capacity: int, memory: str, what: str) -> None:
    """A plan that needs more than it may have, with `what` is taken beside it, is not started."""
    need = peak + beside
    if need > capacity:
        more = f", {show_bytes(beside)} are {what}" if beside else ""
        raise BadMachine(
            f"the plan fills {show_bytes(peak)} of '{memory}'{more}, and it may have "
            f"{show_bytes(capacity)}: too many by {need - capacity:,} bytes",
            object=memory,
            number=need - capacity,
            remedy="plan for a smaller capacity",
        )
