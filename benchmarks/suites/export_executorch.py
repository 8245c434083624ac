"""ExecuTorch: our placement beside its greedy and its banked planner, in programs that were run.

Times are simulated, by the same simulator for all three. A row of ours is written as a program,
read back, checked, and run against the module and the program of the greedy planner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.problems import make_as
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.planner import solve_checked
from loadmaster.search.solver import Budget
from loadmaster.simulate.bounds import time_bounds
from loadmaster.simulate.simulator import simulate
from loadmaster.units import parse_bytes

MACHINE, FAST = "ethos-u65", "sram"
BANKS = ("256KiB", "512KiB", "768KiB", "1MiB")
MODELS = (
    "unet",
    "vit",
    "keyword_transformer",
    "text_encoder",
    "densenet",
    "mobilenet_v2",
    "resnet18",
    "ds_cnn",
)
QUICK = ("keyword_transformer/512KiB",)
TARGET = 0.1
"""To reach: that much less time than the banked planner, no more bytes than greedy, equal outputs."""
SECONDS = 3.0


@lru_cache(maxsize=1)
def _lowered(model: str) -> Any:
    from loadmaster.program.importers.executorch.importer import lower

    return lower(f"benchmarks.suites.torch_models:{model}")


def placement_case(model: str, bank: str, options: Options, seed: int) -> Iterator[Row]:
    """One model with one size of the fast memory: three placements."""
    case = f"executorch/{model}/{bank}"
    if options.quick and f"{model}/{bank}" not in QUICK:
        return
    if find_spec("executorch") is None:
        yield Row(case, 0.0, "ps", "skipped", extra={"reason": "pip install 'loadmaster[executorch]'"})
        return
    from loadmaster.export.executorch import verify, write_plan
    from loadmaster.export.executorch_plans import improve_plan, number_arenas, place_banked, place_greedy

    machine = load_machine(MACHINE).with_capacity(FAST, parse_bytes(bank, "bank"))
    lowered, arenas = _lowered(model), number_arenas(machine, {})
    greedy = place_greedy(lowered, machine)
    banked = place_banked(lowered, machine, arenas)
    program = greedy.recorded.program
    bound = time_bounds(program, machine).together
    baseline = float(simulate(program, machine, banked.plan).total_ps)

    def row(solver: str, value: float, status: str, size: int, seconds: float = 0.0, **extra: Any) -> Row:
        return Row(
            case,
            value,
            "ps",
            status,
            f"{MACHINE}:{FAST}={bank}",
            solver,
            seed,
            0,
            seconds,
            baseline,
            float(bound),
            value / bound - 1,
            {"bytes": size, "ops": program.n_ops, **extra},
        )

    yield row(
        "executorch-greedy", float(simulate(program, machine, greedy.plan).total_ps), "feasible", greedy.bytes
    )
    yield row("executorch-banked", baseline, "feasible", banked.bytes)
    started = time.perf_counter()
    found = solve_checked(make_as(Mapping, program, machine), "auto", Budget(seconds=SECONDS), seed)
    starts = [banked.plan, greedy.plan]
    if found.plan is not None:
        starts.insert(0, found.plan)
    for solver, most in (("time", None), ("time-and-bytes", greedy.bytes)):
        plan = improve_plan(program, machine, starts, most_bytes=most, seconds=SECONDS, seed=seed)
        if plan is None:
            yield row(solver, -1.0, "none found", 0)
            continue
        written = write_plan(lowered, machine, plan, arenas)
        differs = verify(lowered, written, greedy)
        value = float(simulate(program, machine, written.plan).total_ps)
        gain = 1 - value / baseline
        met = gain >= TARGET and sum(written.arenas) <= greedy.bytes
        yield row(
            solver,
            value,
            "met" if met else "missed",
            sum(written.arenas),
            time.perf_counter() - started,
            target=f"{TARGET:.0%} below banked",
            gain=gain,
            arenas=written.arenas,
            greedy_bytes=greedy.bytes,
            node_map=found.solution.value,
            node_map_bound=found.solution.bound.value,
            **differs,
        )


CASES: dict[str, Case] = {
    f"executorch/{model}/{bank}": partial(placement_case, model, bank) for model in MODELS for bank in BANKS
}
