"""EGRL's policy as a file, how it is trained, and what it decides at once for a program it has never seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Mapping as Dict
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.arrays import Float64, Int8
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.learn.checkpoints import check_same, read_state, state_path, write_state
from loadmaster.learn.evolution_strategies import Fitness, Progress, evolve, share_out
from loadmaster.learn.policies import BadPolicy, read_policy, save_policy
from loadmaster.learn.session import make_settings
from loadmaster.learn.training import (
    Own,
    Report,
    Unfinished,
    Workers,
    check_seconds,
    ignore,
    pack_own,
    policy_header,
)
from loadmaster.mapping.egrl.cases import (
    DEVICES,
    FAMILIES,
    HELD_OUT_IMPORTERS,
    HELD_OUT_MACHINES,
    HELD_OUT_MODELS,
    ZOO,
)
from loadmaster.mapping.egrl.evolution_strategies import Judge, Options, begin, describe, measure_features
from loadmaster.mapping.egrl.scores import VIEWS, Network, View
from loadmaster.mapping.problem import Mapping

SHIPPED = "pretrained:scores"
"""The policy that comes with the package."""
FEATURE_CASES = 300
"""Cases whose features say how they are normalised."""


@dataclass(frozen=True)
class Policy:
    """A network and its parameters for one view."""

    network: Network
    parameters: Float64

    def score(self, view: View) -> Float64:
        """[E * S]"""
        scores: Float64 = self.network.score(self.network.normalise(view), self.parameters[None])[0]
        return scores

    @property
    def linear(self) -> float:
        return float(self.network.linear_of(self.parameters))

    def untrained(self) -> Policy:
        """The same network as it was before training: all scores are 0."""
        return Policy(self.network, self.network.start(np.random.default_rng(0)))


@lru_cache(maxsize=16)
def load_policy(name: str, view: str) -> Policy:
    """A policy for a view: `SHIPPED`, or a file of `train`."""
    arrays, about = read_policy(name, "egrl")
    try:
        mean, deviation = (arrays[f"{view}.{part}"].astype(np.float32) for part in ("mean", "deviation"))
        network = Network(mean, deviation, int(about["hidden"]))
        parameters = arrays[f"{view}.parameters"].astype(np.float64)
        fine = mean.ndim == 1 and mean.shape == deviation.shape and 1 <= network.hidden <= 1024
        fine = fine and parameters.shape == (network.parameters,) and bool((deviation > 0).all())
        fine = fine and all(np.isfinite(each).all() for each in (mean, deviation, parameters))
    except (KeyError, TypeError, ValueError, OverflowError):
        fine = False
    if not fine:
        raise BadPolicy(
            f"policy '{name}' has no network for the {view} view",
            object=name,
            number=view,
            remedy="train it again with this version: loadmaster train egrl --out POLICY.npz",
        )
    return Policy(network, parameters)


def train(
    *,
    out: Path,
    views: Sequence[str] = VIEWS,
    seconds: float | None = None,
    generations: int | None = None,
    seed: int = 0,
    options: Dict[str, Any] | None = None,
    own: Own = (),
    init: str | None = None,
    resume: Path | None = None,
    workers: Workers | None = None,
    report: Report = ignore,
) -> list[dict[str, Any]]:
    """Train a policy for each view on thousands of programs and machines (`cases`).

    Args:
      out: where the policy is written, again and again as it gets better; beside it, in
        `OUT.state.npz`, what a training goes on from.
      views: 'nominal', 'strict' or both, one after the other.
      seconds: for all views together, each has as much; cases that tell how features are normalised are within it.
      generations: for each view; without either, the generations of `Options`.
      seed: the same seed and generations give the same policy, whoever computes it.
      options: fields of `Options`; `view` in place of `views`.
      own: programs and their machines that every second case is made from; the others are random.
      init: a policy to start from; what it was trained on is not forgotten at once.
      resume: a state file of an earlier training with the same options.
      workers: shares the work out; without, all is done in this process.
      report: takes a line about how it goes.

    Returns:
      A row for each view: generations, and how much less time its maps take than those of greedy by density
      on validation cases, in the mean of logarithms.
    """
    check_seconds(seconds)
    given = dict(options or {}) | ({} if generations is None else {"generations": generations})
    views = [str(given.pop("view"))] if "view" in given else views
    if unknown := [view for view in views if view not in VIEWS]:
        raise LoadmasterError(
            f"there is no view '{unknown[0]}'", object="view", remedy=f"use {', '.join(VIEWS)}"
        )
    if seconds is not None and generations is None:
        given.setdefault("generations", 10**6)
    settings = make_settings(Options, "train egrl", given, {"view": "nominal"})
    state, about = read_state(resume, "egrl") if resume else ({}, {})
    if resume:
        check_same(resume, about, _common(settings), seed, "egrl")
    arrays: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for view in views:
        training = _Training(
            Options(**(describe(settings) | {"view": view})), seed, own, init, workers, report, rows, arrays
        )
        row, trained = training.run(None if seconds is None else seconds / len(views), state, out)
        arrays |= {f"{view}.{name}": each for name, each in trained.items()}
        rows.append(row)
    return rows


@dataclass
class _Training:
    """Of one view."""

    options: Options
    seed: int
    own: Own
    init: str | None
    workers: Workers | None
    report: Report
    rows: list[dict[str, Any]]
    arrays: dict[str, Any]
    """Of views that were trained before: they stand in the same file."""

    def run(
        self, seconds: float | None, state: dict[str, Any], out: Path
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(row, arrays of the policy) after training from `state`, which is brought up to date; policy and state
        are written after every validation."""
        options, started, prefix = self.options, now(), f"{self.options.view}."
        known = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
        network, progress = self._begin(known)
        row: dict[str, Any] = {}
        trained: dict[str, Any] = {"mean": network.mean, "deviation": network.deviation}

        def write() -> None:
            row.update(
                view=options.view,
                generations=progress.generation,
                validation=progress.best_value,
                curve=progress.curve,
                took_seconds=now() - started,
            )
            trained["parameters"] = progress.best
            both = self.arrays | {prefix + name: each for name, each in trained.items()}
            save_policy(out, both, _header(options, self.seed, len(self.own), [*self.rows, row]))
            kept = {**progress.arrays(), "feature_mean": network.mean, "feature_deviation": network.deviation}
            state.update({prefix + name: each for name, each in kept.items()})
            about = {"agent": "egrl", "options": _common(options), "seed": self.seed}
            write_state(state_path(out), state, about)

        with self._fitness(network) as fitness:
            left = None if seconds is None else started + seconds - now()
            for _ in evolve(options, progress, fitness, logs=1, seconds=left):
                better = -100 * progress.best_value
                self.report(
                    f"{options.view}: generation {progress.generation:,}, {better:.2f} % less time than density"
                )
                write()
        if not row and not known:
            raise Unfinished(
                f"training the {options.view} view ended after {now() - started:.1f} s, before there was a policy",
                object=options.view,
                remedy="give more --time-limit: the views share it, and each has to make its cases first",
            )
        write()
        return row, trained

    def _begin(self, known: dict[str, Any]) -> tuple[Network, Progress]:
        if known:
            network = Network(known["feature_mean"], known["feature_deviation"], self.options.hidden)
            return network, Progress.restore(known)
        if self.init is not None:
            policy = load_policy(self.init, self.options.view)
            return policy.network, begin(policy.network, self.seed, policy.parameters)
        measured = measure_features(self.options.view, min(FEATURE_CASES, self.options.cases))
        network = Network(*measured, self.options.hidden)
        return network, begin(network, self.seed)

    @contextmanager
    def _fitness(self, network: Network) -> Iterator[Fitness]:
        view = self.options.view
        if self.workers is None:
            yield Judge(network, view, self.own)
            return
        about = {"view": view, "hidden": network.hidden}
        arrays = {"mean": network.mean, "deviation": network.deviation, **pack_own(self.own)}
        with self.workers("egrl", about, arrays) as (calls, size):
            yield share_out(calls, size)


