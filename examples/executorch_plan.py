"""Place the tensors of a PyTorch module in a chip's memories and write an ExecuTorch program.

    pip install 'loadmaster[executorch]'
    python examples/executorch_plan.py            # writes keyword.pte

The program is run: its outputs equal those of ExecuTorch's own placement to the last bit.
"""

from __future__ import annotations

from pathlib import Path

from loadmaster.export.executorch import verify, write_plan
from loadmaster.export.executorch_plans import improve_plan, number_arenas, place_banked, place_greedy
from loadmaster.machine import load_machine
from loadmaster.program.importers.executorch.importer import lower
from loadmaster.simulate import simulate


def main(out: str = "keyword.pte") -> None:
    machine = load_machine("ethos-u65").with_capacity("sram", 512 * 1024)
    arenas = number_arenas(machine, {})
    lowered = lower("benchmarks.suites.torch_models:keyword_transformer")

    greedy = place_greedy(lowered, machine)
    banked = place_banked(lowered, machine, arenas)
    program = greedy.recorded.program
    plan = improve_plan(program, machine, [banked.plan], most_bytes=greedy.bytes, seconds=5)
    assert plan is not None

    written = write_plan(lowered, machine, plan, arenas)
    differs = verify(lowered, written, greedy)
    Path(out).write_bytes(bytes(written.own.buffer))
    for name, each, size in (
        ("greedy", greedy.plan, greedy.bytes),
        ("banked", banked.plan, banked.bytes),
        ("ours", written.plan, sum(written.arenas)),
    ):
        print(f"{name:7} {simulate(program, machine, each).total_ps / 1e9:8.3f} ms {size:10,} bytes")
    print(f"wrote {out}; outputs differ from greedy by {differs['differs_from_greedy']}")


if __name__ == "__main__":
    main()
