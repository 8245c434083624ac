"""What the rows of the malloc suite say together: medians over seeds, ratios, wins and losses."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suites.malloc_cells import PROGRAMS, SEARCHES, WARM
from benchmarks.suites.mapping_targets import Target

TIE = 1e-3
"""Times that differ by less are called equal."""
ALL_SEARCHES = SEARCHES + WARM


@dataclass(frozen=True)
class Played:
    """One solver in one game over its seeds."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def values(self) -> list[float]:
        return [row["value"] for row in self.rows if row["value"] > 0]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def reference(self) -> float:
        """What others are measured against: of a production placement the better of the plan and of
        what it was before the checker's stricter rules changed it."""
        as_issued = self.extra("as_issued")
        return min(self.median, float(as_issued)) if as_issued else self.median

    @property
    def best(self) -> float:
        return min(self.values)

    @property
    def worst(self) -> float:
        return max(self.values)

    @property
    def seconds(self) -> float:
        return float(statistics.median(row["seconds"] for row in self.rows))

    @property
    def bound(self) -> float:
        return float(max(row["bound"] for row in self.rows))

    def extra(self, name: str) -> Any:
        return self.rows[0]["extra"].get(name)


Found = dict[tuple[str, str], Played]


def played(rows: Iterable[Mapping[str, Any]]) -> Found:
    """(case, solver) -> its rows."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["solver"] and row["status"] != "skipped" and row["value"] > 0:
            found.setdefault((row["case"], row["solver"]), []).append(row)
    return {key: Played(tuple(group)) for key, group in found.items()}


def bound_of(found: Found, case: str) -> float:
    """The best lower bound that any row of a game has."""
    return max(group.bound for (name, _), group in found.items() if name == case)


def best_search(found: Found, case: str) -> tuple[str, Played] | None:
    """The search with the lowest median in a game."""
    known = [(name, found[case, name]) for name in ALL_SEARCHES if (case, name) in found]
    return min(known, key=lambda pair: pair[1].median) if known else None


def suite_cases(found: Found, machine: str) -> list[str]:
    """The games of the real programs on one machine that were played, in the suite's order."""
    known = {case for case, _ in found}
    return [case for name in PROGRAMS if (case := f"{name}/{machine}") in known]


def speedup(found: Found, solver: str, over: str, cases: Sequence[str]) -> float | None:
    """Geometric mean of the ratio of medians where both were played."""
    ratios = [
        found[case, over].reference / found[case, solver].median
        for case in cases
        if (case, solver) in found and (case, over) in found
    ]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def wins(found: Found, solver: str, over: str, cases: Sequence[str]) -> tuple[int, int, int]:
    """(wins, ties, losses) by medians."""
    count = [0, 0, 0]
    for case in cases:
        if (case, solver) in found and (case, over) in found:
            ratio = found[case, over].reference / found[case, solver].median
            count[0 if ratio > 1 + TIE else 2 if ratio < 1 - TIE else 1] += 1
    return count[0], count[1], count[2]


def targets(found: Found, rows: Iterable[Mapping[str, Any]], machine: str) -> list[Target]:
    """The targets, held against the rows."""
    cases = [case for case in suite_cases(found, machine) if (case, "production") in found]
    return [*_speeds(rows), _msa_near(found, cases, machine), *_search_beats(found, cases, machine)]


def _speeds(rows: Iterable[Mapping[str, Any]]) -> list[Target]:
    return [
        Target(
            f"{row['extra']['target']} per core in a batch of 64 ({row['case'].split('/')[1]})",
            f"{row['value']:,.0f} moves/s",
            row["status"] == "met",
        )
        for row in rows
        if row["case"].startswith("speed/") and row["case"] != "speed/self-play"
    ]


def _msa_near(found: Found, cases: Sequence[str], machine: str) -> Target:
    goal = f"MSA with the production switches within 2 % of the production placement, mean over the suite, `{machine}`"
    ratio = speedup(found, "msa-production", "production", cases)
    if ratio is None:
        return Target(goal, "–", None)
    return Target(goal, f"{ratio - 1:+.2%} (positive: ours is faster)", ratio >= 0.98)


def _search_beats(found: Found, cases: Sequence[str], machine: str) -> list[Target]:
    goal = (
        f"the best search at least 4 % faster than the production placement, mean over the suite, `{machine}`"
    )
    never = f"and worse on no program, `{machine}`"
    ratios = {}
    for case in cases:
        search = best_search(found, case)
        if search is not None:
            ratios[case] = found[case, "production"].reference / search[1].median
    if not ratios:
        return [Target(goal, "–", None), Target(never, "–", None)]
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    lost = [case for case, ratio in ratios.items() if ratio < 1]
    return [
        Target(goal, f"{mean - 1:+.2%} over {len(ratios)} programs", mean >= 1.04),
        Target(never, ", ".join(f"`{case}` {ratios[case] - 1:+.2%}" for case in lost) or "none", not lost),
    ]
