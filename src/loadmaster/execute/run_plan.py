"""`run_plan`: a PyTorch model on a device as a plan says, measured, and compared with the ordinary run. The plan comes
from a file, or is made here: with the one build and the one capture that the run itself needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.arrays import read_npz
from loadmaster.clock import now
from loadmaster.errors import BadProgram, LoadmasterError, NoAnswer, require
from loadmaster.execute import own_allocator
from loadmaster.execute.measured_cache import cache_folder
from loadmaster.execute.op_times import write_cost_file
from loadmaster.execute.placement import PLACEMENTS
from loadmaster.files import replacing, special_kind, writing
from loadmaster.machine import Machine, load_machine
from loadmaster.machine.presets import standalone_text
from loadmaster.offload.kind import KIND as OFFLOAD
from loadmaster.offload.kind import KernelRoom, kernel_room, with_shares
from loadmaster.plan import Plan, load_planned
from loadmaster.planner.planner import build_problem
from loadmaster.planner.search import SearchOptions, solve_problem, write_plan
from loadmaster.program.measured_costs import FORMAT, MeasuredCosts, apply_costs, read_costs
from loadmaster.program.program import Program
from loadmaster.runs import Display, Interrupted
from loadmaster.search.request import BadRequest, Capacity, PlanRequest, say_nothing, with_bytes
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes

if TYPE_CHECKING:
    from loadmaster.execute.executor import Executor, Measured, Results
    from loadmaster.execute.ready import Agreement, OrdinaryRun, Ready

_MOST_INPUTS = 2**36
"""Bytes of a file, also unpacked: inputs are the user's own, and may be large and all zeros."""
SEARCH_SECONDS = 20.0
BASE = "h200"
"""Gives a measured computer the names of its parts, and what is not measured."""


@dataclass(frozen=True)
class PlanFiles:
    """Where a plan is kept, with what it belongs to and later commands need."""

    plan: Path
    machine: Path | None = None
    """This computer as measured, with the capacity; None: it is in no need of a file."""
    costs: Path | None = None
    """The ops as measured; None: likewise."""

    @classmethod
    def beside(cls, plan: Path, *, machine: bool, costs: bool) -> PlanFiles:
        """The plan's own name with other endings, for those that are measured."""
        return cls(
            plan,
            plan.with_name(f"{plan.stem}.machine.toml") if machine else None,
            plan.with_name(f"{plan.stem}.costs.json") if costs else None,
        )

    @property
    def written(self) -> tuple[Path, ...]:
        """All of them, the plan first."""
        return tuple(path for path in (self.plan, self.machine, self.costs) if path is not None)


@dataclass(frozen=True, eq=False)
class PlanSearch:
    """How a plan is sought where none is given."""

    seconds: float | None = SEARCH_SECONDS
    """Of the search itself: measuring, and choosing ops to run again, come before."""
    evaluations: int | None = None
    """Most plans to evaluate; None: as many as there is time for."""
    files: PlanFiles | None = None
    """Where the plan is kept."""
    display: Display | None = None
    """Shows how the search goes."""


