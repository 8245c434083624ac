"""Settings and programs for tests of whole runs of mallocMuZero."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.machine import load_machine
from loadmaster.malloc_game.muzero.paper.replay import Record, played_out
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.build import Builder
from loadmaster.program.program import TensorKind
from loadmaster.search.problem import Decision, Scores
from malloc_game.muzero.paper.tiny import TINY

SMALL: dict[str, Any] = TINY | {
    "channels": 2,
    "grid_blocks": 0,
    "games": 8,
    "window": 6,
    "simulations": 4,
    "eval_simulations": 4,
    "eval_games": 4,
    "eval_every": 2,
    "batch": 16,
    "updates": 3,
    "unroll": 2,
    "target_every": 4,
    "learning_rate": 5e-3,
    "final_rate": 5e-4,
    "horizon": 400,
    "replay_games": 20,
}


def four_lives(seed: int = 5) -> MallocGame:
    """Four tensors, each made once and read twice, in a fast memory for about two of them: 12
    moves, and random ones rarely find the best."""
    rng = np.random.default_rng(seed)
    build, made = Builder(f"lives-{seed}"), dict[int, int]()
    for step, number in enumerate(rng.permutation(np.repeat(np.arange(4), 3)).tolist()):
        first = number not in made
        if first:
            size = int(rng.choice((160, 224, 288, 352, 416, 480, 544))) * 1024
            made[number] = build.tensor(f"t{number}", bytes=size, kind=TensorKind.ACTIVATION)
        work = int(rng.choice((1, 10**7, 10**8, 3 * 10**8)))
        reads, writes = ([], [made[number]]) if first else ([made[number]], [])
        build.op(f"op{step}", "fusion", reads=reads, writes=writes, matrix=work)
    return MallocGame(build.build(), load_machine("tpu-v4i:cmem=1MiB"), starts="hidden")


def random_games(problem: MallocGame, count: int, seed: int = 0) -> tuple[Record, Any]:
    """(games with random moves and made-up searches, their judged times)"""
    rng = np.random.default_rng(seed)
    record = played_out(problem, rng.integers(0, 3, (count, problem.moves)).astype(np.int8))
    policy = rng.random(record.policy.shape) * record.legal
    record.policy[:] = policy / policy.sum(-1, keepdims=True)
    record.value[:] = rng.normal(0.3, 0.3, record.value.shape)
    return record, problem.play(record.actions).total


class Recording(MallocGame):
    """Remembers what it had to score."""

    def __init__(self, *args: Any, **switches: Any) -> None:
        super().__init__(*args, **switches)
        self.asked: list[Any] = []

    def score(self, decisions: Decision, first: int = 0) -> Scores:
        self.asked += list(np.array(decisions))
        return super().score(decisions, first)
