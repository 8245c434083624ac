"""Constructive solvers: one pass, no search."""
