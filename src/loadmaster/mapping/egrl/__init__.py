"""EGRL: evolution and a gradient learner share one replay buffer to map tensors to memories."""

from __future__ import annotations
