"""Rules `device`, `colocation` and `fusion`: who may run where, and together with whom."""

from __future__ import annotations

from loadmaster.plan.check.facts import Facts
from loadmaster.plan.check.report import Report
from loadmaster.program.program import CANNOT_RUN, TieKind


def check_device(facts: Facts, report: Report) -> None:
    """Every op can run on its device, and what it reads can reach it."""
    _costs(facts, report)
    _links(facts, report)
    _listed_transfers(facts, report)
    used = facts.devices_used
    if facts.machine.rules.copies == "idle" and len(used) > 1:
        report.add(
            "device",
            f"ops run on {len(used)} devices and copies in idle time know one: use one device",
            number=len(used),
        )


def _costs(facts: Facts, report: Report) -> None:
    costs = facts.program.costs
    if costs is None:
        return
    devices = len(facts.machine.devices)
    if costs.shape[1] != devices:
        report.add(
            "device",
            f"the cost table has {costs.shape[1]} columns and the machine has "
            f"{devices} devices: give one column per device",
            number=costs.shape[1],
        )
        return
    table = costs.tolist()
    for op, device in enumerate(facts.device):
        if not facts.is_view[op] and table[op][device] == CANNOT_RUN:
            able = [i for i, cost in enumerate(table[op]) if cost != CANNOT_RUN]
            remedy = f"move it to {facts.device_text(able[0])}" if able else "no device can run it"
            report.add(
                "device",
                f"{facts.op_text(op)} can't run on {facts.device_text(device)} ({device}): {remedy}",
                op=op,
                number=device,
            )


def _links(facts: Facts, report: Report) -> None:
    """Transfers go from home to home."""
    home = facts.machine.home
    for (tensor, device), readers in facts.transfers.items():
        source = facts.home_device[tensor]
        if (home[source], home[device]) not in facts.machine.link_between:
            op = facts.steps[readers[0]].number
            report.add(
                "device",
                f"{facts.op_text(op)} on {facts.device_text(device)} reads "
                f"{facts.tensor_text(tensor)} of {facts.device_text(source)} and there is no "
                f"link from {facts.memory_text(home[source])} to "
                f"{facts.memory_text(home[device])}: move it to device {source}",
                tensor=tensor,
                op=op,
                number=device,
            )


def _listed_transfers(facts: Facts, report: Report) -> None:
    """A plan that lists transfers lists each one that is needed, once, and no other."""
    if facts.plan.transfers is None:
        return
    seen: set[tuple[int, int]] = set()
    for tensor, device in facts.plan.transfers.tolist():
        what = f"the transfer of {facts.tensor_text(tensor)} to {facts.device_text(device)}"
        if (tensor, device) not in facts.transfers:
            report.add(
                "device",
                f"{what} ({device}) is listed and nobody waits for it: remove it",
                tensor=tensor,
                number=device,
            )
        elif (tensor, device) in seen:
            report.add(
                "device", f"{what} ({device}) is listed twice: remove one", tensor=tensor, number=device
            )
        seen.add((tensor, device))
    for (tensor, device), readers in facts.transfers.items():
        if (tensor, device) not in seen:
            op = facts.steps[readers[0]].number
            report.add(
                "device",
                f"{facts.op_text(op)} waits for the transfer of "
                f"{facts.tensor_text(tensor)} to {facts.device_text(device)} ({device}), which "
                "is not listed: add it, or list none",
                tensor=tensor,
                op=op,
                number=device,
            )


def check_colocation(facts: Facts, report: Report) -> None:
    """Ops and tensors of a hard group, and the two sides of an in-place op, on one device."""
    group_device: dict[int, int] = {}
    for op, group in enumerate(facts.program.op_group.tolist()):
        if group >= 0 and not facts.is_view[op]:
            wanted = group_device.setdefault(group, facts.device[op])
            if facts.device[op] != wanted:
                report.add(
                    "colocation",
                    f"{facts.op_text(op)} of group {group} is on device "
                    f"{facts.device[op]} and the group on device {wanted}: move it there",
                    op=op,
                    number=facts.device[op],
                )
    tensor_group = facts.program.tensor_group.tolist()
    for tensor in facts.roots:
        group, device = tensor_group[tensor], facts.home_device[tensor]
        unused = facts.writer[tensor] < 0 and not facts.readers[tensor]
        if group < 0 or facts.is_input[tensor] or unused:
            continue
        wanted = group_device.setdefault(group, device)
        if device != wanted:
            writer = facts.writer[tensor]
            report.add(
                "colocation",
                f"{facts.tensor_text(tensor)} of group {group} lives on device "
                f"{device} and the group on device {wanted}: move the op that writes or first "
                "reads it",
                tensor=tensor,
                number=device,
                op=facts.steps[writer].number if writer >= 0 else None,
            )
    for kind, source, target, op in facts.ties:
        unused = facts.writer[source] < 0 and not facts.readers[source]
        if kind != TieKind.INPLACE or op < 0 or facts.is_input[source] or unused:
            continue
        one, other = facts.home_device[source], facts.home_device[target]
        if one != other:
            report.add(
                "colocation",
                f"{facts.op_text(op)} writes {facts.tensor_text(target)} on "
                f"device {other} over {facts.tensor_text(source)} on device {one}: put both "
                "on one device",
                tensor=source,
                op=op,
                number=other,
            )


def check_fusion(facts: Facts, report: Report) -> None:
    """The members of a step have one device, one loop, and at most one hard group."""
    group = facts.program.op_group.tolist()
    for step in facts.steps:
        hard = next((group[op] for op in step.members if group[op] >= 0), -1)
        for op in step.members[1:]:
            fused = f"{facts.op_text(op)} is fused with {facts.op_text(step.number)}"
            if facts.device[op] != step.device:
                report.add(
                    "fusion",
                    f"{fused} and is on device {facts.device[op]} instead of {step.device}: use one device",
                    op=op,
                    number=facts.device[op],
                )
            if facts.loop[op] != facts.loop[step.number]:
                report.add(
                    "fusion",
                    f"{fused} and is in loop {facts.loop[op]} instead of "
                    f"{facts.loop[step.number]}: fuse within one loop",
                    op=op,
                    number=facts.loop[op],
                )
            if group[op] >= 0 and group[op] != hard:
                report.add(
                    "fusion",
                    f"{fused} and is in the hard group {group[op]} instead of {hard}: fuse within one group",
                    op=op,
                    number=group[op],
                )
