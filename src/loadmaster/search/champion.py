"""The champion of noisy values: the best of thousands is optimistic, so the leaders measure again.

A problem whose values are not repeatable keeps its `Leaders`, the five best distinct decisions;
`remeasure` measures each of them twenty times, in turns with the baseline. Only what it says is a
headline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.search.evaluator import EvaluationError
from loadmaster.search.problem import Decision

KEPT = 5
TIMES = 20
_RESAMPLES = 2000
_NOT_AN_EVALUATION = 2**40
"""Noise depends on an evaluation's number; those of a search are smaller."""

Float64 = npt.NDArray[np.float64]


class Leaders:
    """The best distinct decisions seen, each with its best value."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept = kept
        self._rows: dict[bytes, tuple[int, Decision]] = {}

    def add(self, decision: Decision, value: int) -> None:
        """Take note of a value."""
        key = np.asarray(decision).tobytes()
        if key in self._rows and self._rows[key][0] <= value:
            return
        self._rows[key] = (value, np.array(decision))
        if len(self._rows) > self.kept:
            del self._rows[max(self._rows, key=lambda other: self._rows[other][0])]

    def decisions(self) -> list[Decision]:
        """Best first."""
        return [decision for _, decision in sorted(self._rows.values(), key=lambda row: row[0])]

    def value(self, decision: Decision) -> int | None:
        """Its value when it was added."""
        row = self._rows.get(np.asarray(decision).tobytes())
        return None if row is None else row[0]


class Measurable(Protocol):
    """What `remeasure` needs of a problem."""

    leaders: Leaders

    def admits(self, decision: Decision) -> bool: ...

    def sample(self, decision: Decision | None, number: int) -> int:
        """One measurement in ps, of the baseline if None; raises `EvaluationError`."""
        ...

    def simulated_ps(self, decision: Decision) -> int:
        """What the simulator says, without noise."""
        ...


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % bootstrap interval."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Remeasured:
    """A decision, or the baseline (None), measured again and again."""

    decision: Decision | None
    first_ps: int | None
    """The value that the search had for it."""
    samples_ps: tuple[float, ...]
    """In the order of the rounds; NaN: that measurement failed."""
    time_ps: Interval
    """Of the median."""

    @property
    def failures(self) -> int:
        return sum(map(math.isnan, self.samples_ps))


@dataclass(frozen=True)
class Champion:
    """The winner by re-measured median, and all that it was measured against."""

    winner: Remeasured
    baseline: Remeasured
    speedup: Interval
    """Baseline / winner."""
    simulated_ps: int
    """The winner's time without noise: for comparison, it is no measurement."""
    candidates: tuple[Remeasured, ...]
    """Best first; the winner is the first."""

    @property
    def gained(self) -> bool:
        """Whether the winner is faster than the baseline beyond doubt."""
        return self.speedup.low > 1

    def as_json(self) -> dict[str, Any]:
        """For logs and reports."""
        return {
            "median_ps": self.winner.time_ps.middle,
            "interval_ps": [self.winner.time_ps.low, self.winner.time_ps.high],
            "first_ps": self.winner.first_ps,
            "baseline_ps": self.baseline.time_ps.middle,
            "baseline_interval_ps": [self.baseline.time_ps.low, self.baseline.time_ps.high],
            "speedup": self.speedup.middle,
            "speedup_interval": [self.speedup.low, self.speedup.high],
            "simulated_ps": self.simulated_ps,
            "times": len(self.baseline.samples_ps),
            "candidates": len(self.candidates),
        }


def remeasure(
    problem: Measurable,
    candidates: Sequence[Decision] | None = None,
    *,
    times: int = TIMES,
    seed: int = 0,
    together: int = 1,
) -> Champion:
    """Measure candidates (the problem's leaders) and the baseline in rounds, each round in another
    order. A candidate of which half the measurements fail is out. `together`: so many measurements
    of one in a row, where hardware takes long to go over to another plan."""
    if times % together:
        raise ValueError("times must be a multiple of together")
    given = problem.leaders.decisions() if candidates is None else candidates
    entrants = [None, *(decision for decision in given if problem.admits(decision))]
    if len(entrants) == 1:
        raise LoadmasterError(
            "there is nothing to measure again",
            object="leaders",
            number=0,
            remedy="search first, with a larger budget",
        )
    rng = np.random.default_rng(seed)
    samples, fault = _rounds(problem, entrants, times, together, rng)
    # The same rounds are drawn for all: both sides of a speed-up saw the same weather. Rounds are
    # drawn whole, since what was measured in a row is alike.
    rounds = rng.integers(times // together, size=(_RESAMPLES, times // together))
    draws = (rounds[:, :, None] * together + np.arange(together)).reshape(_RESAMPLES, times)
    rows = []
    for entrant, row in zip(entrants, samples, strict=True):
        if 2 * np.isfinite(row).sum() > times:
            medians, first = _medians(row[draws]), None if entrant is None else problem.leaders.value(entrant)
            time_ps = _interval(float(np.nanmedian(row)), medians)
            rows.append((Remeasured(entrant, first, tuple(row.tolist()), time_ps), medians))
    if len(rows) < 2 or rows[0][0].decision is not None:
        raise EvaluationError(
            f"too much failed when it was measured again, last: {fault}",
            object="leaders",
            number=int(np.isnan(samples).sum()),
            remedy="measure once more",
        )
    (baseline, before), *others = rows
    others.sort(key=lambda row: row[0].time_ps.middle)
    winner, after = others[0]
    speedup = _interval(baseline.time_ps.middle / winner.time_ps.middle, before / after)
    assert winner.decision is not None
    return Champion(
        winner, baseline, speedup, problem.simulated_ps(winner.decision), tuple(row for row, _ in others)
    )


def _rounds(
    problem: Measurable,
    entrants: Sequence[Decision | None],
    times: int,
    together: int,
    rng: np.random.Generator,
) -> tuple[Float64, str]:
    """[entrants, times] picoseconds, NaN where one failed, and why the last of those did."""
    samples, fault = np.full((len(entrants), times), np.nan), ""
    for begin in range(0, times, together):
        for entrant in rng.permutation(len(entrants)).tolist():
            for turn in range(begin, begin + together):
                number = _NOT_AN_EVALUATION + turn * len(entrants) + entrant
                try:
                    samples[entrant, turn] = problem.sample(entrants[entrant], number)
                except EvaluationError as error:
                    fault = error.message
    return samples, fault


def _medians(drawn: Float64) -> Float64:
    """Of each resample; one of failures only (next to impossible) counts for nothing."""
    some = np.isfinite(drawn).any(axis=1)
    medians = np.full(len(drawn), np.nan)
    medians[some] = np.nanmedian(drawn[some], axis=1)
    return medians


def _interval(middle: float, drawn: Float64) -> Interval:
    low, high = np.nanquantile(drawn, [0.025, 0.975]).tolist()
    return Interval(middle, low, high)
