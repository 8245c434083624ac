"""Programs for TPU v4i: compiled ahead of time, and the production compiler's placements taken from its dumps."""
