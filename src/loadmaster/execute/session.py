"""`Session`: what the graphs of a fitted model share: a device, its budget, and where weights are.

All graphs of a model have one block of device memory. The graph that runs has it; when another one's turn comes, a
step that is between its forward and its backward call is copied to the host, and weights that lay there are loaded
anew. Small graphs (a loss beside its model) get a part of the block for themselves, and the others plan with less.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from loadmaster import clock
from loadmaster.errors import require
from loadmaster.execute import own_allocator
from loadmaster.execute.calls import CallExecutor, Paused, Rows, storage_users
from loadmaster.execute.pinned import Fingerprint, version_of
from loadmaster.execute.placement import EDGE
from loadmaster.machine.machine import Machine
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.measured_costs import MeasuredCosts
from loadmaster.search.solver import Budget, Observer

if TYPE_CHECKING:
    from loadmaster.execute.graphs import PlannedGraph

GRAIN = 2**16
"""Bytes: parts of the block are whole grains, so that tensors begin where their type may."""
MANY_NEW_GRAPHS = 8
"""Calls that were traced, when a user is told that they are."""
MOST_CODE = 2**29
"""Bytes that loaded kernels may take."""
CODE_SLACK = 2**22
"""So many more are not worth another plan."""
Found = TypeVar("Found")
Measure = Callable[[Captured], MeasuredCosts | None]


@dataclass(frozen=True)
class Static:
    """A parameter or buffer of the model."""

    name: str
    trained: bool
    bytes: int


@dataclass(frozen=True, eq=False)
class Lent:
    """A result of a graph that a caller has in the block."""

    graph: PlannedGraph
    row: Any
    """Bytes of the block."""
    given: Any
    """The same as a tensor with a storage of its own."""
    alone: int
    """How many look at that if no caller does."""

    @property
    def is_wanted(self) -> bool:
        return storage_users(self.given) > self.alone


@dataclass(eq=False)
class Origin:
    """A tensor that a caller has on the device, and what stands for it on the host, where its model was traced."""

    value: Any
    twin: Any
    version: int
    """Of the twin."""
    copied: bool = False
    """Whether the twin has its values."""


@dataclass(frozen=True)
class DeviceThread:
    """The thread that all models of the process use a device on: libraries keep workspaces for each thread that calls
    them, 33 MiB for products of matrices alone."""

    pool: ThreadPoolExecutor
    number: int
    """Its identifier."""
    stream: Any
    """Of plans, where our allocator is: with PyTorch's, memory belongs to the stream that it was taken on."""


_THREADS: dict[int, DeviceThread] = {}


def device_thread(device: Any) -> DeviceThread:
    """The thread of a device, begun when it is first asked for."""

    def begin() -> tuple[int, Any]:
        torch, stream = require("torch", "torch"), None
        torch.cuda.set_device(device)
        if own_allocator.current() is not None:
            stream = own_allocator.compute(device).stream
            torch.cuda.set_stream(stream)
            own_allocator.make_workspaces(device, stream)
        return threading.get_ident(), stream

    if device.index not in _THREADS:
        pool = ThreadPoolExecutor(1, "loadmaster")
        _THREADS[device.index] = DeviceThread(pool, *pool.submit(begin).result())
    return _THREADS[device.index]


class MoveWeights(Exception):
    """Weights should lie on the device and are on the host, or the other way round: they move, and the model is traced
    anew."""


