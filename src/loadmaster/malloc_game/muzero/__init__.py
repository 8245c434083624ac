"""mallocMuZero: plays the MallocGame by a search in a learned model of it."""

from __future__ import annotations

from loadmaster.malloc_game.muzero.paper.training import train

__all__ = ["train"]
