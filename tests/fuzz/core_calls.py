"""Calls of the native core with arrays that somebody got wrong: lengths, types, indices, sizes.

Calls are taken down while small problems are solved as users solve them; each such tape is played again with some
arguments changed. An input is the number of a tape and the seed of its changes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from generate import random_case, random_program
from loadmaster import _core
from loadmaster.errors import LoadmasterError
from loadmaster.graph.decoder import Decoder
from loadmaster.machine import load_machine
from loadmaster.planner import make_problem
from loadmaster.program import Program
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve
from loadmaster.simulate import simulate
from loadmaster.simulate.simulator import Simulator

from . import mutate
from .use import small_program


class Ref(NamedTuple):
    """An object that an earlier call of the tape gave."""

    number: int


class Call(NamedTuple):
    """`of` is the object whose method it is; None: the module's own function or class."""

    of: Ref | None
    name: str
    arguments: tuple[Any, ...]


Tape = list[Call]
_NAMES = [name for name in dir(_core) if not name.startswith("_") and callable(getattr(_core, name))]
_LEFT_OUT = {"device_allocator", "HasModel"}
"""The first needs a GPU, the second can't be made."""


class _Recorder:
    """Stands in for the module: hands every call on, and takes it down."""

    def __init__(self) -> None:
        self.tape: Tape = []
        self._objects: dict[int, tuple[Ref, Any]] = {}

    def function(self, name: str) -> Any:
        real = getattr(_core, name)

        def call(*arguments: Any, **more: Any) -> Any:
            # The stubs name arguments in the order in which they are bound.
            everything = (*arguments, *more.values())
            return self._wrapped(self._called(None, name, real, everything))

        return call

    def _called(self, of: Ref | None, name: str, function: Any, arguments: tuple[Any, ...]) -> Any:
        plain = tuple(self._noted(argument) for argument in arguments)
        self.tape.append(Call(of, name, plain))
        return function(*(getattr(argument, "_real", argument) for argument in arguments))

    def _noted(self, argument: Any) -> Any:
        if isinstance(argument, _Object):
            return argument._ref
        if callable(argument):
            return None  # is told of improvements
        return copy.deepcopy(dict(argument) if hasattr(argument, "keys") else argument)

    def _wrapped(self, found: Any) -> Any:
        if type(found).__module__ != _core.__name__:
            return found
        return _Object(self, Ref(len(self.tape) - 1), found)


class _Object:
    def __init__(self, recorder: _Recorder, ref: Ref, real: Any) -> None:
        self._recorder, self._ref, self._real = recorder, ref, real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **more: Any) -> Any:
            recorder = self._recorder
            everything = (*arguments, *more.values())
            return recorder._wrapped(recorder._called(self._ref, name, found, everything))

        return call


@contextlib.contextmanager
def _taken_down() -> Iterator[_Recorder]:
    recorder = _Recorder()
    real = {name: getattr(_core, name) for name in _NAMES if name not in _LEFT_OUT}
    stand_ins = {name: recorder.function(name) for name in real}
    try:
        for name, stand_in in stand_ins.items():
            setattr(_core, name, stand_in)
        yield recorder
    finally:
        for name, function in real.items():
            setattr(_core, name, function)


_SOLVED = (
    ("nnp-i:sram=64", "mapping", ("density", "annealing", "probe")),
    ("tpu-v4i:cmem=8KiB", "malloc-game", ("greedy-order", "msa", "msa-order", "climb", "es-moves")),
    ("toy2", "graph", ("heft", "m-etf", "cost-model", "anneal", "random-best", "large-neighbourhood")),
    ("arena:64KiB", "order", ("peak-greedy", "peak-dp", "peak-cut", "peak-beam", "random-best")),
    (
        "arena:64KiB",
        "allocation",
        ("exact", "large", "first-fit", "xla-best-fit", "tvm-hill-climb", "anneal"),
    ),
    ("h200:hbm=1MiB", "offload", ("belady", "prefetch", "anneal")),
)


