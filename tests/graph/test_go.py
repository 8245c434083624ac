"""GO: what it sees, its networks, their training, and the search that uses them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.decoder import Decoder, hinted_devices
from loadmaster.graph.go import training
from loadmaster.graph.go.cases import (
    DEVICES,
    HELD_OUT_FAMILIES,
    HELD_OUT_MACHINES,
    HELD_OUT_MODELS,
    SMALL,
    TRACED,
    make_case,
    synthetic_case,
)
from loadmaster.graph.go.scores import (
    CHANGE_FEATURES,
    CHANGES,
    FEATURES,
    MODES,
    PARTS,
    RANKER,
    GraphView,
    PlanView,
    RunView,
    Shape,
    change_features,
    join_changes,
    make_features,
    rank,
    single_moves,
    take_changes,
)
from loadmaster.graph.go.search import FIRST, SHIPPED, Go, first_pairs, load_policy
from loadmaster.graph.go.training import search_case
from loadmaster.learn.checkpoints import BadState, state_path
from loadmaster.learn.policies import BadPolicy, read_policy, save_policy
from loadmaster.machine import load_machine
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from search.conformance import conforms

TINY: dict[str, Any] = {"rounds": 1, "graphs": 6, "evaluations": 160, "steps": 20, "batch": 64}


def _recurrent(**about: object) -> GraphOptimization:
    return GraphOptimization(load_model("rnnlm-2:steps=3"), load_machine("p100x2"), **about)  # type: ignore[arg-type]


# --- what is held out ---------------------------------------------------------------------------


def test_what_is_held_out_is_never_trained_on() -> None:
    assert len(HELD_OUT_MODELS) == 6 and len(HELD_OUT_FAMILIES) == 3 and len(HELD_OUT_MACHINES) == 2
    names = (*TRACED, *SMALL)
    assert not [name for name in names if any(held in name for held in HELD_OUT_MODELS)]
    assert not set(DEVICES) & set(HELD_OUT_MACHINES)
    seen = set()
    for number in range(60):
        if number % 4 == 3:  # traced models take a while: others are enough here
            continue
        problem = make_case(number) if number < 12 else None
        if problem is not None:
            seen.add(problem.program.name)
            assert 2 <= problem.devices <= 16 and problem.no_plan is None
    held = (*HELD_OUT_MODELS, *HELD_OUT_FAMILIES)
    assert len(seen) > 3 and not [name for name in seen if any(name.startswith(each) for each in held)]


def test_the_shipped_policy_says_what_it_never_saw() -> None:
    _, about = read_policy(SHIPPED, "go")
    assert set(about["held_out"]["models"]) == set(HELD_OUT_MODELS)
    assert set(about["held_out"]["families"]) == set(HELD_OUT_FAMILIES)
    assert set(about["held_out"]["machines"]) == set(HELD_OUT_MACHINES)


def test_the_shipped_policy_says_how_it_was_made() -> None:
    _, about = read_policy(SHIPPED, "go")
    assert about["command"][:2] == ["train", "go"] and "--seed" in about["command"]
    assert all(len(about["data"][name]) == 64 for name in ("rows", "logs", "change_rows", "change_logs"))
    assert len(about["rounds"]) == about["settings"]["rounds"]
    assert about["rounds"][-1]["changes_area_under_curve"] > 0.8


def test_no_shipped_weight_is_its_initial_value() -> None:
    policy, (_, about) = load_policy(SHIPPED), read_policy(SHIPPED, "go")
    for shape, network in ((RANKER, policy.ranker), (CHANGES, policy.changes)):
        first = shape.make(int(about["seed"]))
        assert network is not None
        for name in PARTS:
            same = getattr(first, name) == getattr(network, name)
            assert same.mean() < 0.05, name  # a bias of a feature that never varies may stay


def test_cases_are_the_same_everywhere() -> None:
    for number in (1, 2, 7):
        one, two = make_case(number), make_case(number)
        assert one.program.hash == two.program.hash and one.machine.hash == two.machine.hash


def test_every_second_case_is_of_ones_own() -> None:
    own = [(load_model("alexnet-train"), load_machine("p100x2"))]
    assert make_case(3, 0, own).program.name == own[0][0].name
    assert make_case(3, 0, own).machine.memories[0].capacity != own[0][1].memories[0].capacity
    assert make_case(2, 0, own).program.hash == make_case(2).program.hash


# --- what it sees ---------------------------------------------------------------------------------


def test_device_names_play_no_part() -> None:
    """On a machine of equal devices a plan with renamed devices looks the same, and so do changes of it."""
    program, machine = synthetic_case("layered", 3)
    problem = GraphOptimization(program, machine)
    graph, rng = GraphView(Decoder(problem, 1)), np.random.default_rng(0)
    here = hinted_devices(problem)[7]
    changed = np.where(rng.random((5, problem.groups)) < 0.1, rng.integers(4, size=(5, problem.groups)), here)
    changed = changed.astype(np.int32)
    names = np.array([2, 0, 3, 1], dtype=np.int32)
    plan, renamed = PlanView(graph, here), PlanView(graph, names[here])
    one = make_features(plan, changed)
    two = make_features(renamed, names[changed])
    assert one.shape == (5, FEATURES) and one == pytest.approx(two, abs=2e-3)


def test_slack_is_that_of_the_reckoned_plan() -> None:
    """Some group is critical, none has more slack than the whole time, and loads are the work of groups."""
    problem = _recurrent()
    graph = GraphView(Decoder(problem, 1))
    for device in hinted_devices(problem):
        plan = PlanView(graph, device)
        assert plan.slack.min() == pytest.approx(0, abs=1e-6) and plan.slack.max() <= 1
        assert plan.load.sum() == pytest.approx(plan.work.sum())
        assert np.all(plan.critical <= plan.work + 1e-9) and plan.end.max() == pytest.approx(1)
        assert plan.reckoned[0] == pytest.approx(plan.time)


def test_a_change_that_changes_nothing_looks_like_nothing() -> None:
    problem = _recurrent()
    graph, here = GraphView(Decoder(problem, 1)), hinted_devices(problem)[3]
    row = make_features(PlanView(graph, here), here[None])[0]
    assert not row[[0, 1, 3, 6, 7, 8, 9, 12, 13, 14, 15, 18, 19, 21, 23]].any()


def _stand(problem: GraphOptimization, device: Any) -> tuple[Any, Any]:
    """(a climb that stands on a placement, its vector)"""
    vector = problem.vector()
    vector[problem.part("device")] = device
    climb = problem.climb()
    climb.start(vector)
    return climb, vector


def test_the_timeline_of_a_plan_keeps_its_orders() -> None:
    """Nothing ends after its latest end, something is critical, and all could end at their latest ends together: steps
    of a device do not overlap then, and nothing starts before what it reads has been made or moved."""
    problem = GraphOptimization(*synthetic_case("layered", 3))
    for device in hinted_devices(problem)[3:]:
        found = _stand(problem, device)[0].timeline()
        total = found["end"].max()
        for name in ("", "move_"):
            end, latest = found[f"{name}end"], found[f"{name}latest"]
            assert np.all(end <= latest) and np.all(latest <= total)
        assert (found["end"] == found["latest"]).any()
        start = found["latest"] - (found["end"] - found["start"])
        for each in range(problem.devices):
            own = np.flatnonzero(found["device"] == each)
            own = own[np.argsort(found["start"][own], kind="stable")]
            assert np.all(found["latest"][own[:-1]] <= start[own[1:]])
        made = found["move_from"] >= 0
        moved = found["move_latest"] - (found["move_end"] - found["move_start"])
        assert np.all(found["latest"][found["move_from"][made]] <= moved[made])
        assert np.all(found["move_latest"] <= start[found["move_reader"]])
        assert np.all(found["move_end"] <= found["start"][found["move_reader"]])


def test_small_changes_do_not_see_device_names() -> None:
    problem = _recurrent(tasks=("placement",))
    graph, here = GraphView(Decoder(problem, 1)), hinted_devices(problem)[4].astype(np.int64)
    numbers, rows = np.arange(problem.groups), []
    for device in (here, 1 - here):
        run = RunView(graph, *_stand(problem, device))
        rows.append(change_features(run, single_moves(problem, run.here, numbers)))
    assert rows[0] == pytest.approx(rows[1], abs=2e-3)
    assert rows[0].shape == (problem.groups, CHANGE_FEATURES) and len(np.unique(rows[0], axis=0)) > 5


def test_paths_through_a_moved_group_are_those_of_a_plain_loop() -> None:
    problem = GraphOptimization(*synthetic_case("layered", 4))
    climb, vector = _stand(problem, hinted_devices(problem)[4])
    run, found = RunView(GraphView(Decoder(problem, 1)), climb, vector), climb.timeline()
    time = found["end"].max()
    source, reader, move = run.graph.node_edges
    assert set(zip(source.tolist(), reader.tolist(), strict=True)) == set(
        map(tuple, problem.edges.T.tolist())
    )
    start, end, group, device = (found[name] for name in ("start", "end", "group", "device"))
    for chosen in range(0, problem.groups, 7):
        for there in range(problem.devices):
            through = early = urge = -1.0
            for step in np.flatnonzero(group == chosen):
                arrives, needed = -start[step] / time, end[step] / time - 1
                for a, b, ps in zip(found["step"][source], found["step"][reader], move, strict=True):
                    if a == b:
                        continue
                    if b == step:
                        far = ps if device[a] != there and group[a] != chosen else 0
                        arrives = max(arrives, (end[a] + far - start[step]) / time)
                    if a == step:
                        far = ps if device[b] != there and group[b] != chosen else 0
                        latest = found["latest"][b] - (end[b] - start[b])
                        needed = max(needed, (end[step] + far - latest) / time)
                through, early, urge = max(through, arrives + needed), max(early, arrives), max(urge, needed)
            assert run.through[chosen, there] == pytest.approx(through, abs=1e-9)
            assert run.early[chosen, there] == pytest.approx(early, abs=1e-9)
            assert run.urge[chosen, there] == pytest.approx(urge, abs=1e-9)
        freed, last = 0.0, None
        for at in range(problem.devices):
            own = sorted(np.flatnonzero(device == at).tolist(), key=lambda step: start[step])
            for before, step in itertools.pairwise([None, *own]):
                assert step is not None
                if group[step] == chosen:
                    continue
                if before is not None and group[before] == chosen:
                    end_before = 0 if last is None else end[last]
                    sooner = max(0, start[step] - max(found["ready"][step], end_before)) / time
                    freed += sooner * np.exp(-50 * min(1.0, (found["latest"][step] - end[step]) / time))
                last = step
            last = None
        assert run.freed[chosen] == pytest.approx(freed, abs=1e-9)
    assert np.all(run.short >= 0) and np.all(run.short <= run.group_work[:, None] + 1e-9)


def test_changes_are_taken_and_joined_as_they_are() -> None:
    problem = _recurrent()
    here = hinted_devices(problem)[3].astype(np.int64)
    several = (np.array([0, 2, 2, 3]), np.array([5, 6, 7]), np.array([-1, 1, -1]), np.array([0.5, 0.0, 1.0]))
    joined = join_changes(single_moves(problem, here, np.array([4, 1])), several)
    assert joined[0].tolist() == [0, 1, 2, 4, 4, 5]
    moved = joined[1][:2] - problem.part("device").start
    assert moved.tolist() == [4, 1] and joined[3][:2].tolist() == [1 - here[4], 1 - here[1]]
    rows, index, source, value = take_changes(joined, np.array([4, 2, 3]))
    assert rows.tolist() == [0, 1, 3, 3] and index.tolist() == [7, 5, 6]
    assert source.tolist() == [-1, -1, 1] and value.tolist() == [1.0, 0.5, 0.0]


# --- the networks and their training -----------------------------------------------------------------


def test_the_gradient_is_that_of_the_loss() -> None:
    shape, rng = Shape(3, 4, 2), np.random.default_rng(0)
    network = shape.make(1)
    x, target = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    weights = {name: getattr(network, name).astype(np.float64) for name in PARTS[2:]}

    def loss(weights: dict[str, Any]) -> float:
        moved = type(network)(network.mean, network.deviation, **weights)
        return float(((moved(x) - target) ** 2).sum() / 2)

    found = training._gradient(weights, x, lambda out: out - target)  # type: ignore[arg-type]
    for name in weights:
        flat = np.zeros(weights[name].size)
        for place in range(len(flat)):
            sides = []
            for step in (1e-3, -1e-3):
                moved = {key: value.copy() for key, value in weights.items()}
                moved[name].flat[place] += step
                sides.append(loss(moved))
            flat[place] = (sides[0] - sides[1]) / 2e-3
        assert found[name].ravel() == pytest.approx(flat, abs=5e-3), name


def test_a_network_learns_which_changes_gain() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3_000, CHANGE_FEATURES)).astype(np.float32)
    logs = np.clip(0.1 * rows[:, 2] + 0.01 * rng.normal(size=3_000), -0.3, 0.3).astype(np.float32)
    options = training.Options(steps=300, batch=256)
    trained = training.fit_changes(CHANGES.make(0), rows[:2_000], logs[:2_000], options, rng)
    better = logs[2_000:] < -training.GAIN
    before, after = (
        training.area_under_curve(rank(each, rows[2_000:]), better) for each in (CHANGES.make(0), trained)
    )
    assert after > 0.9 > before


def test_a_ranker_learns_which_placements_come_first() -> None:
    """The best placement is the one with the largest third number, with the second fusion; many never fit."""
    rng = np.random.default_rng(0)
    case = np.repeat(np.arange(100), 20)
    rows = rng.normal(size=(2_000, FEATURES)).astype(np.float32)
    logs = np.repeat((2.5 - 0.5 * rows[:, 2:3]).astype(np.float32), MODES, axis=1)
    logs[:, 1] -= 0.2
    logs = np.clip(logs - logs.reshape(100, -1).min(axis=1)[case, None], 0.0, training.NEVER)
    options = training.Options(steps=300)
    trained = training.fit_ranker(RANKER.make(0), rows[:1_800], logs[:1_800], case[:1_800], options, rng)
    found = []
    for network in (RANKER.make(0), trained):
        pairs = [first_pairs(network(rows[begin : begin + 20]))[0] for begin in range(1_800, 2_000, 20)]
        found.append(np.mean([logs[1_800 + 20 * at + row, mode] for at, (row, mode) in enumerate(pairs)]))
    assert found[1] < 0.3 < found[0]


def test_first_pairs_are_the_likeliest() -> None:
    utility = np.array([[9.0, 8.0, 7.0], [1.0, 6.0, 2.0]], dtype=np.float32)
    assert first_pairs(utility) == [(0, 0), (0, 1), (1, 1), (1, 2)]  # of one placement two fusions
    assert len(first_pairs(np.zeros((99, 4), np.float32))) == FIRST


def test_area_under_curve() -> None:
    positive = np.array([True, False, True, False])
    assert training.area_under_curve(np.array([4.0, 1.0, 3.0, 2.0]), positive) == 1
    assert training.area_under_curve(np.array([1.0, 4.0, 3.0, 2.0]), positive) == 0.25
    assert np.isnan(training.area_under_curve(np.ones(2), np.ones(2, dtype=bool)))


def test_a_portfolio_is_chosen_greedily() -> None:
    tried = np.array([[-0.6, 0.0, -0.4], [0.1, -0.3, -0.1], [0.0, -0.2, 0.0]])
    assert training.choose_portfolio(tried, 2) == [0, 1]  # the best alone, then what adds most to it
    assert training.choose_portfolio(tried, 9) == [0, 1, 2]


@pytest.fixture
def quick_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small synthetic graphs in place of all kinds."""
    small = [3, 5, 7]

    def case(number: int, seed: int = 0, own: object = ()) -> GraphOptimization:
        return GraphOptimization(*synthetic_case("branch_join", small[number % 3]))

    monkeypatch.setattr(training, "make_case", case)


