"""What EGRL's policy is trained on by evolution strategies: options, and who judges parameters, here or in workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from loadmaster.arrays import Float32, Float64, Int64, Message
from loadmaster.learn import evolution_strategies as strategies
from loadmaster.learn.evolution_strategies import Progress, Task
from loadmaster.learn.session import check_settings
from loadmaster.learn.training import Own, unpack_own
from loadmaster.mapping.egrl.cases import make_case
from loadmaster.mapping.egrl.scores import VIEWS, Network, View


@dataclass(frozen=True)
class Options:
    """Of one training."""

    view: str = "nominal"
    cases: int = 3_000
    validation: int = 300
    generations: int = 2_000
    pairs: int = 16
    """Directions a generation, each tried to both sides."""
    batch: int = 64
    """Cases a generation."""
    sigma: float = 0.05
    learning_rate: float = 0.02
    decay: float = 0.002
    """Of parameters towards 0."""
    hidden: int = 16
    validate_every: int = 25

    def __post_init__(self) -> None:
        counts = ("cases", "validation", "generations", "pairs", "batch", "hidden", "validate_every")
        check_settings("training EGRL", self, self._rules, counts=counts)

    def _rules(self) -> dict[str, bool]:
        positive = {name: getattr(self, name) > 0 for name in ("sigma", "learning_rate")}
        return {"view": self.view in VIEWS, "hidden": self.hidden <= 1024, **positive}


class Judge:
    """Makes cases when they are first asked for, and says how good parameters are on them."""

    def __init__(self, network: Network, view: str, own: Own = ()) -> None:
        self.network, self.view, self.own = network, view, own
        self._kept: dict[tuple[int, int], tuple[View, Float32, int]] = {}

    def __call__(self, parameters: Float64, tasks: Sequence[Task]) -> Float64:
        rows = [self._case(parameters, seed, number) for seed, numbers in tasks for number in numbers]
        return np.stack(rows, axis=1) if rows else np.empty((len(parameters), 0))

    def _case(self, parameters: Float64, seed: int, number: int) -> Float64:
        if (seed, number) not in self._kept:
            view = View(make_case(number, seed, self.own), self.view)
            reference = _times(view, np.zeros((1, *view.shape)))[0]
            self._kept[seed, number] = (view, self.network.normalise(view), int(reference))
        view, features, reference = self._kept[seed, number]
        scores = self.network.score(features, parameters)
        return np.log(_times(view, scores, self.network.linear_of(parameters)) / reference)


def make_judge(setup: Message) -> Callable[[Message], Message]:
    """A judge in a worker: `parameters` [P, .], `seeds` [C] and `numbers` [C] of cases -> `logs` [P, C]."""
    arrays = setup.arrays
    network = Network(arrays["mean"], arrays["deviation"], int(setup.about["hidden"]))
    judge = Judge(network, str(setup.about["view"]), unpack_own(arrays))

    def call(request: Message) -> Message:
        given = request.arrays
        tasks = zip(given["seeds"].tolist(), given["numbers"].tolist(), strict=True)
        return Message({}, {"logs": judge(given["parameters"], [(seed, [each]) for seed, each in tasks])})

    return call


def _times(view: View, scores: Float64, linear: float | Float64 = 0.0) -> Int64:
    """[B] of the maps that scores decide."""
    times: Int64 = view.problem.rectify(view.decode(scores, linear, 1), threads=1)[0]
    return times


def measure_features(view: str, cases: int = 300) -> tuple[Float32, Float32]:
    """(mean, deviation) [F] of the features of the first training cases."""
    rows = np.concatenate([View(make_case(number), view).features for number in range(cases)])
    return rows.mean(axis=0), rows.std(axis=0) + np.float32(1e-3)


def begin(network: Network, seed: int, start: Float64 | None = None) -> Progress:
    """Progress of a training that has not begun, from given parameters or from none."""
    rng = np.random.default_rng(seed)
    return strategies.begin(network.start(rng) if start is None else start.copy(), rng)


def describe(options: Options) -> dict[str, Any]:
    """As a policy's file keeps them."""
    return {each.name: getattr(options, each.name) for each in fields(options)}
