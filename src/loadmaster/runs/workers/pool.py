"""`Pool`: requests are handed out to workers, and replies come back in the order of the requests.

A thread here stands for each worker and waits for it. Whoever is free takes the next request. One
whose worker died goes back to the front of the queue, for another to do, while a new worker is started.
`concurrent.futures` has no pool that survives the death of a worker, nor workers on other computers.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl

from loadmaster.errors import LoadmasterError

MOST = 4096
FORMS = "local:N, ray:N, ray:HOST:PORT or ray://HOST:PORT"


@dataclass(frozen=True)
class Address:
    """`kind` is 'local' (processes of this computer) or 'ray'."""

    kind: str
    workers: int | None = None
    """None: as many as the cluster has room for."""
    cluster: str | None = None
    """None: a cluster on this computer, for this run."""
    resource: str | None = None
    """What a worker takes one of, by Ray's name for it; None: a CPU."""


def parse_workers(text: str) -> Address:
    """`FORMS`; the last two may end in '?workers=4&resource=board'."""
    where, _, options = text.partition("?")
    if found := re.fullmatch(r"(local|ray):([0-9]{1,6})", where):
        if not 1 <= int(found[2]) <= MOST or options:
            raise _wrong(text)
        return Address(found[1], int(found[2]))
    if not (found := re.fullmatch(r"(ray://|ray:)(auto|\[[0-9a-fA-F:]+\]:[0-9]+|[\w.-]+:[0-9]+)", where)):
        raise _wrong(text)
    if found[1] == "ray://" and found[2] == "auto":
        raise _wrong(text)
    given = dict(parse_qsl(options, keep_blank_values=True))
    workers, resource = given.pop("workers", None), given.pop("resource", None)
    if given or resource == "" or (options and workers is None and resource is None):
        raise _wrong(text)
    if workers is not None and not (workers.isdecimal() and 1 <= int(workers) <= MOST):
        raise _wrong(text)
    cluster = where if found[1] == "ray://" else found[2]
    return Address("ray", None if workers is None else int(workers), cluster, resource)


def _wrong(text: str) -> LoadmasterError:
    return LoadmasterError(
        f"'{text}' says not where the workers are",
        object="--workers",
        number=text,
        remedy=f"write {FORMS}, with N from 1 to {MOST:,}",
    )


MAX_START_FAILURES = 3
"""So many workers in a row that can't be started, and a place stays empty."""
EARLY_DEATHS = 6
"""The same of workers that die before they have answered anything."""
DEATHS = 3
"""A request that so many workers have died of is given up."""
_PAUSE_SECONDS = 0.5
_CLOSE_SECONDS = 5.0


class WorkerLost(LoadmasterError):
    """A worker died, or could not be started."""


class Worker(Protocol):
    """Answers one request at a time."""

    def call(self, request: bytes) -> bytes:
        """Raises `WorkerLost` if it died."""
        ...

    def close(self) -> None: ...


StartWorker = Callable[[int], Worker]
"""A new worker for a place; raises `WorkerLost`."""


@dataclass
class Reply:
    """What came of a request: `data`, or `fault` if workers died of it."""

    place: int
    data: bytes = b""
    fault: str | None = None


@dataclass(eq=False)
class _Task:
    request: bytes
    place: int | None = None
    """Whose it is; anybody's if None, or if there is nobody at that place."""
    deaths: int = 0
    reply: Reply | None = None
    error: BaseException | None = None


