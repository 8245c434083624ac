"""GO: a trained network ranks what a list decoder makes of a graph."""

from __future__ import annotations

from loadmaster.graph.go.training import train

__all__ = ["train"]