@cache
def _tapes() -> list[Tape]:
    programs = [_straight(1), _straight(5), small_program()]
    tapes = []
    for number in range(4):
        with _taken_down() as recorder, contextlib.suppress(LoadmasterError):
            program, machine, plan = random_case(np.random.default_rng(number), max_ops=6, valid_only=True)
            native = Simulator(program, machine)
            native.run(plan)
            native.run_many([plan, plan], 1)
            simulate(program, machine)
        tapes.append(recorder.tape)
    for machine_name, kind, solvers in _SOLVED:
        for i, name in enumerate(solvers):
            with _taken_down() as recorder, contextlib.suppress(LoadmasterError):
                problem = make_problem(programs[i % 2], load_machine(machine_name), problem=kind)
                problem.bound()
                solution = solve(make_labelled(kind, name), problem, Budget(12))
                if kind == "malloc-game":
                    _played(problem)
                if solution.decision is not None:
                    problem.plan(solution.decision)
            tapes.append(recorder.tape)
    for calls in (_game_calls, _order_calls, _graph_calls, _buffer_calls, _device_calls, _small_calls):
        with _taken_down() as recorder:
            calls(programs[0])
        tapes.append(recorder.tape)
    return [tape[:60] for tape in tapes if tape]


def _straight(seed: int) -> Program:
    """A random program without loops that all kinds of problems take."""
    for number in range(seed * 100, seed * 100 + 100):
        program = random_program(np.random.default_rng(number), 8)
        if (
            program.n_ops >= 5
            and not program.n_loops
            and not len(program.tie_kind)
            and not program.op_view.any()
        ):
            return program
    raise AssertionError("no seed gives such a program")


def _played(problem: Any) -> None:
    """What the agents do with a game."""
    moves = np.ascontiguousarray(np.tile(problem.all_slow(), (2, 1)))
    problem.games(2, 1).observe()
    problem.try_all(moves)
    problem.observe_at(moves, np.zeros(2, dtype=np.int32), 2)


# What solvers of small problems do not come to.


def _game_calls(program: Program) -> None:
    problem: Any = make_problem(program, load_machine("tpu-v4i:cmem=8KiB"), problem="malloc-game")
    slow = np.ascontiguousarray(np.tile(problem.all_slow(), (2, 1)))
    problem.tables.judge(np.zeros(problem.moves, dtype=np.int8), np.zeros((0, 5), dtype=np.int64))
    for backup in ("retroactive", "rewind"):
        game = _core.Game(problem.tables, {"backup": backup, "repack": 2, "max_idle_s": 1.0})
        game.reset(2, 1)
        game.masks()
        game.step(np.ascontiguousarray(slow[:, 0]))
        game.step_towards(np.ones(2, dtype=np.int16))
        game.undo()
        game.reset(2, 1)
        game.replay(np.ascontiguousarray(slow[:, :2]))
        game.cursors()
        game.judged()
        game.backups()
        game.placement(1)
        if backup == "retroactive":
            game.finish(np.ones((2, problem.moves), dtype=np.int16))


def _order_calls(program: Program) -> None:
    problem: Any = make_problem(program, load_machine("arena:64KiB"), problem="order")
    graph, ops = problem.native, problem.native.ops
    order = graph.simple("depth-first")
    graph.simple("reverse-post-order")
    graph.profile(order)
    graph.by_keys(np.arange(2 * ops, dtype=np.float64).reshape(2, ops), 1)
    part = graph.part(np.ascontiguousarray(order[:3]), np.zeros(ops, dtype=np.int8))
    cuts = _core.OrderCuts(graph)
    nothing = np.zeros(0, dtype=np.int32)
    cuts.below(1, nothing, nothing, 2**60, True, 1.0)
    cuts.below(2, np.ascontiguousarray(order[:1]), np.ascontiguousarray(order[-1:]), 2**60, False, 1.0)
    for each in (part, graph):
        search = _core.PeakSearch(each, 10**6)
        search.advance(100)
        search.order()
        beam = _core.PeakBeam(each, 4)
        beam.advance(2)
        beam.advance(100)
        beam.order()


