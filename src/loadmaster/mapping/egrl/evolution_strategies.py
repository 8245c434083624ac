"""Trains EGRL's policy by evolution strategies over many programs and machines.

One generation: parameters are moved to both sides along random directions, each of them decides a batch of
cases at once, and the directions that made maps faster are followed (Adam, with a falling rate). What is
kept is the running mean of parameters that does best on validation cases. A case counts by how its times
differ within the population, so that no program outweighs the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import Array, Float32, Float64, Int64, Message
from loadmaster.clock import now
from loadmaster.learn.session import check_settings
from loadmaster.machine.machine import Machine
from loadmaster.machine.presets import read_machine, standalone_text
from loadmaster.mapping.egrl.cases import Own, make_case
from loadmaster.mapping.egrl.scores import VIEWS, Network, View
from loadmaster.program.program import Program
from loadmaster.program.storage import load, save
from loadmaster.search.solver import State, generator_state, restore_generator

VALIDATION_SEED = 1
"""Of cases that only choose which parameters are kept; training's are 0."""
_CLIP = (-1.0, 0.7)
_LEAST_DEVIATION = 0.003
_MOST_WEIGHT = 0.05


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


Task = tuple[int, Sequence[int]]
"""Seed and numbers of cases."""
Fitness = Callable[[Float64, Sequence[Task]], Float64]
"""Parameters [P, .] and tasks -> [P, cases] log(time / time of greedy by density)."""


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
    judge = Judge(network, str(setup.about["view"]), _unpack_own(arrays))

    def call(request: Message) -> Message:
        given = request.arrays
        tasks = zip(given["seeds"].tolist(), given["numbers"].tolist(), strict=True)
        return Message({}, {"logs": judge(given["parameters"], [(seed, [each]) for seed, each in tasks])})

    return call


def pack_own(own: Own) -> dict[str, Array]:
    """Programs and machines as arrays, for workers."""
    arrays: dict[str, Array] = {}
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        for number, (program, machine) in enumerate(own):
            path = Path(folder) / "program.npz"
            save(program, path)
            arrays[f"program.{number}"] = np.frombuffer(path.read_bytes(), np.uint8)
            text = standalone_text(machine).encode()
            arrays[f"machine.{number}"] = np.frombuffer(text, np.uint8)
    return arrays


def _unpack_own(arrays: dict[str, Array]) -> Own:
    own: list[tuple[Program, Machine]] = []
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        program, machine = Path(folder) / "program.npz", Path(folder) / "machine.toml"
        while f"program.{len(own)}" in arrays:
            program.write_bytes(arrays[f"program.{len(own)}"].tobytes())
            machine.write_bytes(arrays[f"machine.{len(own)}"].tobytes())
            own.append((load(program), read_machine(machine)))
    return own


def share_out(calls: Callable[[Sequence[Message]], list[Message]], workers: int) -> Fitness:
    """A fitness that workers compute, each always the same cases: they keep what they have made."""

    def fitness(parameters: Float64, tasks: Sequence[Task]) -> Float64:
        cases = np.array([(seed, number) for seed, numbers in tasks for number in numbers])
        owner = cases[:, 1] % workers
        logs = np.empty((len(parameters), len(cases)))
        places = [np.flatnonzero(owner == worker) for worker in range(workers)]
        requests = [
            Message({}, {"parameters": parameters, "seeds": cases[place, 0], "numbers": cases[place, 1]})
            for place in places
        ]
        for place, reply in zip(places, calls(requests), strict=True):
            logs[:, place] = reply.arrays["logs"]
        return logs

    return fitness


def _times(view: View, scores: Float64, linear: float | Float64 = 0.0) -> Int64:
    """[B] of the maps that scores decide."""
    times: Int64 = view.problem.rectify(view.decode(scores, linear, 1), threads=1)[0]
    return times


def measure_features(view: str, cases: int = 300) -> tuple[Float32, Float32]:
    """(mean, deviation) [F] of the features of the first training cases."""
    rows = np.concatenate([View(make_case(number), view).features for number in range(cases)])
    return rows.mean(axis=0), rows.std(axis=0) + np.float32(1e-3)


