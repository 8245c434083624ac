"""Simulate: a plan's Timeline. docs/simulation.md has the rules."""

from loadmaster.simulate.simulator import Simulator, Timeline, simulate, simulator

__all__ = ["Simulator", "Timeline", "simulate", "simulator"]
