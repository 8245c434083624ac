"""Random graphs of 100 to 4,000 ops from a family and a seed, to train and to test on."""

from loadmaster.program.zoo.graphs.build import synthetic_graph
from loadmaster.program.zoo.graphs.families import FAMILIES, TEST_FAMILIES, TRAINING_FAMILIES

__all__ = ["FAMILIES", "TEST_FAMILIES", "TRAINING_FAMILIES", "synthetic_graph"]