def _graph_calls(program: Program) -> None:
    problem: Any = make_problem(program, load_machine("toy2"), problem="graph")
    ops = np.arange(program.n_ops, dtype=np.int32)
    columns = {"fusion": ops, "group": ops, "component": ops - ops - 1, "bytes": np.full(len(ops), 8)}
    placers = _core.Placers(problem.simulator.native, columns)
    placers.levels(np.zeros(len(ops), dtype=np.int32), True)
    placers.table()
    placers.heft(np.full(len(problem.machine.memories), 2**20), True, 50)
    problem.climb().counts() if callable(problem.climb) else None
    decoder, free = Decoder(problem, 1), np.full((2, problem.groups), -1)
    parameters = np.array([[1.0, 0.5, 0.1, 1.0, 1.0]] * 2)
    found, _ = decoder.repair(free, parameters, np.array([0, 1]), np.zeros((*free.shape, 2)))
    decoder.reckon(found)


def _buffer_calls(program: Program) -> None:
    def column(*values: int) -> Any:
        return np.array(values, dtype=np.int64)

    nowhere = column(-1, -1, -1, -1)
    gaps, apart = np.array([[0, 2, 3, 0, 8]], dtype=np.int64), np.array([[1, 3]], dtype=np.int32)
    life = column(0, 1, 2, 5), column(4, 3, 6, 9), column(16, 8, 32, 4), column(1, 8, 4, 1)
    buffers = _core.Buffers(*life, column(-1, 64, -1, -1), nowhere, gaps, apart)
    stop = _core.Stop(1.0, 10_000)
    buffers.minimize({"threads": 1, "seed": 3, "canonical": False}, stop, _told)
    buffers.infeasible_subset(20, {"threads": 1}, stop)
    for name in ("tvm-greedy", "vela-hill-climb"):
        buffers.baseline(name, 1, _core.Stop(1.0, 1000))
    stop.ask()


def _device_calls(program: Program) -> None:
    columns = {
        "result_start": [0, 1, 2],
        "result_bytes": [64, 32],
        "result_room": [64, 32],
        "result_offset": [0, 64],
        "free_start": [0, 1, 2],
        "free_low": [128, 128],
        "free_high": [256, 200],
    }
    rooms = _core.rooms(4096, {name: np.array(each, dtype=np.int64) for name, each in columns.items()})
    rooms.learn(0, 0)
    allocator = _core.OwnAllocator(1 << 20)
    allocator.alloc(100)
    allocator.at(rooms, 0)
    allocator.alloc(64)
    allocator.number_of(4096)
    allocator.within(0, 64)
    allocator.at(rooms, -1)
    allocator.lend(12345, 64)
    allocator.alloc(64)
    allocator.free(12345)
    allocator.release()
    allocator.hold_to(1 << 16)
    allocator.alloc(100)
    allocator.hold_to(None)
    allocator.reset_most()


def _small_calls(program: Program) -> None:
    ledger = _core.Ledger([4, 0, 3, 5])
    ledger.fits(0, 3, 4)
    ledger.add(7, 0, 3, 4)
    ledger.left()
    ledger.remove(7)
    _core.copy_starts([5, 3, 8, 2], [-1, 0, 0, -1], [0, 1, 1, 0], [0.5, 1.0, 2.0, 1.0], 1.0, 0, 3, 4.0)
    _core.ceil_times(np.arange(4), np.arange(1, 5))


def seeds(place: Path) -> list[bytes]:
    return [str(number).encode() for number in range(len(_tapes()))]


def changed(rng: Random, data: bytes) -> bytes:
    return data + b"/" + str(rng.getrandbits(48)).encode()


