"""What the rows of the mapping suite say together: means over seeds, verdicts, wins and losses.

Two solvers are told apart only if the 95 % bootstrap interval of the difference of their mean
times excludes 0. A seed that found no map that fits counts with the time of all in the slowest
memory: that is the plan one is left with.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Record = Mapping[str, Any]
"""A row as it is recorded (`Row.as_dict`)."""
RESAMPLES = 10_000
BEATS, LOSES, NEITHER = "better", "worse", "no difference shown"


@dataclass(frozen=True)
class Summary:
    """One solver in one case over all its seeds."""

    case: str
    solver: str
    white_box: bool
    times: tuple[float, ...]
    """Best time of each seed in picoseconds, by seed."""
    seeds: tuple[int, ...]
    baseline: float
    """The compiler's time."""
    bound: float
    """The best bound that any row of the case has, or the best value that anyone found where that is smaller:
    a linear program's bound may be too high by a rounding of its solver (`lowered`)."""
    evaluations: float
    seconds: float
    found_nothing: int
    rows: tuple[Record, ...]
    best: float = 0.0
    """The best value that anyone found in the case."""
    lowered: bool = False

    @property
    def loose(self) -> bool:
        """Whether nobody has come to the bound, so that a gap to it may be the bound's fault."""
        proven = any(row["extra"].get("bound_proven") for row in self.rows)
        return self.best > self.bound and not proven

    @property
    def slowest(self) -> float:
        """The time of all in the slowest memory."""
        return float(self.rows[0]["extra"]["all_slowest"])

    def times_at(self, evaluations: int) -> tuple[float, ...]:
        """Best time of each seed after so many evaluations; of a white box its only one, of who has nothing
        yet all in the slowest memory."""
        return tuple(self._time_at(row, evaluations) for row in self.rows)

    def _time_at(self, row: Record, evaluations: int) -> float:
        if row["extra"].get("white_box"):
            return float(row["value"])
        known = row["extra"].get("at", {})
        if str(evaluations) in known:
            value = known[str(evaluations)]
        else:
            curve = row["extra"].get("curve", ())
            value = next((best for at, best in reversed(curve) if at <= evaluations), None)
        return self.slowest if value is None else float(value)

    def times_after(self, seconds: float) -> tuple[float, ...] | None:
        """Best time of each seed after so many seconds; None: not every row has it."""
        if self.white_box:
            return self.times if self.seconds <= seconds else None
        known = [row["extra"].get("at_seconds", {}) for row in self.rows]
        if any(f"{seconds:g}" not in each for each in known):
            return None
        return tuple(float(each[f"{seconds:g}"] or self.slowest) for each in known)

    def gap_of(self, times: Sequence[float]) -> float:
        """Of the mean of times to the bound."""
        return statistics.fmean(times) / self.bound - 1

    def excess_of(self, times: Sequence[float]) -> float:
        """Of the mean of times over the best that anyone found."""
        return statistics.fmean(times) / self.best - 1

    @property
    def mean(self) -> float:
        return statistics.fmean(self.times)

    @property
    def gap(self) -> float:
        """Of the mean time to the bound."""
        return self.mean / self.bound - 1


def summaries(rows: Iterable[Record]) -> dict[tuple[str, str], Summary]:
    """By case and solver, in the order of the rows. Skipped rows count for nothing."""
    groups: dict[tuple[str, str], list[Record]] = {}
    bounds: dict[str, float] = {}
    best: dict[str, float] = {}
    for row in rows:
        if row["status"] == "skipped" or row["unit"] != "ps":
            continue
        groups.setdefault((row["case"], row["solver"]), []).append(row)
        case = _base(row["case"])
        bounds[case] = max(bounds.get(case, 0.0), row["bound"] or 0.0)
        if row["value"] > 0:
            best[case] = min(best.get(case, row["value"]), row["value"])
    return {
        key: _summary(
            key, sorted(group, key=lambda row: row["seed"]), bounds[base], best.get(base, bounds[base])
        )
        for key, group in groups.items()
        for base in [_base(key[0])]
    }


def _base(case: str) -> str:
    """The case without 'budget-50/': the same problem, whatever the evaluations."""
    return case.split("/", 1)[1] if case.startswith("budget-") else case


