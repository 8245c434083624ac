"""The planner: every kind of problem from a request, refusals by name, capacities, pins, recomputing, results."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from generate_training import random_training
from loadmaster.allocation.auto import offset_solver, read_problem
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.several import fill_banks
from loadmaster.errors import LoadmasterError, NoAnswer, Refused
from loadmaster.graph.kind import parse_base
from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan, load_plan
from loadmaster.plan.check import check
from loadmaster.planner import (
    KINDS,
    BadRequest,
    Bytes,
    NamedBuffers,
    Objective,
    PinTexts,
    PlanRequest,
    Share,
    build_problem,
    find_known,
    make_problem,
    parse_capacity,
    plan,
    solve_checked,
)
from loadmaster.planner.fitting import judge_placement
from loadmaster.planner.planner import choose_kind
from loadmaster.program import Program
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.models import load_model
from loadmaster.report.subject import read_run
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.pins import parse_pins
from loadmaster.search.registry import make_labelled
from loadmaster.search.request import parse_objective, with_bytes
from loadmaster.search.solver import Budget, Status, solve
from offload_stack import stack

QUICK = Budget(evaluations=20)
MACHINES = {
    "mapping": "nnp-i",
    "malloc-game": "tpu-v4i",
    "offload": "h200",
    "graph": "p100x2",
    "allocation": "arena:64MiB",
}


@pytest.fixture(scope="module")
def bert() -> Program:
    return load_model("bert:layers=1")


def small(kind: str) -> Program:
    return stack(layers=3) if kind == "offload" else load_model("bert:layers=1")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_chosen_made_solved_and_checked(kind: str, tmp_path: Path) -> None:
    machine = load_machine(MACHINES.get(kind, "nnp-i"))
    objective = Objective.PEAK_MEMORY if kind == "order" else Objective.TIME
    request = PlanRequest(small(kind), machine, objective=objective)
    assert choose_kind(request).name == kind and build_problem(request).kind == kind
    result = plan(
        small(kind), machine, objective=objective, budget=QUICK, run=tmp_path, out=tmp_path / "p.json"
    )
    assert result.error is None and result.plan is not None and result.value is not None
    assert result.value >= result.bound.value and result.run is not None and result.kept is not None
    assert check(result.program, result.machine, result.plan) == []
    assert load_plan(result.kept, result.program, result.machine).hash == result.plan.hash
    roles = [row.role for row in result.rows]
    assert roles.count("result") == 1 and roles[0] == "baseline"
    assert result.timeline is not None


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("mapping", {"costs": Path("nowhere.json")}, "are for the offload problem, not for mapping"),
        ("graph", {"capacity": {"hbm0": Share(0.5)}}, "are for the offload problem, not for graph"),
        ("malloc-game", {"recompute": True}, "of the offload problem, not of malloc-game"),
        ("mapping", {"tasks": ("fusion",)}, "--tasks is for the graph problem, not for mapping"),
        ("offload", {"groups": "op"}, "--groups is for the graph problem, not for offload"),
        ("allocation", {"base": parse_base(["fusion=none"])}, "--base is for the graph problem"),
        ("graph", {"noise": 0.1}, "--evaluator and --noise are about times of the mapping problem"),
        ("allocation", {"evaluator": CommandEvaluator("true")}, "--evaluator and --noise are about times"),
        ("order", {"pins": PinTexts(("x=dram",))}, "decides the order of the ops"),
        ("order", {"keep_order": True}, "decides the order of the ops"),
        ("graph", {"problem_class": dict}, "the class of graph problems can't be replaced"),
    ],
)
def test_what_a_kind_does_not_understand_is_refused_before_anything_is_read(
    kind: str, given: dict[str, Any], words: str
) -> None:
    class Unread:
        def load(self, machine: object = None) -> Program:
            raise AssertionError("read too early")

        captured_for = load

    request = PlanRequest(Unread(), load_machine(MACHINES.get(kind, "nnp-i")), kind, **given)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=words):
        build_problem(request)


def test_a_problem_of_another_class(bert: Program) -> None:
    class Counted(Mapping):
        pass

    make = partial(Counted, invalid="repair")
    problem = build_problem(
        PlanRequest(bert, load_machine("nnp-i"), "mapping", noise=0.1, problem_class=make)
    )
    assert isinstance(problem, Counted) and problem.invalid == "repair" and not problem.repeatable
    game = PlanRequest(bert, load_machine("tpu-v4i"), problem_class=partial(MallocGame, backup="none"))
    assert build_problem(game).options()["backup"] == "none"


def test_one_solver_by_itself_and_what_it_is_compared_with(bert: Program) -> None:
    problem = make_problem(bert, load_machine("tpu-v4i-16m"))
    found = solve_checked(problem, "anneal-moves", Budget(30), 1, options={"start": "msa"})
    assert found.status == "feasible" and found.violations == [] and found.solution.evaluations == 30
    assert found.timeline.total_ps == found.solution.value
    known, bound = find_known(problem)
    values = {each.name: each.value for each in known}
    assert {"all-slow", "msa"} <= set(values) and bound.value <= found.solution.value <= (values["msa"] or 0)
    arena = make_problem(bert, load_machine("arena:1KiB"))
    nothing = solve_checked(arena, "first-fit")
    assert nothing.plan is None and nothing.violations == [] and nothing.status == "unknown"
    other = replace(found, solution=replace(found.solution, decision=problem.decision(Plan())))
    assert other.plan is not None and other.plan.hash != found.plan.hash  # type: ignore[union-attr]


def test_wrong_names_are_named(bert: Program) -> None:
    machine = load_machine("nnp-i")
    with pytest.raises(BadRequest, match="did you mean 'mapping'"):
        make_problem(bert, machine, problem="maping")
    with pytest.raises(BadRequest, match="no objective 'speed'"):
        parse_objective("speed")
    with pytest.raises(BadRequest, match="is about the order, not the graph"):
        make_problem(bert, machine, objective="peak-memory", problem="graph")
    with pytest.raises(BadRequest, match="is not PART=NAME"):
        parse_base(["single"])
    with pytest.raises(BadRequest, match="there is no machine"):
        plan(bert)
    with pytest.raises(LoadmasterError, match="did you mean 'annealing'"):
        plan(bert, machine, solver="anealing")


def test_the_solver_chooses_among_problems(bert: Program) -> None:
    request = PlanRequest(bert, load_machine("nnp-i-dma"))
    assert choose_kind(replace(request, solver="msa")).name == "malloc-game"
    assert choose_kind(replace(request, tasks=("fusion",))).name == "graph"
    assert choose_kind(replace(request, objective=Objective.BYTES_MOVED)).name == "mapping"


def test_capacities_are_bytes_or_shares() -> None:
    assert parse_capacity(["sram=2MiB", "hbm=50%"]) == {"sram": Bytes(2**21, "2MiB"), "hbm": Share(0.5)}
    with pytest.raises(LoadmasterError, match=r"--capacity '50%' names no memory: write hbm=50%"):
        parse_capacity(["50%"])
    with pytest.raises(LoadmasterError, match=r"write hbm=2MiB"):
        parse_capacity(["hbm=banana"])
    typed = parse_capacity({"a": 2**21, "b": "2MiB", "c": "50%", "d": Share(0.5), "e": Bytes(7)})
    assert [size.count if isinstance(size, Bytes) else size.part for size in typed.values()] == [
        2**21,
        2**21,
        0.5,
        0.5,
        7,
    ]
    with pytest.raises(BadRequest, match="neither bytes nor text"):
        parse_capacity({"a": 0.5})  # type: ignore[dict-item]
    for wrong in ("sram=big", "hbm=half%", "hbm=0%", "hbm=nan%"):
        with pytest.raises(LoadmasterError):
            parse_capacity([wrong])
    machine = with_bytes(load_machine("nnp-i"), parse_capacity(["sram=1MiB"]))
    assert machine.name == "nnp-i:sram=1MiB" and machine.hash == load_machine("nnp-i:sram=1MiB").hash
    assert with_bytes(machine, parse_capacity(["sram=1MiB"])) is machine
    assert with_bytes(machine, parse_capacity(["sram=2MiB"])).name == "nnp-i:sram=1MiB:sram=2MiB"
    with pytest.raises(LoadmasterError, match="did you mean 'sram'"):
        with_bytes(machine, {"srm": Bytes(1)})


def test_a_share_is_of_what_is_needed_with_room_for_kernels() -> None:
    program, machine = stack(layers=3), load_machine("h200")
    half = build_problem(PlanRequest(program, machine, capacity={"hbm": Share(0.5)}))
    needed = build_problem(PlanRequest(program, machine)).model.needed  # type: ignore[attr-defined]
    assert half.machine.memories[0].capacity == needed // 2
    costs = MeasuredCosts(costless_hash(program), "gpu", (10**6,) * program.n_ops, workspace_bytes=2**20)
    timed = build_problem(PlanRequest(program, machine, capacity={"hbm": Share(0.5)}, costs=costs))
    assert timed.machine.memories[0].capacity == (needed + 2**20) // 2
    with pytest.raises(BadRequest, match="'host=50%' is no share of 'hbm'"):
        build_problem(PlanRequest(program, machine, capacity={"host": Share(0.5)}))


def test_pins_are_kept(bert: Program) -> None:
    machine = load_machine("nnp-i")
    tensor = next(row for row in plan(bert, machine, solver="density").plan.residency_rows)  # type: ignore[union-attr]
    name = bert.tensor_name[tensor.tensor]
    pins = parse_pins(bert, machine, [f"{name}=dram"])
    pinned = plan(bert, machine, solver="density", pins=pins).plan
    assert pinned is not None and not pins.violations(pinned)
    assert build_problem(PlanRequest(bert, machine, pins=PinTexts((f"{name}=dram",)))).pins == pins  # type: ignore[attr-defined]


def test_ops_run_again_only_in_a_backward_pass() -> None:
    program = stack(layers=2)
    with pytest.raises(BadRequest, match="no backward pass"):
        build_problem(PlanRequest(program, load_machine("h200"), recompute=True))
    trained = random_training(np.random.default_rng(0))
    assert PlanRequest(trained, None).recomputes(trained)
    assert not PlanRequest(trained, None, recompute=False).recomputes(trained)
    assert not PlanRequest(trained, None, evaluator=CommandEvaluator("true")).recomputes(trained)


def test_buffers_alone() -> None:
    buffers = Buffers.of([0, 1, 2, 5], [3, 4, 6, 7], [40, 30, 30, 60])
    given = NamedBuffers("four", buffers)
    assert plan(given).value == 100
    result = plan(given, load_machine("arena:99"))
    assert result.plan is None and result.status == Status.INFEASIBLE
    assert isinstance(result.error, Refused) and result.blame is not None and result.blame.excess == 1
    with pytest.raises(BadRequest, match="has several"):
        plan(given, load_machine("nnp-i"))
    with pytest.raises(BadRequest, match="buffers alone"):
        plan(given, noise=0.1)


def test_an_arena_gets_another_order_where_its_own_does_not_fit() -> None:
    program = load_model("inception-v3")
    own = build_problem(PlanRequest(program, load_machine("arena:1GiB")))
    tight = own.buffers.max_live - 1  # type: ignore[attr-defined]
    machine = load_machine(f"arena:{tight}")
    kept = build_problem(PlanRequest(program, machine, keep_order=True))
    assert kept.order is None  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="too many"):
        build_problem(PlanRequest(program, load_machine("arena:64KiB")))


def test_bytes_moved_are_a_result_s_values(bert: Program) -> None:
    result = plan(
        bert, load_machine("nnp-i:llc=2MiB"), objective="bytes-moved", solver="density", budget=QUICK
    )
    assert result.unit == "bytes" and result.machine.name == "nnp-i:llc=2MiB" and result.plan is not None
    assert check(bert, result.machine, result.plan) == []
    values = {row.name: row.value for row in result.rows}
    assert values["bound"] is not None and values["density"] is not None
    assert values["bound"] <= values["density"] < (values["all-slowest"] or 0)


def test_a_model_and_a_machine_by_their_names() -> None:
    named = plan("bert:layers=1", "nnp-i", solver="density")
    assert named.value == plan(load_model("bert:layers=1"), load_machine("nnp-i"), solver="density").value
    assert plan("resnet50", solver="density").machine.name == "nnp-i"  # the one that it is meant for
    with pytest.raises(BadRequest, match="no machine for"):
        plan("unknown.onnx")


def test_nothing_found_is_an_error_of_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS["mapping"], "known", lambda problem, source, seconds: [], raising=False)
    result = plan(
        load_model("resnet50"),
        load_machine("nnp-i"),
        solver="search",
        options={"method": "ageing-evolution"},
        budget=Budget(2),
    )
    assert result.plan is None and isinstance(result.error, NoAnswer) and result.value is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_names_parts_of_requests_and_solvers_that_there_are(kind: str, bert: Program) -> None:
    everything = PlanRequest(
        bert,
        pins=PinTexts(("x=dram",)),
        costs=Path("costs.json"),
        capacity={"hbm": Share(0.5)},
        recompute=True,
        keep_order=True,
        evaluator=CommandEvaluator("true"),
        noise=0.1,
        tasks=("fusion",),
        groups="op",
        base=parse_base(["fusion=none"]),
        problem_class=Mapping,
    )
    assert KINDS[kind].accepts <= {part for part, _ in everything.given()} and everything.says_what
    for name in (*KINDS[kind].by_clock, *KINDS[kind].white_box):
        assert make_labelled(kind, name).name == name


def test_buffers_are_judged_with_a_baseline_or_a_reason(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,lower,upper,size\na,0,4,40\nb,0,4,40\nc,2,6,20\nd,5,9,60\n")
    for capacity in (100, 99):
        problem = read_problem(str(tmp_path / "b.csv"), capacity)
        found = judge_placement(problem, solve(offset_solver("exact", (), 1), problem, Budget()), None, 0)
        assert (found.plan is None) == (capacity == 99) == (found.blame is not None)
    assert found.blame is not None and found.blame.excess == 1 and isinstance(found.error, Refused)
    filled = fill_banks(read_problem(str(tmp_path / "b.csv"), 120), 2, None, 0)
    assert filled.error is None and [use.space.start for use in filled.uses()] == [0, 60]
    assert sum(use.buffers for use in filled.uses()) == 4 and max(use.used for use in filled.uses()) <= 60


def test_the_plan_handed_over_is_the_best_one_known(bert: Program, tmp_path: Path) -> None:
    machine = load_machine("nnp-i-half")
    random = {"solver": "search", "options": {"method": "random"}, "budget": 30}
    result = plan(bert, machine, run=tmp_path, out=tmp_path / "p.json", **random)  # type: ignore[arg-type]
    rows = {row.name: row for row in result.rows}
    assert result.solution.value == rows["random"].value and result.origin == "density"
    assert result.value == rows["density"].value == min(row.value or 0 for row in result.baselines)
    assert result.value < (result.solution.value or 0) and result.timeline is not None
    assert result.timeline.total_ps == result.value and result.run is not None
    for path in (tmp_path / "p.json", result.run / "best.json"):
        assert load_plan(path, bert, machine).hash == result.plan.hash  # type: ignore[union-attr]


def test_an_optimum_found_beside_the_search_is_handed_over(tmp_path: Path) -> None:
    pytest.importorskip("ortools")
    program, machine = load_model("bert:layers=1"), load_machine("nnp-i").with_capacity("sram", 2**19)
    searched = {"solver": "search", "options": {"method": "random"}, "budget": 5, "exact_seconds": 20.0}
    result = plan(program, machine, run=tmp_path, **searched)  # type: ignore[arg-type]
    best = min(row.value for row in result.rows if row.role != "bound" and row.value is not None)
    assert result.value == best and result.run is not None and result.kept is not None
    assert load_plan(result.kept, program, machine).hash == result.plan.hash  # type: ignore[union-attr]
    assert read_run(result.run).value == best and result.origin in ("optimum", "exact")


def test_a_solver_of_other_problems_is_refused_by_the_one_that_the_machine_is_made_for() -> None:
    """It named the malloc game, which has had one of that name, and an option that helps nobody else."""
    with pytest.raises(LoadmasterError, match=r"no solver 'cp-sat' for mapping: use one of auto, .*exact"):
        plan(load_model("resnet50"), load_machine("nnp-i"), solver="cp-sat")
    with pytest.raises(LoadmasterError, match="has one device: there is nothing to place"):
        plan(load_model("resnet50"), load_machine("nnp-i"), solver="go")
