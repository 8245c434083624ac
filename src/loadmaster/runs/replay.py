"""`replay`: every plan of a run checked and scored again, and every claim in its log held to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.errors import LoadmasterError
from loadmaster.plan import Plan, load_plan
from loadmaster.runs.checkpoint import read_evaluations
from loadmaster.runs.folder import RunFolder, check_plain_file
from loadmaster.runs.history import History, find_contradictions
from loadmaster.runs.log import Line
from loadmaster.search.problem import COST_MODEL, Problem
from loadmaster.search.registry import load_problem

UNFINISHED = ("unfinished", "interrupted", "error")
"""States of a run that can go on with the same budget."""


@dataclass(frozen=True)
class Claim:
    """Something that a run says, and what it is now."""

    where: str
    """'line 12', 'best.json'"""
    event: str
    plan: str | None
    claimed: int | None
    now: int | None
    fault: str | None
    """Why it does not hold; None: it holds."""

    @property
    def holds(self) -> bool:
        return self.fault is None

    def __str__(self) -> str:
        if self.fault is None:
            return f"{self.where}: {self.event} {self.claimed}, confirmed"
        return f"{self.where}: {self.fault}"


@dataclass
class Replay:
    """All claims of a run, in the order of its log."""

    unit: str
    claims: list[Claim] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[Claim]:
        return [claim for claim in self.claims if not claim.holds]


def replay(run: RunFolder, *, tolerance: float = 0.0, only: str | None = None) -> Replay:
    """Check and score again; `only` a plan's hash. `tolerance` is relative to the claim."""
    problem = load_problem(run.path)
    text = run.read_log()
    history, found = History(text.lines), Replay(problem.unit)
    made_by = run.about["keys"].get("cost_model")
    if made_by != COST_MODEL:
        found.warnings.append(f"values were made by cost model '{made_by}', this is '{COST_MODEL}'")
    if not problem.repeatable:
        found.warnings.append("values were measured: plans are checked, nothing is measured again")
    if text.torn:
        found.warnings.append("the last line of the log is torn and was left out")
    plans: dict[str, Plan | str] = {}
    for line in history.lines:
        if line["event"] in ("improve", "baseline", "choose") and only in (None, line["plan"]):
            found.claims.append(_rescored(run, problem, line, plans, tolerance))
        elif line["event"] == "bound" and only is None:
            found.claims.append(_bound(problem, line))
    if only is None:
        for fault in find_contradictions(history):
            where, _, what = fault.partition(": ")
            found.claims.append(Claim(where, "log", None, None, None, what))
        found.claims += _checkpoints(run, history)
        found.claims += _best_file(run, problem, history)
    elif not found.claims:
        found.claims.append(Claim("log", "improve", only, None, None, "no line names this plan"))
    return found


def _rescored(
    run: RunFolder, problem: Problem, line: Line, plans: dict[str, Plan | str], tolerance: float
) -> Claim:
    where, name, claimed = f"line {line['seq'] + 1}", line["plan"], line["value"]
    if name not in plans:
        try:
            plans[name] = run.load_plan(name, problem)
        except LoadmasterError as error:
            plans[name] = error.message
    plan = plans[name]
    if isinstance(plan, str):
        return Claim(where, line["event"], name, claimed, None, plan)
    violations = problem.violations(plan)
    # Measured values are taken as they are; and a folder's command is not run on its word.
    now = problem.value_of(plan) if problem.repeatable else claimed
    fault = None
    if violations:
        fault = f"the checker refuses the plan: {violations[0]}"
    elif now is None or abs(now - claimed) > tolerance * abs(claimed):
        fault = f"claimed {claimed}, now {'not legal' if now is None else now}"
    return Claim(where, line["event"], name, claimed, now, fault)


def _bound(problem: Problem, line: Line) -> Claim:
    """A problem's own bound is made again; a solver's proof is held to the plans only. A lower one holds
    too: an older version proved less."""
    own, fault = problem.bound(), None
    if line["method"] == own.method and line["value"] > own.value:
        fault = f"bound claimed {line['value']}, now {own.value}"
    return Claim(f"line {line['seq'] + 1}", "bound", None, line["value"], own.value, fault)


def _checkpoints(run: RunFolder, history: History) -> list[Claim]:
    """Those that are still there were made after as many evaluations as the log says."""
    claims = []
    for line in history.of("checkpoint"):
        count = line["evals"]
        try:
            now = read_evaluations(run, line)
        except (LoadmasterError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            what = error.message if isinstance(error, LoadmasterError) else str(error)
            claims.append(Claim(line["path"], "checkpoint", None, count, None, what))
            continue
        if now is not None:
            claims.append(Claim(line["path"], "checkpoint", None, count, now, None))
    return claims


def _best_file(run: RunFolder, problem: Problem, history: History) -> list[Claim]:
    unfinished = history.state in UNFINISHED
    line = history.handed_over if problem.repeatable else history.result
    if line is None and not (unfinished and (run.path / "best.json").exists()):
        return []
    named = None if line is None else line["plan"]
    value = None if line is None else int(line["value"])
    try:
        plan = load_plan(check_plain_file(run.path / "best.json"), problem.program, problem.machine)
    except LoadmasterError as error:
        # A run killed between the line and the copy is whole: resuming makes the copy.
        if history.state == "unfinished" and not (run.path / "best.json").exists():
            return []
        return [Claim("best.json", "best", named, value, None, error.message)]
    # Runs of earlier versions have what their solver found there, whatever was known beside it.
    if history.result is not None and plan.hash == history.result["plan"]:
        named, value = plan.hash, history.result_value
    earlier = [line["plan"] for line in (*history.improvements, *history.of("baseline"))]
    if plan.hash == named or (unfinished and plan.hash in earlier):
        return [Claim("best.json", "best", plan.hash, value, value, None)]
    # An earlier session may have been further than the one that was interrupted last.
    now = problem.value_of(plan) if unfinished and problem.repeatable else None
    if now is not None and (value is None or now < value) and not problem.violations(plan):
        return [Claim("best.json", "best", plan.hash, now, now, None)]
    fault = "it is not the best plan of the log"
    return [Claim("best.json", "best", plan.hash, value, None, fault)]