@dataclass(frozen=True)
class Planning:
    """What planning took and proved, where `run_plan` did it."""

    measuring_seconds: float
    """For the computer and the ops; next to nothing where they were known."""
    seconds: float
    """For the choice of ops to run again, and the search."""
    bound_ps: int
    """No plan with these ops run again is faster."""
    gap: float | None
    """prediction / bound - 1"""
    written: tuple[Path, ...] = ()
    """Files of the plan, and of what it belongs to."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """What a run took and held."""

    program: Program
    """With the ops that the plan runs again."""
    machine: Machine
    plan: Plan
    measured: Measured
    predicted_ps: int
    agreement: Agreement | None
    """With the ordinary run, where that was made."""
    ordinary: OrdinaryRun | None
    comparable: bool
    """Whether the prediction is for the kind of device that it ran on."""
    capacity: int
    """Bytes of fast memory that it might have."""
    plan_bytes: int
    """Those that the plan holds at most."""
    placement: str
    planning: Planning | None = None
    """None: the plan was there."""


def run_plan(
    model: str,
    plan: Path | PlanSearch,
    machine: Machine | None,
    *,
    capacity: Capacity,
    device: str = "cuda",
    costs: Path | None = None,
    budget: int | None = None,
    repeats: int = 5,
    warmups: int = 2,
    cuda_graph: bool = False,
    placement: str = "planned",
    timings: bool = False,
    training: bool = False,
    split_over: int | None = None,
    verify: bool = True,
    inputs: Path | None = None,
    weights: str = "module",
    results: Path | None = None,
    say: Callable[[str], None] = say_nothing,
) -> PlannedRun:
    """Run a 'module:function' of PyTorch as a plan says. The function is called once and captured once, also where the
    plan is made here.

    Args:
      plan: its file, or how one is sought.
      machine: that the plan is for; None, where one is sought: this computer, as measured now or before.
      capacity: the capacity that the plan was made for, or is to be made for; `costs`: the cost table. Where a plan is
        sought without one, every distinct op that is not known yet is measured.
      budget: bytes of fast memory that it may have; else the capacity.
      repeats, warmups: runs that count, and runs before that don't.
      placement: 'planned': results at the plan's offsets; 'allocator': PyTorch's; 'arena': copied.
      inputs: an .npz file with the inputs, by the names that the module gives them or in order; by default those of
        the function.
      weights: 'module' or 'random'.
      results: an .npz file for outputs, gradients and updates.
    """
    if device != "cpu":
        own_allocator.fewer_holes()  # only before PyTorch is first imported
    require("torch", "torch")
    from loadmaster.execute.executor import Executor, backend_for
    from loadmaster.execute.ready import WEIGHTS, agreement, make_ready
    from loadmaster.execute.speeds import is_measured_on_cpu

    if inputs is not None and not inputs.is_file():
        kind = special_kind(inputs)
        raise BadRequest(
            f"there is no file '{inputs}'" if kind is None else f"'{inputs}' is {kind}",
            object="--inputs",
            number=str(inputs),
            remedy="write it with numpy.savez",
        )
    if weights not in WEIGHTS:
        raise BadRequest(
            f"--weights can't be '{weights}'",
            object="--weights",
            number=weights,
            remedy=f"use {' or '.join(WEIGHTS)}",
        )
    if placement not in PLACEMENTS:
        raise BadRequest(
            f"--placement can't be '{placement}'",
            object="--placement",
            number=placement,
            remedy=f"use {', '.join(PLACEMENTS)}",
        )
    if cuda_graph and device == "cpu":
        raise BadRequest(
            f"a CUDA graph runs on a CUDA device, and this run is on '{device}'",
            object="--cuda-graph",
            number=device,
            remedy="leave --cuda-graph out, or give --device cuda",
        )
    if cuda_graph and timings:
        raise BadRequest(
            "a CUDA graph runs in one piece, and --timings times every op",
            object="--cuda-graph",
            remedy="leave --cuda-graph or --timings out",
        )
    if device != "cpu" and placement == "planned":
        own_allocator.install()  # only before CUDA is first used
    backend_for(device).close()  # no device: said before anything is made
    with_bytes(machine or load_machine(BASE), capacity)  # the same for memories
    ready = make_ready(model, device, training=training, weights=weights, split_over=split_over)
    given = ready.inputs if inputs is None else _read_inputs(inputs, ready)
    if isinstance(plan, PlanSearch):
        found = _search_plan(ready, model, plan, machine, capacity, device, costs, say)
    else:
        assert machine is not None
        found = _read_plan(ready, plan, machine, capacity, device, costs)
    program, machine, decided = found.program, found.machine, found.plan
    repeated = program.repeats
    captured = ready.captured if repeated is None else ready.captured.repeated(repeated.ops)
    predicted = simulate(program, machine, decided).total_ps
    ordinary = None
    if verify and inputs is None:
        ordinary = _run_ordinarily(ready, device, repeats, warmups, say)
    again = "" if repeated is None else f", {len(repeated.ops):,} ops run again"
    count = len(decided.copy_rows)
    copies = "1 copy" if count == 1 else f"{count:,} copies"
    say(f"{model} on {device}: {copies} a run{again}")
    with Executor(
        captured,
        decided,
        machine,
        device,
        ready.weights,
        capacity=budget,
        workspace=found.kept,
        placement=placement,
        graph=cuda_graph,
        timings=timings,
    ) as executor:
        try:
            measured = executor.measure(*given, repeats=repeats, warmups=warmups)
        except LoadmasterError:
            raise
        except Exception as error:
            if not own_allocator.is_shortage(error):
                _refuse_failing(ready.fed(given), model)
            raise
        agreed = None
        if ordinary is not None:
            agreed = agreement(_comparable_results(executor, measured, given), ordinary.values)
        if results is not None:
            _write_results(results, measured)
        return PlannedRun(
            program,
            machine,
            decided,
            measured,
            predicted,
            agreed,
            ordinary,
            is_measured_on_cpu(machine) == (device == "cpu"),
            executor.capacity,
            executor.script.peak,
            executor.placement,
            found.planning,
        )


@dataclass(frozen=True, eq=False)
class _Planned:
    """A plan, and what it is about."""

    program: Program
    machine: Machine
    plan: Plan
    kept: int
    """What a run has to have beside the plan's peak."""
    planning: Planning | None = None


