"""Solvers that prove: complete search, and models for OR-tools."""
