"""The pool of workers: order, deaths, places, and what is told to whoever asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.runs.workers import pool as pools
from loadmaster.runs.workers.pool import DEATHS, MAX_START_FAILURES, Address, Pool, WorkerLost, parse_workers
from loadmaster.runs.workers.server import pack, unpack

Answer = Callable[[int, bytes], bytes]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_PAUSE_SECONDS", 0.001)


class Staff:
    """Hires workers of a function (place, request) -> reply, and counts them."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.hired, self.closed = answer, 0, 0
        self.lock = threading.Lock()

    def __call__(self, place: int) -> _Fake:
        with self.lock:
            self.hired += 1
        return _Fake(self, place)


class _Fake:
    def __init__(self, staff: Staff, place: int) -> None:
        self.staff, self.place = staff, place

    def call(self, request: bytes) -> bytes:
        return self.staff.answer(self.place, request)

    def close(self) -> None:
        with self.staff.lock:
            self.staff.closed += 1


def requests(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_replies_come_in_order_whoever_dies(seed: int) -> None:
    rng, lock = np.random.default_rng(seed), threading.Lock()
    doomed = set(rng.choice(40, 12, replace=False).tolist())

    def answer(place: int, request: bytes) -> bytes:
        number = int(request)
        time.sleep((number * 7 + place) % 5 * 1e-3)
        with lock:
            if number in doomed:
                doomed.remove(number)
                raise WorkerLost("killed")
        return b"reply " + request

    staff = Staff(answer)
    with Pool(staff, int(rng.integers(1, 5))) as pool:
        found = [reply.data for reply in pool.map(requests(40))]
        assert found == [b"reply " + request for request in requests(40)]
        assert pool.lost == 12 and sum(pool.answered) == 40
        assert list(pool.map([])) == []
    assert staff.hired == staff.closed == pool.size + 12


def test_a_request_that_kills_is_given_up_and_the_others_are_not() -> None:
    def answer(place: int, request: bytes) -> bytes:
        if request == b"1":
            raise WorkerLost("out of memory")
        return request

    with Pool(Staff(answer), 1) as pool:
        good, bad, other = pool.map(requests(3))
    assert good.data == b"0" and other.data == b"2" and pool.lost == DEATHS
    assert bad.fault == f"{DEATHS} workers died of it: out of memory"


def test_the_run_goes_on_with_whoever_can_be_had() -> None:
    def start_worker(place: int) -> _Fake:
        if place != 1:
            raise WorkerLost("no room")
        return _Fake(staff, place)

    staff = Staff(lambda place, request: request)
    with Pool(start_worker, 3) as pool:
        found = list(pool.map(requests(6), [0, 1, 2, 0, 1, 2]))
        assert pool.alive == 1 and {reply.place for reply in found} == {1}


def test_nobody_can_be_had() -> None:
    tried = []

    def start_worker(place: int) -> _Fake:
        tried.append(place)
        raise WorkerLost("no room")

    with pytest.raises(WorkerLost, match="no worker is left: no room"):
        Pool(start_worker, 2)
    assert sorted(tried) == [0] * MAX_START_FAILURES + [1] * MAX_START_FAILURES


def test_everybody_dies_for_good_in_the_middle() -> None:
    def start_worker(place: int) -> _Fake:
        if gone.is_set():
            raise WorkerLost("the cluster is gone")
        return _Fake(staff, place)

    def answer(place: int, request: bytes) -> bytes:
        if request == b"5":
            gone.set()
            raise WorkerLost("killed")
        return request

    gone, staff = threading.Event(), Staff(answer)
    with Pool(start_worker, 1) as pool, pytest.raises(WorkerLost, match=r"the cluster is gone.*resume"):
        list(pool.map(requests(9)))
    assert sum(pool.answered) == 5


def test_a_place_gets_what_is_meant_for_it() -> None:
    with Pool(Staff(lambda place, request: request), 3) as pool:
        places = [2, 0, 1, 1, 2, 0, 0]
        assert [reply.place for reply in pool.map(requests(7), places)] == places


def test_a_bug_is_told_to_whoever_asked_and_stops_nothing() -> None:
    def answer(place: int, request: bytes) -> bytes:
        return str(1 // int(request)).encode()

    with Pool(Staff(answer), 2) as pool:
        with pytest.raises(ZeroDivisionError):
            list(pool.map([b"0"]))
        assert [reply.data for reply in pool.map([b"1"])] == [b"1"]


def test_what_nobody_waits_for_is_not_begun() -> None:
    seen: list[bytes] = []

    def answer(place: int, request: bytes) -> bytes:
        seen.append(request)
        time.sleep(0.01)
        return request

    with Pool(Staff(answer), 1) as pool:
        replies = pool.map(requests(50))
        next(replies)
        replies.close()  # type: ignore[attr-defined]
        assert next(pool.map([b"last"])).data == b"last"
    assert len(seen) < 10


def test_messages_are_as_they_were() -> None:
    arrays = {"a": np.arange(6, dtype=np.int8).reshape(2, 3), "b": np.zeros((0, 4))}
    about, found = unpack(pack({"x": [1.5, None], "y": "ü"}, arrays))
    assert about == {"x": [1.5, None], "y": "ü"} and list(found) == ["a", "b"]
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
    with pytest.raises(ValueError, match="pickle"):
        pack({}, {"object": np.array([{}], dtype=object)})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("local:3", Address("local", 3)),
        ("ray:2", Address("ray", 2)),
        ("ray:auto", Address("ray", None, "auto")),
        ("ray:auto?workers=4", Address("ray", 4, "auto")),
        ("ray:head.example:6379", Address("ray", None, "head.example:6379")),
        ("ray://10.0.0.7:10001", Address("ray", None, "ray://10.0.0.7:10001")),
        ("ray://[::1]:10001?workers=8&resource=board", Address("ray", 8, "ray://[::1]:10001", "board")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_workers(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "local",
        "local:",
        "local:0",
        "local:-1",
        "local:2.5",
        "local:99999",
        "local:2?workers=3",
        "ray",
        "ray:",
        "ray://",
        "ray://auto",
        "ray://host",
        "ray:host",
        "ray:h:1?worker=2",
        "ray:h:1?workers=0",
        "ray:h:1?workers=x",
        "ray:h:1?resource=",
        "http://h:1",
        "ray://h:1/path",
        "local:٣",
    ],
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(LoadmasterError, match="local:N") as caught:
        parse_workers(text)
    assert caught.value.object == "--workers" and caught.value.number == text
