"""mallocMuZero: plays the MallocGame by a search in a learned model of it."""
