"""`run_solver`: one solver on one problem, recorded in a run folder, or going on with one; `solve` for short."""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.files import NotWritten, writing
from loadmaster.plan.plan import Plan
from loadmaster.runs.bank import Bank, Search, open_bank
from loadmaster.runs.folder import RunFolder, resume_line, utc
from loadmaster.runs.history import compute_gap
from loadmaster.runs.log import BadRun
from loadmaster.runs.observer import Best, Display, RunObserver
from loadmaster.runs.resume import (
    BANK,
    UNFIT,
    begin,
    describe,
    identity,
    load_finished,
    noted_start,
    open_to_resume,
    tell_status,
)
from loadmaster.search.problem import Decision, Problem
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Recalled, Scoring, Solution, Solver, State, Status
from loadmaster.signals import listening, stoppable

_TICK_SECONDS = 0.25
_CUT_SECONDS = 0.3
"""Longest to wait for a line that is being written, once a run is brought to its end."""


class Interrupted(LoadmasterError):
    """A signal ended a run; what it had found is kept."""

    exit_code = 130

    @classmethod
    def of(cls, name: str, solution: Solution) -> Interrupted:
        """With the command that goes on, where a run was kept."""
        remedy = None if solution.run is None else f"go on with {resume_line(solution.run)}"
        said = f"{name}: interrupted, the best so far is kept"
        return cls(said, object=name, number=solution.value, remedy=remedy)


@listening()
def run_solver(
    solver: Solver,
    problem: Problem,
    budget: Budget,
    seed: int = 0,
    *,
    folder: Path | None = None,
    resume: Path | None = None,
    display: Display | None = None,
    command: Sequence[str] | None = None,
    baselines: Mapping[str, Decision] | None = None,
    checkpoint_seconds: float = 1.0,
    score: Scoring | None = None,
    about: Mapping[str, Any] | None = None,
    costs: Path | None = None,
    recalled: Recalled | None = None,
    spent: float = 0.0,
) -> Solution:
    """Solve within a budget, which counts earlier sessions of a resumed run too.

    `folder` is where run folders are made; `resume` is one of them, to go on with; with neither
    nothing is written. Every improvement is checked before it is stored or shown. The first
    Ctrl-C, or SIGTERM or SIGHUP, ends the search and keeps the best, the second raises; in other
    threads than the main one none is heard (`loadmaster.signals`). `score` scores batches in place of
    the problem (`loadmaster.runs.workers`). `about`: what else `run.json` keeps, as how the model was
    read; `costs`: a cost table that the folder keeps.

    `baselines` are candidates: where one is better than all that the solver finds, `best.json` is its plan.

    `recalled` is what a bank of plans had (`loadmaster.runs.bank`): the answer, if that settles the question; else a
    baseline of that name, with which the solver begins if it can. A resumed run has its own.

    `spent`: seconds of the budget that are over already. Checking the last plan is within the budget too.

    The solution says why it ended (`stop`, `interrupted`), which `baseline` is better than what it found, what the checker refused (bugs: `refused`),
    `warnings`, the `run`'s folder and, where a resumed run's best plan has no decision, the `plan`.
    """
    if solver.problem_kind != problem.kind:
        raise ValueError(f"solver '{solver.name}' solves {solver.problem_kind}, not {problem.kind}")
    described: dict[str, Any] = {}
    run = None
    if resume is not None:
        described = describe(solver, problem, budget, seed, command)
        run = open_to_resume(resume, described)
    elif folder is not None:
        described = describe(solver, problem, budget, seed, command) | dict(about or {})
        with writing(folder):
            run = RunFolder.create(folder, problem, described, costs)
    try:
        done = None if run is None else load_finished(run, problem, budget)
        if done is not None:
            return done
        observer = RunObserver(
            problem,
            solver.name,
            run,
            display,
            identity=identity(described) if described else "",
            checkpoint_seconds=checkpoint_seconds,
        )
        meter, state, warnings = begin(solver, problem, budget, observer, described, spent)
        meter.score = score
        noted = _noted_baselines(run)
        candidates, first = dict(baselines or {}), None
        if resume is not None:
            first = noted_start(run, problem)
        elif recalled is not None and not recalled.settled:
            first = candidates[BANK] = recalled.decision
        for name, decision in candidates.items():
            late = observer.baseline is not None and meter.spent
            if name not in noted and not late:
                _note_baseline(observer, meter, name, decision)
        if recalled is not None and recalled.bound is not None:
            meter.raise_bound(recalled.bound.value, recalled.bound.method)
        with stoppable(_Stoppable(meter, observer)):
            if recalled is not None and recalled.settled:
                solution = _settled(recalled, meter, observer)
            else:
                solution = _searched(solver, meter, observer, seed, state, display, first)
            return _result(solution, meter, observer, warnings, recalled)
    except OSError as error:
        if run is None or not _is_closed_disk(error, run.path):
            raise
        raise NotWritten(
            f"run '{run.path.name}' can't be written: {error.strerror}; what it had found is kept",
            object=str(run.path),
            number=error.errno,
            remedy=f"make room, then go on with {resume_line(run.path)}",
        ) from error
    finally:
        if display is not None:
            display.close()
        if run is not None:
            run.close()


