"""One engine in a process of its own: `python -m loadmaster.mapping.exact_worker`.

Standard input: a line of settings (JSON), a line with a number of bytes, so many bytes of the
model (npz), then a line (JSON) for each thing found elsewhere; its end ends the process. Standard
output: a line (JSON) for each bound of a case, or of all, and each map.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any, BinaryIO

import numpy as np

from loadmaster.arrays import Float64, read_npz
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.mapping.linear import make_linear, peak_cases, whole_case
from loadmaster.mapping.model import MappingModel
from loadmaster.search.or_tools import ENGINES, Linear, relaxed

Send = Callable[..., None]
SHARES = (0.1, 0.3, 1.0)
"""Of the time that is left, for each open case in the first round, the second, and the others."""


class Search:
    """Closes cases one after another: no map of a closed case is better than the best known."""

    def __init__(self, model: MappingModel, settings: dict[str, Any], send: Send) -> None:
        self.model, self.send = model, send
        self.method, self.engine = ENGINES[settings["method"]]
        self.threads, self.gap = int(settings["threads"]), float(settings["gap"])
        self.backwards, self.best = bool(settings["backwards"]), int(settings["best"])
        seconds = settings["seconds"]
        self.deadline = math.inf if seconds is None else now() + float(seconds)
        self.cases = peak_cases(model)
        self.programs: dict[int, Linear] = {}
        self.bounds = [0] * len(self.cases)
        self.closed: set[int] = set()
        """Cases of which this engine knows all it ever will, which may leave a gap of rounding."""

    def update(self, best: int | None = None, case: int | None = None, bound: int = 0) -> None:
        """Something that was found elsewhere."""
        if best is not None:
            self.best = min(self.best, best)
        if case is not None:
            self.bounds[case] = max(self.bounds[case], bound)

    @property
    def left(self) -> float:
        return self.deadline - now()

    @property
    def cutoff(self) -> int:
        """Only maps below it are of interest."""
        return math.ceil(self.best / (1 + self.gap)) if self.gap else self.best

    def run(self) -> None:
        numbers = range(len(self.cases))
        if len(numbers) > 1 and not self.backwards:  # of all maps first: some bound, and soon
            bound = relaxed(make_linear(self.model, whole_case(self.model)), self.left)
            self.send(case=None, bound=bound, method="linear relaxation")
        for number in reversed(numbers) if self.backwards else numbers:
            if not self.bounds[number]:  # the other engine comes from the other end
                self._raise(number, relaxed(self._program(number), self.left), "linear relaxation")
        for turn in itertools.count():
            cases = [case for case in numbers if self._open(case)]
            cases.sort(key=lambda case: self.bounds[case], reverse=self.backwards)
            if not cases or self.left <= 0:
                return
            share = 1.0 if len(cases) == 1 else SHARES[min(turn, len(SHARES) - 1)]
            for number in cases:
                self._solve(number, share * self.left)

    def _open(self, number: int) -> bool:
        return self.bounds[number] < self.cutoff and number not in self.closed

    def _program(self, number: int) -> Linear:
        if number not in self.programs:
            self.programs[number] = make_linear(self.model, self.cases[number])
        return self.programs[number]

    def _solve(self, number: int, seconds: float) -> None:
        if not self._open(number) or self.left <= 0:
            return
        linear, cutoff = self._program(number), self.cutoff

        def report(values: Float64 | None, bound: int | None) -> None:
            if values is not None:
                self._take(linear, values)
            if bound is not None:
                self._raise(number, bound, self.method)

        answer = self.engine(linear, cutoff, min(seconds, self.left), self.threads, report)
        bound = answer.bound
        if answer.closed:
            self.closed.add(number)
        if answer.values is not None:
            value = self._take(linear, answer.values)
            if answer.closed and value is not None and 0 <= value - bound <= answer.doubt:
                bound = value
        self._raise(number, bound, self.method)

    def _take(self, linear: Linear, values: Float64) -> int | None:
        chosen = linear.chosen(values)
        if not self.model.fits(chosen[None])[0]:
            return None
        value = int(self.model.time(chosen[None])[0])
        if value < self.best:
            self.best = value
            self.send(map=chosen.tolist())
        return value

    def _raise(self, number: int, bound: int, method: str) -> None:
        if bound > self.bounds[number]:
            self.bounds[number] = bound
            self.send(case=number, bound=bound, method=method)


def main() -> None:
    """Solve the model on standard input, and report to standard output as JSON lines."""
    # Engines print to standard output as they please; our messages go to a copy of it.
    output, nowhere = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    lock = threading.Lock()

    def send(**message: Any) -> None:
        with lock:
            output.write(json.dumps(message) + "\n")
            output.flush()

    source = sys.stdin.buffer
    try:
        settings = json.loads(source.readline())
        search = Search(_read_model(source), settings, send)
        threading.Thread(target=_listen, args=(source, search), daemon=True).start()
        search.run()
    except Exception as error:
        send(error=f"{type(error).__name__}: {error}")
    os._exit(0)  # not by way of a clean end, which the thread that still listens would disturb


def _read_model(source: BinaryIO) -> MappingModel:
    arrays: dict[str, Any] = read_npz(source.read(int(source.readline())), LoadmasterError)
    return MappingModel(**{field.name: arrays[field.name] for field in fields(MappingModel)})


def model_bytes(model: MappingModel) -> bytes:
    """What `main` reads after its settings."""
    file = io.BytesIO()
    np.savez(file, **{field.name: getattr(model, field.name) for field in fields(MappingModel)})
    return b"%d\n" % len(file.getbuffer()) + file.getvalue()


def _listen(source: BinaryIO, search: Search) -> None:
    for line in source:
        search.update(**json.loads(line))
    os._exit(0)  # whoever started this process is gone, or has seen enough


if __name__ == "__main__":
    main()
