"""Learning curves: the best value against evaluations and seconds, with baselines and bounds."""

from __future__ import annotations

import json
from typing import Any

from loadmaster.report.subject import Subject
from loadmaster.runs.history import History

_MOST_POINTS = 4_000


def curves(subjects: list[Subject]) -> dict[str, Any] | None:
    """Of the runs among them; None if no run has a curve worth a picture."""
    runs = [subject for subject in subjects if subject.history is not None]
    lines = [_run(subject, subject.history) for subject in runs if subject.history is not None]
    if not any(len(line["evaluations"]) > 1 for line in lines):
        return None
    known: dict[str, int] = {}
    for subject in runs:
        for line in [] if subject.history is None else subject.history.of("baseline"):
            known.setdefault(str(line["name"]), int(line["value"]))
    bounds = [subject.bound for subject in runs if subject.bound]
    return {"runs": lines, "baselines": list(known.items()), "bound": max(bounds, default=None)}


def _run(subject: Subject, history: History) -> dict[str, Any]:
    curve, lines = _thinned(history.curve), _thinned(history.improvements)
    about = {} if subject.run is None else subject.run.about
    solver = about.get("solver", {})
    return {
        "name": subject.name,
        # Runs of one solver with equal settings are one group: they differ in their seeds.
        "group": json.dumps([solver.get("name"), solver.get("switches")], sort_keys=True),
        "solver": str(solver.get("name")),
        "seed": about.get("seed"),
        "evaluations": [evaluations for evaluations, _ in curve],
        "values": [value for _, value in curve],
        "seconds": [float(line["t"]) for line in lines],
        "values_by_seconds": [int(line["value"]) for line in lines],
        "last_evaluation": history.evaluations,
        "last_second": history.seconds,
    }


def _thinned(points: list[Any]) -> list[Any]:
    """Enough of them for a picture, the last one among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    kept = points[::step]
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]
