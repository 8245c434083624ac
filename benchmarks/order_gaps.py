"""Least peaks of large training graphs, their bounds and what they took: `python benchmarks/order_gaps.py`.

`auto` on each graph with a limit of 60 CPU seconds, a process of its own each; the checker passes the plan before it is a row.
`--before PYTHON` names the interpreter of an environment with another version: its rows are measured in
the same run, in turn with ours. Rows go to benchmarks/results/order_gaps.json, and graphs that were not asked for
stay as they were; `benchmarks/order_table.py` makes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "order_gaps.json"
MODELS = (
    "rnnlm-2",
    "rnnlm-4",
    "rnnlm-8",
    "gnmt-2",
    "gnmt-4",
    "gnmt-8",
    "txl-2",
    "txl-4",
    "txl-8",
    "inception-b32",
    "amoebanet",
    "wavenet-2x9",
    "unet",
    "mamba",
    "moe",
    "llama",
    "vit-l16",
)
RULES = ("greedy", "depth-first", "reverse-post-order")
SECONDS, SEED = 60.0, 0


def measure(model: str) -> dict[str, Any]:
    """A row, in this process: `auto`, and beside it the program's own order and simple rules."""
    from loadmaster.order.problem import PeakOrder
    from loadmaster.planner import solve_checked
    from loadmaster.program.models import load_model
    from loadmaster.search.solver import Budget

    problem = PeakOrder(load_model(model))
    started = time.process_time()
    found = solve_checked(problem, "auto", Budget(seconds=SECONDS), SEED, clock=time.process_time)
    seconds, solution = time.process_time() - started, found.solution
    return {
        "ops": problem.nodes,
        "program": problem.reference,
        **{rule: int(problem.native.profile(problem.native.simple(rule)).max()) for rule in RULES},
        "value": solution.value,
        "bound": solution.bound.value,
        "bound_by": solution.bound.method,
        "status": str(found.status),
        "cpu_seconds": round(seconds, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--before", help="the interpreter of an environment with another version")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return 0
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.exists() else []
    pythons = {"now": sys.executable, **({"before": arguments.before} if arguments.before else {})}
    for model in arguments.models:
        for version, python in pythons.items():
            command = [python, str(Path(__file__).resolve()), "--one", model]
            answer = subprocess.run(
                command, check=True, capture_output=True, text=True, cwd=Path.home()
            ).stdout
            row = {"model": model, "version": version, **json.loads(answer.splitlines()[-1])}
            print(json.dumps(row), flush=True)
            rows = [r for r in rows if (r["model"], r["version"]) != (model, version)] + [row]
            document = {
                "command": "python benchmarks/order_gaps.py --before PYTHON",
                "seconds": SECONDS,
                "seed": SEED,
                "rows": rows,
            }
            RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
