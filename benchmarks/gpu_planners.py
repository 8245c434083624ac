"""Every way to plan half of a measured model's memory, simulated, at equal seconds: needs no GPU.

    python benchmarks/gpu_planners.py --folder gpu --seconds 60 [--models llama bert] [--solvers auto evolution]
    python benchmarks/record.py gpu --rows gpu/planners.jsonl && python benchmarks/gpu_table.py

`--folder` is that of `gpu_runs.py measure`. What is there already is not planned again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import Folder
from benchmarks.suites.gpu_plans import COPIES, PEER_SOLVERS, VARIANTS, kernels_of, plan_model
from benchmarks.suites.gpu_stages import all_need

PERCENT = 50
SIMULATED = "+simulated"
"""Ends a solver's name: the row is no measurement."""
PLANNERS = ("auto", COPIES, "anneal", "evolution", "static", *PEER_SOLVERS)
ROWS = "planners.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("gpu"))
    parser.add_argument("--models", nargs="+", help="default: all but variants")
    parser.add_argument("--solvers", nargs="+", default=list(PLANNERS))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each search")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Folder(args.folder)
    measured, machine, done = folder.measured(), folder.machine(), folder.done(ROWS)
    for model in args.models or [name for name in measured if name not in VARIANTS]:
        for solver in args.solvers:
            case, name = f"{model}@{PERCENT}", solver + SIMULATED
            if (case, name) in done:
                continue
            found = plan_model(
                folder.program(model),
                machine,
                PERCENT,
                solver,
                kernels_of(folder.costs(model)),
                need=all_need(measured[model]),
                seconds=args.seconds,
                seed=args.seed,
            )
            value, bound = float(found.simulated_ps), float(found.bound_ps)
            extra = {
                "kind": "simulated",
                "percent": PERCENT,
                "again": len(found.repeats),
                "bytes_in": found.bytes_in,
                "bytes_out": found.bytes_out,
                "reason": found.note,
                "budget_seconds": args.seconds,
            }
            folder.keep(
                Row(
                    case,
                    value,
                    "ps",
                    found.status,
                    machine.name,
                    name,
                    args.seed,
                    found.evaluations,
                    found.seconds,
                    None,
                    bound,
                    value / bound - 1 if bound and value > 0 else None,
                    extra,
                ),
                ROWS,
            )
            print(
                f"{case} {solver}: {found.status} {value / 1e9:.2f} ms, bound {bound / 1e9:.2f}, "
                f"{found.evaluations} evaluations, {found.seconds:.1f} s {found.note}",
                flush=True,
            )


if __name__ == "__main__":
    main()
