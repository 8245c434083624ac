"""EGRL as a solver. One generation: the population proposes and is scored, the learner trains on
all that was ever scored, the learner proposes, the population evolves with the learner among it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from loadmaster.errors import require
from loadmaster.learn import policies
from loadmaster.learn.session import free_settings, make_settings
from loadmaster.mapping.egrl.settings import Settings
from loadmaster.mapping.problem import Mapping
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, solve

if TYPE_CHECKING:
    from loadmaster.mapping.egrl.network import Actor


class Egrl(Solver):
    """Evolutionary graph reinforcement learning. Options are the fields of `Settings`, and
    `init`: a trained policy ('pretrained:bert', or a file of `loadmaster train egrl`)."""

    name = "egrl"
    problem_kind = "mapping"
    summary = "evolution of graph networks and Boltzmann maps beside a gradient learner; sees rewards only"
    deterministic = True
    scheduled = True
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that make this solver what it is."""

    def __init__(self, init: str | None = None, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, self.fixed)
        self.init = init
        self.options = {"init": init, **free_settings(self.settings, self.fixed)}
        self.start: npt.NDArray[np.int8] | None = None
        """A map to begin with, should one be known: the first Boltzmann chromosome stays around it."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        require("jax", "agents"), require("equinox", "agents"), require("optax", "agents")
        from loadmaster.mapping.egrl.session import Session

        assert isinstance(meter.problem, Mapping)
        if not meter.problem.live.any():
            meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        session = Session(meter, seed, self.settings, self.init, state)
        if self.start is not None and state is None and not meter.exhausted:
            session.begin(self.start)
        return session.run()


class EvolutionAlone(Egrl):
    """EGRL without its gradient learner."""

    name = "ea"
    summary = "EGRL's evolution alone"
    scheduled = False  # only the learner's noise falls over the budget
    fixed: ClassVar = {"learner": False}


class GradientAlone(Egrl):
    """EGRL's learner alone: one noisy and one greedy rollout a round."""

    name = "pg"
    summary = "EGRL's gradient learner alone"
    fixed: ClassVar = {"population": 0, "boltzmann": 0.0, "imitation": 0.0, "updates": 1.0}


# Trained policies of EGRL: loaded, and run on a problem that they have never seen.


def load_policy(name: str | Path, like: Actor) -> Actor:
    """A policy as an actor of the same shapes as `like`."""
    actor: Actor = policies.load_policy(
        name,
        like,
        "egrl",
        "it was trained for {memories} memories",
        "use it with a machine of as many memories, and the same width, heads and depth",
    )
    return actor


def zero_shot(policy: str | Path, problem: Mapping, settings: Settings | None = None) -> npt.NDArray[np.int8]:
    """int8[2N]: one greedy forward pass of a policy on a problem, nothing learned."""
    return greedy_map(load_policy(policy, _new_actor(problem, settings or Settings(), 0)), problem)


def untrained_map(problem: Mapping, seed: int) -> npt.NDArray[np.int8]:
    """int8[2N]: what a new graph network decides, the control beside `zero_shot`."""
    return greedy_map(_new_actor(problem, Settings(), seed), problem)


def _new_actor(problem: Mapping, settings: Settings, seed: int) -> Actor:
    import jax

    from loadmaster.mapping.egrl.network import Actor

    return Actor(len(problem.memories), settings, jax.random.key(seed))


def greedy_map(actor: Actor, problem: Mapping) -> npt.NDArray[np.int8]:
    """int8[2N]: the likeliest memory of every tensor; what no op uses lies in the slowest."""
    from loadmaster.mapping.egrl.graph import make_graph

    found, _ = _compiled_decide()(actor, make_graph(problem))
    return np.where(problem.live, np.asarray(found), np.int8(problem.slowest)).astype(np.int8)


@lru_cache(maxsize=1)
def _compiled_decide() -> Any:
    import jax

    from loadmaster.mapping.egrl.session import decide

    return jax.jit(decide)


def random_map(problem: Mapping, seed: int) -> npt.NDArray[np.int8]:
    """int8[2N]: the first map of the solver 'random', legal or not."""

    class First(Mapping):
        seen: npt.NDArray[np.int8] | None = None

        def score(self, decisions: Any, first: int = 0) -> Any:
            if self.seen is None:
                self.seen = np.array(decisions[0], dtype=np.int8)
            return super().score(decisions, first)

    watched = First(problem.program, problem.machine)
    solve(make_labelled("mapping", "random"), watched, Budget(1), seed)
    assert watched.seen is not None
    return watched.seen
