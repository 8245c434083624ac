"""`plan --fits`: yes or no, by how many bytes, and who is to blame."""

from __future__ import annotations

from pathlib import Path

from loadmaster.cli.answer import Answer
from loadmaster.cli.files import writing
from loadmaster.plan import save_plan
from loadmaster.planner import PlanRequest
from loadmaster.planner.fitting import Fits
from loadmaster.planner.planner import check_fit
from loadmaster.program import Program
from loadmaster.units import UNLIMITED


def plan_fits(request: PlanRequest, seconds: float | None, source: str, out: Path | None) -> Answer:
    """Exit 0: yes, with a checked plan; 1: proven no; 4: not known."""
    found, program, machine = check_fit(request, seconds, source)
    if found.plan is not None and out is not None:
        with writing(out):
            save_plan(found.plan, program, machine, out)
    row = {
        "what": "fits",
        "fits": found.answer,
        "memory": found.memory,
        "capacity_bytes": _limit(found.capacity),
        "need_bytes": found.need,
        "enough_bytes": found.enough,
        "excess_bytes": found.excess,
        "any_order": found.any_order,
        "proof": found.proof,
        "op": None if found.op is None else program.op_name[found.op],
        "blamed": [name for name, _ in found.tensors],
        "plan": None if out is None else str(out),
    }
    if found.answer:
        return Answer([row], [_yes(found, out)], program.warnings)
    return Answer([row], [_no(found, program)], program.warnings, found.error(program), error_in_blocks=True)


def _limit(capacity: int) -> int | None:
    return None if capacity >= UNLIMITED - 1 else capacity


def _yes(found: Fits, out: Path | None) -> str:
    size = "no limit" if _limit(found.capacity) is None else f"{found.capacity:,} bytes"
    lines = [f"YES  {found.place} {'have' if ',' in found.memory else 'has'} {size}"]
    if found.enough is not None:
        order = "" if found.plan is None or found.plan.order is None else ", in another order of the ops"
        lines[0] += f" and the plan needs {found.enough:,}{order}; {found.need:,} are needed at least."
    lines.append("     checked: ok" + (f", plan {out}" if out else "; give --out plan.json to keep the plan"))
    return "\n".join(lines)


def _no(found: Fits, program: Program) -> str:
    lines = [*found.reasons(program), f"Remedy: {found.remedy}."]
    return "\n     ".join([f"{'?' if found.answer is None else 'NO':5}{lines[0]}", *lines[1:]])
