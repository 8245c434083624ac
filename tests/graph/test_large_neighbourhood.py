"""The list decoder against a plain one and against HEFT, and the large-neighbourhood search on it."""

from __future__ import annotations

import numpy as np
import pytest

from generate_graph import random_graph, roomy
from graph.slow_placers import NobodyHasRoom, Slow
from loadmaster.errors import LoadmasterError
from loadmaster.graph import TASKS, UNFIT, Base, GraphOptimization
from loadmaster.graph.decoder import HEFT, HINTS, Decoder, fusion_modes, hinted_devices, leaves
from loadmaster.graph.large_neighbourhood import (
    OPERATORS,
    Neighbourhoods,
    Proposer,
    Space,
    Standing,
    apply_changes,
    natural,
    reckon_time,
)
from loadmaster.graph.moves import Moves
from loadmaster.graph.placers import Places
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model
from loadmaster.search.pins import Pins
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve
from search.conformance import conforms

NAME = "large-neighbourhood"


def _problem(seed: int, tasks: tuple[str, ...] = TASKS, most: int = 40) -> GraphOptimization:
    program, machine = random_graph(np.random.default_rng(seed), most)
    return GraphOptimization(program, roomy(machine), tasks=tasks)


def _recurrent(**about: object) -> GraphOptimization:
    return GraphOptimization(load_model("rnnlm-2:steps=3"), load_machine("p100x2"), **about)  # type: ignore[arg-type]


def _solved(problem: GraphOptimization, evaluations: int, seed: int = 0, **options: object) -> Solution:
    return solve(make_labelled("graph", NAME, options), problem, Budget(evaluations), seed)


# --- the decoder ------------------------------------------------------------------------------


def test_the_decoder_is_the_plain_one() -> None:
    """Any parameters, biases and freed groups, on programs without fusion."""
    compared = moved = 0
    for seed in range(250):
        rng = np.random.default_rng([5, seed])
        program, machine = random_graph(rng, 24)
        problem = GraphOptimization(
            program, machine, tasks=("placement",), base=Base(fusion="none"), groups=("op", "auto")[seed % 2]
        )
        decoder = Decoder(problem, 1)
        thousandths = rng.integers(0, 2_000, size=4)
        thousandths[3] = rng.integers(0, 1_001)
        room = np.minimum(decoder.places.capacity, 2**50)
        slow = Slow(
            problem,
            room.tolist(),
            **dict(zip(("transfer", "ahead", "load", "wait"), thousandths.tolist(), strict=True)),
        )
        if not slow.comparable():
            continue
        given = np.where(
            rng.random(problem.groups) < 0.6, -1, rng.integers(problem.devices, size=problem.groups)
        )
        bias = np.rint(rng.normal(size=(problem.groups, problem.devices)) * 1e6)
        try:
            wanted = slow.repair(given.tolist(), slow.levels(True), bias.tolist())
        except NobodyHasRoom:
            continue
        parameters = np.append(thousandths / 1_000, 1.0)[None]
        found, _ = decoder.repair(given[None], parameters, np.array([2]), bias[None])
        assert found[0].tolist() == wanted, f"seed {seed}"
        compared += 1
        moved += (
            found[0].tolist() != decoder.repair(given[None], np.array([HEFT]), np.array([2]))[0][0].tolist()
        )
    assert compared > 30 and moved > 5


def test_with_hefts_parameters_it_is_heft() -> None:
    """And with those of HEFT that looks ahead, on fused graphs too: learning starts there."""
    for seed in range(30):
        problem = _problem(seed)
        decoder, native = Decoder(problem, 1), Places(problem, problem.base_clusters).native
        room = np.minimum(decoder.places.capacity, 2**50)
        free = np.full((2, problem.groups), -1)
        parameters = np.array([HEFT, (1.0, 0.3, 0.0, 1.0, 1.0)])
        found, reckoned = decoder.repair(free, parameters, np.array([2, 2]))
        assert np.array_equal(found[0], native.heft(room, False, 0))
        assert np.array_equal(found[1], native.heft(room, True, 30))
        again = decoder.reckon(found)
        assert np.array_equal(again[1], reckoned[1])  # a whole placement is reckoned as it was made


def test_threads_and_batches_change_nothing() -> None:
    problem, rng = _recurrent(), np.random.default_rng(1)
    proposer = Proposer(problem)
    given = np.where(rng.random((9, problem.groups)) < 0.5, -1, 0)
    drawn, order = proposer.draw_parameters(rng, 9)
    bias = rng.normal(size=(9, problem.groups, problem.devices)) * 1e8
    one, _ = Decoder(problem, 1).repair(given, natural(drawn), order, bias)
    three, _ = Decoder(problem, 3).repair(given, natural(drawn), order, bias)
    alone = [
        Decoder(problem, 1).repair(given[[i]], natural(drawn)[[i]], order[[i]], bias[[i]])[0][0]
        for i in range(9)
    ]
    assert np.array_equal(one, three) and np.array_equal(one, np.stack(alone))
    assert np.all(one[given >= 0] == 0) and len(np.unique(one, axis=0)) > 1


