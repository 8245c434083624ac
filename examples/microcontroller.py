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
    ours = lm.plan(model, machine, problem="mapping", budget=lm.Budget(seconds=10))
    assert ours.value is not None and ours.plan is not None
    known = {row.name: row.value for row in ours.baselines}
    for method in ("one-arena", "greedy-by-size", "compiler"):
        theirs = known[method]
        assert theirs is not None
        print(f"{method:15} {theirs / 1e9:9.3f} ms, ours is {1 - ours.value / theirs:.1%} faster")
    print(f"{'ours':15} {ours.value / 1e9:9.3f} ms, gap to the bound {ours.gap:.2%}")
    lm.export_plan("header", model, program, machine, ours.plan, f"{Path(model).stem}.plan.h", overwrite=True)

    # The arena of TFLite Micro is one memory: there the order is what can be won.
    arena = lm.load_machine("arena:unlimited")
    found = lm.plan(program, arena, objective="peak-memory", budget=lm.Budget(seconds=5))
    assert found.plan is not None
    try:
        done = lm.export_plan(
            "tflm", model, program, arena, found.plan, f"{Path(model).stem}.planned.tflite", overwrite=True
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
