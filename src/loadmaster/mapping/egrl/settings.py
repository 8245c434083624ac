"""Every number and every option of EGRL, with the defaults that the results were made with."""

from __future__ import annotations

from dataclasses import dataclass, fields

from loadmaster.learn.session import check_settings, keep_only

EVOLUTION = (
    "population",
    "boltzmann",
    "learner",
    "elites",
    "tournament",
    "crossover",
    "mutation",
    "seeding",
    "anchor",
    "swaps",
    "runs",
    "recall",
    "screen",
    "migration",
    "replay",
    "burn_in",
    "updates",
    "validate",
    "horizon",
)
"""Settings that neither the networks nor the learner's updates read."""
_COUNTS = ("tournament", "screen", "width", "batch", "horizon")
_SHARES = ("boltzmann", "crossover", "mutation", "swaps", "runs", "discount", "polyak")


@dataclass(frozen=True)
class Settings:
    """Parts are switched off by 0, False or 'none'; each is one ablation."""

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
    seeding: str = "sharp"
    """A Boltzmann chromosome from a GNN: 'sharp' (local search around its map), 'posterior' (its
    probabilities) or 'none' (the slot keeps what it has)."""
    anchor: bool = True
    """A chromosome stays around the best map it has drawn, and never draws that one again; False:
    as published, it only drifts. Ours."""
    swaps: float = 0.3
    """Share of an anchored chromosome's draws in which two tensors change places. Ours."""
    runs: float = 0.2
    """Share of an anchored chromosome's draws in which neighbouring layers move together. Ours."""
    recall: bool = True
    """A GNN whose map was scored before is given that score, and its evaluation goes to one more
    draw of a chromosome; not where scores are noisy. Ours."""
    screen: int = 64
    """Draws of a chromosome of which the linear critic picks the one to evaluate; 1: none. Part of
    the learner. Ours."""
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
    updates: float = 0.25
    """Gradient updates per stored transition. The published 1 costs four times the time; see the
    ablation."""
    actor_rate: float = 1e-3
    critic_rate: float = 1e-3
    entropy: float = 0.05
    imitation: float = 1.0
    """Weight of the actor's likelihood of the best map found by anybody. Ours."""
    action_noise: float = 0.2
    """Standard deviation of the noise on the critic's view of an action."""
    gradient_clip: float = 5.0
    target: str = "one-step"
    """'bootstrap' keeps the circulated form with a target critic."""
    discount: float = 0.99
    polyak: float = 1e-3

    validate: str = ""
    """Models, separated by ';', on which networks are tried when the policy of a run is chosen."""

    horizon: int = 4000
    """Budget that exploration is tied to where the meter has none."""

    def __post_init__(self) -> None:
        check_settings("EGRL", self, self._rules, counts=_COUNTS, shares=_SHARES)

    def _rules(self) -> dict[str, bool]:
        return {
            "population": self.population == 0 or self.population >= 4,
            "elites": self.elites >= 1 and (not self.population or self.elites < self.population),
            "seeding": self.seeding in ("sharp", "posterior", "none"),
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
    def compiled(self) -> Settings:
        """With the settings of evolution as they are by default: compiled code does not read them."""
        return keep_only(self, {field.name for field in fields(self)} - set(EVOLUTION))

    @property
    def gnns(self) -> int:
        return self.population - self.chromosomes