@pytest.mark.usefixtures("quick_cases")
def test_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = training.train(out=tmp_path / "whole.npz", options=TINY | {"rounds": 2})
    assert whole["placements"] > 100 and whole["changes"] > 100 and whole["first_over_best"] >= 0
    policy, _ = read_policy(tmp_path / "whole.npz", "go")
    first = training._Training(
        training.Options(**(TINY | {"rounds": 2})), tmp_path / "part.npz", 0, None, None, print
    )
    search = training.make_searcher(training.Message({}, {}))
    first._search(0, lambda requests: [search(each) for each in requests], 1, None)
    first._fit(0, None)
    first._write()
    again = training.train(
        out=tmp_path / "part.npz", options=TINY | {"rounds": 2}, resume=state_path(tmp_path / "part.npz")
    )
    resumed, _ = read_policy(tmp_path / "part.npz", "go")
    assert again["changes"] == whole["changes"]
    for name, array in policy.items():
        assert np.array_equal(array, resumed[name]), name
    with pytest.raises(LoadmasterError, match="other options"):
        training.train(out=tmp_path / "x.npz", options=TINY, resume=state_path(tmp_path / "part.npz"))


@pytest.mark.usefixtures("quick_cases")
def test_a_trained_policy_is_used(tmp_path: Path) -> None:
    out = tmp_path / "own.npz"
    training.train(out=out, options=TINY)
    problem = _recurrent()
    own = solve(make_labelled("graph", "go", {"init": str(out)}), problem, Budget(80))
    none = solve(make_labelled("graph", "go", {"init": "none"}), problem, Budget(80))
    assert own.value is not None and none.value is not None
    assert not problem.violations(problem.plan(own.decision))
    arrays, about = read_policy(out, "go")
    assert about["rounds"][0]["graphs"] == 6
    training.train(out=tmp_path / "more.npz", options=TINY | {"steps": 1, "graphs": 3}, init=str(out))
    more, then = read_policy(tmp_path / "more.npz", "go")
    assert then["init"]["data"] == about["data"] and then["trained_on"]["graphs"] == 9
    moved = np.abs(more["changes.enter"] - arrays["changes.enter"])
    assert 0 < moved.max() < 0.01  # a step from there, not from the beginning
    del arrays["ranker.enter"]
    save_policy(tmp_path / "bad.npz", arrays, about)
    with pytest.raises(BadPolicy, match="no networks and portfolio"):
        load_policy(str(tmp_path / "bad.npz"))


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    from dataclasses import asdict

    from loadmaster.learn.checkpoints import write_state

    path = tmp_path / "bad.state.npz"
    write_state(path, {"rows": np.zeros(3)}, {"options": asdict(training.Options(**TINY)), "seed": 0})
    with pytest.raises(BadState, match="can't be resumed"):
        training.train(out=tmp_path / "x.npz", options=TINY, resume=path)


