"""Solvers of the Offload problem."""
