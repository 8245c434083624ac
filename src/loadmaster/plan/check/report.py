"""`Violation`: one defect of a plan, and the list that collects them."""

from __future__ import annotations

from dataclasses import dataclass

from loadmaster.machine.machine import Machine
from loadmaster.program.program import Program

MOST_PER_RULE = 1_000
"""A plan that breaks a rule everywhere must not fill the memory with texts."""


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks, where, by which number, and what would help.

    What `number` is depends on the rule and stands in the message too: the value out of
    range, the row of a residency or copy, a device, bytes that are missing or too many.
    """

    rule: str
    message: str
    tensor: int | None = None
    op: int | None = None
    number: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


class Report:
    """Collects violations: at most `MOST_PER_RULE` of a rule, the others are counted."""

    def __init__(self) -> None:
        self._kept: list[Violation] = []
        self._count: dict[str, int] = {}

    def add(
        self,
        rule: str,
        message: str,
        *,
        tensor: int | None = None,
        op: int | None = None,
        number: int | None = None,
    ) -> None:
        """Note one violation."""
        self._count[rule] = self._count.get(rule, 0) + 1
        if self._count[rule] <= MOST_PER_RULE:
            self._kept.append(Violation(rule, message, tensor, op, number))

    def count(self, rule: str) -> int:
        """How often a rule was broken so far."""
        return self._count.get(rule, 0)

    def is_full(self, rule: str) -> bool:
        """Whether further violations of a rule would only be counted."""
        return self.count(rule) >= MOST_PER_RULE

    def violations(self) -> list[Violation]:
        """All that was found, in the order of the rules' checks."""
        more = [
            Violation(rule, f"and {count - MOST_PER_RULE:,} more", number=count - MOST_PER_RULE)
            for rule, count in self._count.items()
            if count > MOST_PER_RULE
        ]
        return self._kept + more


class Words:
    """How messages name things."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program, self.machine = program, machine

    def op_text(self, op: int) -> str:
        names = self.program.op_name
        return f"op {op} '{names[op]}'" if 0 <= op < len(names) else "the end"

    def tensor_text(self, tensor: int) -> str:
        return f"tensor '{self.program.tensor_name[tensor]}'"

    def memory_text(self, memory: int) -> str:
        return f"memory '{self.machine.memories[memory].name}'"

    def device_text(self, device: int) -> str:
        return f"device '{self.machine.devices[device].name}'"