_SESSIONS: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Native code must not outlive the interpreter."""
    for session in list(_SESSIONS):
        session.end()


@dataclass(eq=False)
class Session:
    """What the graphs of one fitted model share: a device, its budget, and where weights are."""

    name: str
    device: Any
    machine: Machine
    memory: int | None
    """Bytes that the model may have on the device; None: not known yet, `share` says it."""
    share: float | None = None
    budget: Budget = field(default_factory=lambda: Budget(seconds=20.0))
    """For the better plan, after the quick one."""
    background: bool = True
    measure: Measure | None = None
    statics: dict[int, Static] = field(default_factory=dict)
    """Address of the storage -> which parameter or buffer it is."""
    read: set[str] = field(default_factory=set)
    """Names of those that graphs read."""
    compiled: list[list[PlannedGraph]] = field(default_factory=list)
    """Where what Dynamo has compiled finds its graph. Of functions that several models have it keeps that for ever."""
    codes: list[Any] = field(default_factory=list)
    """Of the functions that Dynamo has compiled graphs of."""
    pinned: list[Any] = field(default_factory=list)
    """Storages whose pages are locked: they live as long as this."""
    held_bytes: int = 0
    """Of the memory, what the caller has on the device."""
    grown_bytes: int = 0
    """What libraries keep beside the workspaces that every plan counts with, and loaded kernels."""
    hold_statics: bool = False
    """Parameters and buffers lie on the device, beside the plans."""
    choose_weights: bool = False
    """Whether parameters lie on the device is decided when the first graph is planned."""
    may_return: bool = False
    """They were brought there by a choice of ours, and no call has ended since: if no plan fits, they go back."""
    is_trying: bool = False
    """Calls are made by `fit` itself, of which nothing is left behind."""
    is_partial: bool = False
    """Some layers will have graphs from the next call on."""
    overwritten: list[tuple[Any, Any]] = field(default_factory=list)
    """Parameters and buffers that graphs have changed in those calls, and what they were."""
    state_bytes: int = 0
    """What the optimizer keeps, wherever parameters are."""
    deliver: bool = False
    """All graphs hand their results over on the device."""
    calls_with_new_graphs: int = 0
    """Since `fit` has tried the model."""
    seconds_of_new_graphs: float = 0.0
    called: Counter[PlannedGraph] = field(default_factory=Counter)
    """How often the model's last call has called which graph."""
    say: Callable[[str], None] = lambda _: None
    placement: str | None = None
    graphs: list[PlannedGraph] = field(default_factory=list)
    observer: Observer = field(default_factory=Observer)
    """Searches stop when it says so."""
    lock: Any = field(default_factory=threading.RLock)
    as_graphs: bool = True
    """Calls may be recorded as CUDA graphs."""
    keeps_states: bool = True
    """What graphs change, and is large, stays on the device from call to call."""
    state_least: int = 2**20
    generating: bool = False
    """A cache is nobody's but the model's now."""
    states: dict[int, State] = field(default_factory=dict)
    """Address on the host -> what stands for it on the device."""
    state_bytes_held: int = 0
    _free_states: list[State] = field(default_factory=list)
    origins: dict[int, Origin] = field(default_factory=dict)
    """Address on the host -> what the caller of this call has on the device."""
    is_whole: bool = False
    """Every call so far was one graph and nothing else: nobody looks at what lies on the host in place of inputs."""
    entered: float = 0.0
    """When the first graph of the last call was called."""
    host_seconds: float | None = None
    """What passes before that, at the least so far; None: every call was traced."""
    defers: bool = False
    """A call that is nothing but a graph is made: whoever makes it waits for the device, at its end."""
    reads_host: bool = True
    """The last graph that was called reads or writes on the host while it runs."""
    given_bytes: int = 0
    """What callers have given on the device, at the most."""
    lent: list[Lent] = field(default_factory=list)
    all_shared: bool = False
    """No graph gets memory for itself."""
    _block: Any = None
    _library_bytes: int = 0
    _thread: DeviceThread | None = None
    _process: int = field(default_factory=os.getpid)
    _turn: Any = field(default_factory=threading.Lock)
    _generation: Any = field(default_factory=threading.RLock)
    _caller: int | None = None
    """The thread whose turn it is."""
    _begun: list[tuple[Future[None], Callable[[], None]]] = field(default_factory=list)
    """What was begun on the device's thread and nobody has waited for yet, and what comes after it."""

    def __post_init__(self) -> None:
        self._torch = require("torch", "torch")
        self.is_cuda = str(self.device).startswith("cuda")
        _SESSIONS.add(self)
        self.rows = Rows(pinned=self.is_cuda)

    def end(self) -> None:
        """No search goes on."""
        self.observer.stop = True
        for graph in self.graphs:
            graph.wait()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy of the one where the model was fitted (a worker that reads data): threads are
        not copied, a GPU can't be used there, and modules are ordinary ones."""
        return os.getpid() != self._process

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Around a call of the model: those of other threads wait, as what is known of a call is in one place."""
        with self._turn:
            self._caller = threading.get_ident()
            try:
                yield
            finally:
                self._caller = None

    @contextmanager
    def counting_new_graphs(self) -> Iterator[None]:
        """Around a call of the model. Whoever gives it other sizes again and again waits for a new graph each time, and is
        told why, once."""
        graphs, began = len(self.graphs), clock.now()
        yield
        if len(self.graphs) <= graphs or self.is_trying:
            return
        self.calls_with_new_graphs += 1
        self.seconds_of_new_graphs += clock.now() - began
        if self.calls_with_new_graphs == MANY_NEW_GRAPHS:
            self.say(
                f"{self.name}: {MANY_NEW_GRAPHS} calls came in another size, type or mode than those before. Each of them "
                f"was traced and planned anew, {self.seconds_of_new_graphs:.1f} s in all: pad inputs to a few sizes"
            )

    @contextmanager
    def generation(self, *, keeps_caches: bool) -> Iterator[None]:
        """Around a generation: those of other threads wait, as the memory counts with the cache of one."""
        with self._generation:
            self.generating = keeps_caches
            try:
                yield
            finally:
                self.generating = False
                self.on_thread(self.release_states)

    @property
    def is_within(self) -> bool:
        """Whether this is called by what a call of the model runs on the host, between its graphs."""
        return self._caller == threading.get_ident()

    def on_thread(self, work: Callable[..., Found], *args: Any) -> Found:
        """Make calls of the device on its one thread: autograd has threads of its own. All work there is on the stream
        of plans, between what the caller has asked of its own stream before and what it asks after: so neither has to
        wait for the device."""
        if not self.is_cuda or self.is_forked:
            return work(*args)
        if self._thread is None:
            self._thread = device_thread(self.device)
        thread = self._thread
        if threading.get_ident() == thread.number:
            return work(*args)
        self.wait_for_begun()
        callers = self._torch.cuda.current_stream(self.device)
        if thread.stream is None:
            callers.synchronize()  # what the caller brings is there
            return thread.pool.submit(work, *args).result()
        thread.stream.wait_stream(callers)
        try:
            return thread.pool.submit(work, *args).result()
        finally:
            callers.wait_stream(thread.stream)

    def begin(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Let the device's thread do what the next calls of the device need while the model is traced, which takes most
        of the time until its first answer. `then`: comes after it when somebody waits for it, so that nothing else runs
        in this process meanwhile and time can be taken."""
        if self._thread is None:
            self._thread = device_thread(self.device)
        self._begun.append((self._thread.pool.submit(work), then))

    def wait_for_begun(self) -> None:
        """Until all of that is done; its errors are raised here."""
        begun, self._begun = self._begun, []
        for work, then in begun:
            work.result()
            self.on_thread(then)

    @property
    def goes_ahead(self) -> bool:
        """Whether calls may return before the device is done with them."""
        return self._thread is not None and self._thread.stream is not None

    @contextmanager
    def deferring(self) -> Iterator[None]:
        """Around all of a call. Between its one graph and its end nothing of the caller's runs, so that the host can do
        there what it has to while the device works."""
        self.defers = self.is_whole and self.goes_ahead
        try:
            yield
            if self.defers and self._thread is not None and self.reads_host:
                self._thread.stream.synchronize()
        finally:
            self.defers = False

    def slow_down(self, rate: int) -> None:
        """What comes to the device comes at so many bytes per second, if the machine's links are not slower."""
        fast = self.machine.memories[self.machine.reach[0][0]].name
        links = (
            replace(link, bandwidth=min(link.bandwidth, rate)) if link.target == fast else link
            for link in self.machine.links
        )
        self.machine = replace(self.machine, links=tuple(links))

    @contextmanager
    def growing(self) -> Iterator[None]:
        """The ops of a graph are tried: what libraries keep, and what loading their kernels takes, is counted."""
        own = own_allocator.current() if self.is_cuda else None
        if own is None:
            yield
            return
        kept = own.held
        yield
        self._library_bytes += max(0, own.held - kept)
        self.count_code()

    def count_code(self) -> None:
        """Kernels are loaded when they are first used: what their code takes of the device is no part of the block."""
        if not self.is_cuda or own_allocator.current() is None:
            return
        loaded = own_allocator.outside_bytes(self.device) - own_allocator.compute(self.device).bare_bytes
        # Other processes come and go: what is too much to be code is theirs.
        grown = self._library_bytes + min(max(0, loaded), MOST_CODE)
        if grown > self.grown_bytes + CODE_SLACK:
            self.grown_bytes = grown

    @property
    def home(self) -> Any:
        """Where parameters are, and graphs are traced."""
        return self.device if self.hold_statics else self._torch.device("cpu")

    @property
    def static_bytes(self) -> int:
        """Of parameters and buffers."""
        return sum(each.bytes for each in self.statics.values())

    @property
    def unread_bytes(self) -> int:
        """Of parameters and buffers that no graph reads."""
        return sum(each.bytes for each in self.statics.values() if each.name not in self.read)

    @property
    def trained_bytes(self) -> int:
        """Of those that get gradients."""
        return sum(each.bytes for each in self.statics.values() if each.trained)

    @property
    def step_seconds(self) -> float:
        """What the optimizer's step takes, by the bytes that it reads and writes: those of parameters, gradients and its
        state, on the device or over the link. 0: there is none, or it is somebody else's."""
        if not self.state_bytes:
            return 0.0
        fast = self.machine.memories[self.machine.reach[0][0]]
        read, written = 2 * self.trained_bytes + self.state_bytes, self.trained_bytes + self.state_bytes
        if self.hold_statics:
            return read / fast.read + written / fast.write
        return read / min(each.bandwidth for each in self.machine.links)

    @property
    def kept_bytes(self) -> int:
        """What libraries keep on the device."""
        ours = self.is_cuda and own_allocator.current() is not None
        return own_allocator.compute(self.device).kept_bytes if ours else 0

    def capacity_of(self, graph: PlannedGraph) -> int:
        """Bytes that a graph may plan with, libraries' included."""
        if self.memory is None:  # all that it needs, until the whole model has been seen
            return graph.needed + GRAIN
        private = sum(each.private for each in self.graphs)
        return graph.private or self.usable + self.kept_bytes - private

    def memory_for(self, graph: PlannedGraph, count: int) -> int:
        """The least memory with which `capacity_of` is at least `count` for a graph that shares."""
        private = sum(each.private for each in self.graphs if each is not graph)
        return self._outside + -(-(count + private - self.kept_bytes) // GRAIN) * GRAIN

    @property
    def _delivered(self) -> int:
        return max((graph.delivered_bytes for graph in self.graphs), default=0)

    @property
    def _outside(self) -> int:
        """Bytes of the memory that are no part of the block."""
        held = self.held_bytes + self.state_bytes_held + self.given_bytes
        return held + self.grown_bytes + self.kept_bytes + self._delivered

    @property
    def usable(self) -> int:
        """Bytes of the block: whole grains, so that tensors begin where their type may."""
        assert self.memory is not None
        return (self.memory - self._outside) // GRAIN * GRAIN

    def block_of(self, graph: PlannedGraph) -> Any:
        """The bytes of the device that a graph has while it runs; None: PyTorch's allocator has them."""
        if self.memory is None or (self.is_cuda and own_allocator.current() is None):
            return None
        torch, whole = self._torch, self.usable
        if self._block is None or len(self._block) != whole:
            self.drop_block()
            self._block = torch.empty(whole, dtype=torch.uint8, device=self.device)
        if not graph.private:
            return self._block
        end = whole - graph.private_after
        return self._block[end - graph.private : end]

    def drop_block(self) -> None:
        """The memory goes back to the device; graphs that are called again get it anew."""
        for each in self.graphs:  # nothing may look at the old one
            each.let_go()
        self._block = None
        if self.is_cuda and (own := own_allocator.current()) is not None:
            own.release()

    def lend(self, graph: PlannedGraph, row: Any) -> Any:
        """Bytes of the block as a tensor that a caller may keep, until the block is needed again."""
        own = own_allocator.current()
        assert own is not None
        own.lend(row.data_ptr(), len(row))
        given = self._torch.empty(len(row), dtype=self._torch.uint8, device=self.device)
        assert given.data_ptr() == row.data_ptr()
        self.lent.append(Lent(graph, row, given, storage_users(given)))
        return given[:]

    def take_back(self) -> None:
        """The block is needed again: results of it that callers still have move out. Graphs whose callers keep
        results make them beside the block from now on, for which it gets smaller."""
        lent, self.lent = self.lent, []
        kept = [each for each in lent if each.is_wanted]
        if not kept:
            return
        moving = [(each.given, each.row.cpu()) for each in kept]
        for each in kept:
            each.graph.stop_lending()
            each.given.untyped_storage().resize_(0)
        del lent, kept, each  # they look at the block
        self.drop_block()
        for given, value in moving:  # whatever looks at the storage finds the same in another place
            given.untyped_storage().resize_(len(value))
            given.copy_(value)

    def share_all(self) -> bool:
        """No graph has memory for itself any more: another one needs it. False: none had."""
        private = [graph for graph in self.graphs if graph.private]
        for graph in private:
            graph.step_aside()
            graph.give_up()
        self.all_shared = True
        return bool(private)

    def bring_all(self, values: Any, where: Any) -> Any:
        """What a caller gives, there: the tensors in any structure."""
        from torch.utils._pytree import tree_leaves, tree_map_only

        torch = self._torch
        given = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor) and each.is_cuda]
        count = sum(each.nbytes for each in given) // GRAIN * GRAIN
        self.given_bytes = max(self.given_bytes, count)  # it takes of the same memory
        self.origins = {}
        found = tree_map_only(torch.Tensor, lambda each: self._bring(each, where), values)
        if not self.is_whole:
            self.fill_origins()
        return found

    def _bring(self, value: Any, where: Any) -> Any:
        """A tensor there; on the host in locked pages, with its values when `fill_origins` was called."""
        plain = type(value) is self._torch.Tensor and value.is_contiguous() and not value.requires_grad
        if value.device.type != "cuda" or where.type != "cpu" or not plain or not value.nbytes:
            return value.to(where)
        found = self.rows.take(value.nbytes).view(value.dtype).view(value.shape)
        self.origins[found.data_ptr()] = Origin(value, found, found._version)
        return found

    def fill_origins(self) -> bool:
        """Somebody else than a plan may look at inputs on the host: now they are there. False: they were before."""
        missing = [each for each in self.origins.values() if not each.copied]
        with self._torch.no_grad():
            for each in missing:
                each.twin.copy_(each.value, non_blocking=True)
                each.version, each.copied = each.twin._version, True
        if missing and self.is_cuda:
            self._torch.cuda.current_stream(self.device).synchronize()
        return bool(missing)

    def with_origins(self, values: Sequence[Any]) -> list[Any]:
        """What a caller has on the device in place of what stands for it in this call, if that is still the same and
        no other graph reads it."""
        found = list(values)
        if not self.origins:
            return found
        if len(self.graphs) > 1:
            self.fill_origins()
            return found
        low = min(self.origins)
        high = max(begin + each.twin.nbytes for begin, each in self.origins.items())
        near = [(at, address) for at, address in enumerate(map(_address, values)) if low <= address < high]
        for at, address in near:  # few of many: weights lie elsewhere
            if not any(begin <= address < begin + each.twin.nbytes for begin, each in self.origins.items()):
                continue
            value, known = values[at], self.origins.get(address)
            same = known is not None and known.value.shape == value.shape and known.value.dtype == value.dtype
            if known is not None and same and known.version == version_of(value):
                found[at] = known.value
            else:
                self.fill_origins()  # a part of one, or what was changed on the host
        return found

    def state_of(self, value: Any) -> State:
        """The tensor on the device that stands for one on the host, up to date."""
        key = int(value.data_ptr())
        if key not in self.states:
            free = next((each for each in self._free_states if each.fits(value)), None)
            if free is None:
                free = State(self._torch.empty_like(value, device=self.device))
                self.state_bytes_held += value.nbytes
            else:
                self._free_states.remove(free)
            self.states[key] = free
        self.states[key].bring(value)
        return self.states[key]

    def write_back(self) -> None:
        """What was changed on the device is on the host as well."""
        for state in self.states.values():
            state.write_back()

    def release_states(self) -> None:
        """Those of a generation are over; their memory is for the next one."""
        self.write_back()
        for key in [key for key in self.states if key not in self.statics]:
            self._free_states.append(self.states.pop(key))

    def write_over(self, old: Any, new: Any, *, anew: bool) -> None:
        """Let a tensor of the caller's have a new value; None: it has it. `anew`: in memory of its own."""
        if new is None:
            return
        if anew:  # for good: a layer that packs its weight at its first call knows that it has done so
            old.set_(new)
            return
        if self.is_trying:
            self.overwritten.append((old.detach(), old.detach().clone()))
        old.detach().copy_(new)

    def settle_share(self) -> bool:
        """A whole call was made: what the model needs is known, and with it the memory that is a share of that.
        False: it was known before."""
        if self.memory is not None or not self.graphs or self.is_partial:
            return False
        assert self.share is not None
        held = self.held_bytes + self.state_bytes_held + self._delivered
        count = int(self.share * (sum(graph.needed for graph in self.graphs) + held)) + self.grown_bytes
        block = count - self._outside
        self.memory = self._outside - -block // GRAIN * GRAIN  # all of what it needs is enough for it
        return True

    def free_block(self, count: int) -> Any:
        """So many bytes of the device, or fewer: of the block, if nobody has it."""
        torch = self._torch
        if self._block is None:
            return torch.empty(count, dtype=torch.uint8, device=self.device)
        return self._block[EDGE : EDGE + count]

    def claim(self, graph: PlannedGraph) -> None:
        """It is this graph's turn: others make room."""
        for other in self.graphs:
            if other is not graph and other.meets(graph):
                other.step_aside()
        graph.take_place()


