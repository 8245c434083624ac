"""What a run gives back, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from loadmaster.errors import BadMachine, BadPlan, Refused, require
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check
from loadmaster.plan.check.facts import Facts
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.torch.graph import Result
from loadmaster.program.program import Program
from loadmaster.units import show_bytes


@dataclass(frozen=True)
class Results:
    """Values are tensors on the host or, where the plan keeps them there, on the device. They are
    the executor's own memory: the next run writes over them."""

    outputs: tuple[Any, ...]
    """What the module returns, flat; of a training step, the loss first."""
    gradients: dict[str, Any]
    """By parameter; those of a weight that was cut into slices are put together on the host."""
    updates: dict[str, Any]
    """New values of buffers, by name; the buffers themselves are left as they were."""
    seconds: float
    peak_bytes: int
    """Most fast memory that was in use."""
    reserved_bytes: int
    """Most fast memory that the allocator held."""
    op_seconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start and end of each op since the start of the run, if timings are asked for."""


def gradients_of(results: Sequence[Result], values: Sequence[Any]) -> dict[str, Any]:
    """Gradients by parameter. Slices of one weight are many leaves with one name."""
    torch = require("torch", "torch")
    whole: dict[str, Any] = {}
    slices: dict[str, list[tuple[int, Any]]] = {}
    for result, value in zip(results, values, strict=True):
        if result.what != "gradient":
            continue
        if result.rows is None:
            whole[result.name] = value
        else:
            slices.setdefault(result.name, []).append((result.rows[0], value))
    for name, parts in slices.items():
        in_order = [value for _, value in sorted(parts, key=lambda part: part[0])]
        known = all(value is not None for value in in_order)
        whole[name] = torch.cat([value.to("cpu") for value in in_order]) if known else None
    return whole


@dataclass(frozen=True)
class Measured:
    """Several runs after some that don't count."""

    runs: Sequence[float]
    peak_bytes: int
    reserved_bytes: int
    last: Results

    @property
    def seconds(self) -> float:
        return median(self.runs)


# ----------------------------------------------------------------------------
# What is refused before anything runs: plans that can't be followed, budgets that don't suffice.


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
