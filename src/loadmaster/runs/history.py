"""`History`: what a log tells as a whole, and whether its lines agree with one another; what a run hands over."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from loadmaster.plan import Plan, load_plan
from loadmaster.runs.folder import CHAMPION, RunFolder, check_plain_file
from loadmaster.runs.log import Line, compute_digest
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.registry import load_problem
from loadmaster.search.solver import Budget


def compute_gap(value: int | None, bound: int | None) -> float | None:
    """value / bound - 1, where that means something."""
    return None if value is None or bound is None or bound <= 0 else value / bound - 1


@dataclass(frozen=True)
class History:
    """The lines of a log, read."""

    lines: list[Line]

    def of(self, event: str) -> list[Line]:
        return [line for line in self.lines if line["event"] == event]

    @cached_property
    def improvements(self) -> list[Line]:
        return self.of("improve")

    @cached_property
    def curve(self) -> list[tuple[int, int]]:
        """(evaluations, value) of every improvement, those that were not checked included."""
        found: list[tuple[int, int]] = []
        for line in self.improvements:
            found += [(evaluations, value) for evaluations, value in line.get("passed") or ()]
            if not found or found[-1][1] != line["value"]:  # else found before it was checked
                found.append((line["evals"], line["value"]))
        return found

    @property
    def best(self) -> Line | None:
        """The latest improvement."""
        return self.improvements[-1] if self.improvements else None

    @cached_property
    def choice(self) -> Line | None:
        """What a solver ended with in place of the latest improvement."""
        last = [line for line in self.lines if line["event"] in ("improve", "choose")][-1:]
        return last[0] if last and last[0]["event"] == "choose" else None

    @property
    def result(self) -> Line | None:
        """The line of the plan that the run is for."""
        return self.choice or self.best

    @property
    def baseline(self) -> Line | None:
        """The best of known methods' plans, if it is better than whatever the solver has found."""
        line = min(self.of("baseline"), key=lambda line: int(line["value"]), default=None)
        return line if line is not None and (self.value is None or line["value"] < self.value) else None

    @property
    def handed_over(self) -> Line | None:
        """The line of the best plan that is known, whoever it is from. Of values that were measured only the
        solver's count: one measurement of a baseline says little."""
        return self.baseline or self.result

    @property
    def result_value(self) -> int | None:
        return None if self.result is None else int(self.result["value"])

    @property
    def value(self) -> int | None:
        return None if self.best is None else int(self.best["value"])

    @cached_property
    def bound(self) -> Bound | None:
        lines = self.of("bound")
        return Bound(lines[-1]["value"], lines[-1]["method"]) if lines else None

    @property
    def optimal(self) -> bool:
        return self.value is not None and self.bound is not None and self.value <= self.bound.value

    @property
    def seconds(self) -> float:
        """Seconds of running, stops excluded."""
        return max((float(line["t"]) for line in self.lines), default=0.0)

    @property
    def evaluations(self) -> int:
        return int(self.lines[-1]["evals"]) if self.lines else 0

    @property
    def budget(self) -> Budget:
        """That of the latest session."""
        begun = [line for line in self.lines if line["event"] in ("start", "resume")][-1:]
        return read_budget(begun[0]) if begun else Budget()

    @property
    def counted(self) -> bool:
        """Whether every session had a limit in evaluations."""
        begun = self.of("start") + self.of("resume")
        return all(read_budget(line).evaluations is not None for line in begun)

    @property
    def clocked(self) -> bool:
        """Whether any session had a limit in seconds."""
        begun = self.of("start") + self.of("resume")
        return any(read_budget(line).seconds is not None for line in begun)

    @property
    def state(self) -> str:
        """Why it stopped; 'unfinished' if it runs, or was killed."""
        last = self.lines[-1] if self.lines else None
        return str(last["reason"]) if last and last["event"] == "stop" else "unfinished"

    def find_when_reached(self, value: int) -> tuple[int, float] | None:
        """Evaluations and seconds after which it was as good as that; the seconds are those of
        the log's line."""
        line = next((line for line in self.improvements if line["value"] <= value), None)
        if line is None:
            return None
        evaluations = next(number for number, found in self.curve if found <= value)
        return evaluations, float(line["t"])


@dataclass(frozen=True)
class HandedOver:
    """The plan that a run is for: the best one known, whoever it is from."""

    value: int
    origin: str
    """The solver, a known method beside it, or 'optimum', found for comparison: as `plan` says it."""
    plan: str
    """Its hash."""


def find_handed_over(
    run: RunFolder, history: History, problem: Problem | None = None
) -> tuple[HandedOver, Plan | None] | None:
    """What a run hands over, and the plan itself where it is not one of the log. `problem`: the run's, where it is
    known already.

    Known methods are candidates where `best.json` says so: of measured values only the solver's count, and runs of
    earlier versions have their solver's plan there.
    """
    line, known = history.result, history.baseline
    if known is not None and _is_best(run, str(known["plan"])):
        line = known
    if line is None:
        return None
    solver = str(run.about["solver"].get("name"))
    found = HandedOver(int(line["value"]), str(line["name"]) if line is known else solver, str(line["plan"]))
    champion = run.path / CHAMPION
    if champion.exists():
        problem = problem or load_problem(run.path)
        plan = load_plan(check_plain_file(champion), problem.program, problem.machine)
        value = problem.value_of(plan) if problem.repeatable and not problem.violations(plan) else None
        if value is not None and value < found.value:
            return HandedOver(value, "optimum", plan.hash), plan
    return found, None


def _is_best(run: RunFolder, plan_hash: str) -> bool:
    """Whether `best.json` is a copy of a stored plan."""
    best, stored = run.path / "best.json", run.path / "plans" / f"{plan_hash}.json"
    if not best.exists() or not stored.exists():
        return False
    return filecmp.cmp(check_plain_file(best), check_plain_file(stored), shallow=False)


