"""What a perfect screen of small changes could bring to GO, on graphs of the families of training.

    python benchmarks/go_headroom.py --seeds 0 1 --out headroom.jsonl
    python benchmarks/go_headroom.py --table headroom.jsonl

A perfect screen judges every change of its pool natively, and counts those alone that it passes on. `search xN`: the
search without networks with N times the evaluations. The cases are of the families of training, at sizes and with seeds
that it does not draw; `--cases` takes others.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.go_runs import EVALUATIONS, best_of_hints, load
from benchmarks.mapping_runs import done_in
from loadmaster.arrays import Float64
from loadmaster.graph import UNFIT
from loadmaster.graph.go.scores import CHANGES, RunView, take_changes
from loadmaster.graph.go.search import UNTRAINED, Go, ScreenedStretch
from loadmaster.graph.large_neighbourhood import LargeNeighbourhood, Proposer, Standing, Stretch
from loadmaster.graph.moves import Changes
from loadmaster.search.solver import Budget, Solver, solve

REAL = (
    "rnnlm-2:steps=8@p100x2",
    "gnmt-2:steps=6@p100x4",
    "gnmt-4:layers=3,steps=4@p100x4",
    "txl-2:segments=4@p100x2",
    "txl-4:layers=4@p100x4",
    "wavenet-2x9:layers=6@p100x2",
    "vit-l16:layers=4@a100-40x4",
    "resnet50-train@p100x4",
)
SYNTHETIC = (
    "layered/0@p100x4",
    "layered/3@p100x4",
    "erdos_renyi/0@p100x4",
    "wavefront/3@p100x4",
    "layered/5@p100x4",
    "branch_join/5@p100x4",
    "cells/1@p100x4",
    "cells/5@p100x4",
)


class PerfectStretch(ScreenedStretch):
    """Annealing whose proposals are the truly best of a pool, of each plan in hand."""

    def draw(self, rng: np.random.Generator, standing: Standing, start: Float64) -> Changes:
        if standing.value >= UNFIT:
            return Stretch.draw(self, rng, standing, start)
        run = RunView(self.graph, self.climb, start)
        pool = self.pool(rng, run)
        values = self.problem.values(*self.climb.run(*pool, np.full(len(pool[0]) - 1, -1e9), False)[0])
        values = np.where(values < 0, UNFIT, values)
        return take_changes(pool, np.argsort(values, kind="stable")[: self.size])


class PerfectScreen(Go):
    """The search with a perfect screen, of stretches of some `size`."""

    def __init__(self, size: int = 32) -> None:
        super().__init__(UNTRAINED, look_ahead=False)
        self.size = size

    def make_stretch(self, proposer: Proposer, begun: float, budget: Budget) -> Stretch:
        self._stretch = PerfectStretch(proposer, begun, budget, CHANGES.make(0))
        self._stretch.size = min(self._stretch.size, self.size)
        self._stretch.plain_size = self._stretch.size
        return self._stretch


SEARCHES: dict[str, tuple[Callable[[], Solver], int]] = {
    "search": (LargeNeighbourhood, 1),
    "go": (Go, 1),
    "perfect screen of changes": (PerfectScreen, 1),
    "the same, 8 at a time": (lambda: PerfectScreen(size=8), 1),
    "search x8": (LargeNeighbourhood, 8),
    "search x50": (LargeNeighbourhood, 50),
}


def table(path: Path) -> None:
    """Time over the search's, geometric means over graphs and seeds."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logs = {(*row["job"],): np.log(row["value"]) for row in rows}
    hints = {row["job"][0]: np.log(row["hints"]) for row in rows}
    print("| what is evaluated | real | synthetic | of best-of-8, real | synthetic |")
    print("| --- | --- | --- | --- | --- |")
    for name in dict.fromkeys(key[1] for key in logs):
        cells = []
        for over in ("search", "hints"):
            for synthetic in (False, True):
                own = [key for key in logs if key[1] == name and ("/" in key[0]) == synthetic]
                base = [
                    hints[case] if over == "hints" else logs.get((case, "search", seed), np.nan)
                    for case, _, seed in own
                ]
                gain = [logs[key] - b for key, b in zip(own, base, strict=True)]
                cells.append(f"{np.exp(np.mean(gain)):.3f}" if own else "-")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", nargs="*", default=[*REAL, *SYNTHETIC])
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("headroom.jsonl"))
    parser.add_argument("--table", type=Path, help="print the table of these lines")
    arguments = parser.parse_args()
    if arguments.table is not None:
        table(arguments.table)
        return 0
    done = done_in(arguments.out)
    for case in arguments.cases:
        problem = load(case)
        hints = best_of_hints(problem)
        assert hints is not None, f"no hint fits on {case}"
        for name in arguments.searches:
            for seed in arguments.seeds:
                if (case, name, seed) in done:
                    continue
                make, times = SEARCHES[name]
                started = time.process_time()
                value = solve(make(), problem, Budget(times * EVALUATIONS), seed).value
                assert value is not None, f"nothing fits on {case}"
                seconds = time.process_time() - started
                line = {"job": [case, name, seed], "value": value, "hints": hints, "seconds": seconds}
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{case}, {name}, {seed}: {value / hints:.3f}, {seconds:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