def test_a_memory_share_is_kept() -> None:
    problem = _recurrent()
    decoder = Decoder(problem, 1)
    free, bytes_ = np.full((1, problem.groups), -1), decoder.places.bytes
    prefers = np.zeros((1, problem.groups, problem.devices))
    prefers[:, :, 1] = 1e15
    held = []
    for share in (1.0, bytes_.sum() * 0.6 / decoder.places.capacity[0]):
        device, _ = decoder.repair(free, np.array([(1.0, 0.0, 0.0, 0.0, share)]), np.array([2]), prefers)
        held.append(np.bincount(device[0], bytes_, minlength=problem.devices)[1])
    assert held[0] == bytes_.sum()  # the bias decides, as far as there is room
    assert 0 < held[1] <= bytes_.sum() * 0.6


def test_bad_arrays_are_refused() -> None:
    problem = _recurrent()
    native = Places(problem, problem.base_clusters).native
    groups, memories = problem.groups, len(problem.machine.memories)
    good = {
        "device": np.zeros((1, groups), np.int32),
        "room": np.zeros((1, memories), np.int64),
        "outlooks": np.zeros((1, 4), np.int64),
        "order": np.zeros(1, np.int32),
        "bias": np.zeros(0),
        "threads": 1,
    }
    native.repair(**good)
    for name, bad in (
        ("device", np.full((1, groups), problem.devices, np.int32)),
        ("device", np.zeros((1, groups + 1), np.int32)),
        ("outlooks", np.full((1, 4), -1, np.int64)),
        ("order", np.array([3], np.int32)),
        ("bias", np.full((1, groups, problem.devices), np.nan)),
    ):
        with pytest.raises(ValueError):
            native.repair(**{**good, name: bad})


# --- candidates -------------------------------------------------------------------------------


def test_operators_free_what_their_names_say() -> None:
    problem, rng = _recurrent(), np.random.default_rng(2)
    moves, decoder = Moves(problem), Decoder(problem, 1)
    found = Neighbourhoods(problem, decoder, moves)
    near = {frozenset(pair) for pair in moves.pairs.T.tolist()}
    for _ in range(60):
        few, window, ball, layer = (
            np.flatnonzero(found.free(rng, name)) for name in ("few", "window", "ball", "layer")
        )
        assert 1 <= len(few) <= 16 and found.free(rng, "all").all()
        place = np.sort(np.argsort(found.order)[window])
        assert np.array_equal(place, np.arange(place[0], place[-1] + 1))
        reached, grown = {int(ball[0])}, True
        while grown:
            more = {
                g for g in ball.tolist() if any(frozenset((g, other)) in near for other in reached)
            } - reached
            reached, grown = reached | more, bool(more)
        assert reached == set(ball.tolist())
        assert all(
            set(own) <= set(layer) or not set(own) & set(layer)
            for own in map(np.ndarray.tolist, moves.layers)
        )


def test_candidates_change_what_was_freed_alone() -> None:
    problem, rng = _recurrent(), np.random.default_rng(3)
    proposer, space = Proposer(problem), Space(problem)
    plain = space.plain(hinted_devices(problem)[HINTS.index("m-topo")], space.modes[0])
    standing = Standing(plain, True, 1)
    candidates = proposer.draw(rng, standing, 64)
    assert set(candidates.operator.tolist()) == set(range(len(OPERATORS)))
    repaired = candidates.operator != OPERATORS.index("move")
    fusion, schedule = problem.part("fusion"), problem.part("schedule")
    assert np.all(candidates.plain[repaired][:, fusion] == plain[fusion])  # a repair leaves keys as they are
    ordered = np.any(candidates.plain[repaired][:, schedule] != plain[schedule], axis=1)
    assert 0 < ordered.sum() < len(ordered) / 3  # but some get an order made for their devices
    for row in candidates.plain[repaired][ordered]:
        assert np.array_equal(row[schedule], proposer.decoder.places.keys(space.devices(row), moves=True))
    assert np.any(candidates.plain[repaired][:, space.device] != plain[space.device])
    assert (
        np.isnan(candidates.parameters[~repaired]).all()
        and np.isfinite(candidates.parameters[repaired]).all()
    )
    assert len(reckon_time(proposer, space.devices(candidates.plain))) == 64


