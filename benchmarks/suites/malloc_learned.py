"""What the rows of the malloc suite say about the published agent: beside production, MSA and searches at equal
numbers of games, as it is (zero-shot) and after play."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suites.malloc_cells import HELD_OUT
from benchmarks.suites.malloc_summary import TIE, Found, suite_cases
from benchmarks.suites.mapping_targets import Target

AGENT = "paper"
SEARCHED = "paper-32-simulations"
FIRST = 4
"""Whole games that are called zero-shot: nothing was learned before them."""
EVOLUTION = ("es-moves", "msa-order")
RIVALS = ("es-moves", "anneal-moves", "climb", "random-best")
"""Searches over moves, from scratch."""


@dataclass(frozen=True)
class Line:
    """One program on one machine; times in picoseconds."""

    case: str
    games: int
    production: float
    """The better of the plan and of what it was before the checker's stricter rules changed it"""
    production_plan: float
    msa: float
    greedy: float
    evolution: tuple[str, float]
    """The better evolutionary search at as many games."""
    rival: tuple[str, float]
    """The best search over moves at as many games."""
    zero_shot: float
    agent: float
    bound: float

    @property
    def held_out(self) -> bool:
        return self.case.split("/")[0] in HELD_OUT

    @property
    def prod(self) -> float:
        """The better of the agent's plan and the production placement's: the time of a plan that there is."""
        return min(self.agent, self.production_plan)


def after(row: Mapping[str, Any], games: int) -> float:
    """The best value of a row's curve after so many evaluations."""
    known = [value for count, value in row["extra"]["curve"] if count <= games]
    return float(known[-1]) if known else math.inf


def lines(found: Found, machine: str) -> list[Line]:
    """All programs that the agent played."""
    answer = []
    for case in suite_cases(found, machine):
        if (case, AGENT) not in found or (case, "production") not in found:
            continue
        mine = found[case, AGENT]
        games = int(statistics.median(row["evaluations"] for row in mine.rows))
        answer.append(
            Line(
                case,
                games,
                found[case, "production"].reference,
                found[case, "production"].median,
                found[case, "msa"].median,
                min(
                    found[case, name].median
                    for name in ("greedy-order", "greedy-density")
                    if (case, name) in found
                ),
                _best(found, case, EVOLUTION, games),
                _best(found, case, RIVALS, games),
                statistics.median(after(row, FIRST) for row in mine.rows),
                mine.median,
                mine.bound,
            )
        )
    return answer


def _best(found: Found, case: str, names: Sequence[str], games: int) -> tuple[str, float]:
    known = [
        (name, statistics.median(after(row, games) for row in found[case, name].rows))
        for name in names
        if (case, name) in found
    ]
    return min(known, key=lambda pair: pair[1], default=("–", math.inf))


def mean_speedup(times: Iterable[tuple[float, float]]) -> float:
    """Geometric mean of (before / after)."""
    return math.exp(statistics.fmean(math.log(before / after) for before, after in times))


def share(good: Iterable[bool]) -> str:
    seen = list(good)
    return f"{sum(seen)} of {len(seen)}"


def learned_targets(found: Found, rows: Iterable[Mapping[str, Any]], machine: str) -> list[Target]:
    """What is required of the agent on one machine."""
    every = lines(found, machine)
    if not every:
        return []
    over = mean_speedup((line.production, line.prod) for line in every)
    evolved = mean_speedup((line.evolution[1], line.prod) for line in every)
    rivals = mean_speedup((line.rival[1], line.agent) for line in every)
    alone = [line.agent < line.production * (1 - TIE) for line in every]
    not_worse = [line.agent <= line.production * (1 + TIE) for line in every]
    targets = [
        Target(
            f"`paper-prod` at least 4 % faster than the production placement, mean over the suite, `{machine}`",
            f"{over - 1:+.2%}",
            over >= 1.04,
        ),
        Target(
            f"and at least as good as the best evolutionary search at equal games, `{machine}`",
            f"{evolved - 1:+.2%} (positive: the agent is faster)",
            evolved >= 1,
        ),
        Target(
            f"(ours) `paper` alone better than the best search over moves from scratch at equal games, `{machine}`",
            f"{rivals - 1:+.2%}",
            rivals > 1,
        ),
        Target(
            f"`paper` alone better than the production placement on two thirds of the programs, `{machine}`",
            f"{share(alone)} ({share(not_worse)} at least as good within 0.1 %)",
            sum(alone) >= 2 / 3 * len(every),
        ),
    ]
    held = [line for line in every if line.held_out]
    if held:
        greedy = [line.zero_shot < line.greedy for line in held]
        near = mean_speedup((line.msa, line.zero_shot) for line in held)
        beats = [line.agent < line.msa for line in held]
        targets += [
            Target(
                f"zero-shot on held-out programs: better than greedy, `{machine}`", share(greedy), all(greedy)
            ),
            Target(
                f"and within 3 % of MSA, mean, `{machine}`",
                f"{near - 1:+.2%} (positive: the agent is faster)",
                near >= 0.97,
            ),
            Target(f"after {held[0].games} games better than MSA, `{machine}`", share(beats), all(beats)),
        ]
    helped = [
        found[case, SEARCHED].median < found[case, "policy-only"].median * (1 - TIE / 10)
        for case in suite_cases(found, machine)
        if (case, SEARCHED) in found and (case, "policy-only") in found
    ]
    if helped:
        targets.append(
            Target(
                f"32 simulations better than the bare policy on three quarters of the programs, `{machine}`",
                share(helped),
                sum(helped) >= 0.75 * len(helped),
            )
        )
    return targets
