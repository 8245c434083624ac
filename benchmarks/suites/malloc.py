"""The malloc suite: every solver in every game at equal evaluations, and how fast games are.

All times are simulated. 'production' is the production compiler's own placement timed by our model,
for which it was not tuned.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.malloc_cells import GAMES, ONCE, GameCell
from benchmarks.suites.malloc_run import run_game
from benchmarks.suites.malloc_selfplay import CASE as SELF_PLAY
from benchmarks.suites.malloc_selfplay import self_play
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.models import load_model

QUICK = ("alexnet-inf/tpu-v4i-16m", "alexnet-train/tpu-v4i-16m", "synthetic-10")
QUICK_BUDGET = 300
SPEED = {"moves": 300_000, "observed-moves": 50_000}
"""Moves a second on one core in a batch of 64."""


def game_rows(cell: GameCell, options: Options, seed: int) -> Iterator[Row]:
    """The solvers of one game with one seed; those without a random part only once."""
    if options.quick and cell.case not in QUICK:
        return
    for solver in options.solvers or cell.solvers:
        if seed and solver in ONCE:
            continue
        row = run_game(
            cell,
            solver,
            seed,
            budget=QUICK_BUDGET if options.quick else None,
            seconds=5.0 if options.quick else None,
        )
        if row.status != "skipped" or options.solvers:
            yield row


def speed(observed: bool, options: Options, seed: int) -> Iterator[Row]:
    """Random legal moves a second, one thread, a batch of 64."""
    problem = MallocGame(load_model("resnet50"), load_machine("tpu-v4i-8m"))
    rng, batch, times = np.random.default_rng(seed), 64, []
    for _ in range(5 if options.quick else 15):
        games = problem.games(batch, threads=1)
        preferences = rng.integers(0, 3, (problem.moves, batch), dtype=np.int8)
        started = time.perf_counter()
        for preferred in preferences:
            if observed:
                games.observe()
            games.step_towards(preferred)
        times.append(time.perf_counter() - started)
    name = "observed-moves" if observed else "moves"
    rate = batch * problem.moves / statistics.median(times)
    yield Row(
        f"speed/{name}",
        rate,
        "moves/s",
        "met" if rate >= SPEED[name] else "missed",
        machine="tpu-v4i-8m",
        seed=seed,
        evaluations=batch * len(times),
        seconds=sum(times),
        extra={
            "target": f">= {SPEED[name]:,} moves/s",
            "moves": problem.moves,
            "model": "resnet50",
            "best": batch * problem.moves / min(times),
        },
    )


def searched(options: Options, seed: int) -> Iterator[Row]:
    """Self-play of the learned agent."""
    return self_play(8 if options.quick else 40, seed)


CASES: dict[str, Case] = {
    SELF_PLAY: searched,
    "speed/moves": partial(speed, False),
    "speed/observed-moves": partial(speed, True),
    **{case: partial(game_rows, cell) for case, cell in GAMES.items()},
}