def _is_closed_disk(error: OSError, folder: Path) -> bool:
    """Whether a folder could not be written: the disk is full, or takes nothing any more. A write has no name."""
    name = folder if error.filename is None else Path(str(error.filename))
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS) and (
        name == folder or folder in name.parents
    )


def solve(
    problem: Problem,
    solver: str | Solver = "auto",
    *,
    seconds: float | None = 10.0,
    evaluations: int | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    bank: Bank | str | Path | None = None,
) -> Solution:
    """Find the best decision within a budget. Every improvement is checked.

    Args:
      problem: what `make_problem` gives, or one of your own.
      solver: a name of `solver_names(problem.kind)`, made with `options`, or an object of your own.
      seconds, evaluations: the budget, whichever ends first; None: no limit.
      seed: the same seed gives the same answer, unless the seconds end it.
      options: keyword arguments of the solver.
      folder: where a run folder is kept (`solution.run`), which `loadmaster replay`, `report` and `compare` read.
      bank: a folder of answers: the same question is answered from there, a like one begins with its plan
        (`solution.recalled`), and the answer is kept.

    Returns:
      the best found with its value, bound and status; `problem.plan(solution.decision)` is the plan.
    """
    chosen = make_solver(problem.kind, solver, options) if isinstance(solver, str) else solver
    where = None if folder is None else Path(folder)
    return solve_with_bank(open_bank(bank), chosen, problem, Budget(evaluations, seconds), seed, folder=where)


def solve_with_bank(
    bank: Bank | None,
    solver: Solver,
    problem: Problem,
    budget: Budget,
    seed: int = 0,
    *,
    resume: Path | None = None,
    **more: Any,
) -> Solution:
    """`run_solver` with what a bank has, and the answer kept there."""
    if bank is None:
        return run_solver(solver, problem, budget, seed, resume=resume, **more)
    search = Search(solver.name, solver.options, seed, budget.evaluations, budget.seconds)
    recalled = bank.recall(problem, search) if resume is None else None
    solution = run_solver(solver, problem, budget, seed, resume=resume, recalled=recalled, **more)
    plan = solution.plan if solution.decision is None else problem.plan(solution.decision)
    if plan is not None:
        keep_solution(bank, problem, plan, solution, solver, search)
    solution.warnings = [*solution.warnings, *bank.warnings]
    return solution


def keep_solution(
    bank: Bank,
    problem: Problem,
    plan: Plan,
    solution: Solution,
    solver: Solver,
    search: Search,
    finder: str | None = None,
) -> None:
    """Keep the plan that a search came to, unless it is what the bank gave for an answer. `finder`: whose plan it is,
    if not the solver's."""
    if solution.recalled is not None and solution.recalled.settled:
        return
    bank.keep(
        problem,
        plan,
        solution.decision,
        solution.bound,
        None
        if solution.interrupted
        else replace(search, ended=solution.stop == "done" and not solver.scheduled),
        finder=finder or solver.name,
        seed=search.seed,
        evaluations=solution.evaluations,
        seconds=solution.seconds,
    )


