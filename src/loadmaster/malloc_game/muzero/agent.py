"""mallocMuZero as solvers: the agent, the better of agent and baseline, and the policy alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.learn import policies
from loadmaster.learn.policies import PRETRAINED, save_policy
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.malloc_game.muzero.settings import NETWORK, Settings
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Meter, Solution, Solver, State

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.network import Network

AGENT = "muzero"
DEFAULT = "suite"
"""The packaged network that runs begin with."""
AUTO, SCRATCH = "auto", "scratch"


def load_policy(name: str | Path, like: Network) -> Network:
    """A trained network of the same shapes as `like`."""
    network: Network = policies.load_policy(
        name,
        like,
        AGENT,
        "it was trained with {network}",
        f"give the same {', '.join(NETWORK[:-1])} and {NETWORK[-1]} with --set",
    )
    return network


def save_small(
    path: Path, policy: dict[str, npt.NDArray[Any]], about: dict[str, Any], settings: Settings
) -> None:
    """Half precision: all that play needs, and half the size."""
    shapes = ", ".join(f"{name} = {getattr(settings, name)}" for name in NETWORK)
    small = {name: array.astype(np.float16) for name, array in policy.items()}
    save_policy(path, small, {"network": shapes, **about})


def start_of(init: str, settings: Settings) -> str | None:
    """What `init` stands for: a file or 'pretrained:NAME'; 'auto' is the packaged network where it
    fits, 'scratch' is nothing."""
    if init == SCRATCH:
        return None
    if init != AUTO:
        return init
    fits = settings.has_default_network and DEFAULT in policies.pretrained_names(AGENT)
    return PRETRAINED + DEFAULT if fits else None


PACKAGES = ("jax", "equinox", "optax", "mctx")


class MuZero(Solver):
    """Plays the game by a search in a learned model of it, and learns from its games. Options are
    the fields of `Settings`, and `init`: a trained network ('pretrained:suite', or a file of
    `loadmaster train muzero`); 'auto': the packaged one if it fits; 'scratch': none."""

    name = "muzero"
    problem_kind = "malloc-game"
    summary = "plays by searching a learned model of the game (MuZero), and learns from its games"
    deterministic = True
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that make this solver what it is."""

    def __init__(self, init: str | None = "auto", **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, self.fixed)
        self.init = "scratch" if init is None else init
        self.options = {"init": self.init, **free_settings(self.settings, self.fixed)}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        for package in PACKAGES:
            require(package, "agents")
        from loadmaster.malloc_game.muzero.session import Session

        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if meter.exhausted:
            return meter.solution()
        check_playable(problem)
        if not can_gain(problem):
            meter.evaluate_many(problem.all_slow()[None])
            return meter.solution()
        return Session([meter], seed, self.settings, start_of(self.init, self.settings), state).run()


class MuZeroProd(MuZero):
    """The better of the agent's plan and a baseline's: the production placement where one is known,
    else that of memory space assignment. The baseline costs one evaluation."""

    name = "muzero-prod"
    summary = "the better of muzero's plan and the production placement's (or msa's)"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        baseline = baseline_of(problem)
        if state is None and not meter.exhausted:  # else it is among what was restored
            from loadmaster.search.registry import make_labelled

            make_labelled("malloc-game", baseline).run(meter, seed, None)
        solution = super().run(meter, seed, state)
        solution.metrics["baseline"] = baseline
        return solution


class PolicyOnly(MuZero):
    """The trained policy without search: its likeliest moves once, then samples of it. Nothing is
    learned."""

    name = "policy-only"
    summary = "muzero's trained policy without search, best of its samples"
    fixed: ClassVar = {"simulations": 0, "eval_simulations": 0, "updates": 0, "window": 0}


def baseline_of(problem: MallocGame) -> str:
    """The solver that `muzero-prod` is never worse than."""
    from loadmaster.malloc_game.heuristics import has_production

    return "production" if has_production(problem) else "msa"


def can_gain(problem: MallocGame) -> bool:
    """Whether there is anything to decide and to gain."""
    return problem.moves > 0 and problem.scale_ps > 1e-6 * problem.all_slow_ps


def check_playable(problem: MallocGame) -> None:
    """Games must be of one length: rewound ones are not."""
    if problem.options()["backup"] == "rewind":
        raise LoadmasterError(
            "muzero plays games of a fixed length, and rewound ones have none",
            object="backup",
            number="rewind",
            remedy="play with backup='retroactive'",
        )
