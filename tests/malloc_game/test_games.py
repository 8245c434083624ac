"""`MallocGame`: what must hold for every game, whoever plays it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from generate_game import random_game, random_game_program
from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.malloc_game.games import Games, decode, encode
from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.check import check
from loadmaster.program.program import Program
from loadmaster.simulate import simulate

COPY, NO_COPY, DROP = 0, 1, 2
CASES = 40
EVERY_SWITCH: list[dict[str, Any]] = [
    {},
    {"profile": "paper"},
    {"supply": "elapsed"},
    {"ledger": "latest"},
    {"backup": "rewind"},
    {"backup": "none"},
    {"repack": 0},
    {"starts": "hidden"},
    {"max_idle_s": 40e-12},
]


@cache
def random_problem(seed: int, **switches: Any) -> MallocGame:
    program, machine = random_game(np.random.default_rng([seed, 2]))
    return MallocGame(program, machine, **switches)


def wishes(problem: MallocGame, games: int, seed: int = 0) -> np.ndarray:
    """Random preferences, some games lopsided."""
    rng = np.random.default_rng([seed, 3])
    shares = rng.dirichlet([1.0, 1.0, 0.7, 0.3, 0.3, 0.3][: problem.actions], size=games)
    rows = [rng.choice(problem.actions, size=problem.moves, p=share) for share in shares]
    return np.array(rows, dtype=np.int16).reshape(games, problem.moves)


def native(problem: MallocGame, games: int = 1, threads: int = 1) -> Any:
    core = _core.Game(_core.GameTables(problem.model.columns()), problem.options())
    core.reset(games, threads)
    return core


def random_moves(rng: np.random.Generator, masks: np.ndarray) -> np.ndarray:
    return (rng.random(masks.shape) * masks).argmax(axis=1).astype(np.int16)


# --- placements --------------------------------------------------------------------------------


def tied(model: GameModel) -> set[tuple[int, int]]:
    """Pairs of tensors that may lie over each other: in place, or carried by one loop."""
    over, group = model.tensors.over.tolist(), model.tensors.carried.tolist()
    pairs = {(x, y) for y, x in enumerate(over) if x >= 0}
    pairs |= {(a, b) for a, g in enumerate(group) for b, h in enumerate(group) if g == h >= 0}
    return pairs | {(y, x) for x, y in pairs}


def check_placement(model: GameModel, stays: Any, copies: Any, fast: Any) -> None:
    """Invariants 1 and 2 of a finished game, by looking at every pair and every site."""
    rows = stays.tolist()
    size, may_meet = model.tensors.size.tolist(), tied(model)
    for number, (b, low, first, last) in enumerate(rows):
        assert 0 <= low <= low + size[b] <= model.capacity and low % model.alignment == 0
        assert 0 <= first <= last < model.steps
        for c, other, begin, end in rows[:number]:
            apart = last < begin or end < first or low + size[b] <= other or other + size[c] <= low
            assert apart or ((b, c) in may_meet and low == other)
    brought = {(b, issued + 1): needed for b, into, issued, needed, _ in copies.tolist() if into}
    back = {b: needed for b, into, _, needed, _ in copies.tolist() if not into}
    slow_since = np.where(model.tensors.given > 0, -1, model.steps)
    for site in range(model.sites):
        b, step = int(model.site_tensor[site]), int(model.site_step[site])
        serving = [
            first for t, _, first, last in rows if t == b and brought.get((b, first), first) <= step <= last
        ]
        assert len(serving) == int(fast[site]), "a fast site has one residency, a slow one none"
        if model.site_write[site]:
            slow_since[b] = back.get(b, model.steps + 1) - 1 if fast[site] else step
        elif not fast[site]:
            assert slow_since[b] < step, "slow memory does not have it yet"
    carried = model.tensors.carried >= 0
    outputs = (model.tensors.output > 0) & ~carried
    assert (slow_since[outputs] < model.steps).all(), "an output is not in slow memory"


@pytest.mark.parametrize("switches", EVERY_SWITCH, ids=str)
def test_every_play_is_a_sound_plan_of_the_judged_time(switches: dict[str, Any]) -> None:
    for seed in range(CASES):
        problem = random_problem(seed, **switches)
        played = problem.play(wishes(problem, 2, seed))
        core = native(problem, 2)
        for row, actions in enumerate(played.actions):
            plan = problem.plan(actions)
            assert problem.violations(plan) == [] and problem.admits(actions), f"seed {seed}"
            timeline = simulate(problem.program, problem.machine, plan)
            assert check(problem.program, problem.machine, plan, timeline) == [], f"seed {seed}"
            assert timeline.total_ps == played.total[row] == problem.evaluate(actions), f"seed {seed}"
            assert played.total[row] >= problem.bound().value, f"seed {seed}"
        core.replay(played.actions)
        for row in range(2):
            check_placement(problem.model, *core.placement(row))


def test_a_better_time_than_the_traffic_allows_is_not_judged() -> None:
    """In idle time: what slow memory serves and what is copied take turns."""
    checked = 0
    for seed in range(CASES):
        problem = random_problem(seed)
        if not problem.model.idle_copies:
            continue
        core = native(problem, 4)
        core.replay(problem.play(wishes(problem, 4, seed)).actions)
        total, _ = core.judged()
        for row in range(4):
            _, copies, fast = core.placement(row)
            slow, _ = problem.model.memory_times(fast.astype(bool))
            assert total[row] >= (slow * problem.model.repeat).sum() + copies[:, 4].sum()
            checked += len(copies) > 0
    assert checked > 20


# --- games -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reward", ["telescoping", "judged", "static"])
def test_random_games_end_after_n_moves_and_rewards_add_up(reward: str) -> None:
    backups = 0
    for seed in range(2 * CASES):
        problem = random_problem(seed, reward=reward, repack=4 * (seed % 2))
        core, rng = native(problem, 5, 2), np.random.default_rng(seed)
        earned = np.zeros(5, dtype=np.int64)
        for move in range(problem.moves):
            masks = core.masks()
            assert core.cursor == move and (masks.sum(axis=1) > 0).all(), f"seed {seed}"
            earned += core.step(random_moves(rng, masks))
        assert core.cursor == problem.moves
        total, stall = core.judged()
        backups += int(core.backups().sum())
        if reward != "static":
            assert (earned == problem.all_slow_ps - total).all(), f"seed {seed}"
        assert (total - stall >= problem.model.steps).all()
    assert backups > 20


def test_the_stall_term_is_all_that_the_last_move_adds() -> None:
    for seed in range(20):
        plain, full = (random_problem(seed, stall_term=on) for on in (False, True))
        actions = full.play(wishes(full, 3, seed)).actions
        rewards = []
        for problem in (plain, full):
            core = native(problem, 3)
            rewards.append(np.array([core.step(np.ascontiguousarray(a)) for a in actions.T]))
        stall = full.play(actions).stall
        if full.moves:
            assert (rewards[0][:-1] == rewards[1][:-1]).all()
            assert (rewards[0][-1] - rewards[1][-1] == stall).all()


def test_all_drop_is_legal_and_earns_nothing() -> None:
    for seed in range(CASES):
        problem = random_problem(seed)
        core = native(problem)
        for _ in range(problem.moves):
            assert core.masks()[0, DROP]
            assert core.step(np.array([DROP], dtype=np.int16))[0] == 0
        stays, copies, fast = core.placement(0)
        assert not len(stays) and not len(copies) and not fast.any()
        moves = np.full((1, problem.moves), DROP, dtype=np.int16)
        scores = problem.score(moves)
        assert scores.value[0] == problem.all_slow_ps and scores.reward[0] == 0
        assert simulate(problem.program, problem.machine).total_ps == problem.all_slow_ps


def test_score_is_the_normalised_gain() -> None:
    for seed in range(CASES):
        problem = random_problem(seed)
        moves = wishes(problem, 3, seed)
        scores, total = problem.score(moves), problem.play(moves).total
        gap = problem.all_slow_ps - problem.bound().value
        assert (scores.value == total).all()
        if gap > 1e-6 * problem.all_slow_ps:
            assert scores.reward == pytest.approx((problem.all_slow_ps - total) / gap)
            assert (scores.reward <= 1).all()


def test_threads_and_batches_change_nothing() -> None:
    for seed in range(30):
        problem = random_problem(seed)
        moves = wishes(problem, 7, seed)
        core = native(problem)
        whole = core.play(moves, 1)
        for threads in (2, 3):
            again = core.play(moves, threads)
            assert all((a == b).all() for a, b in zip(whole, again, strict=True))
        for row in range(7):
            alone = core.play(moves[row : row + 1], 1)
            assert all((a[row] == b[0]).all() for a, b in zip(whole, alone, strict=True))


def state(games: Games) -> list[Any]:
    """All that can be seen of a batch, observations bit by bit."""
    core = games.native
    seen: list[Any] = [core.masks().tolist(), core.backups().tolist(), core.cursors().tolist()]
    for row in range(games.count):
        seen += [part.tolist() for part in core.placement(row)]
    return seen + [(name, values.tobytes()) for name, values in games.observe().items()]


@pytest.mark.parametrize("backup", ["retroactive", "rewind", "none"])
def test_undo_and_replay_restore_everything(backup: str) -> None:
    for seed in range(20):
        problem = random_problem(seed, backup=backup)
        games, fresh = problem.games(1, threads=1), problem.games(1, threads=1)
        rng, history, played = np.random.default_rng(seed), [], []
        while games.cursors[0] < problem.moves:
            history.append(state(games))
            action = random_moves(rng, games.masks())
            played.append(int(action[0]))
            games.step(action)
        final = state(games)
        fresh.replay(np.array([played], dtype=np.int16))
        assert state(fresh) == final, f"seed {seed}"
        for before in reversed(history):
            games.undo()
            assert state(games) == before, f"seed {seed}"


def test_moves_that_are_not_legal_are_refused() -> None:
    problem = next(p for p in map(random_problem, range(99)) if p.moves > 3)
    games = problem.games(1)
    while games.masks().all() and games.cursors[0] + 1 < problem.moves:
        games.step(np.array([DROP], dtype=np.int16))
    before = state(games)
    bad = int(games.masks()[0].argmin())
    assert not games.masks()[0, bad]
    for action in (bad, games.problem.moves + 99, -1):
        with pytest.raises(ValueError):
            games.step(np.array([action], dtype=np.int16))
    assert state(games) == before


# --- other machines ----------------------------------------------------------------------------


def test_doubling_the_capacity_keeps_a_plan_valid() -> None:
    for seed in range(CASES):
        problem = random_problem(seed)
        plan = problem.plan(problem.play(wishes(problem, 1, seed)).actions[0])
        name = problem.machine.memories[problem.model.fast].name
        capacity = problem.machine.memories[problem.model.fast].capacity
        larger = problem.machine.with_capacity(name, 2 * capacity)
        assert check(problem.program, larger, plan) == [], f"seed {seed}"
        once, twice = (simulate(problem.program, m, plan) for m in (problem.machine, larger))
        assert once.total_ps == twice.total_ps


def rated(factor: int, copies: str, ports: str, overlap: int) -> Machine:
    """4 ps per byte and 8 ps per slow byte or flop at factor 1: halves stay whole at factor 2."""
    fast, slow = factor * 250 * 10**9, factor * 125 * 10**9
    rates = {"matrix": {"*": slow}, "vector": {"*": slow}, "transcendental": {"*": slow}}
    core = Device("core", ("fast", "slow"), rates, launch=8 // factor)
    memories = (Memory("fast", 60, fast, fast, alignment=4), Memory("slow", 2**40, slow, slow))
    links = (Link("slow", "fast", fast, engines=("e",)), Link("fast", "slow", slow, engines=("e",)))
    return Machine("rated", (core,), memories, links, Rules(ports, overlap, copies))


@pytest.mark.parametrize("copies", ["idle", "free"])
def test_twice_the_rates_take_half_the_time(copies: str) -> None:
    for seed in range(CASES):
        rng = np.random.default_rng([seed, 4])
        program: Program = replace(random_game_program(rng), costs=None)
        ports, overlap = ("serial", "parallel")[seed % 2], (0, 1_000_000)[seed // 2 % 2]
        slow, quick = (MallocGame(program, rated(k, copies, ports, overlap)) for k in (1, 2))
        moves = wishes(slow, 3, seed)
        one, two = slow.play(moves), quick.play(moves)
        assert (one.actions == two.actions).all(), f"seed {seed}"
        assert (one.total == 2 * two.total).all() and (one.stall == 2 * two.stall).all()


# --- decisions ---------------------------------------------------------------------------------


def test_a_plan_is_a_decision_too() -> None:
    for seed in range(CASES):
        problem = random_problem(seed)
        played = problem.play(wishes(problem, 1, seed))
        plan = problem.plan(played.actions[0])
        rows = problem.decision(plan)
        assert rows.dtype == np.int64 and rows.shape[1] == 7
        again = decode(rows)
        assert again.hash == plan.hash and (encode(again) == rows).all()
        assert problem.evaluate(rows) == played.total[0] and problem.admits(rows)
        assert problem.plan(rows).hash == plan.hash
        fast = problem.moves_of(plan) != DROP
        core = native(problem)
        core.replay(played.actions)
        assert (fast == core.placement(0)[2].astype(bool)).all(), f"seed {seed}"


def test_unknown_switches_are_refused() -> None:
    program, machine = random_game(np.random.default_rng(0))
    for wrong in ({"suply": "idle"}, {"supply": "lots"}, {"profile": "their"}, {"repack": -1}):
        with pytest.raises(LoadmasterError):
            MallocGame(program, machine, **wrong)  # type: ignore[arg-type]