def _address(value: Any) -> int:
    return value.data_ptr()  # type: ignore[no-any-return]


class State:
    """A tensor of the host that graphs change on the device."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._host: Any = None
        self._seen: Fingerprint | None = None

    def fits(self, host: Any) -> bool:
        """Whether it could stand for that tensor."""
        mine = self.value
        return bool(mine.shape == host.shape and mine.dtype == host.dtype and mine.stride() == host.stride())

    def bring(self, host: Any) -> None:
        """Take over what is on the host, if it was changed there."""
        if self._seen is None or self._host is None or self._host.data_ptr() != host.data_ptr():
            self._seen = Fingerprint(host)
        elif not self._seen.changed(host, expected=1):  # PyTorch counts a call that changes it as one change
            return
        self._host = host.detach()
        self.value.copy_(self._host)

    def write_back(self) -> None:
        """Let the host have what is on the device."""
        if self._host is not None and self._seen is not None:
            self._host.copy_(self.value)
            self._seen.changed(self._host)


class Step:
    """A call, and in training all that comes until its backward call."""

    _numbers = itertools.count(1)

    def __init__(self, args: list[Any], random: Any, *, training: bool) -> None:
        torch = require("torch", "torch")
        self.args, self.random, self.number = args, random, next(Step._numbers)
        self.executor: CallExecutor | None = None
        self.paused: Paused | None = None
        self._versions = [version_of(each) for each in args] if training else []
        self._token = torch.tensor([self.number])
        self._alone = storage_users(self._token)

    def handed_out(self) -> Any:
        """What PyTorch keeps for the backward call: a tensor that has the number."""
        return self._token[:]

    @property
    def is_unchanged(self) -> bool:
        """Whether what the forward call was given is what it was."""
        return not self.changed

    @property
    def changed(self) -> list[int]:
        """What the forward call was given and is something else by now."""
        now = [version_of(each) for each in self.args]
        return [at for at, (one, other) in enumerate(zip(self._versions, now, strict=True)) if one != other]

    @property
    def is_wanted(self) -> bool:
        """Whether somebody can still make the backward call."""
        return storage_users(self._token) > self._alone


def size_text(count: int) -> str:
    """Bytes, rounded up, as `fit` takes them."""
    unit, size = ("MiB", 2**20) if count >= 2**24 else ("KiB", 2**10)
    return f"{-(-count // size)}{unit}"


def random_state(device: Any) -> Any:
    """Of PyTorch's generators, on the host and on the device."""
    torch = require("torch", "torch")
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: Any, device: Any) -> None:
    """Draw what was drawn after that state."""
    torch = require("torch", "torch")
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
