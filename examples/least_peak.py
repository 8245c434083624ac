"""The order of a model's ops that needs the least memory, and a model file that ONNX Runtime runs so.

python examples/least_peak.py
"""

from __future__ import annotations

from ten_lines import light

import loadmaster as lm


def main() -> None:
    model = light("shufflenet")
    program, machine = lm.load_model(model), lm.load_machine("arena:unlimited")
    problem = lm.make_problem(program, machine, objective="peak-memory")
    solution = lm.solve(problem, seconds=10)
    before = lm.needs(program).peak.bytes
    print(
        f"peak before {before:,} bytes, after {solution.value:,}; at least {solution.bound.value:,} whatever the order"
    )
    plan = problem.plan(solution.decision)
    done = lm.export_plan("ort", model, program, machine, plan, "ordered.onnx", verify=False, overwrite=True)
    print(f"{done.verdict}: {', '.join(str(file) for file in done.files) or 'nothing to win'}")


if __name__ == "__main__":
    main()
