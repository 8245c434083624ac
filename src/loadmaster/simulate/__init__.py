"""Simulate: a plan's Timeline. docs/simulation.md has the rules. As a function, `lm.simulate(program, machine, plan)`."""

import sys

from loadmaster import CallablePackage
from loadmaster.simulate.simulator import Simulator, Timeline, get_simulator, simulate

__all__ = ["Simulator", "Timeline", "get_simulator", "simulate"]

sys.modules[__name__].__class__ = CallablePackage
