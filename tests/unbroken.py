"""Whether two runs are the same run, but for when things happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadmaster.runs import History, RunFolder
from loadmaster.runs.history import find_contradictions
from loadmaster.runs.replay import replay

BY_CLOCK = ("progress", "checkpoint", "resume", "improve")
"""Events that come when they come; all others come after the same evaluations in every such run.
Which improvements have a line of their own depends on how long checks take: the curve has them all."""
TIMES = ("seq", "t", "digest", "utc", "keys", "budget", "passed")


def told(run: Path) -> list[dict[str, Any]]:
    """The log without what a clock decides."""
    lines = RunFolder.open(run).read_log().lines
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in lines
        if line["event"] not in BY_CLOCK
    ]


def difference(run: Path, whole: Path) -> str | None:
    """How a run that was interrupted differs from one that was not; None: it does not."""
    history, expected = (History(RunFolder.open(path).read_log().lines) for path in (run, whole))
    if history.curve != expected.curve:
        return f"improvements {history.curve} and not {expected.curve}"
    plans, other_plans = (
        {line["evals"]: line["plan"] for line in each.improvements} for each in (history, expected)
    )
    for evaluations in plans.keys() & other_plans.keys():
        if plans[evaluations] != other_plans[evaluations]:
            return f"another plan after {evaluations} evaluations"
    if max(plans, default=0) != max(other_plans, default=0):
        return "another last improvement"
    for line, other in zip(told(run), told(whole), strict=False):
        if line != other:
            return f"{line} and not {other}"
    if len(told(run)) != len(told(whole)):
        return f"{len(told(run))} lines and not {len(told(whole))}"
    best, other_best = ((path / "best.json") for path in (run, whole))
    if best.exists() != other_best.exists():
        return "one has no best.json"
    if best.exists() and best.read_bytes() != other_best.read_bytes():
        return "another best.json"
    faults = find_contradictions(history) or [str(claim) for claim in replay(RunFolder.open(run)).broken]
    return f"replay: {faults[0]}" if faults else None
