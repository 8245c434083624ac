"""Every number and every option of mallocMuZero. What is None depends on where it runs."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from loadmaster.learn.session import check_settings

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
    rank_returns: bool = False
    """A game earns its rank among the last 512 of its program instead of the time it saves."""

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
    td_steps: int = 0
    """Moves after which a value target trusts the search; 0: to the end of the game."""
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
