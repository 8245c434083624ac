"""A real model on a real chip's memories, in four steps: import, place, check, time.

    python examples/place_onnx.py

The model is the ResNet-50 that ships inside the `onnx` package; the machine is Intel's NNP-I
inference card with three memories, of which the fastest are far too small for the model.
"""

from __future__ import annotations

from pathlib import Path

from loadmaster.cli.answer import Table
from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.machine import Machine, load_machine
from loadmaster.mapping.first_fit import first_fit
from loadmaster.plan import Plan
from loadmaster.plan.check import check
from loadmaster.program import Program
from loadmaster.program.importers import import_model
from loadmaster.simulate import Timeline, simulate
from loadmaster.simulate.bounds import time_bounds
from loadmaster.simulate.needs import needs
from loadmaster.units import show_bytes, show_count, show_time


def light_resnet50() -> Path:
    """The file inside the installed package."""
    onnx = require("onnx", "onnx")
    return Path(str(onnx.__file__)).parent / "backend/test/data/light/light_resnet50.onnx"


def checked(program: Program, machine: Machine, plan: Plan) -> Timeline:
    """Time a plan; nothing is shown that the checker does not let pass."""
    timeline = simulate(program, machine, plan)
    violations = check(program, machine, plan, timeline)
    if violations:
        raise Refused(f"the plan is not sound: {violations[0]}", object="plan", number=len(violations))
    return timeline


def filled(timeline: Timeline, memory: int) -> str:
    """What a memory must have: the bytes held at once, or the highest address used."""
    return show_bytes(int(max(timeline.memory_peak[memory], timeline.memory_top[memory])))


def story() -> list[str | Table]:
    """What the demo shows, block by block."""
    program = import_model(str(light_resnet50()))
    machine = load_machine("nnp-i")
    total, bound = needs(program), time_bounds(program, machine).together
    slowest = checked(program, machine, Plan())
    placed = checked(program, machine, first_fit(program, machine))
    rows = [
        (name, show_time(time), f"{slowest.total_ps / time:.2f} ×", f"{time / bound - 1:.1%}")
        for name, time in (
            ("all in the slowest memory", slowest.total_ps),
            ("first fit", placed.total_ps),
            ("lower bound", bound),
        )
    ]
    peaks = [
        (memory.name, filled(slowest, i), filled(placed, i), show_bytes(memory.capacity))
        for i, memory in enumerate(machine.memories)
    ]
    size = f"{total.ops} ops, {total.tensors} tensors, {show_bytes(total.persistent)} of weights"
    where = f"op {total.peak.op} '{program.op_name[total.peak.op]}'"
    return [
        f"model    {program.name} (ONNX): {size}, {show_count(total.flops)}flop",
        f"needs    {show_bytes(total.peak.bytes)} beside the weights, at its peak ({where})",
        f"machine  {machine.name}: {machine.description}",
        Table(("plan", "time", "speed-up", "gap to bound"), rows),
        Table(("memory", "peak: all slowest", "peak: first fit", "capacity"), peaks),
        "The bound has every tensor in the fastest memory, however small that is.",
        "checked: ok",
    ]


def main() -> None:
    import sys

    from loadmaster.cli.answer import show

    try:
        show(story(), sys.stdout)
    except LoadmasterError as error:
        sys.exit(f"error: {error.message}")


if __name__ == "__main__":
    main()
