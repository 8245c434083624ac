"""Import a model, plan it, check it, export it: ten lines.

    python examples/ten_lines.py

The model is a SqueezeNet that ships inside the `onnx` package; the machine is an inference card
with three memories. What is written goes into the current folder.
"""

from __future__ import annotations

import loadmaster as lm
from loadmaster.errors import require


def light(name: str) -> str:
    """The file of a model inside the `onnx` package."""
    folder = str(require("onnx", "onnx").__path__[0])
    return f"{folder}/backend/test/data/light/light_{name}.onnx"


def main() -> None:
    model = light("squeezenet")
    program, machine = lm.load_model(model), lm.load_machine("nnp-i")
    problem = lm.make_problem(program, machine)
    solution = lm.solve(problem, seconds=5)
    plan = problem.plan(solution.decision)
    assert lm.check(program, machine, plan) == []
    before, after = (lm.simulate(program, machine, each) for each in (lm.Plan(), plan))
    print(f"before {before.seconds * 1e6:.1f} µs, after {after.seconds * 1e6:.1f} µs, gap {solution.gap:.2%}")
    lm.save_plan(plan, program, machine, "plan.json")
    lm.export_plan("trace", model, program, machine, plan, "plan.trace.json.gz", overwrite=True)


if __name__ == "__main__":
    main()