def _settled(recalled: Recalled, meter: Meter, observer: RunObserver) -> Solution:
    """The answer of a bank, checked like any other; it costs no evaluations, they were made before."""
    meter.restore(recalled.decision)
    observer.improved(meter)
    observer.settle(meter)
    return meter.solution()


def _noted_baselines(run: RunFolder | None) -> set[str]:
    """The names of those that an earlier session has noted, or found wanting."""
    lines = [] if run is None or run.log is None else run.log.lines
    refused = [line["what"] for line in lines if line["event"] == "error"]
    return {line["name"] for line in lines if line["event"] == "baseline"} | {
        what.removeprefix("baseline ") for what in refused
    }


def _note_baseline(observer: RunObserver, meter: Meter, name: str, decision: Decision) -> None:
    """A known method's answer, checked and scored like any other."""
    problem = observer.problem
    begun = now()
    plan, value = problem.plan(decision), problem.evaluate(decision)
    started = time.monotonic()
    violations = problem.violations(plan)
    observer.set_pace(
        meter, started, now() - begun
    )  # better than a guess: the first answer need not wait for so long
    if violations or value is None:
        observer.write(
            meter,
            "error",
            what=f"baseline {name}",
            plan=plan.hash,
            message=str(violations[0]) if violations else "not legal",
        )
        return
    if observer.run is not None:
        observer.run.store_plan(plan, problem)
    observer.write(meter, "baseline", name=name, value=value, plan=plan.hash)
    observer.take_baseline(name, Best(decision, value, plan))


def _searched(
    solver: Solver,
    meter: Meter,
    observer: RunObserver,
    seed: int,
    state: State | None,
    display: Display | None,
    first: Decision | None,
) -> Solution:
    if observer.optimal:
        return meter.solution()  # an earlier session has proved it
    begun = meter.evaluations
    try:
        with _ticking(observer, meter, display):
            if first is not None and state is None and not meter.exhausted:
                meter.evaluate(first)
                meter.start = _start_of(observer.problem, first)
            solution = solver.run(meter, seed, state)
            observer.settle(meter)
            return solution
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):  # a third one: then without the latest
                observer.settle(meter)
        else:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            observer.write(meter, "error", what="solver", plan=None, message=message[:500])
        _stop(meter, observer, "interrupted" if interrupted else "error", Status.UNKNOWN)
        # Anybody can write a checkpoint; what is in it is first looked at by its solver.
        if state is not None and meter.evaluations == begun and isinstance(error, UNFIT):
            raise BadRun(
                f"solver '{solver.name}' can't go on from the checkpoint at {begun} evaluations: {error}",
                object=solver.name,
                number=begun,
                remedy="remove that checkpoint, or start again",
            ) from error
        raise


def _start_of(problem: Problem, first: Decision) -> Decision | None:
    """A decision as searches change them: that of a plan may be the plan itself, row by row."""
    if not problem.invertible:
        return first
    with contextlib.suppress(*UNFIT, LoadmasterError):
        start = problem.adapt(problem.plan(first))
        return None if problem.evaluate(start) is None else start
    return None


class _Stoppable:
    """A run as signals end it."""

    def __init__(self, meter: Meter, observer: RunObserver) -> None:
        self._meter, self._observer = meter, observer
        self.where = None if observer.run is None else observer.run.path

    @property
    def busy(self) -> bool:
        return self._observer.busy

    def ask(self) -> None:
        self._observer.stop = True

    def settle(self) -> None:
        self._observer.settle(self._meter)

    def cut(self) -> None:
        meter, observer = self._meter, self._observer
        if observer.seal(_CUT_SECONDS):
            best = observer.choice or observer.best
            _stop(meter, observer, "interrupted", tell_status(best, meter.bound, infeasible=False))


