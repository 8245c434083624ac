"""EGRL as published, `profile="paper"`: a graph U-Net names a memory for every tensor.

One generation: the population of networks and Boltzmann chromosomes proposes and is scored, the learner trains
on all that was ever scored, the learner proposes, the population evolves with the learner among it. Maps that do
not fit are evaluations too. Settings and solvers need NumPy alone; what runs needs JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from loadmaster.errors import require
from loadmaster.learn.session import check_settings, free_settings, keep_only, make_settings
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, Solver, State

EVOLUTION = (
    "population",
    "boltzmann",
    "learner",
    "elites",
    "tournament",
    "crossover",
    "mutation",
    "seeding",
    "migration",
    "replay",
    "burn_in",
    "updates",
    "horizon",
)
"""Settings that neither the networks nor the learner's updates read."""
_COUNTS = ("tournament", "width", "batch", "horizon")
_SHARES = ("boltzmann", "crossover", "mutation", "discount", "polyak")


@dataclass(frozen=True)
class Settings:
    """The published numbers. Parts are switched off by 0, False or 'none'; each is one ablation."""

    population: int = 20
    boltzmann: float = 0.2
    """Share of the population that is Boltzmann chromosomes."""
    learner: bool = True
    """The gradient learner, its rollouts and its migration; False: evolution alone."""
    elites: int = 2
    tournament: int = 3
    crossover: float = 0.3
    """Probability for a pair of selected members."""
    mutation: float = 0.85
    """Probability for a member that is no elite."""
    seeding: str = "posterior"
    """A Boltzmann chromosome from a GNN: 'posterior' (its probabilities) or 'none' (the slot keeps what it
    has)."""
    migration: bool = True
    """The learner's actor enters the population every generation."""

    width: int = 128
    heads: int = 4
    depth: int = 4
    """Levels of the graph U-Net below the first."""
    attention: bool = True
    """False: the plain mean over neighbours."""

    batch: int = 24
    replay: int = 100_000
    burn_in: int = 50
    updates: float = 1.0
    """Gradient updates per stored transition."""
    actor_rate: float = 1e-3
    critic_rate: float = 1e-3
    entropy: float = 0.05
    action_noise: float = 0.2
    """Standard deviation of the noise on the critic's view of an action."""
    gradient_clip: float = 5.0
    target: str = "one-step"
    """An episode is one step, so that its reward is its value; 'bootstrap' keeps the circulated form with a
    target critic."""
    discount: float = 0.99
    polyak: float = 1e-3

    horizon: int = 4000
    """Budget that exploration is tied to where the meter has none."""

    def __post_init__(self) -> None:
        check_settings("EGRL", self, self._rules, counts=_COUNTS, shares=_SHARES)

    def _rules(self) -> dict[str, bool]:
        return {
            "population": self.population == 0 or self.population >= 4,
            "elites": self.elites >= 1 and (not self.population or self.elites < self.population),
            "seeding": self.seeding in ("posterior", "none"),
            "target": self.target in ("one-step", "bootstrap"),
            "heads": self.heads >= 1 and self.width % self.heads == 0,
            "depth": self.depth <= 8,
            "learner": self.learner or self.population > 0,
            "replay": self.replay >= self.population + 2,
            "gradient_clip": self.gradient_clip > 0,
        }

    @property
    def chromosomes(self) -> int:
        """Boltzmann members; the slots after the GNNs."""
        return round(self.population * self.boltzmann)

    @property
    def gnns(self) -> int:
        return self.population - self.chromosomes

    @property
    def compiled(self) -> Settings:
        """With the settings of evolution as they are by default: compiled code does not read them."""
        return keep_only(self, {field.name for field in fields(self)} - set(EVOLUTION))


class PaperEgrl(Solver):
    """Evolutionary graph reinforcement learning. Options are the fields of `Settings`."""

    name = "paper"
    problem_kind = "mapping"
    summary = "EGRL as published: graph networks, Boltzmann maps and a gradient learner; sees rewards only"
    deterministic = True
    scheduled = True
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that make this solver what it is."""

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, self.fixed)
        self.options = free_settings(self.settings, self.fixed)

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        require("jax", "agents"), require("equinox", "agents"), require("optax", "agents")
        from loadmaster.mapping.egrl.paper.session import Session

        assert isinstance(meter.problem, Mapping)
        if not meter.problem.live.any():
            meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        return Session(meter, seed, self.settings, state).run()


class EvolutionAlone(PaperEgrl):
    """Published EGRL without its gradient learner."""

    name = "ea"
    summary = "the evolution of published EGRL alone; sees rewards only"
    scheduled = False  # only the learner's noise falls over the budget
    fixed: ClassVar = {"learner": False}


class GradientAlone(PaperEgrl):
    """Published EGRL's learner alone: one noisy and one greedy rollout a round."""

    name = "pg"
    summary = "the gradient learner of published EGRL alone; sees rewards only"
    fixed: ClassVar = {"population": 0, "boltzmann": 0.0}
