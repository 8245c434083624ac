"""GO: one graph network that decides fusion, placement and schedule of any graph in one pass."""

from __future__ import annotations

from loadmaster.graph.go.training import train, train_one

__all__ = ["train", "train_one"]
