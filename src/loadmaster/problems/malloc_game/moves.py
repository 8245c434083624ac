"""The moves, and what is known about sites before a game is played."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.problems.malloc_game.model import GameModel

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

COPY, NO_COPY, DROP = 0, 1, 2
ACTIONS = ("Copy", "NoCopy", "Drop")


def site_gains(model: GameModel) -> Int64:
    """[N] time saved over the whole program if this site alone were fast."""
    slow, _ = model.memory_times(np.zeros(model.sites, dtype=bool))
    step = model.site_step
    alone_slow = slow[step] - model.site_slow
    memory = np.maximum(alone_slow, model.site_fast) if model.parallel else alone_slow + model.site_fast
    compute = model.compute[step]
    small, large = np.minimum(compute, memory), np.maximum(compute, memory)
    body = large + -((-small * model.overlap[step]) // 10**6)
    alone = np.maximum(1, model.launch[step] + body)
    gains: Int64 = (model.all_slow[step] - alone) * model.repeat[step]
    return gains


def neighbours(model: GameModel) -> tuple[Int32, Int32]:
    """([N] the site of the same tensor before each site, [N] the one after it), or -1."""
    before = np.full(model.sites, -1, dtype=np.int32)
    after = np.full(model.sites, -1, dtype=np.int32)
    order = np.argsort(model.site_tensor, kind="stable")
    same = model.site_tensor[order[1:]] == model.site_tensor[order[:-1]]
    before[order[1:][same]] = order[:-1][same]
    after[order[:-1][same]] = order[1:][same]
    return before, after
