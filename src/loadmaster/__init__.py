"""Loadmaster: which memory every tensor lives in, when it moves, what runs where and in which order.

Program × Machine ──Problem──▶ Solver ──▶ Plan ──check──▶ simulate ──▶ Timeline
"""

__version__ = "0.1.0"