def _read_plan(
    ready: Ready, path: Path, machine: Machine, capacity: Capacity, device: str, costs: Path | None
) -> _Planned:
    """The plan of a file."""
    base, room = _with_costs(ready, costs, device)
    machine = with_shares(with_bytes(machine, capacity), capacity, base, room.needed)
    program, plan = load_planned(path, base, machine)
    return _Planned(program, machine, plan, room.kept)


def _search_plan(
    ready: Ready,
    model: str,
    search: PlanSearch,
    machine: Machine | None,
    capacity: Capacity,
    device: str,
    costs: Path | None,
    say: Callable[[str], None],
) -> _Planned:
    """A plan that is made here, as 'loadmaster plan' makes it, of what was measured here or is given."""
    from loadmaster.execute.speeds import quick_machine

    began = now()
    where = machine or quick_machine(device, load_machine(BASE), cache=cache_folder(), say=say)
    fast = where.memories[where.reach[0][0]]
    if fast.name not in capacity:
        say(f"no --capacity {fast.name}=SIZE: {model} may have all of it, {show_bytes(fast.capacity)}")
    table = _sample(ready, where, device, say) if costs is None else read_costs(costs)
    measured = now()
    request = PlanRequest(
        ready.captured.program, where, problem=OFFLOAD.name, capacity=capacity, costs=table, say=say
    )
    problem = build_problem(request, OFFLOAD)
    result = solve_problem(
        OFFLOAD,
        problem,
        SearchOptions(
            evaluations=search.evaluations,
            seconds=search.seconds,
            exact_seconds=0.0,
            source=model,
            display=search.display,
            say=say,
        ),
    )
    if result.solution.interrupted:
        raise Interrupted(f"{model}: interrupted while its plan was sought, so nothing was run", object=model)
    if result.plan is None:
        raise NoAnswer(
            f"{model}: no plan that fits was found in {result.evaluations:,} evaluations",
            object=model,
            number=result.evaluations,
            remedy="give more --time-limit, or more --capacity",
        )
    if (files := search.files) is not None:
        if files.costs is not None:
            _write_costs(table, files.costs)
        if files.machine is not None:
            _write_machine(result.machine, files.machine)
        write_plan(result.plan, result.program, result.machine, files.plan)
    planning = Planning(
        measured - began,
        now() - measured,
        result.bound.value,
        result.gap,
        () if files is None else files.written,
        tuple(result.warnings),
    )
    kept = kernel_room(ready.captured.program.n_ops, table, device).kept
    return _Planned(result.program, result.machine, result.plan, kept, planning)


def _sample(ready: Ready, machine: Machine, device: str, say: Callable[[str], None]) -> MeasuredCosts:
    """Times and workspaces of the ops, each distinct one measured once and then known."""
    from loadmaster.execute.op_samples import sample_ops

    found = sample_ops(ready.captured, device, cache=cache_folder(), say=say)
    for note in found.notes:
        say(note)
    return found.costs(ready.captured.program, machine.devices[0].name)


