"""The game's own judge: equal to the simulator on placements, late copies and all."""

from __future__ import annotations

import numpy as np
import pytest

from generate_game import random_game
from loadmaster import _core
from loadmaster.malloc_game.model import GameModel, make_model
from loadmaster.plan.check import check
from loadmaster.program import Builder
from loadmaster.simulate import simulate
from reference.game import SlowGame
from reference.judge import Copy
from reference.rules import served
from reference.simulate import simulate_reference

BLOCKS, CASES_PER_BLOCK = 4, 60


def native_judge(model: GameModel, game: SlowGame) -> tuple[int, int]:
    _, copies, fast = game.placement()
    rows = np.array(copies, dtype=np.int64).reshape(len(copies), 5)
    return _core.GameTables(model.columns()).judge(np.array(fast, dtype=np.int8), rows)


def hurry(rng: np.random.Generator, game: SlowGame) -> None:
    """Copies in start later and write-backs end earlier than any ledger allows; rows in any order."""
    for copy in game.copies:
        if copy.into:
            copy.issued = int(rng.integers(copy.issued, copy.needed))
        else:
            copy.needed = int(rng.integers(copy.issued + 1, copy.needed + 1))
    rng.shuffle(game.copies)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_judged_time_is_the_simulated_time(block: int) -> None:
    late = 0
    for seed in range(block * CASES_PER_BLOCK, (block + 1) * CASES_PER_BLOCK):
        rng = np.random.default_rng([seed, 5])
        program, machine = random_game(rng)
        model = make_model(program, machine)
        game = SlowGame(model, supply="elapsed", ledger="latest")
        game.play(rng.integers(0, 3, model.sites))
        for _ in range(2):
            plan = game.plan(program.n_ops)
            timeline = simulate(program, machine, plan)
            total, stall = native_judge(model, game)
            assert check(program, machine, plan, timeline) == [], f"seed {seed}"
            assert (total, stall) == game.judged(), f"seed {seed}"
            assert total == timeline.total_ps, f"seed {seed}"
            assert total - stall == sum(
                game.elapsed(i, game.fast) * int(model.repeat[i]) for i in range(model.steps)
            )
            late += stall > 0
            hurry(rng, game)
    assert late > CASES_PER_BLOCK // 4, "hardly a copy was late: the cases are too easy"


def test_the_reference_simulator_says_the_same() -> None:
    for seed in range(40):
        rng = np.random.default_rng([seed, 6])
        program, machine = random_game(rng)
        model = make_model(program, machine)
        game = SlowGame(model, supply="elapsed")
        game.play(rng.integers(0, 2, model.sites))
        hurry(rng, game)
        total = simulate_reference(program, machine, game.plan(program.n_ops)).total_ps
        assert native_judge(model, game)[0] == total, f"seed {seed}"


def test_the_time_of_the_plan_that_decides_nothing() -> None:
    for seed in range(60):
        program, machine = random_game(np.random.default_rng([seed, 7]))
        for fast in (memory.name for memory in machine.memories[:-1]):
            model = make_model(program, machine, fast)
            assert model.all_slow_ps == simulate(program, machine).total_ps, f"seed {seed}"
            assert model.memory_times(np.zeros(model.sites, dtype=bool))[1].sum() == 0


def test_a_model_of_nothing() -> None:
    build = Builder("empty")
    build.op("nothing", "add", vector=7)
    _, machine = random_game(np.random.default_rng(0))
    program = build.build()
    model = make_model(program, machine)
    assert model.sites == 0
    assert native_judge(model, SlowGame(model)) == (simulate(program, machine).total_ps, 0)


# --- the ledger of the reference: the copy-resource vectors that XLA's tests use ------------------


def accepted(slots: list[int], copies: list[tuple[int, int, int]]) -> list[bool]:
    """Whether a FIFO ledger takes each (issued after, needed by, work), one after the other."""
    known: list[Copy] = []
    answers = []
    for issued, needed, work in copies:
        new = Copy(0, True, issued, needed, work, asked=work)
        done = served([*known, new], slots)
        answers.append(all(d < c.needed for d, c in zip(done, [*known, new], strict=True)))
        if answers[-1]:
            known.append(new)
    return answers


def test_fifo_ledger_gives_the_known_answers() -> None:
    mixed = [2, 3, 1, 6, 7, 1, 7, 2, 2, 4]
    wanted = [(-1, 3, 5), (1, 4, 4), (5, 9, 10), (4, 9, 3), (4, 8, 2)]
    assert accepted(mixed, wanted) == [True, True, True, False, True]
    twos = [2] * 10
    steps = [(6 - i, 10 - i, 2) for i in range(6)]
    assert accepted(twos, [*steps, (0, 4, 3), (0, 4, 3), (0, 4, 1)]) == [True] * 8 + [False]
    assert accepted(twos, [(5, 10, 2), (4, 7, 2), (4, 8, 4), (3, 6, 4)]) == [True, True, True, False]
    assert accepted([2] * 5, [(1, 3, 2), (0, 4, 4)]) == [True, False]
