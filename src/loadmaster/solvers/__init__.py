"""Solvers: they find plans and never score themselves."""
