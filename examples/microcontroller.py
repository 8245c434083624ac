"""One TFLite model on a microcontroller with three memories: what firmware does, what is best, two files.

    python examples/microcontroller.py model.tflite [machine]

Needs NumPy alone. `plan.h` has the memory and offset of every tensor for an allocator of your own;
`OUT.tflite` carries the operators' order and offsets for TFLite Micro's one arena, if the package
`tflite-micro` is there to verify it and there is something to win.
"""

from __future__ import annotations

import sys
from pathlib import Path

import loadmaster as lm


def main(model: str, name: str = "imxrt1170") -> None:
    program, machine = lm.load_model(model), lm.load_machine(name)
    problem = lm.make_problem(program, machine, problem="mapping")
    ours = lm.solve(problem, seconds=10)
    for baseline in ("one-arena", "greedy-by-size", "compiler"):
        known = lm.solve(problem, baseline)
        assert known.value and ours.value
        print(f"{baseline:15} {known.value / 1e9:9.3f} ms, ours is {1 - ours.value / known.value:.1%} faster")
    assert ours.value is not None and ours.decision is not None
    print(f"{'ours':15} {ours.value / 1e9:9.3f} ms, gap to the bound {ours.gap:.2%}")
    plan = problem.plan(ours.decision)
    lm.export_plan("header", model, program, machine, plan, f"{Path(model).stem}.plan.h", overwrite=True)

    # The arena of TFLite Micro is one memory: there the order is what can be won.
    arena = lm.load_machine("arena:unlimited")
    order = lm.make_problem(program, arena, objective="peak-memory")
    found = lm.solve(order, seconds=5)
    assert found.decision is not None
    try:
        done = lm.export_plan(
            "tflm",
            model,
            program,
            arena,
            order.plan(found.decision),
            f"{Path(model).stem}.planned.tflite",
            overwrite=True,
        )
        print(f"TFLite Micro: {done.verdict}; {'; '.join(done.notes)}")
    except lm.LoadmasterError as error:
        print(f"TFLite Micro: {error.message}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/microcontroller.py model.tflite [machine]")
    try:
        main(*sys.argv[1:])
    except lm.LoadmasterError as problem:
        sys.exit(f"error: {problem.message}")
