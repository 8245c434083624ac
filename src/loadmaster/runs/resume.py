"""What a run is made with, and how a session takes one up: fresh, or where it was left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.errors import BadPlan
from loadmaster.host import command_line, host, versions
from loadmaster.plan.plan import Plan
from loadmaster.problems.problem import Decision, Problem, keys, plan_value, repeatable
from loadmaster.runs.checkpoint import Checkpoint, clear_leftovers, last_good
from loadmaster.runs.folder import RunFolder, utc
from loadmaster.runs.history import History
from loadmaster.runs.log import BadRun, Line
from loadmaster.runs.observer import Best, RunObserver
from loadmaster.solvers.solver import Budget, Meter, Solver, State

RECALLED = 5


def describe(
    solver: Solver, problem: Problem, budget: Budget, seed: int, command: Sequence[str] | None
) -> dict[str, Any]:
    """The content of run.json."""
    switches = getattr(solver, "switches", {})
    about = {
        "command": command_line(command), "seed": seed, "unit": problem.unit,
        "solver": {"name": solver.name, "switches": dict(switches) if isinstance(switches, Mapping) else {}},
        "budget": {"evaluations": budget.evaluations, "seconds": budget.seconds},
        "keys": keys(problem),
        "names": {"program": problem.program.name, "machine": problem.machine.name,
                  "program_hash_with_names": problem.program.named_hash},
        "versions": versions(), "host": host(),
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(about, default=str))
    return plain


def identity(about: dict[str, Any]) -> str:
    """What a checkpoint must share with the run that takes it up."""
    content = [about[name] for name in ("keys", "solver", "seed")]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_to_resume(path: Path, about: dict[str, Any]) -> RunFolder:
    """The run, if it was started with the same keys, solver, seed and command."""
    run = RunFolder.open(path, write=True)
    try:
        theirs, ours = run.about, about
        for key in dict.fromkeys([*theirs["keys"], *ours["keys"]]):
            _same(run, f"key '{key}'", theirs["keys"].get(key), ours["keys"].get(key))
        _same(run, "solver", theirs["solver"].get("name"), ours["solver"]["name"])
        _same(
            run, "solver's switches", theirs["solver"].get("switches"), ours["solver"]["switches"]
        )
        _same(run, "seed", theirs["seed"], ours["seed"])
        # The name alone: where a plan is written, or a larger budget, changes no decision.
        _same(run, "command", theirs["command"][:1], ours["command"][:1])
        clear_leftovers(run)
    except BaseException:
        run.close()
        raise
    return run


def _same(run: RunFolder, what: str, theirs: Any, ours: Any) -> None:
    if theirs == ours:
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in dict.fromkeys([*theirs, *ours]):
            _same(run, f"'{name}' in {what}", theirs.get(name), ours.get(name))
    raise BadRun(f"run '{run.name}' can't be resumed: its {what} is {_short(theirs)} and here it is "
                 f"{_short(ours)}", object=what, remedy="give what it was started with")  # fmt: skip


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 20 else f"{text[:12]}…"


def begin(
    problem: Problem, budget: Budget, observer: RunObserver, about: dict[str, Any]
) -> tuple[Meter, State | None, list[str]]:
    """A meter as it was at the last good checkpoint, the solver's state there, and warnings.

    The meter must be exactly as it was, or the continuation would differ from an unbroken run.
    What the log knows beyond that stays with the observer: it is found again, and not logged a
    second time. The seconds are all that were spent, those after the checkpoint too.
    """
    run, checkpoint = observer.run, None
    warnings: list[str] = []
    history = History([] if run is None or run.log is None else run.log.lines)
    if run is not None and history.lines:
        checkpoint, warnings = last_good(run, identity(about), history.lines)
        observer.best = _stored(run, problem, history.best, checkpoint)
        observer.choice = _stored(run, problem, history.choice, checkpoint)
        observer.bound = history.bound
        _recall(run, problem, history)
    evaluations = 0 if checkpoint is None else checkpoint.evaluations
    if history.optimal:  # nothing is left to do
        evaluations = max(line["evals"] for line in history.lines if line["event"] in ("improve", "bound"))  # fmt: skip
    meter = Meter(problem, budget, observer, evaluations=evaluations, seconds=history.seconds)
    if checkpoint is not None:
        meter.bound = checkpoint.bound
        if checkpoint.best is not None:
            meter.restore(checkpoint.best, checkpoint.best_value)
        if meter.best_value != checkpoint.best_value:
            raise BadRun(f"{checkpoint.path} claims {checkpoint.best_value}, and its decision is "
                         f"worth {meter.best_value}", object=checkpoint.path,
                         remedy="remove that checkpoint")  # fmt: skip
    observer.write(meter, "resume" if history.lines else "start", utc=utc(), keys=about.get("keys", {}),
                   from_checkpoint=None if checkpoint is None else checkpoint.path,
                   from_evals=evaluations, budget=about.get("budget", {}))  # fmt: skip
    observer.begin(meter)
    return meter, None if checkpoint is None else checkpoint.state, warnings


def _stored(
    run: RunFolder, problem: Problem, line: Line | None, checkpoint: Checkpoint | None
) -> Best | None:
    """The plan that a line of the log names; `best.json` is it from now on."""
    if line is None:
        return None
    plan, claimed = run.load_plan(line["plan"], problem), int(line["value"])
    violations = problem.violations(plan)
    value = plan_value(problem, plan) if repeatable(problem) else claimed
    if violations or value != claimed:
        raise BadRun(f"run '{run.name}' claims {claimed} for its best plan, and now it is "
                     f"{violations[0] if violations else value}", object=run.name,
                     number=claimed, remedy="see 'loadmaster replay'")  # fmt: skip
    run.set_best(plan.hash)
    return Best(_told_decision(problem, plan, checkpoint), claimed, plan)


def _told_decision(problem: Problem, plan: Plan, checkpoint: Checkpoint | None) -> Decision | None:
    """The checkpoint's if it stands for this plan, else what the plan tells; None: nothing."""
    if not hasattr(problem, "value_of"):
        return problem.decision(plan)
    last = None if checkpoint is None else checkpoint.best
    if last is not None and problem.plan(last).hash == plan.hash:
        return last
    try:
        return problem.decision(plan)
    except BadPlan:
        return None


def _recall(run: RunFolder, problem: Problem, history: History) -> None:
    """Remind a problem that measures of the latest improvements: they stay candidates."""
    recall = getattr(problem, "recall", None)
    if recall is None:
        return
    for line in history.improvements[-RECALLED:]:
        recall(problem.decision(run.load_plan(line["plan"], problem)), line["value"])
