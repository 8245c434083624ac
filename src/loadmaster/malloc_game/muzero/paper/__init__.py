"""mallocMuZero as published, `profile="paper"`: it plays the program-order game by a search in a learned model.

Here are its settings and its solvers: the agent, the better of agent and baseline, and the policy alone. They
need NumPy alone; what runs needs JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from loadmaster.errors import require
from loadmaster.learn import policies
from loadmaster.learn.policies import PRETRAINED, save_policy
from loadmaster.learn.session import check_settings, free_settings, make_settings
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Meter, Solution, Solver, State

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.paper.network import Network

BY_PLATFORM: dict[str, tuple[int, int]] = {
    "simulations": (8, 32),
    "eval_simulations": (16, 64),
    "games": (64, 1024),
    "batch": (64, 512),
    "updates": (16, 64),
    "window": (32, 64),
}
"""(on a CPU, on an accelerator) for the settings that are None."""
NETWORK = ("width", "channels", "grid_blocks", "dynamics_blocks", "prediction_blocks", "bins")
"""Settings that give the networks their shapes."""
SEARCHING = (
    "policy",
    "model",
    "discount",
    "value_scale",
    "maxvisit_init",
    "rescale_values",
    "considered",
    "dirichlet_fraction",
    "dirichlet_alpha",
    "pb_c_init",
    "pb_c_base",
)
"""Settings that a search reads."""
LEARNING = (
    "model",
    "unroll",
    "value_weight",
    "reward_weight",
    "legality_weight",
    "gradient_scale",
    "learning_rate",
    "final_rate",
    "horizon",
    "weight_decay",
    "gradient_clip",
    "bins",
)
"""Settings that a gradient step reads."""
_COUNTS = (
    "pretrain_positions",
    "games",
    "batch",
    "unroll",
    "eval_games",
    "eval_every",
    "best_games",
    "replay_games",
    "target_every",
    "horizon",
    "width",
    "channels",
    "considered",
)
_SHARES = (
    "reanalysed",
    "best",
    "search_value",
    "imitated",
    "dirichlet_fraction",
    "gradient_scale",
    "discount",
)


@dataclass(frozen=True)
class Settings:
    """Parts are switched off by 0 or False; each is one ablation."""

    policy: str = "gumbel"
    """'gumbel': Gumbel MuZero; 'muzero': PUCT with Dirichlet noise at the root."""
    model: str = "learned"
    """'true': the game itself is the model (AlphaZero), a reference for the learned one."""
    simulations: int | None = None
    """Of each search in self-play and in reanalysis; 0: no search, the bare policy."""
    eval_simulations: int | None = None
    gumbel_scale: float = 1.0
    """Noise at the root in self-play."""
    eval_gumbel_scale: float = 0.5
    """The same in evaluation games; the first of them has none."""
    value_scale: float = 0.01
    """Logits of a unit of Q, times visits (mctx's `qtransform_completed_by_mix_value`)."""
    maxvisit_init: float = 50.0
    rescale_values: bool = True
    """Stretch the Q of a node's actions to [0, 1]."""
    considered: int = 3
    """Actions that Gumbel MuZero considers at the root."""
    dirichlet_fraction: float = 0.25
    dirichlet_alpha: float = 0.3
    pb_c_init: float = 1.25
    pb_c_base: float = 19652.0

    games: int | None = None
    """Played side by side."""
    window: int | None = None
    """Moves that a game decides anew, wherever it begins; the others are as in one of the best games
    so far. 0: whole games."""
    eval_games: int = 16
    eval_every: int = 10
    """Iterations between two evaluations."""
    replay_games: int = 20_000
    """Kept, of all programs together."""
    best_games: int = 16
    """Best distinct games kept of each program; they supply the share `best` of every batch."""
    warm_start: int = 0
    """Begin with games to learn from: those of memory space assignment, and the best one after so many
    evaluations of evolution (`es-moves`). Not from scratch."""
    pretrain_steps: int = 0
    """Gradient steps that come first, on positions of the games of a warm start and of games like them
    where every move was tried in the game itself. Not from scratch."""
    pretrain_positions: int = 40_000

    updates: int | None = None
    """Gradient steps after each batch of games; 0: nothing is learned."""
    batch: int | None = None
    """Positions of a gradient step."""
    reanalyse: bool = True
    """Search again, with today's networks, what old positions are to teach."""
    reanalysed: float = 0.40
    """Share of a batch; with `best` switched on those are always reanalysed too. The rest of the
    batch is taught by the searches that played it."""
    best: float = 0.25
    imitated: float = 0.5
    """Share of the move that was played in what a best game's positions teach; the rest is the new
    search's. The search is scored by its best game, and that one knew something."""
    search_value: float = 0.5
    """Share of the new search in a reanalysed value; the rest is what the game earned."""
    prioritised: bool = True
    """Positions are drawn by how wrong their value was; False: all alike."""
    unroll: int = 5
    """Steps that the model is unrolled in training (K)."""
    discount: float = 0.99
    """Of what comes a move later. Rewards are in units of an optimal game's mean: of all that a long
    game earns, what one move changes is lost in the noise; of the next hundred moves it is not."""
    value_weight: float = 0.5
    reward_weight: float = 1.0
    legality_weight: float = 0.5
    gradient_scale: float = 0.5
    """Of the gradient that enters each unrolled step."""
    learning_rate: float = 1e-3
    final_rate: float = 1e-4
    horizon: int = 20_000
    """Gradient steps over which the rate falls (a cosine); after them it stays."""
    weight_decay: float = 1e-4
    gradient_clip: float = 5.0
    target_every: int = 200
    """Gradient steps after which reanalysis uses the newest networks."""

    width: int = 256
    """Of the latent state; a multiple of 16."""
    channels: int = 64
    """Of what is seen of the grid and of the series."""
    grid_blocks: int = 2
    """Layers that mix the grid's patches."""
    dynamics_blocks: int = 4
    prediction_blocks: int = 2
    bins: int = 101
    """Of a value's and of a reward's distribution."""

    def __post_init__(self) -> None:
        check_settings("muzero", self, self._rules, counts=_COUNTS, shares=_SHARES, open_counts=BY_PLATFORM)

    def _rules(self) -> dict[str, bool]:
        return {
            "policy": self.policy in ("gumbel", "muzero"),
            "model": self.model in ("learned", "true"),
            "best": self.reanalysed + self.best <= 1,
            "bins": self.bins >= 3,
            "width": self.width % 16 == 0,
            "learning_rate": self.learning_rate > 0,
            "gradient_clip": self.gradient_clip > 0,
            "dirichlet_alpha": self.dirichlet_alpha > 0,
            "pb_c_init": self.pb_c_init > 0,
            "pb_c_base": self.pb_c_base > 0,
        }

    def on(self, platform: str) -> Settings:
        """With nothing left open; `platform` as `jax.default_backend()` names it."""
        column = 0 if platform == "cpu" else 1
        chosen: dict[str, Any] = {
            name: pair[column] for name, pair in BY_PLATFORM.items() if getattr(self, name) is None
        }
        return replace(self, **chosen)

    @property
    def has_default_network(self) -> bool:
        """Whether policies that come with the package fit."""
        default: dict[str, Any] = {field.name: field.default for field in fields(self)}
        return all(getattr(self, name) == default[name] for name in NETWORK)


AGENT = "muzero"
DEFAULT = "suite"
"""The packaged network that runs begin with."""
AUTO, SCRATCH = "auto", "scratch"


def load_policy(name: str | Path, like: Network) -> Network:
    """A trained network of the same shapes as `like`."""
    if "heads" in policies.read_policy(name, AGENT)[0]:
        raise policies.BadPolicy(
            f"policy '{name}' is a score for the board, no network of muzero as published",
            object=str(name),
            remedy="leave --set profile out, or give a file of 'loadmaster train muzero --set profile=paper'",
        )
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


class PaperMuZero(Solver):
    """Plays the game by a search in a learned model of it, and learns from its games. Options are
    the fields of `Settings`, and `init`: a trained network ('pretrained:suite', or a file of
    `loadmaster train muzero --set profile=paper`); 'auto': the packaged one if it fits; 'scratch': none."""

    name = "paper"
    problem_kind = "malloc-game"
    summary = "muzero as published: searches a learned model of the game, and learns from its games"
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
        from loadmaster.malloc_game.muzero.paper.session import Session

        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if meter.exhausted:
            return meter.solution()
        if not can_gain(problem):
            meter.evaluate_many(problem.all_slow()[None])
            return meter.solution()
        return Session([meter], seed, self.settings, start_of(self.init, self.settings), state).run()


class PaperProd(PaperMuZero):
    """The better of the agent's plan and a baseline's: the production placement where one is known,
    else that of memory space assignment. The baseline costs one evaluation."""

    name = "paper-prod"
    summary = "the better of the published muzero's plan and the production placement's (or msa's)"

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


class PolicyOnly(PaperMuZero):
    """The trained policy without search: its likeliest moves once, then samples of it. Nothing is
    learned."""

    name = "policy-only"
    summary = "the published muzero's trained policy without search, best of its samples"
    fixed: ClassVar = {"simulations": 0, "eval_simulations": 0, "updates": 0, "window": 0}


def baseline_of(problem: MallocGame) -> str:
    """The solver that `paper-prod` is never worse than."""
    from loadmaster.malloc_game.heuristics import has_production

    return "production" if has_production(problem) else "msa"


def can_gain(problem: MallocGame) -> bool:
    """Whether there is anything to decide and to gain."""
    return problem.moves > 0 and problem.scale_ps > 1e-6 * problem.all_slow_ps