def test_fusion_stays_within_devices() -> None:
    problem = _recurrent()
    space = Space(problem)
    first, second, third, fourth = fusion_modes(problem)
    device = hinted_devices(problem)[HINTS.index("round-robin")]
    away = leaves(problem, device)
    assert away.any() and not away.all()
    modes = (first, second, third, fourth)
    plain = np.stack([space.plain(device, mode) for mode in modes])
    made = space.vectors(plain, np.array([mode.within for mode in modes]))
    keys = made[:, problem.part("fusion")]
    assert np.all(keys[0][away] == 0) and np.array_equal(keys[0][~away], keys[1][~away])
    assert np.array_equal(keys[1], second.keys) and np.array_equal(keys[2], third.keys)
    assert np.all(keys[3][away] == 0)  # nothing leaves its group, and so its device
    plan = problem.plan(made[0])
    assert plan.fusion is not None and plan.device is not None
    group = dict(zip(problem.node_op.tolist(), device[problem.node_group].tolist(), strict=True))
    for op in problem.node_op.tolist():  # so every op is where its group is
        assert plan.device[op] == group[op]


def test_changes_are_those_of_the_native_climber() -> None:
    for seed in range(10):
        problem, rng = _problem(seed), np.random.default_rng(seed)
        moves = Moves(problem)
        if not moves:
            continue
        vector = problem.vector()
        changes = moves.draw(rng, 12)
        mine = apply_changes(problem, vector, *changes)
        climb = problem.climb()
        climb.start(vector)
        climb.run(*changes, np.full(12, -np.inf))
        step = problem.base_clusters[problem.node_op]
        for row in range(12):
            native, at = climb.vector(row), problem.part("schedule")
            keys = mine[row, at].copy()  # the climber gives a key to all ops of its cluster
            for node in np.flatnonzero(keys != vector[at]).tolist():
                if step[node] >= 0:
                    keys[step == step[node]] = keys[node]
            same = np.delete(np.arange(problem.width), np.arange(at.start, at.stop))
            assert np.array_equal(native[same], mine[row, same])
            if np.count_nonzero(mine[row, at] != vector[at]) <= 1:
                assert np.array_equal(native[at], keys)


# --- the search -------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [TASKS, ("placement",), ("schedule",), ("fusion",)])
def test_it_conforms(tasks: tuple[str, ...]) -> None:
    conforms(
        lambda: make_labelled("graph", NAME),
        _recurrent(tasks=tasks),
        evaluations=(1, 2, 70, 200),
        seconds=0.2,
        seeds=(0,),
    )


def test_threads_change_nothing_and_seeds_do() -> None:
    problem = _recurrent()
    one, two = (_solved(problem, 150, 3, threads=threads, screen=2) for threads in (1, 2))
    assert np.array_equal(one.decision, two.decision)
    assert len({_solved(problem, 150, seed).value for seed in range(4)}) > 1


def test_it_is_better_than_what_it_begins_with() -> None:
    """And never worse than any hint; what it finds passes the checker."""
    better = 0
    for seed in range(8):
        problem = _problem(seed)
        space = Space(problem)
        plain = np.stack([space.plain(device, space.modes[0]) for device in hinted_devices(problem)])
        known = problem.score(space.vectors(plain, np.full(len(plain), space.modes[0].within))).value
        known = known[(known >= 0) & (known < UNFIT)]
        solution = _solved(problem, 150, seed)
        if not len(known):
            continue
        assert solution.value is not None and solution.value <= known.min()
        assert solution.decision is not None and problem.violations(problem.plan(solution.decision)) == []
        better += solution.value < known.min()
    assert better >= 3


def test_memory_is_a_hard_limit() -> None:
    """On one device it does not fit: what is reported does."""
    program, machine = load_model("rnnlm-2:steps=3"), load_machine("p100x2")
    whole = GraphOptimization(program, machine)
    need = int(Decoder(whole, 1).places.bytes.sum())
    small = machine
    for home in machine.home:
        small = small.with_capacity(machine.memories[home].name, int(need * 0.8))
    problem = GraphOptimization(program, small)
    solution = _solved(problem, 120)
    assert solution.decision is not None and solution.value is not None and solution.value < UNFIT
    assert problem.admits(solution.decision)
    assert len(np.unique(problem.split(solution.decision)[1])) == 2


def test_pinned_groups_stay() -> None:
    program, machine = load_model("rnnlm-2:steps=3"), load_machine("p100x2")
    free = GraphOptimization(program, machine)
    op = int(free.node_op[5])
    problem = GraphOptimization(program, machine, pins=Pins(device={op: 1}))
    proposer, rng = Proposer(problem), np.random.default_rng(0)
    pinned = np.flatnonzero(problem.pinned >= 0)
    assert np.all(proposer.portfolio(*proposer.draw_parameters(rng, 8))[:, pinned] == 1)
    solution = _solved(problem, 60)
    assert solution.decision is not None
    plan = problem.plan(solution.decision)
    assert plan.device is not None and plan.device[op] == 1


@pytest.mark.parametrize(("option", "value"), [("batch", 0), ("screen", 0), ("portfolio", -1)])
def test_options_out_of_range_are_refused(option: str, value: int) -> None:
    with pytest.raises(LoadmasterError, match=option):
        make_labelled("graph", NAME, {option: value})
