"""EGRL: a trained policy ranks (tensor, memory) pairs, a decoder makes maps that fit, and both evolve."""

from __future__ import annotations

from loadmaster.mapping.egrl.training import train, transfer, zero_shot

__all__ = ["train", "transfer", "zero_shot"]
