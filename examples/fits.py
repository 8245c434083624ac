"""Does a model fit a microcontroller's arena, and if not, who is to blame? Which pins still fit?

python examples/fits.py
"""

from __future__ import annotations

from ten_lines import light

import loadmaster as lm


def main() -> None:
    program = lm.load_model(light("shufflenet"))
    for size in ("4MiB", "2900000", "2MiB"):
        found = lm.fits(program, lm.load_machine(f"arena:{size}"))
        if found.answer:
            assert found.plan is not None
            order = "another order" if found.plan.order is not None else "its own order"
            print(f"{size}: yes, with {found.enough:,} bytes, ops in {order}")
        else:
            blamed = ", ".join(name for name, _ in found.tensors)
            print(f"{size}: no, {found.excess:,} bytes too many, whatever the order: {blamed}")

    machine = lm.load_machine("arena:4MiB")
    pins = lm.parse_pins(program, machine, ["r5=arena@0", "r6=arena@1404928"])
    problem = lm.make_problem(program, machine, pins=pins)
    solution = lm.solve(problem, seconds=5)
    print(f"with r5 and r6 pinned: {solution.value:,} bytes, {solution.status}")


if __name__ == "__main__":
    main()
