"""Rule `reach`: on a machine whose ops work in the first memory of their device alone, all that a step
reads and writes is there, whether it takes many of its bytes or none. Empty tensors are nowhere."""

from __future__ import annotations

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report


def check_reach(facts: Facts, report: Report) -> None:
    """Every access of every step, on such a machine."""
    if facts.machine.rules.reach != "first":
        return
    for rank, step in enumerate(facts.steps):
        first = facts.machine.reach[step.device][0]
        for tensor in dict.fromkeys([*step.reads, *step.writes]):
            memory = facts.serves(rank, tensor)[0]
            if memory != first and facts.size[tensor]:
                report.add(
                    "reach",
                    f"{facts.op_text(step.number)} uses {facts.tensor_text(tensor)} "
                    f"({facts.size[tensor]:,} bytes) in {facts.memory_text(memory)}, and "
                    f"{facts.device_text(step.device)} works in {facts.memory_text(first)} alone: "
                    "copy it there before",
                    tensor=tensor,
                    op=step.number,
                    number=facts.size[tensor],
                )
