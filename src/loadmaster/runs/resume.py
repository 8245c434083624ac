"""What a run is made with, and how a session takes one up: fresh, or where it was left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from loadmaster.errors import BadPlan
from loadmaster.host import command_line, host, versions
from loadmaster.plan import Plan, load_plan
from loadmaster.runs.checkpoint import (
    Checkpoint,
    clear_leftovers,
    drop_unnamed,
    find_last_good,
    list_checkpoints,
)
from loadmaster.runs.folder import RunFolder, check_plain_file, utc
from loadmaster.runs.history import History
from loadmaster.runs.log import BadRun, Line
from loadmaster.runs.observer import Best, RunObserver
from loadmaster.search.problem import Bound, Decision, Problem, keys
from loadmaster.search.registry import make_labelled, solver_labels
from loadmaster.search.solver import RENAMED_OPTIONS, Budget, Meter, Solution, Solver, State, Status

RECALLED = 5
BANK = "bank"
"""The baseline that came from a bank of plans."""
UNFIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""What problems and solvers raise on a checkpoint's arrays that are not those they have written."""


def describe(
    solver: Solver, problem: Problem, budget: Budget, seed: int, command: Sequence[str] | None
) -> dict[str, Any]:
    """The content of run.json."""
    about = {
        "command": command_line(command),
        "seed": seed,
        "unit": problem.unit,
        "solver": {"name": solver.name, "options": dict(solver.options)},
        "budget": {"evaluations": budget.evaluations, "seconds": budget.seconds},
        "keys": keys(problem),
        "names": {
            "program": problem.program.name,
            "machine": problem.machine.name,
            "program_hash_with_names": problem.program.named_hash,
        },
        "versions": versions(),
        "host": host(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(about, default=str))
    return plain


def identity(about: dict[str, Any]) -> str:
    """What a checkpoint must share with the run that takes it up."""
    # As the first runs spelled it: their checkpoints stay good.
    first = {now: old for old, now in RENAMED_OPTIONS.items()}
    options = {first.get(name, name): value for name, value in about["solver"]["options"].items()}
    solver = {"name": about["solver"]["name"], "switches": options}
    content = [about["keys"], solver, about["seed"]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def open_to_resume(path: Path, about: dict[str, Any]) -> RunFolder:
    """The run, if it was started with the same keys, solver, seed and command. Options that `about` has at
    their defaults and the run did not record yet, being older, are taken out of it: checkpoints know them not."""
    run = RunFolder.open(path, write=True)
    try:
        theirs, ours = run.about, about
        _forget_unrecorded(ours, theirs["solver"].get("options"))
        for key in dict.fromkeys([*theirs["keys"], *ours["keys"]]):
            _same(run, f"key '{key}'", theirs["keys"].get(key), ours["keys"].get(key))
        _same(run, "solver", theirs["solver"].get("name"), ours["solver"]["name"])
        _same(run, "solver's options", theirs["solver"].get("options"), ours["solver"]["options"])
        _same(run, "seed", theirs["seed"], ours["seed"])
        # The name alone: where a plan is written, or a larger budget, changes no decision.
        _same(run, "command", theirs["command"][:1], ours["command"][:1])
        clear_leftovers(run)
    except BaseException:
        run.close()
        raise
    return run


def _forget_unrecorded(about: dict[str, Any], recorded: Any) -> None:
    kind, solver = about["keys"]["problem"]["kind"], about["solver"]
    added = set(solver["options"]) - set(recorded if isinstance(recorded, dict) else solver["options"])
    if added and solver["name"] in solver_labels(kind):
        defaults = make_labelled(kind, solver["name"]).options
        for name in added:
            if name in defaults and defaults[name] == solver["options"][name]:
                del solver["options"][name]


def _same(run: RunFolder, what: str, theirs: Any, ours: Any) -> None:
    if theirs == ours:
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in dict.fromkeys([*theirs, *ours]):
            _same(run, f"'{name}' in {what}", theirs.get(name), ours.get(name))
    raise BadRun(
        f"run '{run.name}' can't be resumed: its {what} is {_short(theirs)} and here it is {_short(ours)}",
        object=what,
        remedy="give what it was started with",
    )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 20 else f"{text[:12]}…"


class Begun(NamedTuple):
    """What a session begins with."""

    meter: Meter
    state: State | None
    """The solver's, at the last good checkpoint."""
    warnings: list[str]


def begin(
    solver: Solver,
    problem: Problem,
    budget: Budget,
    observer: RunObserver,
    about: dict[str, Any],
    spent: float = 0.0,
) -> Begun:
    """A meter as it was at the last good checkpoint, or a new one where there is none.

    The meter must be exactly as it was, or the continuation would differ from an unbroken run.
    What came after the checkpoint is done again. Where that gives the same again (`repeats`) its
    lines are cut off the log; else they stay, and what is found again is not logged a second time.
    The seconds are all that were spent, those after the checkpoint too; `spent`: before the search.
    """
    run, log = observer.run, None if observer.run is None else observer.run.log
    checkpoint, warnings = None, list[str]()
    history = History([] if log is None else log.lines)
    seconds, resumed = history.seconds, bool(history.lines)
    if run is not None and log is not None and resumed:
        if budget.evaluations is not None and budget.evaluations < history.evaluations:
            # Going back to the last checkpoint and ending there could lose the best plan.
            raise BadRun(
                f"run '{run.name}' has done {history.evaluations:,} evaluations, more than {budget.evaluations:,}",
                object=run.name,
                number=budget.evaluations,
                remedy=f"give --budget {history.evaluations} or more",
            )
        warnings += _schedule_warnings(solver, history.budget, budget)
        checkpoint, passed_over = find_last_good(run, identity(about), log.lines)
        warnings += passed_over
        if repeats(solver, problem, history, budget):
            log.cut(_lines_before(log.lines, checkpoint))
            history = History(log.lines)
        drop_unnamed(run, log.lines)
        _restore_results(observer, run, problem, history, checkpoint)
        _recall(run, problem, history)
    observer.clocked = history.clocked or budget.seconds is not None
    evaluations = 0 if checkpoint is None else checkpoint.evaluations
    if history.optimal:  # nothing is left to do
        evaluations = history.evaluations
    meter = Meter(problem, budget, observer, evaluations=evaluations, seconds=seconds + spent)
    if checkpoint is not None:
        meter.bound, meter.unpackable = checkpoint.bound, checkpoint.unpackable
        if checkpoint.best is not None:
            try:
                meter.restore(checkpoint.best, checkpoint.best_value)
            except UNFIT as error:
                raise BadRun(
                    f"{checkpoint.path} holds no decision of this problem: {error}",
                    object=checkpoint.path,
                    remedy="remove that checkpoint",
                ) from error
        if meter.best_value != checkpoint.best_value:
            raise BadRun(
                f"{checkpoint.path} claims {checkpoint.best_value}, and its decision is "
                f"worth {meter.best_value}",
                object=checkpoint.path,
                remedy="remove that checkpoint",
            )
    observer.write(
        meter,
        "resume" if resumed else "start",
        utc=utc(),
        keys=about.get("keys", {}),
        from_checkpoint=None if checkpoint is None else checkpoint.path,
        from_evals=evaluations,
        budget=about.get("budget", {}),
    )
    observer.begin(meter)
    return Begun(meter, None if checkpoint is None else checkpoint.state, warnings)


def repeats(solver: Solver, problem: Problem, history: History, budget: Budget) -> bool:
    """Whether work that is done again gives the same again: nothing is measured, and evaluations
    limit it. A time limit beside them may cut it short, but seldom says what is done before."""
    counted = history.counted and budget.evaluations is not None
    return solver.deterministic and problem.repeatable and counted


def load_finished(run: RunFolder, problem: Problem, budget: Budget) -> Solution | None:
    """The answer of a run that has ended by itself and has no more to do within this budget."""
    history = History([] if run.log is None else run.log.lines)
    before = history.budget
    match history.state:
        case "optimal" | "infeasible":
            more = False
        case "budget":
            more = _above(budget.evaluations, history.evaluations)
        case "time":
            more = _above(budget.seconds, history.seconds)
        case "done":
            more = budget != before
        case _:
            more = True
    if more:
        return None
    best = None if history.result is None else _stored(run, problem, history.result, None)
    bound = max(problem.bound(), history.bound or problem.bound(), key=lambda each: each.value)
    status = tell_status(best, bound, infeasible=history.state == "infeasible")
    return Solution(
        status,
        None if best is None else best.decision,
        None if best is None else best.value,
        bound,
        history.evaluations,
        history.seconds,
        stop=history.state,
        run=run.path,
        warnings=[f"run '{run.name}' had ended ({history.state}): nothing was left to do"],
        plan=best.plan if best is not None and best.decision is None else None,
        baseline=None if not problem.repeatable or history.baseline is None else history.baseline["name"],
    )


def tell_status(best: Best | None, bound: Bound, *, infeasible: bool) -> Status:
    """What is known of a run's best."""
    if best is not None:
        return Status.OPTIMAL if best.value <= bound.value else Status.FEASIBLE
    return Status.INFEASIBLE if infeasible else Status.UNKNOWN


def _above(limit: float | None, spent: float) -> bool:
    return limit is None or limit > spent


def _schedule_warnings(solver: Solver, before: Budget, now: Budget) -> list[str]:
    """A budget that has changed is reported, should the solver plan by it."""
    if before == now or not solver.scheduled:
        return []
    changed = f"which was {_words(before)} and is {_words(now)}"
    consequence = "this is not the run that the new one would have been from the start"
    return [f"solver '{solver.name}' plans by its budget, {changed}: {consequence}"]


def _words(budget: Budget) -> str:
    limits = [f"{budget.evaluations:,} evaluations"] if budget.evaluations is not None else []
    limits += [f"{budget.seconds:g} s"] if budget.seconds is not None else []
    return " and ".join(limits) or "unlimited"


def _lines_before(lines: list[Line], checkpoint: Checkpoint | None) -> int:
    """How many lines a log had when the checkpoint was made, its own included; without one, when
    the solver had not begun."""
    if checkpoint is not None:
        return 1 + int(list_checkpoints(lines)[checkpoint.number]["seq"])
    for number, line in enumerate(lines):
        baseline = line["event"] == "error" and line["what"].startswith("baseline")
        if line["event"] not in ("start", "bound", "baseline") and not baseline:
            return number
    return len(lines)


def _restore_results(
    observer: RunObserver, run: RunFolder, problem: Problem, history: History, checkpoint: Checkpoint | None
) -> None:
    """What the log has found, and in `best.json` the result of it, or what was found since."""
    for name, line in (("best", history.best), ("choice", history.choice)):
        if line is not None:
            setattr(observer, name, _stored(run, problem, line, checkpoint))
    observer.bound = history.bound
    known = history.baseline
    if known is not None and problem.repeatable:
        observer.baseline = (known["name"], _stored(run, problem, known, None))
    result = observer.choice or observer.best
    if observer.better_baseline is not None:
        result = observer.better_baseline[1]
    observer.ahead = _ahead(run, problem, result)
    if result is not None and observer.ahead is None:
        run.set_best(result.plan.hash)


def noted_start(run: RunFolder | None, problem: Problem) -> Decision | None:
    """The bank's plan that an earlier session began with, if there was one and it tells its decision."""
    lines = [] if run is None or run.log is None else run.log.lines
    for line in lines:
        if line["event"] == "baseline" and line["name"] == BANK:
            return _stored(run, problem, line, None).decision if run is not None else None
    return None


def _ahead(run: RunFolder, problem: Problem, result: Best | None) -> Best | None:
    """The plan in `best.json`, if it is better than what the log has found so far: an earlier session
    found it after the checkpoint. It is the answer until the run is as far again, and what is left of
    a run that never comes so far again."""
    path = run.path / "best.json"
    if not problem.repeatable or not path.is_file():
        return None
    plan = load_plan(check_plain_file(path), problem.program, problem.machine)
    if problem.violations(plan):
        return None
    value = problem.value_of(plan)
    if value is None or (result is not None and value >= result.value):
        return None
    return Best(_decision_behind(problem, plan, None), value, plan)


def _stored(run: RunFolder, problem: Problem, line: Line, checkpoint: Checkpoint | None) -> Best:
    """The plan that a line of the log names, if it is what the line claims."""
    plan, claimed = run.load_plan(line["plan"], problem), int(line["value"])
    violations = problem.violations(plan)
    value = problem.value_of(plan) if problem.repeatable else claimed
    if violations or value != claimed:
        raise BadRun(
            f"run '{run.name}' claims {claimed} for its best plan, and now it is "
            f"{violations[0] if violations else value}",
            object=run.name,
            number=claimed,
            remedy="see 'loadmaster replay'",
        )
    return Best(_decision_behind(problem, plan, checkpoint), claimed, plan)


def _decision_behind(problem: Problem, plan: Plan, checkpoint: Checkpoint | None) -> Decision | None:
    """The checkpoint's if it stands for this plan, else what the plan tells; None: nothing."""
    if problem.invertible:
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
    if problem.repeatable:
        return
    for line in history.improvements[-RECALLED:]:
        problem.recall(problem.decision(run.load_plan(line["plan"], problem)), line["value"])
