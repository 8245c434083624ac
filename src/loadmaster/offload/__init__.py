"""Offload: a program that needs more fast memory than there is, on a device that works in it alone."""
