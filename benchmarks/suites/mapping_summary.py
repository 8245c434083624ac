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
    """The best bound that any row of the case has."""
    evaluations: float
    seconds: float
    found_nothing: int
    rows: tuple[Record, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.times)

    @property
    def deviation(self) -> float:
        """Of the sample; 0 for one seed."""
        return statistics.stdev(self.times) if len(self.times) > 1 else 0.0

    @property
    def gap(self) -> float:
        """Of the mean time to the bound."""
        return self.mean / self.bound - 1

    @property
    def gap_deviation(self) -> float:
        return self.deviation / self.bound

    @property
    def speedup(self) -> float:
        """Mean over seeds of the compiler's time / time."""
        return statistics.fmean(self.baseline / time for time in self.times)

    @property
    def on_cpu(self) -> tuple[Record, ...]:
        """The rows that were made without a GPU: seconds of the two kinds are no one number."""
        return tuple(row for row in self.rows if not row["extra"].get("gpu"))

    def median(self, name: str) -> float | None:
        """Median of a field of `extra`; None if a seed does not have it (never reached)."""
        values = [row["extra"].get(name) for row in self.rows]
        return None if any(value is None for value in values) else statistics.median(values)

    def counted(self, name: str) -> dict[str, int]:
        """How often each value of a field of `extra` occurs."""
        values = [str(row["extra"].get(name)) for row in self.rows]
        return {value: values.count(value) for value in sorted(set(values))}


def summaries(rows: Iterable[Record]) -> dict[tuple[str, str], Summary]:
    """By case and solver, in the order of the rows. Skipped rows count for nothing."""
    groups: dict[tuple[str, str], list[Record]] = {}
    bounds: dict[str, float] = {}
    for row in rows:
        if row["status"] == "skipped" or row["unit"] != "ps":
            continue
        groups.setdefault((row["case"], row["solver"]), []).append(row)
        bounds[row["case"]] = max(bounds.get(row["case"], 0.0), row["bound"] or 0.0)
    return {
        key: _summary(key, sorted(group, key=lambda row: row["seed"]), bounds[key[0]])
        for key, group in groups.items()
    }


def _summary(key: tuple[str, str], rows: list[Record], bound: float) -> Summary:
    times = tuple(row["value"] if row["value"] > 0 else float(row["extra"]["all_slowest"]) for row in rows)
    nothing = sum(row["value"] <= 0 for row in rows)
    return Summary(
        *key,
        bool(rows[0]["extra"].get("white_box")),
        times,
        tuple(row["seed"] for row in rows),
        float(rows[0]["baseline"]),
        bound,
        statistics.fmean(row["evaluations"] for row in rows),
        statistics.fmean(row["seconds"] for row in rows),
        nothing,
        tuple(rows),
    )


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


def compare(
    found: Mapping[tuple[str, str], Summary], solver: str, other: str, cases: Iterable[str]
) -> Comparison:
    """Where both have rows."""
    verdicts = {
        case: verdict(found[case, solver].times, found[case, other].times)
        for case in cases
        if (case, solver) in found and (case, other) in found
    }
    return Comparison(solver, other, verdicts)


def evaluations_to(summary: Summary, value: float) -> list[int | None]:
    """For each seed, evaluations until its best was as good as that; None: never."""
    return [
        next((int(at) for at, best in row["extra"].get("curve", ()) if best <= value), None)
        for row in summary.rows
    ]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and the sample's standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Rows by (case, solver, seed), the new ones in place of the old, in order of those three."""
    by_key = {(row["case"], row["solver"] or "", row["seed"]): row for row in [*old, *new]}
    return [by_key[key] for key in sorted(by_key)]
