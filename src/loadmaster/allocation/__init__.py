"""Allocation: an offset for every buffer of fixed lifetime; fit a capacity, or find the least height."""
