"""A slow, obvious simulator in plain Python, written from docs/simulation.md alone, for tests."""

from reference.simulate.simulate import simulate_reference

__all__ = ["simulate_reference"]
