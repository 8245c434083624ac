"""Solvers that search by evaluating: random, annealing, evolution."""