def _write_costs(costs: MeasuredCosts, path: Path) -> None:
    document = {
        "loadmaster_costs": FORMAT,
        "program": costs.program,
        "device": costs.device,
        "picoseconds": list(costs.picoseconds),
        "workspace_bytes": costs.workspace_bytes,
        "kept_bytes": costs.kept_bytes,
        "op_workspace": list(costs.op_workspace),
    }
    with writing(path):
        write_cost_file(document, path)


def _write_machine(machine: Machine, path: Path) -> None:
    with writing(path), replacing(path) as temporary:
        temporary.write_text(standalone_text(machine), encoding="utf-8")


def _with_costs(ready: Ready, costs: Path | None, device: str) -> tuple[Program, KernelRoom]:
    """The program as the plan knows it: a cost table is part of it. And what the plan leaves to kernels."""
    program = ready.captured.program
    table = None if costs is None else read_costs(costs)
    known = program if table is None else apply_costs(program, table)
    return known, kernel_room(program.n_ops, table, device)


def _read_inputs(path: Path, ready: Ready) -> list[Any]:
    def refused(reason: str) -> BadProgram:
        return BadProgram(
            f"inputs '{path}' can't be read: {reason}", object=str(path), remedy="write them with numpy.savez"
        )

    torch = require("torch", "torch")
    read = read_npz(path, refused, most_file=_MOST_INPUTS, most_bytes=_MOST_INPUTS)
    names, expected = ready.input_names, ready.inputs
    arrays = [read[name] for name in names] if set(read) == set(names) else list(read.values())
    if len(arrays) != len(expected):
        raise BadProgram(
            f"'{path}' has {len(arrays)} arrays and the model takes {len(expected)} inputs",
            object=str(path),
            number=len(arrays),
            remedy=f"give one for each, in order or by name: {', '.join(names)}",
        )
    found = []
    for name, array, like in zip(names, arrays, expected, strict=True):
        value = torch.from_numpy(array)
        if value.shape != like.shape or not torch.can_cast(value.dtype, like.dtype):
            raise BadProgram(
                f"'{path}' has {value.dtype} {tuple(value.shape)} for input '{name}', which is "
                f"{like.dtype} {tuple(like.shape)}",
                object=name,
                number=str(tuple(value.shape)),
                remedy="give it as the function's example is, or change the example",
            )
        found.append(value.to(like.dtype))
    return found


def _refuse_failing(ready: Ready, model: str) -> None:
    """Refuse inputs on which the module itself fails: an error of an op is the user's own then."""
    from loadmaster.execute.ready import ordinary_run
    from loadmaster.program.importers.torch.importer import fails_itself

    try:
        ordinary_run(ready, "cpu")
    except Exception as error:
        raise fails_itself(model, error) from error


def _run_ordinarily(
    ready: Ready, device: str, repeats: int, warmups: int, say: Callable[[str], None]
) -> OrdinaryRun | None:
    """The model as PyTorch runs it, if that can be and fits into the device."""
    from loadmaster.execute.ready import ordinary_run

    torch = require("torch", "torch")
    try:
        return ordinary_run(ready, device, repeats=repeats, warmups=warmups)
    except Exception as error:  # the user's own code, as the user has it
        if own_allocator.is_shortage(error):
            say("the ordinary run does not fit into the device: results are not compared")
        else:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"the ordinary run fails, so results are not compared: {reason}")
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _comparable_results(executor: Executor, measured: Measured, inputs: Sequence[Any]) -> Results:
    """The last results; of a model that draws random numbers, those with the ordinary run's."""
    from loadmaster.execute.ready import SEED
    from loadmaster.program.importers.torch.graph import is_random

    if not any(is_random(node) for node in executor.captured.graph.nodes):
        return measured.last
    require("torch", "torch").manual_seed(SEED)
    return executor.run(*inputs)


def _write_results(path: Path, measured: Measured) -> None:
    results = measured.last
    named = {f"output_{i}": value for i, value in enumerate(results.outputs) if value is not None}
    named |= {f"gradient_{name}": value for name, value in results.gradients.items()}
    named |= {f"update_{name}": value for name, value in results.updates.items()}
    torch = require("torch", "torch")
    arrays = {
        name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
        for name, value in named.items()
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