@dataclass
class Progress:
    """All that training changes."""

    parameters: Float64
    first: Float64
    second: Float64
    """Adam's moments."""
    mean: Float64
    """The running mean of parameters, which is what is kept."""
    best: Float64
    best_value: float = np.inf
    generation: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(generation, mean log time over greedy by density on validation cases)."""

    def arrays(self) -> State:
        plain = {
            each.name: np.asarray(getattr(self, each.name)) for each in fields(self) if each.name != "rng"
        }
        return {**plain, "rng": generator_state(self.rng)}

    @classmethod
    def restore(cls, state: State) -> Progress:
        vectors = {name: np.array(state[name]) for name in ("parameters", "first", "second", "mean", "best")}
        return cls(
            **vectors,
            best_value=float(state["best_value"]),
            generation=int(state["generation"]),
            rng=restore_generator(state["rng"]),
            curve=[(int(at), float(value)) for at, value in np.array(state["curve"]).reshape(-1, 2)],
        )


def begin(network: Network, seed: int, start: Float64 | None = None) -> Progress:
    """Progress of a training that has not begun, from given parameters or from none."""
    rng = np.random.default_rng(seed)
    parameters = network.start(rng) if start is None else start.copy()
    zero = np.zeros_like(parameters)
    return Progress(parameters, zero, zero.copy(), parameters.copy(), parameters.copy(), rng=rng)


def evolve(
    network: Network,
    options: Options,
    progress: Progress,
    fitness: Fitness,
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = now,
) -> Iterator[Progress]:
    """Train until the generations, or the seconds, are over; yields after every validation."""
    started, p = clock(), options.pairs
    while progress.generation < options.generations:
        done = progress.generation / options.generations
        if seconds is not None:
            done = max(done, (clock() - started) / seconds)
        if done >= 1:
            break
        noise = progress.rng.normal(size=(p, network.parameters))
        noise[:, -1] *= 2  # the log of a share
        chosen = progress.rng.choice(options.cases, min(options.batch, options.cases), replace=False)
        moved = np.concatenate(
            [progress.parameters + options.sigma * noise, progress.parameters - options.sigma * noise]
        )
        reward = _weighted(fitness(moved, [(0, np.sort(chosen).tolist())]))
        slope = (reward[:p] - reward[p:]) / (reward.std() + 1e-9) @ noise / p
        slope[:-1] += options.decay * progress.parameters[:-1]
        _follow(progress, slope, options.learning_rate * max(0.1, 1 - done))
        if progress.generation % options.validate_every == 0:
            _validate(progress, fitness, options)
            yield progress
    if progress.generation and (not progress.curve or progress.curve[-1][0] < progress.generation):
        _validate(progress, fitness, options)
        yield progress


def _validate(progress: Progress, fitness: Fitness, options: Options) -> None:
    """Look at validation cases, and keep the running mean of parameters if it is the best so far."""
    value = float(fitness(progress.mean[None], [(VALIDATION_SEED, range(options.validation))]).mean())
    progress.curve.append((progress.generation, value))
    if value < progress.best_value:
        progress.best, progress.best_value = progress.mean.copy(), value


def _weighted(logs: Float64) -> Float64:
    """[P] from [P, cases]: each case centred, with outliers cut, and none counting much more than another."""
    cut = np.clip(logs, *_CLIP)
    centred = cut - cut.mean(axis=0)
    deviation = cut.std(axis=0)
    scale = np.minimum(_MOST_WEIGHT, deviation + _LEAST_DEVIATION) / np.maximum(_LEAST_DEVIATION, deviation)
    total: Float64 = (centred * scale).sum(axis=1)
    return total


def _follow(progress: Progress, slope: Float64, rate: float) -> None:
    """One step of Adam, and of the running mean."""
    progress.generation += 1
    progress.first = 0.9 * progress.first + 0.1 * slope
    progress.second = 0.99 * progress.second + 0.01 * slope**2
    first = progress.first / (1 - 0.9**progress.generation)
    second = progress.second / (1 - 0.99**progress.generation)
    progress.parameters = progress.parameters - rate * first / (np.sqrt(second) + 1e-8)
    progress.mean = 0.95 * progress.mean + 0.05 * progress.parameters


def describe(options: Options) -> dict[str, Any]:
    """As a policy's file keeps them."""
    return {each.name: getattr(options, each.name) for each in fields(options)}
