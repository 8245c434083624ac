"""EGRL's whole state as arrays by name, and back: what a checkpoint holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np
import numpy.typing as npt

from loadmaster.solvers.egrl.learner import Learner
from loadmaster.solvers.egrl.population import Chromosomes
from loadmaster.solvers.solver import State
from loadmaster.solvers.state import generator_state, restore_generator

KINDS = ("gnn", "boltzmann", "learner", "none")


@dataclass
class Progress:
    """Everything that changes while EGRL runs."""

    rng: np.random.Generator
    stack: npt.NDArray[np.float32]
    """[G, W] the weights of the GNNs"""
    chromosomes: Chromosomes
    learner: Learner
    maps: npt.NDArray[np.int8]
    """[replay, 2N] the replay buffer; `stored` says how much of it is filled. Its size does not
    depend on the budget, which may be another one when a run is resumed."""
    rewards: npt.NDArray[np.float64]
    stored: int = 0
    """Transitions ever stored; the buffer is a ring."""
    learned: int = 0
    """Of those, how many an update has been made for."""
    generation: int = 0
    champion: int = KINDS.index("none")
    invalid: int = 0
    first_valid: int = -1
    place: dict[bytes, int] = field(default_factory=dict)
    """Where each map was stored last; the ring may hold another one there by now."""

    def store(self, maps: npt.NDArray[np.int8], rewards: npt.NDArray[np.float64]) -> None:
        """Append transitions to the ring."""
        at = (self.stored + np.arange(len(maps))) % len(self.maps)
        self.maps[at], self.rewards[at] = maps, rewards
        self.stored += len(maps)
        self._index(at)

    def _index(self, places: npt.NDArray[np.int64]) -> None:
        self.place |= {self.maps[place].tobytes(): place for place in places.tolist()}

    def recalled(self, decision: npt.NDArray[np.int8]) -> float:
        """The reward of a map that the buffer holds; NaN: it does not."""
        place = self.place.get(decision.tobytes())
        if place is None or not np.array_equal(self.maps[place], decision):
            return float("nan")
        return float(self.rewards[place])

    @property
    def filled(self) -> int:
        return min(self.stored, len(self.maps))

    def arrays(self) -> State:
        leaves = [x for x in jax.tree.leaves(self.learner) if hasattr(x, "shape")]
        counters = [self.stored, self.learned, self.generation, self.champion, self.invalid, self.first_valid]
        return {
            "rng": generator_state(self.rng),
            "counters": np.array(counters, dtype=np.int64),
            "stack": self.stack,
            **{f"chromosomes.{name}": value for name, value in self.chromosomes._asdict().items()},
            "maps": self.maps[: self.filled],
            "rewards": self.rewards[: self.filled],
            **{f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(leaves)},
        }

    def restore(self, state: State) -> None:
        """Go on from `arrays`; this object gives the shapes."""
        leaves, tree = jax.tree.flatten(self.learner)
        numbers = iter(range(len(leaves)))
        filled = [
            jax.numpy.asarray(state[f"leaf{next(numbers)}"]) if hasattr(x, "shape") else x for x in leaves
        ]
        self.learner = jax.tree.unflatten(tree, filled)
        self.stack = np.array(state["stack"])
        self.chromosomes = Chromosomes(
            *(np.array(state[f"chromosomes.{name}"]) for name in Chromosomes._fields)
        )
        self.rng = restore_generator(state["rng"])
        (self.stored, self.learned, self.generation, self.champion, self.invalid, self.first_valid) = (
            int(x) for x in state["counters"]
        )
        count = len(state["rewards"])
        self.maps[:count], self.rewards[:count] = state["maps"], state["rewards"]
        oldest_first = np.arange(self.stored - count, self.stored) % len(self.maps)
        self._index(oldest_first)