def _common(options: Options) -> dict[str, Any]:
    """What all views of a training have in common."""
    return {name: each for name, each in describe(options).items() if name != "view"}


def _header(options: Options, seed: int, own: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    trained_on = {
        "zoo": ZOO,
        "random_graphs": FAMILIES,
        "devices": DEVICES,
        "cases": options.cases,
        "own_programs": own,
    }
    held_out = {"models": HELD_OUT_MODELS, "machines": HELD_OUT_MACHINES, "importers": HELD_OUT_IMPORTERS}
    return policy_header(
        "egrl",
        seed,
        _common(options),
        hidden=options.hidden,
        views=rows,
        trained_on=trained_on,
        held_out=held_out,
    )


def zero_shot(problem: Mapping, policy: str = SHIPPED, view: str = "nominal") -> Int8:
    """int8[2N]: what a policy decides at once, in NumPy alone; the map fits."""
    seen, trained = View(problem, view), load_policy(policy, view)
    decision: Int8 = seen.decode(trained.score(seen)[None], trained.linear)[0]
    return decision


def transfer(policy: str, problems: Iterable[tuple[str, Mapping]]) -> list[dict[str, Any]]:
    """What a trained policy decides at once on problems, nothing learned, beside what it starts from.

    Args:
      policy: `SHIPPED`, or a file of `train`.
      problems: (name, problem) pairs.

    Returns:
      Six rows a problem: both views trained and untrained, the compiler's map, everything in the slowest memory.
    """
    rows: list[dict[str, Any]] = []
    for name, problem in problems:
        maps: dict[str, Int8] = {}
        for kind in VIEWS:
            view, trained = View(problem, kind), load_policy(policy, kind)
            maps[kind] = view.decode(trained.score(view)[None], trained.linear)[0]
            maps[f"{kind}, untrained"] = view.decode(np.zeros((1, *view.shape)))[0]
        maps |= {"compiler": problem.make_legal(problem.compiler), "all-slowest": problem.all_slowest()}
        rows += [_transfer_row(name, problem, what, decision) for what, decision in maps.items()]
    return rows


def _transfer_row(model: str, problem: Mapping, name: str, decision: Int8) -> dict[str, Any]:
    value, bound = problem.simulated_ps(decision), problem.bound()
    return {
        "model": model,
        "machine": problem.machine.name,
        "name": name,
        "picoseconds": value,
        "seconds": value / 10**12,
        "speedup": problem.compiler_ps / value,
        "gap": value / bound.value - 1 if bound.value else None,
    }
