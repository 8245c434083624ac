"""Benchmarks: suites of measurements, peers that are only compared with, and recorded results."""
