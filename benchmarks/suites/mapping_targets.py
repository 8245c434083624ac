"""What EGRL is to reach, held against the rows: met, missed, or not measured yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from benchmarks.suites.mapping_cells import CELLS, NINE, ROOM
from benchmarks.suites.mapping_solvers import PIECES, VARIANTS
from benchmarks.suites.mapping_summary import Summary, mean_excess_at, mean_gap_after, mean_gap_at

Found = Mapping[tuple[str, str], Summary]
GOALS = {1: (0.005, 0.02), 50: (0.0015, 0.005), 200: (0.001, 0.002), 1_000: (0.0005, 0.001)}
"""Evaluations -> mean gap over the nine cells, and over those with room."""
SEEDS = 5
SAME = 1e-4
"""Means that differ by less are the same."""
MOST_SECONDS = 5.0
"""For 1,000 evaluations of ResNet-101 on two cores."""
EQUAL_SECONDS = (0.1, 0.3, 1.0)
HELD_OUT = {
    "models and machines": "held-out-both/",
    "models": "held-out-model/",
    "machines": "held-out-machine/",
}


@dataclass(frozen=True)
class Target:
    """One line: the goal, what came out, and whether it was reached (None: not measured)."""

    goal: str
    result: str
    met: bool | None

    @property
    def word(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "**missed**"


def targets(found: Found) -> list[Target]:
    """All of them."""
    return [
        *(_gap(found, evaluations) for evaluations in GOALS),
        _legal(found),
        _not_slower(found),
        *(_trained(found, name, prefix) for name, prefix in HELD_OUT.items()),
        *(_whole(found, seconds) for seconds in EQUAL_SECONDS),
        _quick(found),
    ]


def _gap(found: Found, evaluations: int) -> Target:
    nine, room = GOALS[evaluations]
    plural = "" if evaluations == 1 else "s"
    goal = f"{evaluations:,} evaluation{plural}: mean gap ≤ {nine:.2%} / {room:.1%}, nine / room cells"
    means = [mean_gap_at(found, "egrl", cases, evaluations) for cases in (NINE, ROOM)]
    if means[0] is None or means[1] is None:
        return Target(goal, "–", None)
    text = f"{means[0]:.2%} / {means[1]:.2%}"
    few = [case for case in (*NINE, *ROOM) if len(found[case, "egrl"].rows) < SEEDS]
    text += f", fewer than {SEEDS} seeds in {len(few)} cells" if few else ""
    return Target(goal, text, None if few else means[0] <= nine and means[1] <= room)


def _legal(found: Found) -> Target:
    goal = "no illegal evaluation outside `profile=paper`"
    rows = [row for (_, solver), summary in found.items() if solver in VARIANTS for row in summary.rows]
    illegal = sum(row["extra"]["invalid_fraction"] > 0 for row in rows)
    text = f"{illegal:,} of {len(rows):,} runs with one" if rows else "–"
    return Target(goal, text, not illegal if rows else None)


def _not_slower(found: Found) -> Target:
    goal = "never slower than the compiler in any of the twenty cells, whatever it knows"
    own = [
        (case, solver)
        for case in (*NINE, *ROOM)
        for solver in ("egrl", "egrl-strict")
        if (case, solver) in found
    ]
    slower = [
        f"`{solver}` in `{case}`"
        for case, solver in own
        if max(found[case, solver].times) > found[case, solver].baseline
    ]
    whole = len(own) == 2 * len((*NINE, *ROOM))
    text = "slower: " + ", ".join(slower) if slower else f"nowhere slower ({len(own)} cells)"
    return Target(goal, text if own else "–", False if slower else True if whole else None)


def _trained(found: Found, name: str, prefix: str) -> Target:
    goal = f"held-out {name}: trained better than untrained after 1 and 50 evaluations, not worse after 200"
    cases = [case for case in CELLS if case.startswith(prefix)]
    words, met = [], True
    for evaluations in (1, 50, 200):
        pair = [mean_excess_at(found, s, cases, evaluations) for s in ("egrl", "egrl-untrained")]
        if pair[0] is None or pair[1] is None:
            return Target(goal, "–", None)
        words.append(f"{pair[0]:.2%} against {pair[1]:.2%}")
        met &= pair[0] < pair[1] if evaluations < 200 else pair[0] <= pair[1] + SAME
    return Target(goal, ", ".join(words) + " over the best found", met)


def _whole(found: Found, seconds: float) -> Target:
    goal = f"as it is, no slower than other combinations of its parts after {seconds:g} s, mean over the twenty cells"
    cases = [f"seconds/{case}" for case in (*NINE, *ROOM)]
    whole = mean_gap_after(found, "egrl", cases, seconds)
    parts = {
        label: gap
        for label in PIECES
        if "untrained" not in label and (gap := mean_gap_after(found, label, cases, seconds)) is not None
    }
    if whole is None or not parts:
        return Target(goal, "–", None)
    best = min(parts, key=lambda label: parts[label])
    return Target(goal, f"{whole:.3%} against {parts[best]:.3%} (`{best}`)", whole <= parts[best])


def _quick(found: Found) -> Target:
    goal = f"a first answer within a second, 1,000 evaluations of ResNet-101 within {MOST_SECONDS:g} s"
    summary = found.get(("resnet101/nnp-i", "egrl"))
    if summary is None:
        return Target(goal, "–", None)
    first = max(row["extra"]["first_seconds"] or 0.0 for row in summary.rows)
    took = fmean(row["seconds"] for row in summary.rows)
    full = [row for row in summary.rows if row["evaluations"] >= 1_000]
    return Target(goal, f"{first:.2f} s, {took:.1f} s", first <= 1 and took <= MOST_SECONDS if full else None)