@pytest.mark.parametrize("wrong", [{"rounds": 0}, {"steps": -1}, {"colour": 3}])
def test_options_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(LoadmasterError):
        training.train(out=tmp_path / "x.npz", options=wrong)


# --- the search ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [("fusion", "placement", "schedule"), ("placement",), ("schedule",)])
def test_it_conforms(tasks: tuple[str, ...]) -> None:
    conforms(
        lambda: make_labelled("graph", "go"),
        _recurrent(tasks=tasks),
        evaluations=(1, 2, 60),
        seconds=0.2,
        seeds=(0,),
    )


def test_threads_change_nothing() -> None:
    problem = _recurrent()
    one, two = (solve(Go(threads=threads), problem, Budget(100), 3) for threads in (1, 2))
    assert np.array_equal(one.decision, two.decision)


def test_plans_are_no_hint_verbatim() -> None:
    """What it finds in 16 evaluations is better than every hint on some graphs, and then none of them."""
    better = 0
    for seed in (1, 5, 7):
        problem = GraphOptimization(*synthetic_case("stochastic_block", seed))
        found = solve(Go(), problem, Budget(16), 0)
        if found.decision is None:
            continue
        device = problem.split(np.asarray(found.decision))[1]
        better += not any(np.array_equal(device, hint) for hint in hinted_devices(problem))
    assert better >= 2


def test_ctrl_c_ends_the_training_and_not_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loadmaster.graph.large_neighbourhood.LargeNeighbourhood.run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search_case(0, 0, load_policy(SHIPPED), 2)


def test_a_policy_of_another_agent_and_a_state_of_training_are_named(tmp_path: Path) -> None:
    save_policy(tmp_path / "player.npz", {}, {"agent": "muzero"})
    with pytest.raises(BadPolicy, match=r"player\.npz' is a policy of muzero, not of go: give a file of"):
        Go(init=str(tmp_path / "player.npz"))
    header = np.frombuffer(json.dumps({"options": {}, "seed": 0}).encode(), dtype=np.uint8)
    np.savez(tmp_path / "go.state.npz", about=header)
    with pytest.raises(
        BadPolicy, match="is the state of a training, not a policy: give the policy beside it"
    ):
        Go(init=str(tmp_path / "go.state.npz"))