@contextlib.contextmanager
def _ticking(observer: RunObserver, meter: Meter, display: Display | None) -> Iterator[None]:
    """Keep display and log alive while a solver is silent, inside native code for example."""
    if display is None and observer.run is None:
        yield
        return
    end, solving = threading.Event(), threading.get_ident()

    def tick() -> None:
        while not end.wait(_TICK_SECONDS):
            with contextlib.suppress(OSError):  # a full disk: the solver's thread meets it too
                observer.tick(meter, _activity(solving))

    thread = threading.Thread(target=tick, name="loadmaster progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


_COMPILERS = ("compiler.py", "partial_eval.py", "mlir.py")
"""Files of `jax/_src` whose functions are under way while it prepares code, which takes seconds to minutes."""


def _activity(thread: int) -> str:
    """What a thread is at, if that is not the search itself: seen from outside, it says nothing while it compiles."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.name in _COMPILERS and "_src" in path.parts and "jax" in path.parts:
            return "compiling"
        frame = frame.f_back
    return ""


def _result(
    solution: Solution,
    meter: Meter,
    observer: RunObserver,
    warnings: list[str],
    recalled: Recalled | None = None,
) -> Solution:
    """What was checked, whatever the solver says; where it says something else, that is reported."""
    if not observer.stop:
        observer.ended(meter)
    best = observer.ahead or observer.choice or observer.best
    chosen = best is not None and best is not observer.best
    if best is not None and not chosen and meter.best is not None and meter.best_value == best.value:
        # The solver's own decision, where it stands for the same plan.
        same = observer.problem.plan(meter.best).hash == best.plan.hash
        best = replace(best, decision=meter.best) if same or best.decision is None else best
    value = None if best is None else best.value
    if solution.value is not None and (value is None or solution.value < value):
        message = f"the solver claims {solution.value}, and what was checked is {value}"
        if not observer.refused:
            observer.write(meter, "error", what="claim", plan=None, message=message)
        observer.refused.append(message)
    bound = max(meter.bound, observer.bound or meter.bound, key=lambda b: b.value)
    if recalled is not None and recalled.bound is not None and value is not None and value < bound.value:
        warnings = [*warnings, f"the bound {bound.value:,} ({bound.method}) is false: {value:,} was found"]
        bound, recalled = observer.problem.bound(), replace(recalled, bound=None)
    status = tell_status(best, bound, infeasible=solution.status == Status.INFEASIBLE)
    reason = _reason(meter, observer, status)
    _stop(meter, observer, reason, status)
    return replace(
        solution,
        status=status,
        decision=None if best is None else best.decision,
        value=value,
        bound=bound,
        evaluations=meter.evaluations,
        seconds=meter.seconds,
        stop=reason,
        interrupted=reason == "interrupted",
        refused=observer.refused or solution.refused,
        warnings=warnings,
        run=None if observer.run is None else observer.run.path,
        plan=best.plan if best is not None and best.decision is None else None,
        baseline=None if observer.better_baseline is None else observer.better_baseline[0],
        recalled=recalled,
    )


def _reason(meter: Meter, observer: RunObserver, status: Status) -> str:
    if observer.stop:  # whatever it came to: an unbroken run may have come to it in another way
        return "interrupted"
    if status in (Status.OPTIMAL, Status.INFEASIBLE):
        return str(status)
    if meter.evaluations_left == 0:
        return "budget"
    return "time" if meter.out_of_time or meter.seconds_left == 0 else "done"


def _stop(meter: Meter, observer: RunObserver, reason: str, status: Status) -> None:
    best = None if observer.best is None else observer.best.value
    bound = None if observer.bound is None else observer.bound.value
    observer.write(
        meter,
        "stop",
        utc=utc(),
        reason=reason,
        best=best,
        bound=bound,
        gap=compute_gap(best, bound),
        status=str(status),
    )
