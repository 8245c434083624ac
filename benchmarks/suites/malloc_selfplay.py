"""How fast mallocMuZero plays against itself, and what takes the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.suites import Row
from loadmaster.errors import MissingPackage, require
from loadmaster.learn.session import keep_only
from loadmaster.machine import load_machine
from loadmaster.malloc_game.games import seen_arrays
from loadmaster.malloc_game.muzero.paper import PACKAGES, SEARCHING, Settings
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.models import load_model

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.paper.network import Network

CASE = "speed/self-play"
TARGETS = {"cpu": 500, "gpu": 20_000}
"""Moves a second on two cores, and on an accelerator with a batch of 1,024 and 32 simulations."""
MODEL, MACHINE = "bert-base", "tpu-v4i-16m"


def self_play(moves: int, seed: int) -> Iterator[Row]:
    """Searched moves a second by the default settings of this platform."""
    try:
        for package in PACKAGES:
            require(package, "agents")
    except MissingPackage as missing:
        yield Row(CASE, 0.0, "moves/s", "skipped", extra={"reason": missing.message})
        return
    import jax

    from loadmaster.malloc_game.muzero.paper.network import make_network
    from loadmaster.malloc_game.muzero.paper.search import Search
    from loadmaster.malloc_game.muzero.paper.selfplay import Style, play, whole_games

    platform = jax.default_backend()
    settings = Settings().on(platform)
    rows, simulations = settings.games or 1, settings.simulations or 0
    problem = MallocGame(load_model(MODEL), load_machine(MACHINE), starts="hidden")
    network = make_network(jax.random.key(seed), settings)
    style = Style(Search(keep_only(settings, SEARCHING)), simulations, settings.gumbel_scale)
    games = whole_games([problem], rows)

    def played(count: int) -> float:
        def once() -> float:
            started, left = time.perf_counter(), iter(range(count - 1))
            play(games, 0, style, network, jax.random.key(seed), lambda: next(left, None) is None)
            return time.perf_counter() - started

        return sorted(once() for _ in range(3))[1]

    played(2)  # compiled
    # What a batch takes to begin and to end without search is not measured.
    seconds = played(moves + 2) - played(2)
    rate, target = rows * moves / seconds, TARGETS.get(platform, TARGETS["gpu"])
    yield Row(
        CASE,
        rate,
        "moves/s",
        "met" if rate >= target else "missed",
        machine=MACHINE,
        solver=platform,
        seed=seed,
        evaluations=rows,
        seconds=seconds,
        extra={
            "target": f">= {target:,} moves/s",
            "platform": platform,
            "games": rows,
            "simulations": simulations,
            "model": MODEL,
            "ms_per_move": 1e3 * seconds / moves,
            **_profile(problem, rows, simulations, network, settings),
        },
    )


def _profile(
    problem: MallocGame, rows: int, simulations: int, network: Network, settings: Settings
) -> dict[str, Any]:
    """Milliseconds that a move of the whole batch takes in each part, one after another."""
    import jax

    from loadmaster.malloc_game.muzero.paper.search import Search

    games, seen = problem.games(rows), seen_arrays(rows)
    search, key = Search(keep_only(settings, SEARCHING)), jax.random.key(0)
    left = np.full(rows, problem.moves, np.int32)

    def timed(work: Any) -> float:
        seconds = []
        for _ in range(5):
            started = time.perf_counter()
            jax.block_until_ready(work())
            seconds.append(time.perf_counter() - started)
        return 1e3 * min(seconds)

    games.observe(seen)
    masks = seen.pop("mask")
    there = jax.tree.map(jax.numpy.asarray, seen)
    found = {
        "observe": timed(lambda: games.observe({**seen, "mask": masks})),
        "transfer": timed(lambda: jax.device_put(seen)),
        "look": timed(lambda: search(network, key, there, left, masks, simulations=0)),
        "search": timed(lambda: search(network, key, there, left, masks, simulations=simulations)),
        "step": timed(lambda: games.step_towards(np.ones(rows, np.int8))),
    }
    return {f"ms_{name}": value for name, value in found.items()}