def describe_run(run: RunFolder, history: History) -> dict[str, Any]:
    """A run in one row: what was asked, how it stands, and the value of the plan that it hands over."""
    about, found = run.about, find_handed_over(run, history)
    names, kind = about["names"], about["keys"].get("problem")
    value = None if found is None else found[0].value
    bound = None if history.bound is None else history.bound.value
    return {
        "run": run.path.name or str(run.path),
        "program": str(names.get("program")),
        "machine": str(names.get("machine")),
        "problem": str(kind.get("kind")) if isinstance(kind, dict) else "None",
        "solver": str(about["solver"].get("name")),
        "seed": about["seed"],
        "started": about["created"],
        "unit": about["unit"],
        "value": value,
        "origin": None if found is None else found[0].origin,
        "solver_value": history.result_value,
        "plan": None if found is None else found[0].plan,
        "bound": bound,
        "gap": compute_gap(value, bound),
        "evaluations": history.evaluations,
        "seconds": history.seconds,
        "state": history.state,
    }


def read_budget(line: Line) -> Budget:
    """The budget of a 'start' or 'resume' line."""
    budget = line.get("budget")
    limits = budget if isinstance(budget, dict) else {}
    evaluations, seconds = limits.get("evaluations"), limits.get("seconds")
    counted = evaluations if type(evaluations) is int else None
    return Budget(counted, float(seconds) if isinstance(seconds, int | float) else None)


def find_contradictions(history: History) -> list[str]:
    """Where lines of a log contradict one another: none in a log that nobody changed."""
    return [*_changed(history.lines), *_miscounted(history.lines), *_misvalued(history)]


def _changed(lines: list[Line]) -> Iterator[str]:
    """The first line that is not as it was written; logs of older versions have no digests."""
    before = ""
    for line in lines if lines and "digest" in lines[0] else ():
        if line.get("digest") != compute_digest(line, before):
            yield f"line {line['seq'] + 1}: it was changed: its digest is another"
            return
        before = line["digest"]


def _miscounted(lines: list[Line]) -> Iterator[str]:
    """Evaluations go on from what they were, or a checkpoint's, and end within the budget."""
    reached, most = 0, None
    made: dict[str | None, int] = {None: 0}
    for line in lines:
        where, evals = f"line {line['seq'] + 1}", line["evals"]
        if line["event"] in ("start", "resume"):
            start = line["from_evals"]
            if evals != start or start not in (made.get(line.get("from_checkpoint")), reached):
                yield f"{where}: it goes on from {start} evaluations, which is no checkpoint's count"
            budget = read_budget(line).evaluations
            most = None if budget is None else max(budget, start)
        elif evals < reached:
            yield f"{where}: evals go back from {reached} to {evals}"
        if most is not None and evals > most:
            yield f"{where}: {evals} evaluations, and the budget is {most}"
        if line["event"] == "checkpoint":
            made[line["path"]] = evals
        if line["event"] == "stop" and line["reason"] == "budget" and evals != most:
            yield f"{where}: it stopped after {evals} evaluations for its budget of {most}"
        reached = evals


def _misvalued(history: History) -> list[str]:
    """Best values fall, bounds rise, and lines that sum up agree with both."""
    found: list[str] = []
    best: int | None = None
    bound: int | None = None
    seconds = 0.0
    logged = 0
    """Evaluations up to which every improvement is in the log."""

    def expect(line: Line, name: str, now: float | None) -> None:
        stated = line.get(name)  # what may be null may be missing
        if stated != now:
            found.append(f"line {line['seq'] + 1}: {name} is {stated} and should be {now}")

    for line in history.lines:
        where, event = f"line {line['seq'] + 1}", line["event"]
        if line["t"] < seconds:
            found.append(f"{where}: t goes back from {seconds} to {line['t']}")
        seconds = line["t"]
        if event in ("start", "resume"):
            logged = line["evals"]
        elif event == "improve":
            found += [f"{where}: {fault}" for fault in _passed_faults(line, logged, best, bound)]
            logged = line["evals"]
            if best is not None and line["value"] >= best:
                found.append(f"{where}: {line['value']} is no improvement on {best}")
            best = line["value"]
            expect(line, "gap", compute_gap(best, bound))
            expect(line, "checked", True)
        elif event == "choose":
            if best is None or line["value"] < best:
                found.append(f"{where}: the choice {line['value']} is better than the best {best}")
            expect(line, "gap", compute_gap(line["value"], bound))
        elif event == "bound":
            if bound is not None and line["value"] <= bound:
                found.append(f"{where}: the bound {line['value']} is not above {bound}")
            bound = line["value"]
            expect(line, "proven_optimal", best is not None and best <= line["value"])
        elif event in ("progress", "stop"):
            expect(line, "best", best)
            expect(line, "bound", bound)
            expect(line, "gap", compute_gap(best, bound))
        if best is not None and bound is not None and best < bound and event in ("improve", "bound"):
            found.append(f"{where}: the best {best} is below the bound {bound}")
    return found


def _passed_faults(line: Line, logged: int, best: int | None, bound: int | None) -> Iterator[str]:
    """What is wrong with the improvements that a line has beside its own."""
    for evaluations, value in line.get("passed") or ():
        if not logged < evaluations < line["evals"]:
            yield f"passed {evaluations} evaluations are not between {logged} and {line['evals']}"
        if (best is not None and value >= best) or value < line["value"]:
            yield f"the passed {value} is no improvement from {best} to {line['value']}"
        if bound is not None and value < bound:
            yield f"the passed {value} is below the bound {bound}"
        logged, best = evaluations, value