def read(data: bytes, place: Path) -> None:
    """Play a tape; with a seed behind its number, with changes."""
    number, _, seed = data.decode("latin-1").partition("/")
    tape = _tapes()[int(number) if number.isdigit() and int(number) < len(_tapes()) else 0]
    if seed:
        tape = _changed_tape(Random(seed), tape)
    objects: list[Any] = []
    for call in tape:
        arguments = [objects[a.number] if isinstance(a, Ref) else a for a in call.arguments]
        holder = _core if call.of is None else objects[call.of.number]
        if call.name in ("minimize", "large"):
            arguments[-1] = _told
        objects.append(getattr(holder, call.name)(*arguments))


def _told(offsets: Any) -> None:
    """Is told of improvements."""


def _changed_tape(rng: Random, tape: Tape) -> Tape:
    tape = list(tape)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(tape))
        call = tape[at]
        if rng.random() < 0.05:
            del tape[at + 1 :]
            continue
        if rng.random() < 0.05:
            tape.append(call)  # once more, in another state
            continue
        if call.arguments:
            arguments = list(call.arguments)
            i = rng.randrange(len(arguments))
            arguments[i] = _changed_value(rng, arguments[i])
            tape[at] = call._replace(arguments=tuple(arguments))
    return tape


def _changed_value(rng: Random, value: Any) -> Any:
    if isinstance(value, Ref):
        return value if rng.random() < 0.9 else None
    if rng.random() < 0.02:
        return rng.choice((None, "x", 1.5, -1, np.zeros(3), {}, [], ()))
    if isinstance(value, dict):
        if not value:
            return {"x": 1}
        key = rng.choice(list(value))
        if rng.random() < 0.03:
            return {name: column for name, column in value.items() if name != key}
        return {**value, key: _changed_value(rng, value[key])}
    if isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):
            return _changed_array(rng, value)
    if isinstance(value, tuple | list):
        items = list(value)
        if not items or rng.random() < 0.15:
            items = items[:-1] if rng.random() < 0.5 else [*items, *items[:1]]
        else:
            i = rng.randrange(len(items))
            items[i] = _changed_value(rng, items[i])
        return type(value)(items)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | np.integer):
        return mutate.whole(rng, beyond=True)
    if isinstance(value, float):
        return rng.choice((*mutate.FLOATS, -1.0))
    return mutate.text(rng, value) if isinstance(value, str) else rng.choice((None, 1, np.zeros(2)))


def _changed_array(rng: Random, array: Any) -> Any:
    kind = rng.randrange(12)
    if kind <= 6 and array.size:
        found = array.copy()
        flat = found.reshape(-1)
        for _ in range(rng.choice((1, 1, 2, 5))):
            flat[rng.randrange(flat.size)] = _element(rng, array)
        return found
    if kind == 7:
        return rng.choice((array[:-1], array[:0], np.concatenate([array, array])) if array.ndim else (array,))
    if kind == 8:
        return np.ascontiguousarray(array[::-1]) if array.ndim else array
    if kind == 9:
        return array.astype(rng.choice((np.int8, np.int32, np.int64, np.float64, np.uint8, np.bool_)))
    if kind == 10:
        return array.reshape(rng.choice(((-1,), (1, -1), (-1, 1)))) if array.size else array.reshape(0, 3)
    return rng.choice((array.reshape(-1)[::2], np.full(array.shape, _element(rng, array), dtype=array.dtype)))


def _element(rng: Random, array: Any) -> Any:
    if array.dtype.kind == "f":
        return rng.choice((*mutate.FLOATS, float(mutate.whole(rng)), rng.random()))
    if array.dtype.kind == "b":
        return rng.random() < 0.5
    limits = np.iinfo(array.dtype)
    near = int(array.reshape(-1)[rng.randrange(array.size)]) + rng.choice((-1, 0, 1)) if array.size else 0
    return max(
        int(limits.min), min(int(limits.max), rng.choice((near, mutate.whole(rng), mutate.whole(rng))))
    )
