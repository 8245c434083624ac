"""What the rows of the graph suite say together: the best classical solver of each cell, its gap to
the bound, and the targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.suites.graph_cells import CELLS, CLASSICAL, WORKLOADS
from benchmarks.suites.malloc_summary import Found, Played, bound_of
from benchmarks.suites.mapping_targets import Target
from benchmarks.suites.order import ONNX, TRAINING
from benchmarks.suites.order_runtime import RUNTIME

PROVABLE = 5_000
"""Of training graphs up to so many ops, at least half have a proven order."""
Rows = Iterable[Mapping[str, Any]]


def workload_cases(found: Found, kind: str) -> list[str]:
    """The cells of 'placement' or 'joint' that have rows, in the suite's order."""
    known = {case for case, _ in found}
    return [case for model in WORKLOADS if (case := f"{kind}/{model}") in known]


def other_cases(found: Found, kind: str) -> list[str]:
    """The cells of 'synthetic', 'external' or 'order' that have rows."""
    return list(dict.fromkeys(case for case, _ in found if case.startswith(f"{kind}/")))


def best_classical(found: Found, case: str) -> tuple[str, Played] | None:
    """The bar for a learned agent: the solver with the lowest median in a cell."""
    known = [(name, found[case, name]) for name in CLASSICAL if (case, name) in found]
    return min(known, key=lambda pair: pair[1].median) if known else None


def gap(found: Found, case: str, solver: str) -> float | None:
    """Of the median, to the best bound that any row of the cell has."""
    bound = bound_of(found, case)
    return found[case, solver].median / bound - 1 if (case, solver) in found and bound > 0 else None


def saved(found: Found, solver: str, over: str, cases: Sequence[str]) -> tuple[float, int] | None:
    """(1 - t / t', cells): by the geometric mean over the cells that both have."""
    ratios = [
        found[case, solver].median / found[case, over].median
        for case in cases
        if (case, solver) in found and (case, over) in found
    ]
    return (1 - math.exp(statistics.fmean(map(math.log, ratios))), len(ratios)) if ratios else None


def saved_over_base(found: Found, solver: str, cases: Sequence[str]) -> float | None:
    """The same, over the base plans."""
    ratios = [
        found[case, solver].median / found[case, solver].rows[0]["baseline"]
        for case in cases
        if (case, solver) in found
    ]
    return 1 - math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def targets(found: Found, rows: Rows) -> list[Target]:
    """The targets, held against the rows."""
    rows = list(rows)
    return [*_speeds(rows), *_orders(found), _complete(found)]


def _speeds(rows: Rows) -> list[Target]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["case"].startswith("speed/") and row["status"] in ("met", "missed"):
            found.setdefault("/".join(row["case"].split("/")[:2]), []).append(row)
    what = {
        "speed/large": "one evaluation of `gnmt-8` on eight devices, all three tasks, one core, < 80 ms",
        "speed/small": "about 1,000 ops: at least 5,000 evaluations a second on two cores",
        "speed/heft": "HEFT on 80,484 ops in under 10 s",
        "speed/m-etf": "m-ETF on 80,484 ops in under 10 s",
        "speed/metis": "METIS on 80,484 ops in under 5 s",
    }
    lines = []
    for case, goal in what.items():
        group = found.get(case)
        if not group:
            lines.append(Target(goal, "–", None))
            continue
        values = ", ".join(
            f"{row['value']:,.4g} {row['unit']}"
            + (f" ({row['extra']['vectors']})" if "vectors" in row["extra"] else "")
            for row in group
        )
        lines.append(Target(goal, values, all(row["status"] == "met" for row in group)))
    return lines


def _orders(found: Found) -> list[Target]:
    onnx = [f"order/light_{name}" for name in ONNX]
    small = [
        case
        for name in TRAINING
        if (case := f"order/{name}") in other_cases(found, "order")
        and found[case, _any(found, case)].extra("ops") <= PROVABLE
    ]
    every = other_cases(found, "order")
    proven = [case for case in every if _proven(found, case)]
    worse = [
        case
        for case in every
        if (case, "auto") in found and found[case, "auto"].median > found[case, "auto"].rows[0]["baseline"]
    ]
    lost = [
        case
        for case in every
        for rule in ("depth-first", "reverse-post-order", RUNTIME)
        if (case, "auto") in found
        and (case, rule) in found
        and found[case, "auto"].median > found[case, rule].median
    ]
    return [
        _share("least peak by order proven on every graph of the `onnx` package", onnx, proven, found, 1.0),
        _share(
            f"and on at least half of the training graphs up to {PROVABLE:,} ops", small, proven, found, 0.5
        ),
        Target(
            "never worse than the order that the graph came with",
            ", ".join(f"`{case}`" for case in worse) or f"none of {len(every)}",
            not worse if every else None,
        ),
        Target(
            "nor than depth-first, reverse post-order and ONNX Runtime's default",
            ", ".join(f"`{case}`" for case in lost) or f"none of {len(every)}",
            not lost if every else None,
        ),
    ]


def _any(found: Found, case: str) -> str:
    return next(solver for name, solver in found if name == case)


def _proven(found: Found, case: str) -> bool:
    bound = bound_of(found, case)
    return any(group.best <= bound for (name, _), group in found.items() if name == case)


def _share(goal: str, cases: Sequence[str], proven: Sequence[str], found: Found, share: float) -> Target:
    known = [case for case in cases if any(name == case for name, _ in found)]
    if not known:
        return Target(goal, "–", None)
    count = sum(case in proven for case in known)
    whole = len(known) == len(cases)
    left = [f"`{case.partition('/')[2]}`" for case in known if case not in proven]
    text = f"{count} of {len(known)}" + (f"; not {', '.join(left)}" if left else "")
    return Target(goal, text, count >= share * len(known) if whole else None)


def _complete(found: Found) -> Target:
    cases = [case for case in CELLS if case.startswith(("placement/", "joint/"))]
    named = [case for case in cases if best_classical(found, case) is not None]
    return Target(
        "the best classical solver and its gap for each workload",
        f"{len(named)} of {len(cases)} cells",
        len(named) == len(cases) if named else None,
    )