def _summary(key: tuple[str, str], rows: list[Record], bound: float, best: float) -> Summary:
    times = tuple(row["value"] if row["value"] > 0 else float(row["extra"]["all_slowest"]) for row in rows)
    nothing = sum(row["value"] <= 0 for row in rows)
    return Summary(
        *key,
        bool(rows[0]["extra"].get("white_box")),
        times,
        tuple(row["seed"] for row in rows),
        float(rows[0]["baseline"]),
        min(bound, best),
        statistics.fmean(row["evaluations"] for row in rows),
        statistics.fmean(row["seconds"] for row in rows),
        nothing,
        tuple(rows),
        best,
        bound > best,
    )


Found = Mapping[tuple[str, str], Summary]


def at(found: Found, case: str, solver: str, evaluations: int) -> tuple[Summary, tuple[float, ...]] | None:
    """A solver in a case, and its times after so many evaluations: of runs that had so many from the start,
    where there are any."""
    summary = found.get((case, solver))
    if summary is None:
        return None
    short = found.get((f"budget-{evaluations}/{case}", solver))
    return summary, summary.times_at(evaluations) if short is None else short.times


def mean_gap_at(found: Found, solver: str, cases: Iterable[str], evaluations: int) -> float | None:
    """Mean over cells of a solver's mean gap after so many evaluations; None: it lacks a cell."""
    own = [at(found, case, solver, evaluations) for case in cases]
    gaps = [each[0].gap_of(each[1]) for each in own if each is not None]
    return statistics.fmean(gaps) if gaps and len(gaps) == len(own) else None


def mean_excess_at(found: Found, solver: str, cases: Iterable[str], evaluations: int) -> float | None:
    """Mean over cells of what a solver's time is above the best that anyone found, after so many evaluations."""
    own = [at(found, case, solver, evaluations) for case in cases]
    over = [each[0].excess_of(each[1]) for each in own if each is not None]
    return statistics.fmean(over) if over and len(over) == len(own) else None


def mean_gap_after(found: Found, solver: str, cases: Iterable[str], seconds: float) -> float | None:
    """Mean over cells of a solver's mean gap after so many seconds; None: it lacks a cell."""
    gaps: list[float] = []
    for case in cases:
        summary = found.get((case, solver))
        times = None if summary is None else summary.times_after(seconds)
        if summary is None or times is None:
            return None
        gaps.append(summary.gap_of(times))
    return statistics.fmean(gaps) if gaps else None


def difference_interval(
    a: Sequence[float], b: Sequence[float], *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[float, float]:
    """95 % bootstrap interval of mean(a) - mean(b); the two are resampled apart from each other."""
    rng = np.random.default_rng(seed)
    means = []
    for values in (np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)):
        drawn = rng.integers(len(values), size=(resamples, len(values)))
        means.append(values[drawn].mean(axis=1))
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975]).tolist()
    return low, high


def verdict(a: Sequence[float], b: Sequence[float]) -> str:
    """Whether times a are shorter than times b: 'better', 'worse' or 'no difference shown'."""
    low, high = difference_interval(a, b)
    # A mean of equal numbers may differ in its last bit, which is no difference.
    tiny = 1e-12 * max(1.0, abs(statistics.fmean(b)))
    return BEATS if high < -tiny else LOSES if low > tiny else NEITHER


@dataclass(frozen=True)
class Comparison:
    """One solver against another over many cases."""

    solver: str
    other: str
    verdicts: dict[str, str]
    """Case -> better, worse, no difference shown."""

    def count(self, word: str) -> int:
        return list(self.verdicts.values()).count(word)


def compare(found: Found, solver: str, other: str, cases: Iterable[str], evaluations: int) -> Comparison:
    """After so many evaluations, where both have rows."""
    verdicts: dict[str, str] = {}
    for case in cases:
        a, b = at(found, case, solver, evaluations), at(found, case, other, evaluations)
        if a is not None and b is not None:
            verdicts[case] = verdict(a[1], b[1])
    return Comparison(solver, other, verdicts)


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Rows by (case, solver, seed), the new ones in place of the old, in order of those three."""
    by_key = {(row["case"], row["solver"] or "", row["seed"]): row for row in [*old, *new]}
    return [by_key[key] for key in sorted(by_key)]
