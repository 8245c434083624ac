"""Hierarchical device placement: a network that groups ops and one that places the groups."""
