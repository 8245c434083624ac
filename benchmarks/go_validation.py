"""Judge policies of GO on graphs of the families of training that training does not draw: policies are chosen by this.

    python benchmarks/go_validation.py --policies go.npz ppo.npz --seeds 0 1 --out validation.jsonl
    python benchmarks/go_validation.py --table validation.jsonl

The cases are those of `go_headroom.py` and eighty of training's own kind with numbers and a seed that it never has.
`search` is the search without networks; it always runs. Held-out graphs are not among them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.go_headroom import REAL, SYNTHETIC
from benchmarks.go_runs import EVALUATIONS, MARKS, best_of_hints, load
from benchmarks.mapping_runs import done_in
from benchmarks.suites.graph_run import Clocked
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.cases import make_case
from loadmaster.graph.go.search import Go
from loadmaster.graph.large_neighbourhood import LargeNeighbourhood
from loadmaster.program.zoo.random_graphs import TRAINING_FAMILIES
from loadmaster.search.solver import Budget, Solver, solve

NUMBERS, SEED = range(1_000, 1_080), 77
"""Of cases that training makes with other seeds."""
SEARCH = "search"


def load_case(name: str) -> GraphOptimization:
    """A case of `go_headroom.py` by its name, or one by its number."""
    return make_case(int(name), SEED) if name.isdecimal() else load(name)


def table(path: Path) -> None:
    """Time over the search's and over that of the best hint: geometric means, and the standard error of the first."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logs = {(*row["job"],): row for row in rows}
    print("| policy | graphs | evaluations | time over the search's | of best-of-8 | runs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for policy in dict.fromkeys(key[1] for key in logs):
        for kind in ("real", "synthetic"):
            for mark in map(str, MARKS):
                pairs = [
                    (row["best"][mark], logs[case, SEARCH, seed]["best"][mark], row["hints"])
                    for (case, name, seed), row in logs.items()
                    if name == policy and row["kind"] == kind and (case, SEARCH, seed) in logs
                ]
                known = np.log(np.array([pair for pair in pairs if None not in pair], dtype=np.float64))
                over = known[:, 0] - known[:, 1]
                error = over.std() / np.sqrt(len(over))
                share = np.exp((known[:, 0] - known[:, 2]).mean())
                print(
                    f"| {policy} | {kind} | {mark} | {np.exp(over.mean()):.4f} ± {error:.4f} | {share:.3f} | {len(over)} |"
                )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policies", nargs="*", default=["pretrained:ranker"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("validation.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these lines")
    arguments = parser.parse_args()
    if arguments.table is not None:
        table(arguments.table)
        return 0
    done = done_in(arguments.out)
    for case in (*REAL, *SYNTHETIC, *map(str, NUMBERS)):
        problem = load_case(case)
        hints = best_of_hints(problem)
        synthetic = problem.program.name.split("-")[0] in TRAINING_FAMILIES
        if hints is None:
            continue
        for policy in (SEARCH, *arguments.policies):
            for seed in arguments.seeds:
                if (case, Path(policy).stem, seed) in done:
                    continue
                solver: Solver = LargeNeighbourhood(threads=1) if policy == SEARCH else Go(policy, threads=1)
                observer, started = Clocked(), time.process_time()
                if solve(solver, problem, Budget(EVALUATIONS), seed, observer=observer).value is None:
                    continue
                best = {
                    str(mark): min(
                        (value for number, value, _ in observer.curve if number <= mark), default=None
                    )
                    for mark in MARKS
                }
                line = {
                    "job": [case, Path(policy).stem, seed],
                    "kind": "synthetic" if synthetic else "real",
                    "best": best,
                    "hints": hints,
                    "seconds": time.process_time() - started,
                }
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
