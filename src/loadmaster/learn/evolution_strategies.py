"""Evolution strategies over many cases: how policies that rank are trained.

One generation: parameters are moved to both sides along random directions, each of them decides a batch of
cases at once, and the directions that made plans faster are followed (Adam, with a falling rate). What is
kept is the running mean of parameters that does best on validation cases. A case counts by how its times
differ within the population, so that no program outweighs the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from loadmaster.arrays import Float64, Message
from loadmaster.clock import now
from loadmaster.search.solver import State, generator_state, restore_generator

VALIDATION_SEED = 1
"""Of cases that only choose which parameters are kept; training's are 0."""
_CLIP = (-1.0, 0.7)
_LEAST_DEVIATION = 0.003
_MOST_WEIGHT = 0.05


Task = tuple[int, Sequence[int]]
"""Seed and numbers of cases."""
Fitness = Callable[[Float64, Sequence[Task]], Float64]
"""Parameters [P, .] and tasks -> [P, cases] log(time / reference)."""


class Strategy(Protocol):
    """What training reads of an agent's options."""

    @property
    def cases(self) -> int: ...
    @property
    def validation(self) -> int: ...
    @property
    def generations(self) -> int: ...
    @property
    def pairs(self) -> int:
        """Directions a generation, each tried to both sides."""
        ...

    @property
    def batch(self) -> int:
        """Cases a generation."""
        ...

    @property
    def sigma(self) -> float: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def decay(self) -> float:
        """Of parameters towards 0."""
        ...

    @property
    def validate_every(self) -> int: ...


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
    """(generation, mean log time over the reference on validation cases)."""

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


def begin(parameters: Float64, rng: np.random.Generator) -> Progress:
    """Progress of a training that has not begun, from given parameters."""
    zero = np.zeros_like(parameters)
    return Progress(parameters, zero, zero.copy(), parameters.copy(), parameters.copy(), rng=rng)


def evolve(
    options: Strategy,
    progress: Progress,
    fitness: Fitness,
    *,
    logs: int = 0,
    seconds: float | None = None,
    clock: Callable[[], float] = now,
) -> Iterator[Progress]:
    """Train until the generations, or the seconds, are over; yields after every validation.

    Args:
      options: what to do.
      progress: where to go on; it is brought up to date.
      fitness: of parameters on cases, the lower the better.
      logs: so many parameters at the end are logarithms: they get twice the noise, and do not decay.
      seconds: without, all the generations. The last validation is within them: each is expected to take as long
        as the one before, and the first as long as one whose value nobody looks at.
      clock: of those seconds.
    """
    started, p, weights = clock(), options.pairs, len(progress.parameters) - logs
    spare = 0.0
    if seconds is not None and seconds > 0:
        _validation(progress, fitness, options)
        spare = clock() - started
    while progress.generation < options.generations:
        done = progress.generation / options.generations
        if seconds is not None:
            done = max(done, (clock() - started) / (seconds - spare)) if seconds > spare else 1.0
        if done >= 1:
            break
        noise = progress.rng.normal(size=(p, weights + logs))
        noise[:, weights:] *= 2
        chosen = progress.rng.choice(options.cases, min(options.batch, options.cases), replace=False)
        moved = np.concatenate(
            [progress.parameters + options.sigma * noise, progress.parameters - options.sigma * noise]
        )
        reward = _weighted(fitness(moved, [(0, np.sort(chosen).tolist())]))
        slope = (reward[:p] - reward[p:]) / (reward.std() + 1e-9) @ noise / p
        slope[:weights] += options.decay * progress.parameters[:weights]
        _follow(progress, slope, options.learning_rate * max(0.1, 1 - done))
        if progress.generation % options.validate_every == 0:
            begun = clock()
            _validate(progress, fitness, options)
            spare = clock() - begun
            yield progress
    if progress.generation and (not progress.curve or progress.curve[-1][0] < progress.generation):
        _validate(progress, fitness, options)
        yield progress


def _validate(progress: Progress, fitness: Fitness, options: Strategy) -> None:
    """Look at validation cases, and keep the running mean of parameters if it is the best so far."""
    value = _validation(progress, fitness, options)
    progress.curve.append((progress.generation, value))
    if value < progress.best_value:
        progress.best, progress.best_value = progress.mean.copy(), value


def _validation(progress: Progress, fitness: Fitness, options: Strategy) -> float:
    return float(fitness(progress.mean[None], [(VALIDATION_SEED, range(options.validation))]).mean())


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
