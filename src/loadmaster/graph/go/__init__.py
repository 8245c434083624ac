"""GO: one graph network that decides fusion, placement and schedule of any graph in one pass."""
