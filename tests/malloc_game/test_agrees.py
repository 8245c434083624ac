"""The native MallocGame against the slow one, move by move, under every switch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from generate_game import random_game
from loadmaster import _core
from loadmaster.malloc_game.model import GameModel, make_model
from loadmaster.plan.check import check
from loadmaster.simulate import simulate
from native_game import NativeGame
from reference.game import SlowGame
from reference.rules import LEAD

PAPER = {
    "supply": "elapsed",
    "ledger": "latest",
    "reward": "static",
    "backup": "rewind",
    "repack": 0,
    "starts": "hidden",
}
REPACK = (0, 1, 4)
"""One of them at random where a test does not name it."""
SWITCHES: dict[str, dict[str, Any]] = {
    "loadmaster": {},
    "paper": PAPER,
    **{f"{name}={value}": {name: value} for name, value in PAPER.items()},
    "reward=judged": {"reward": "judged"},
    "stall_term=False": {"stall_term": False},
    "repack=16": {"repack": 16},
    "hidden, repack=4": {"starts": "hidden", "repack": 4},
    "max_idle_s": {"max_idle_s": 60e-12},
    "elapsed, latest": {"supply": "elapsed", "ledger": "latest"},
    "latest, rewind": {"ledger": "latest", "backup": "rewind"},
    "no backup": {"backup": "none"},
    "elapsed, no backup": {"supply": "elapsed", "backup": "none"},
}
CASES = 100
SHARES = [(1, 1, 1, 1, 1, 1), (3, 1, 1, 1, 1, 1), (1, 3, 1, 1, 1, 1), (5, 5, 1, 0, 0, 0), (1, 1, 4, 0, 0, 0)]
"""Of each move among those that are tried."""
LEADS = 0.1
"""Of moves that are a copy with some lead."""


def random_case(seed: int, ops: tuple[int, int] = (4, 14)) -> tuple[Any, Any, Any, GameModel]:
    rng = np.random.default_rng([seed, 1])
    program, machine = random_game(rng, ops)
    reach = machine.devices[0].memories
    fast = reach[int(rng.integers(len(reach) - 1))]
    return rng, program, machine, make_model(program, machine, fast)


def play_both(seed: int, switches: dict[str, Any], ops: tuple[int, int] = (4, 14)) -> SlowGame:
    """Plays one random game on both sides and compares all that can be seen of it."""
    rng, program, machine, model = random_case(seed, ops)
    switches = {"repack": int(rng.choice(REPACK)), **switches}
    slow, native = SlowGame(model, **switches), NativeGame(model, **switches)
    share = np.array(SHARES[int(rng.integers(len(SHARES)))], dtype=float)
    where = f"seed {seed}, {switches}"
    for move in range(model.sites):
        assert slow.cursor == move, where
        mask = slow.mask()
        assert native.mask() == mask and any(mask), f"{where}: masks at move {slow.cursor}"
        chances = (share + 1e-9)[: len(mask)] * mask
        action, at = int(rng.choice(len(mask), p=chances / chances.sum())), slow.cursor
        if rng.random() < LEADS:
            lead = LEAD + int(rng.integers(0, 6))
            if slow.knows(lead):
                action = lead
            else:
                with pytest.raises(ValueError):
                    native.step(lead)
        assert native.step(action) == slow.step(action), f"{where}: reward of move {at}, {action}"
        assert native.cursor == slow.cursor, f"{where}: cursor after move {at}"
        stays, copies, fast = native.placement()
        assert (stays, sorted(copies), fast) == (*map(sorted, slow.placement()[:2]), slow.fast), (
            f"{where}: placement after move {at}, {action}"
        )
    assert native.cursor == slow.cursor == model.sites, where
    assert native.judged() == slow.judged() and native.backups == slow.backups, where
    plan = slow.plan(program.n_ops)
    assert check(program, machine, plan) == [], where
    assert simulate(program, machine, plan).total_ps == slow.judged()[0], where
    return slow


@pytest.mark.parametrize("name", SWITCHES)
def test_every_move_agrees(name: str) -> None:
    games = [play_both(seed, SWITCHES[name]) for seed in range(CASES)]
    copies = [copy for game in games for copy in game.copies]
    assert sum(game.backups for game in games) > 5
    assert sum(copy.into for copy in copies) > 20 and sum(not copy.into for copy in copies) > 20
    assert sum(stay is not None for game in games for stay in game.group.values()) > 5
    least = 1 if SWITCHES[name].get("backup") == "none" else 5  # a lost game has nothing left
    assert sum(stay.parent is not None for game in games for stay in game.stays) > least


@pytest.mark.parametrize("name", ["loadmaster", "paper", "supply=elapsed", "ledger=latest"])
def test_longer_programs_agree(name: str) -> None:
    """Many steps, loops and copies in one ledger."""
    games = [play_both(seed, SWITCHES[name], ops=(40, 90)) for seed in range(5)]
    assert max(game.n for game in games) > 64 and sum(len(game.copies) for game in games) > 10


@pytest.mark.parametrize("name", ["loadmaster", "paper", "no backup"])
def test_preferences_agree(name: str) -> None:
    """`play`: the wish if it is legal, else NoCopy, Copy, Drop, or what else is."""
    for seed in range(200, 300):
        rng, _, _, model = random_case(seed)
        most = 3 if SWITCHES[name].get("starts") == "hidden" else LEAD + 4
        wishes = rng.integers(0, most, (3, model.sites)).astype(np.int16)
        switches = {"repack": int(rng.choice(REPACK)), **SWITCHES[name]}
        native = _core.Game(_core.GameTables(model.columns()), switches)
        actions, total, stall, backups = native.play(wishes, 2)
        for row in range(len(wishes)):
            slow = SlowGame(model, **switches)
            slow.play(wishes[row])
            assert actions[row].tolist() == slow.actions, f"seed {seed}"
            assert (total[row], stall[row]) == slow.judged(), f"seed {seed}"
            assert backups[row] == slow.backups, f"seed {seed}"
