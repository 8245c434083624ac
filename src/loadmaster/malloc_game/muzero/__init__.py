"""mallocMuZero: a trained policy ranks tensors, memory space assignment places them, and a search goes on.

`paper` has the published agent, which plays the game move by move.
"""

from __future__ import annotations

from loadmaster.malloc_game.muzero.training import train

__all__ = ["train"]