class Pool:
    """`size` places, each with a worker that `start_worker` starts. Use it as a context."""

    def __init__(self, start_worker: StartWorker, size: int) -> None:
        if size < 1:
            raise ValueError("a pool has at least one place")
        self.size, self.lost, self._start_worker = size, 0, start_worker
        self.answered = [0] * size
        """Requests, by place."""
        self._changed = threading.Condition()
        self._queue: deque[_Task] = deque()
        self._alive = [False] * size
        self._failed: dict[int, str] = {}
        self._started: set[int] = set()
        self._closed = False
        self._threads = [
            threading.Thread(
                target=self._supervise, args=(place,), daemon=True, name=f"loadmaster worker {place}"
            )
            for place in range(size)
        ]
        for thread in self._threads:
            thread.start()
        try:
            with self._changed:  # all begin together, or are known to be missing
                self._changed.wait_for(lambda: len(self._started) == size)
                self._changed.wait_for(lambda: any(self._alive) or self._all_failed)
                self._check()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> int:
        """Places that have a worker now."""
        return sum(self._alive)

    def map(self, requests: Sequence[bytes], places: Sequence[int] | None = None) -> Iterator[Reply]:
        """Replies in the order of the requests, each as soon as it and those before it are there.
        `places` says whose each is. What nobody waits for any more is not begun."""
        place_of: Sequence[int | None] = places if places is not None else [None] * len(requests)
        tasks = [_Task(*each) for each in zip(requests, place_of, strict=True)]
        with self._changed:
            self._queue.extend(tasks)
            self._changed.notify_all()
        try:
            for task in tasks:
                with self._changed:
                    while task.reply is None and task.error is None:
                        self._check()
                        self._changed.wait()
                if task.error is not None:
                    raise task.error
                assert task.reply is not None
                yield task.reply
        finally:
            with self._changed:
                mine = set(map(id, tasks))
                self._queue = deque(task for task in self._queue if id(task) not in mine)

    def close(self) -> None:
        """Let the workers go; one that is busy is not waited for longer than a few seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS / len(self._threads))

    @property
    def _all_failed(self) -> bool:
        return len(self._failed) == self.size

    def _check(self) -> None:
        if self._closed:
            raise WorkerLost("the workers were let go", object="--workers", remedy="start them again")
        if self._all_failed:
            why = next(reversed(self._failed.values()))
            raise WorkerLost(
                f"no worker is left: {why}",
                object="--workers",
                number=self.size,
                remedy="see to the workers and resume the run",
            )

    def _supervise(self, place: int) -> None:
        """Keep one place staffed and busy."""
        failures, early, why = 0, 0, ""
        while failures < MAX_START_FAILURES and early < EARLY_DEATHS and not self._closed:
            try:
                worker = self._start_worker(place)
            except Exception as error:
                failures, why = failures + 1, _reason(error)
                self._set_alive(place, False)
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _PAUSE_SECONDS * failures)
                continue
            self._set_alive(place, True)
            before = self.answered[place]
            died = self._serve(place, worker)
            worker.close()
            if died is None:
                return
            why, failures = died, 0
            early = 0 if self.answered[place] > before else early + 1
        with self._changed:
            self._failed[place] = why
            self._changed.notify_all()

    def _serve(self, place: int, worker: Worker) -> str | None:
        """Hand it requests till it dies, and say why; None: the pool was closed."""
        while (task := self._next(place)) is not None:
            try:
                task.reply = Reply(place, worker.call(task.request))
                self.answered[place] += 1
            except WorkerLost as error:
                self.lost += 1
                task.deaths += 1
                if task.deaths >= DEATHS:
                    task.reply = Reply(place, fault=f"{DEATHS} workers died of it: {error.message}")
                with self._changed:
                    self._alive[place] = False
                    if task.reply is None:
                        self._queue.appendleft(task)
                    self._changed.notify_all()
                return error.message
            except BaseException as error:
                task.error = error  # a bug: whoever asked shall hear of it
            with self._changed:
                self._changed.notify_all()
        return None

    def _next(self, place: int) -> _Task | None:
        with self._changed:
            while not self._closed:
                for task in self._queue:
                    if task.place in (None, place) or not self._alive[task.place]:
                        self._queue.remove(task)
                        return task
                self._changed.wait()
        return None

    def _set_alive(self, place: int, staffed: bool) -> None:
        with self._changed:
            self._alive[place] = staffed
            self._started.add(place)
            self._changed.notify_all()


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, LoadmasterError) else f"{type(error).__name__}: {error}"
