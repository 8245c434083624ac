"""`Gauge`: how an evaluator is used: warm-ups, repeats, several boards, and whatever it raises."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from loadmaster.plan.plan import Plan
from loadmaster.problems.evaluator import EvaluationError, Evaluator, evaluator_name, seconds_of


@dataclass(frozen=True)
class Measurement:
    """The repeats of one plan on one board, warm-ups left out."""

    seconds: tuple[float, ...]
    fault: str | None = None
    """Why it failed; what was measured before that is kept."""
    board: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


class Gauge:
    """Measures plans. A failure is a fault of that plan alone."""

    def __init__(self, evaluator: Evaluator, repeats: int = 5, warmups: int = 2) -> None:
        if repeats < 1 or warmups < 0:
            raise ValueError("repeats must be at least 1 and warmups at least 0")
        self.evaluator, self.repeats, self.warmups = evaluator, repeats, warmups
        self.name = evaluator_name(evaluator)
        self._batch: Callable[[Sequence[Plan]], Sequence[object]] | None = getattr(evaluator, "batch", None)
        self._baseline: Callable[..., object] | None = getattr(evaluator, "baseline", None)
        self.boards = int(getattr(evaluator, "boards", 1)) if self._batch is not None else 1

    def once(self, plan: Plan) -> float:
        """One measurement."""
        return self._seconds(lambda: self.evaluator(plan))

    def baseline_once(self, plan: Plan) -> float:
        """One measurement of the hardware's own compiler, of `plan` if it has none."""
        own = self._baseline
        if own is None:
            return self.once(plan)
        return self._seconds(own if self.boards == 1 else lambda: own(0))

    def measure(self, plans: Sequence[Plan]) -> Iterator[Measurement]:
        """In the order of the plans, one after another where there is no `batch`."""
        if self._batch is None:
            for plan in plans:
                yield self._repeated(lambda plan=plan: self.once(plan))  # type: ignore[misc]
            return
        rounds: list[list[float | str]] = []
        for _ in range(self.warmups + self.repeats if plans else 0):
            rounds.append(self._together(plans))
            if all(isinstance(value, str) for value in rounds[-1]):
                break  # nothing is left to repeat
        for k in range(len(plans)):
            yield self._collected([values[k] for values in rounds], k % self.boards)

    def measure_baseline(self, plan: Plan) -> list[Measurement]:
        """One for each board."""
        own = self._baseline
        if own is not None:
            if self.boards == 1:
                return [self._repeated(lambda: self._seconds(own))]
            return [
                replace(
                    self._repeated(lambda board=board: self._seconds(lambda: own(board))),  # type: ignore[misc]
                    board=board,
                )
                for board in range(self.boards)
            ]
        return list(self.measure([plan] * self.boards))

    def _repeated(self, measure: Callable[[], float]) -> Measurement:
        values: list[float | str] = []
        for _ in range(self.warmups + self.repeats):
            try:
                values.append(measure())
            except EvaluationError as error:
                values.append(error.message)
                break  # it may be slow to fail: once is enough
        return self._collected(values)

    def _together(self, plans: Sequence[Plan]) -> list[float | str]:
        assert self._batch is not None
        values: list[float | str] = []
        try:
            given = list(self._batch(plans))
            if len(given) != len(plans):
                raise EvaluationError(
                    f"evaluator '{self.name}' gave {len(given)} values for {len(plans)} plans",
                    object=self.name,
                    number=len(given),
                    remedy="give one for each",
                )
        except Exception as error:
            return [_message(error)] * len(plans)
        for value in given:
            try:
                values.append(seconds_of(value, self.name))
            except EvaluationError as error:
                values.append(error.message)
        return values

    def _collected(self, values: Sequence[float | str], board: int = 0) -> Measurement:
        fault = next((value for value in values if isinstance(value, str)), None)
        kept = tuple(value for value in values[self.warmups :] if not isinstance(value, str))
        return Measurement(kept, fault, board)

    def _seconds(self, measure: Callable[[], object]) -> float:
        try:
            value = measure()
        except EvaluationError:
            raise
        except Exception as error:  # a bug in it costs an evaluation too; many in a row end the run
            raise EvaluationError(
                f"evaluator '{self.name}' raised {_message(error)}",
                object=self.name,
                remedy="raise EvaluationError where hardware fails",
            ) from error
        return seconds_of(value, self.name)


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, EvaluationError) else f"{type(error).__name__}: {error}"
