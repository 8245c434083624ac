"""Mapping: one memory for every activation and every weight, for its whole life (EGRL's problem)."""
