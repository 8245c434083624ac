"""What runs have in common: parts that are timed, checkpoints that are offered, what is due now and then."""

from __future__ import annotations

import numpy as np

import toy
from clocks import Ticking
from loadmaster import clock
from loadmaster.learn.session import Interval, Ring, Session
from loadmaster.search.solver import Budget, Meter, Observer, State


class Keeps(Observer):
    def __init__(self, wants: bool) -> None:
        super().__init__()
        self.wants, self.states = wants, list[State]()

    def wants_checkpoint(self, meter: Meter) -> bool:
        return self.wants

    def checkpoint(self, meter: Meter, state: State) -> None:
        self.states.append(state)


class Counting(Session):
    gathered = 0

    def arrays(self) -> State:
        self.gathered += 1
        return {"gathered": np.array(self.gathered)}


def test_a_state_is_gathered_only_where_it_is_wanted() -> None:
    for wants in (True, False):
        keeps = Keeps(wants)
        session = Counting(Meter(toy.Toy(), Budget(1), keeps), "play")
        session.offer_checkpoint()
        assert session.gathered == len(keeps.states) == int(wants)


def test_parts_add_up_what_they_took() -> None:
    session = Counting(Meter(toy.Toy(), Budget(1)), "play", "learn")
    with clock.reading(Ticking(2.0)):
        for part in ("play", "learn", "play"):
            with session.timed(part):
                pass
    assert session.seconds == {"play": 4.0, "learn": 2.0}


def test_an_interval_is_due_after_its_seconds() -> None:
    ticking = Ticking()
    with clock.reading(ticking):
        interval = Interval(60.0)
        ticking.advance(59.0)
        assert not interval.due
        ticking.advance(1.0)
        assert interval.due
        interval.restart()
        assert not interval.due


def test_a_ring_puts_the_newest_over_the_oldest() -> None:
    ring, kept = Ring(4), np.full((4, 2), -1)
    assert ring.store(3, (kept, np.arange(6).reshape(3, 2))).tolist() == [0, 1, 2]
    assert (ring.filled, ring.oldest_first().tolist()) == (3, [0, 1, 2])
    assert ring.store(2, (kept, 9)).tolist() == [3, 0]
    assert kept.tolist() == [[9, 9], [2, 3], [4, 5], [9, 9]]
    assert (ring.stored, ring.filled, ring.oldest_first().tolist()) == (5, 4, [1, 2, 3, 0])
