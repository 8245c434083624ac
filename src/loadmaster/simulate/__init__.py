"""Simulate: a plan's Timeline. docs/simulation.md has the rules."""

from loadmaster.simulate.simulator import Simulator, simulate, simulator
from loadmaster.simulate.simulator import Timeline

__all__ = ["Simulator", "Timeline", "simulate", "simulator"]
