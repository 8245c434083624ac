"""`plan --fits`: yes or no, by how many bytes, and who is to blame."""

from __future__ import annotations

from pathlib import Path

from loadmaster.cli.allocate import NoAnswer
from loadmaster.cli.answer import Answer
from loadmaster.cli.files import writing
from loadmaster.cli.plan_posed import Asked, buffers_problem
from loadmaster.cli.progress import say
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.planner.fitting import Fits, buffers_fit, fits
from loadmaster.plan import save_plan
from loadmaster.program import Program
from loadmaster.units import UNLIMITED

SECONDS = 20.0
_SHOWN = 8
_LONGEST = 48


def plan_fits(asked: Asked, seconds: float | None, out: Path | None) -> Answer:
    """Exit 0: yes, with a checked plan; 1: proven no; 4: not known."""
    limit = SECONDS if seconds is None else seconds
    if asked.model.is_buffers:
        problem = buffers_problem(asked)
        if problem.capacity is None:
            problem = type(problem)(problem.buffers, UNLIMITED - 1, problem.name)
        program, machine = problem.program, problem.machine
        say(f"{asked.model.source}: do {len(problem.buffers):,} buffers fit?")
        found = buffers_fit(problem, limit, asked.seed)
    else:
        machine = asked.on()
        program = asked.model.load(machine)
        say(
            f"{asked.model.source} on {machine.name}: does it fit? Offsets"
            f"{'' if asked.keep_order else ' and, if need be, the order of the ops'} are decided"
        )
        found = fits(
            program,
            machine,
            seconds=limit,
            keep_order=asked.keep_order,
            pins=asked.pins(program, machine),
            seed=asked.seed,
        )
    if found.plan is not None and out is not None:
        with writing(out):
            save_plan(found.plan, program, machine, out)
    error = None if found.answer else refused(found, program)
    block = _yes(found, out) if found.answer else _no(found, program)
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
    return Answer([row], [block], program.warnings, error, told=True)


def _limit(capacity: int) -> int | None:
    return None if capacity >= UNLIMITED - 1 else capacity


def _yes(found: Fits, out: Path | None) -> str:
    size = "no limit" if _limit(found.capacity) is None else f"{found.capacity:,} bytes"
    lines = [f"YES  {_quoted(found.memory)} {'have' if ',' in found.memory else 'has'} {size}"]
    if found.enough is not None:
        order = "" if found.plan is None or found.plan.order is None else ", in another order of the ops"
        lines[0] += f" and the plan needs {found.enough:,}{order}; {found.need:,} are needed at least."
    lines.append("     checked: ok" + (f", plan {out}" if out else "; give --out plan.json to keep the plan"))
    return "\n".join(lines)


def _quoted(names: str) -> str:
    return f"{names} together" if "," in names else f"'{names}'"


def refused(found: Fits, program: Program) -> LoadmasterError:
    """What to say in one line if the answer is no, or not known."""
    told = " ".join(_why(found, program)).rstrip(".")
    if found.answer is None:
        return NoAnswer(told, object=found.memory, number=found.need, remedy=_remedy(found))
    return Refused(told, object=found.memory, number=found.excess, remedy=_remedy(found))


def _no(found: Fits, program: Program) -> str:
    lines = [*_why(found, program), f"Remedy: {_remedy(found)}."]
    return "\n     ".join([f"{'?' if found.answer is None else 'NO':5}{lines[0]}", *lines[1:]])


def _why(found: Fits, program: Program) -> list[str]:
    name = found.memory
    if found.answer is None:
        return [
            f"not known: no plan was found in {_quoted(name)} and none was proven impossible.",
            f"At least {found.need:,} of {found.capacity:,} bytes are needed.",
        ]
    if not found.need:
        return [f"{found.proof}."]
    order = ", whatever the order" if found.any_order else ""
    need, has = ("need", "have") if "," in name else ("needs", "has")
    told = [
        f"{_quoted(name)} {need} {found.need:,} bytes and {has} {found.capacity:,}: {found.excess:,} too many{order}."
    ]
    return told + ([_blame(found, program)] if found.tensors else [])


def _blame(found: Fits, program: Program) -> str:
    names = ", ".join(_short(name) for name, _ in found.tensors[:_SHOWN])
    more = len(found.tensors) - _SHOWN
    names += f" and {more:,} more" if more > 0 else ""
    sizes = {size for _, size in found.tensors}
    if len(sizes) == 1:
        bytes_ = f"{len(found.tensors)} × {sizes.pop():,}"
    else:
        shown = " + ".join(f"{size:,}" for _, size in found.tensors[:_SHOWN])
        bytes_ = f"{shown}{' + …' if more > 0 else ''} = {sum(s for _, s in found.tensors):,}"
    if found.op is not None:
        alone = "alone holds" if found.proof.startswith("what one op") else "holds, in the best order,"
        return f"Op {found.op} '{program.op_name[found.op]}' ({program.op_kind[found.op]}) {alone} {names}: {bytes_}."
    return f"To blame: {names}: {bytes_}; without any one of them the others would fit."


def _short(name: str) -> str:
    """The end of a long name, which is what tells it from its neighbours."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def _remedy(found: Fits) -> str:
    if found.answer is None:
        return "give more --time-limit"
    if not found.need:
        return "a larger machine"
    if found.enough is None:
        return f"a capacity of at least {found.need:,} bytes, or a second memory"
    least = "" if found.enough == found.need else f" ({found.need:,} are proven to be needed)"
    return f"a capacity of {found.enough:,} bytes{least}, or a second memory"
