"""`PlannedGraph`: one graph of a fitted model with its plan.

A quick plan is followed at once, and a better one as soon as a search has found it. Where kernels take more than was
known, the graph is planned again with what was learned.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from loadmaster import clock
from loadmaster.errors import BadMachine, BadProgram, LoadmasterError, Refused, require
from loadmaster.execute import own_allocator
from loadmaster.execute.calls import CallExecutor, gradients_made_of, numbers_among
from loadmaster.execute.parts import find_parts, large_nodes
from loadmaster.execute.session import (
    GRAIN,
    MoveWeights,
    Session,
    State,
    Step,
    random_state,
    set_random_state,
    size_text,
)
from loadmaster.machine.machine import Machine
from loadmaster.offload.kind import KernelRoom, kernel_room, make_offload
from loadmaster.offload.model import Kernels
from loadmaster.offload.problem import Offload
from loadmaster.offload.repeats import least_bound, quick, with_repeats
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.importers.torch.compiled import Prepared, Role
from loadmaster.program.importers.torch.joined import slice_convolutions
from loadmaster.program.importers.torch.nested import has_nested
from loadmaster.program.measured_costs import apply_costs
from loadmaster.program.program import Program, TensorKind
from loadmaster.program.repeats import Repeated, repeat
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Solution, solve
from loadmaster.units import PICOSECONDS, UNLIMITED, show_bytes

SMALL = 8
"""A graph that needs no more than this part of the memory gets it for itself."""
RECOUNTS = 4
"""Calls after which loaded code is counted."""
RETRIES = 12
"""How often a plan is made anew because kernels took more than was known."""
SHRINK, LEAST_SHRUNK = 0.9, 0.3
"""Where it is not known what took more: what is planned with, and when to give up."""
LAUNCH_PS = 60 * PICOSECONDS // 10**6
"""What asking for an op and its copies takes of the host's time."""
_NO_ROOM = re.compile(r"no room for (\d+) bytes of a kernel beside the plan in step (\d+)")


@dataclass(frozen=True, eq=False)
class Choice:
    """A plan that was found, and what it is a plan of."""

    captured: Captured
    plan: Plan
    problem: Offload
    value: int
    """Picoseconds, simulated."""
    how: str


class PlannedGraph:
    """A graph that runs as its plan says: made at the first call, made better behind it."""

    def __init__(self, prepared: Prepared, session: Session, name: str) -> None:
        self.prepared, self.session, self.name = prepared, session, name
        self.delivers = False
        self.lends = prepared.forward_outputs is None
        """Results that are delivered lie in the block until the next call."""
        self.private = 0
        """Bytes of the block that are its own; 0: it shares."""
        self.private_after = 0
        """Bytes between those and the end of the block."""
        self.choice: Choice | None = None
        self.needed = 0
        """Bytes with which nothing ever has to leave the device."""
        self.seconds: dict[str, float] = {}
        """What planning took."""
        self.retries = 0
        self._recounts = 0
        self._executor: CallExecutor | None = None
        self._room: KernelRoom = KernelRoom()
        self._base: Captured | None = None
        self._program: Program | None = None
        self._capacity = 0
        self._shrunk = 1.0
        self._parts = 1
        """Of the batch, computed one after another."""
        self._learned: dict[str, int] = {}
        """Node -> bytes that its kernel takes for itself."""
        self._better: Choice | None = None
        self._searches: list[threading.Thread] = []
        self._away = False
        self._active: Step | None = None
        """The training step whose activations are on the device."""
        self._waiting: dict[int, Step] = {}
        """Those whose activations are on the host."""
        self._over: dict[int, Step] = {}
        """Those whose backward call was made and may be made again (`retain_graph`): without activations."""
        self._numbers = numbers_among(prepared)
        self._made_of: list[frozenset[int]] = []
        session.graphs.append(self)

    # The two calls.

    def forward(self, args: Sequence[Any]) -> tuple[list[Any], Any]:
        """Results of the forward call, and the token that a backward call has to bring. PyTorch gives None where calls
        with effects begin to take their turns: a plan knows tensors alone."""
        torch = require("torch", "torch")
        given = [torch.empty(0) if each is None else each for each in args]
        for at, dtype in self._numbers.items():
            given[at] = given[at].to(dtype)
        return self.session.on_thread(self._forward, given)

    def _forward(self, args: Sequence[Any]) -> tuple[list[Any], Any]:
        with self.session.lock:
            self.session.take_back()
            given = self._given(args)
            states = {at: self.session.state_of(args[at]) for at in self._states(args)}
            for at, state in states.items():
                given[at] = state.value
            self._set_aside()
            if not self.session.called:
                self.session.entered = clock.now()
            self.session.called[self] += 1
            training = self.prepared.forward_outputs is not None
            call = Step(list(args), random_state(self.session.device), training=training)
            found = self._with_retries(call, lambda: self._executor_for(args, states).forward(given))
            self.session.reads_host = self._executor is None or not self._executor.is_ahead
            self._count_code()
            found = self._with_updates(args, found)
            if self.prepared.forward_outputs is None:
                return found, None
            call.executor = self._executor
            self._active = call
            return found, call.handed_out()

    def _given(self, args: Sequence[Any]) -> list[Any]:
        """Where a call finds its primals. A backward call may come after the caller has changed what it gave."""
        if self.prepared.forward_outputs is None and not self.prepared.updates:
            return self.session.with_origins(args)
        self.session.fill_origins()
        return list(args)

    def _count_code(self) -> None:
        """The first calls load kernels: if those take more than was known, the next call is planned anew."""
        if self._executor is not None and self._executor.is_new and self._recounts < RECOUNTS:
            self._recounts += 1
            self.session.count_code()

    def _with_updates(self, args: Sequence[Any], found: list[Any]) -> list[Any]:
        """Put the new values of inputs that the graph changes where they belong; gives the other results."""
        torch, updates = require("torch", "torch"), self.prepared.updates
        first = len(found) - len(updates)
        with torch.no_grad():
            for at, value in zip(updates, found[first:], strict=True):
                self.session.write_over(args[at], value, anew=at in self.prepared.replaced)
        return found[:first]

    def backward(self, number: int, tangents: Sequence[Any]) -> list[Any]:
        """Gradients by primal; None where there is none, as of a head whose result no loss depends on: an optimizer would
        make a step with zeros. `number`: what the forward call's token says."""
        keeps = bool(require("torch", "torch")._C._autograd._get_current_graph_task_keep_graph())
        found: list[Any] = self.session.on_thread(self._backward, number, tangents, keeps)
        given = {at for at, value in enumerate(tangents) if value is not None}
        if len(given) < len(tangents) and not self._made_of:
            self._made_of = gradients_made_of(self.prepared)
        for at, reached in enumerate(self._made_of if len(given) < len(tangents) else ()):
            found[at] = None if reached and not reached & given else found[at]
        return found

    def _backward(self, number: int, tangents: Sequence[Any], keeps: bool) -> list[Any]:
        device = self.session.device
        with self.session.lock:
            self.session.take_back()
            step, drawn = self._step(number), None
            again = number in self._over
            self._refuse_changed(step)
            if again:
                drawn = random_state(device)
                self._set_aside()
                set_random_state(step.random, device)

            def go() -> list[Any]:
                nonlocal again
                if (
                    again
                ):  # the forward half comes first: the plan is another one, or no activations are there
                    self._executor_for(step.args).forward(step.args)
                    step.executor = self._executor
                elif step is not self._active:
                    self._set_aside()
                    self.session.claim(self)
                    self._bring_back(step)
                else:
                    self.session.claim(self)
                again = True
                assert step.executor is not None
                return step.executor.backward(step.args, tangents)

            found = self._with_retries(step, go)
            self._count_code()
            if drawn is not None:
                set_random_state(drawn, device)
            self._active = None
            self._waiting.pop(number, None)
            self._over = {at: each for at, each in self._over.items() if each.is_wanted and at != number}
            if keeps:
                self._over[number], step.executor = step, None
            return found

    def _refuse_changed(self, step: Step) -> None:
        """Weights that a backward call reads must be what they were: it would be told a mixture of old and new ones."""
        statics = self.session.statics
        changed = [
            at
            for at in step.changed
            if at not in self.prepared.updates and step.args[at].untyped_storage().data_ptr() in statics
        ]
        if not changed:
            return
        late, repeats = set(self.prepared.backward), None
        if self.choice is not None and self._base is not None:
            repeats = self.choice.problem.program.repeats
            late |= {self._base.op_node[op] for op in ([] if repeats is None else repeats.ops)}
        for at in sorted(self.prepared.read_by(late) & set(changed)):
            name = statics[step.args[at].untyped_storage().data_ptr()].name
            raise BadMachine(
                f"'{name}' of '{self.name}' was modified in place between the forward call and its backward call, which "
                "needs it as it was",
                object=self.name,
                number=name,
                remedy="step optimizers after all backward calls, or make the forward call again",
            )

    def _step(self, number: int) -> Step:
        if self._active is not None and self._active.number == number:
            return self._active
        if number in self._waiting:
            return self._waiting[number]
        over = self._over.get(number)
        if over is not None and over.is_unchanged:
            return over
        reason = "its backward call was made before"
        if over is not None:
            reason += ", and what it was given has changed since"
        raise BadMachine(
            f"the activations of '{self.name}' are not there any more: {reason}",
            object=self.name,
            number=number,
            remedy="call backward() once after each forward call; add losses up in place of retain_graph=True",
        )

    # Sharing the memory.

    def _set_aside(self) -> None:
        """Another forward call comes: a step that still waits for its backward call goes to the host."""
        self._waiting = {number: each for number, each in self._waiting.items() if each.is_wanted}
        active, self._active = self._active, None
        if active is None or active.executor is None:
            return
        if not active.is_wanted:
            active.executor.abandon()
            return
        if active.paused is None:
            active.paused = active.executor.spill()
        self._waiting[active.number] = active

    def _bring_back(self, step: Step) -> None:
        assert step.paused is not None and step.executor is not None
        step.executor.restore(step.paused)
        step.paused = None
        self._active = step
        self._waiting.pop(step.number, None)

    def meets(self, other: PlannedGraph) -> bool:
        """Whether both have memory in common."""
        if (self.private and other.private) or self.session.memory is None:
            return False
        if self.private or other.private:  # unless the one that shares was planned for what is left
            large = other if self.private else self
            return large._capacity > self.session.capacity_of(large)
        return True

    def step_aside(self) -> None:
        """Another graph gets the memory: what a paused step has there goes to the host."""
        if self._executor is None or not self._executor.is_movable:
            return
        if self._active is not None and self._active.paused is None and self._active.executor is not None:
            self._active.paused = self._active.executor.spill()
        self._away = True

    @property
    def is_waiting(self) -> bool:
        """Whether a step has been begun that has memory of its own until its backward call."""
        return self._active is not None or bool(self._waiting)

    def forget(self) -> bool:
        """Steps whose backward call nobody can make any more are over; False: there are others."""
        self._waiting = {number: each for number, each in self._waiting.items() if each.is_wanted}
        self._over = {number: each for number, each in self._over.items() if each.is_wanted}
        if self._active is not None and not self._active.is_wanted:
            self._active = None
        return not (self._active or self._waiting or self._over)

    def let_go(self) -> None:
        """The memory is taken away: what a paused step has there goes to the host, the rest is made anew."""
        self._set_aside()
        self._close()

    def _close(self) -> None:
        """End the executor, at once and not when it is collected, but for a step that waits for its backward call."""
        old, self._executor = self._executor, None
        if old is not None and all(step.executor is not old for step in self._waiting.values()):
            old.close()

    def give_up(self) -> None:
        """Its own memory is for all from now on: its next call is planned anew."""
        self.private, self._capacity = 0, -1

    def take_place(self) -> None:
        """It has its memory again."""
        if self._executor is None or not self._away:
            return
        if self._active is not None and self._active.paused is not None:
            self._bring_back(self._active)
        else:
            self._executor.reload()
        self._away = False

    # Planning.

    def _states(self, args: Sequence[Any]) -> list[int]:
        """Primals that the graph changes, large ones that nobody looks at in between: they stay on the device."""
        session, prepared = self.session, self.prepared
        if prepared.forward_outputs is not None or not session.keeps_states:
            return []
        return [
            at
            for at in prepared.updates
            if args[at].nbytes >= session.state_least
            and (session.generating or args[at].untyped_storage().data_ptr() in session.statics)
            and at in prepared.updated_in_place
        ]

    def _executor_for(self, args: Sequence[Any], states: Mapping[int, State] | None = None) -> CallExecutor:
        """The executor for the next forward call: with a better plan if one is there by now."""
        session = self.session
        better, self._better = self._better, None
        stale = self.choice is None or self._capacity != session.capacity_of(self)
        if better is not None and better.problem.machine != self._machine(self._capacity):
            better = None  # it was made for another size
        if stale:
            self._plan(args)
        elif better is not None and self.choice is not None and better.value <= self.choice.value:
            self._follow(better, args)  # an equal one as well: no other comes after it
        session.claim(self)
        if self._executor is None:
            assert self.choice is not None
            self._follow(self.choice, args)
        assert self._executor is not None
        self._executor.waits = not session.defers
        first = len(self.prepared.leaves) - len(self.prepared.updates)
        self._executor.states = {
            first + self.prepared.updates.index(at): state.value for at, state in (states or {}).items()
        }
        return self._executor

    def _plan(self, args: Sequence[Any]) -> None:
        session, began = self.session, clock.now()
        if self._base is None or self._program is None:
            self._base = self._captured(args, hold=session.hold_statics)
            self._measure(self._base)
            self.seconds["capture and measure"] = clock.now() - began
        assert self._program is not None
        if session.choose_weights and self.prepared.forward_outputs is not None:
            session.choose_weights = False
            self._choose_weights(args)
        self._set_private()
        plain, began = repeat(self._program, []), clock.now()
        capacity = self._capacity = session.capacity_of(self)
        machine = self._machine(capacity)
        assert self._base is not None
        base = self._base
        try:
            problem = self._problem(plain, machine)
            self.choice = self._choice(base, plain, problem, quick(problem), "quick")
        except (BadMachine, Refused) as error:
            if session.share_all() or self._slice(machine) or self._split(args, machine):
                self._plan(args)
                return
            if session.may_return and session.hold_statics:  # what is beside plans took more than was thought
                session.may_return = False
                raise MoveWeights from None
            if isinstance(error, Refused) and session.memory is not None:
                enough = session.memory_for(self, self._enough(plain, capacity))
                raise BadMachine(
                    f"no plan was found for '{self.name}' in {show_bytes(session.memory)}",
                    object=self.name,
                    number=session.memory,
                    remedy=f'give memory="{size_text(enough)}" or more, or a smaller batch',
                ) from None
            raise
        self.seconds["quick plan"] = clock.now() - began
        self._close()
        if session.budget.seconds == 0:
            return  # the quick plan is what was asked for
        if session.background:
            given = (base, self._program, machine, capacity)
            search = threading.Thread(target=self._improve, args=given, daemon=True)
            # One for an older capture may go on: whoever waits, waits for it too.
            self._searches = [*(each for each in self._searches if each.is_alive()), search]
            search.start()
        else:
            self._improve(base, self._program, machine, capacity)
            if self._better is not None and self._better.value < self.choice.value:
                self.choice, self._better = self._better, None

    def _enough(self, plain: Repeated, low: int) -> int:
        """About the least capacity above one with too little for which a plan is found."""
        high = max(low + GRAIN, self.needed)
        for _ in range(6):
            middle = (low + high) // 2
            try:
                problem = self._problem(plain, self._machine(middle))
                is_found = quick(problem).decision is not None
            except BadMachine:
                is_found = False
            low, high = (low, middle) if is_found else (middle, high)
        return high

    def _slice(self, machine: Machine) -> bool:
        """Where convolutions alone need about all that there is, let them be made some images at a time; False: they are
        already, or none does. Kernels may round otherwise for fewer images, so others stay as they are."""
        base, program = self._base, self._program
        if self.prepared.forward_outputs is not None or base is None or program is None:
            return False
        most = machine.memories[machine.reach[0][0]].capacity // 2
        large = large_nodes(base, program, self._room.kernels, most)
        if not slice_convolutions(self.prepared.graph, large):
            return False
        self.session.say(f"convolutions of '{self.name}' are made some images at a time")
        self._base, self._program, self._learned = None, None, {}
        return True

    def _split(self, args: Sequence[Any], machine: Machine) -> bool:
        """Where no plan fits, let the batch be computed in parts; False: samples can't be told apart."""
        session, whole = self.session, self.prepared
        if whole.forward_outputs is not None:
            return False
        inputs = [at for at, role in enumerate(self._roles(args, hold=False)) if not role.source]
        try:
            batch = whole.batch(inputs)
        except BadProgram as error:
            session.say(f"'{self.name}': {error.message.removesuffix(f': {error.remedy}')}")
            return False

        def capture(prepared: Prepared) -> Captured:
            return self._captured(args, hold=session.hold_statics, prepared=prepared)

        device = "cuda" if session.is_cuda else "cpu"
        best, least = find_parts(whole, batch, self._parts, capture, machine, device)
        if best is None:
            if least < UNLIMITED and session.memory is not None:
                raise self._too_little(session.memory, least, "even with its batch in parts it ")
            return False
        self.prepared, self._parts = best.prepared, best.number
        session.say(f"the batch of '{self.name}' is computed in {self._parts} parts")
        self._base, self._program, self._learned = None, None, {}
        return True

    def _captured(self, args: Sequence[Any], *, hold: bool, prepared: Prepared | None = None) -> Captured:
        """The program to plan. `hold`: parameters lie on the device, and so do all results. `prepared`: another graph of
        the same."""
        prepared, roles = prepared or self.prepared, self._roles(args, hold=hold)
        everything = hold or self.session.deliver
        shown = self._returned
        taken = range(len(prepared.leaves)) if everything else range(shown if self.delivers else 0)
        stays = [at for at in taken if at < shown and self._lends]
        sinks = [at for at in taken if at not in stays]
        sinks += [shown + prepared.updates.index(at) for at in self._states(args)]
        held = everything or self.delivers
        return prepared.captured(self.name, roles, sinks=sinks, stays=stays, hold_tangents=held)

    @property
    def _lends(self) -> bool:
        session = self.session
        return self.lends and session.is_cuda and own_allocator.current() is not None

    def stop_lending(self) -> None:
        """Callers keep results: they are made beside the block."""
        self.lends, self._base, self._capacity = False, None, -1

    @property
    def delivered_bytes(self) -> int:
        """What callers have of its results on the device."""
        if not (self.delivers or self.session.deliver) or self._base is None:
            return 0
        return self._beside(self._base)

    def _beside(self, captured: Captured) -> int:
        """Bytes that results take beside the block, and once more what a CUDA graph writes them to."""
        sizes = captured.program.storage_bytes
        shown = [each for each in captured.results if not each.late][: self._returned]
        return sum(2 * int(sizes[each.tensor]) for each in shown if each.sink and each.tensor >= 0)

    @property
    def _returned(self) -> int:
        """How many results of the forward call the module returns: the others are new values of its inputs."""
        prepared = self.prepared
        first = len(prepared.leaves) if prepared.forward_outputs is None else prepared.forward_outputs
        return first - len(prepared.updates)

    def deliver(self) -> None:
        """From the next call on, hand results over on the device."""
        self.delivers, self._base, self._capacity = True, None, -1

    def _choose_weights(self, args: Sequence[Any]) -> None:
        """Whether a training step is faster with parameters, gradients and the optimizer's state on the device, and
        plans with what that leaves, or with all of them on the host."""
        session = self.session
        held = session.static_bytes + session.trained_bytes + session.state_bytes + session.grown_bytes
        assert self._program is not None
        other = self._captured(args, hold=not session.hold_statics)
        programs = {
            session.hold_statics: self._program,
            not session.hold_statics: replace(other.program, costs=self._program.costs),
        }
        if session.memory is None:
            assert session.share is not None
            needed = self._needed(programs[True]) + held - session.grown_bytes
            session.memory = int(session.share * needed) + session.grown_bytes
        assert self._base is not None
        beside = self._beside(self._base if session.hold_statics else other)
        small = session.machine.with_capacity(self._fast, max(1, session.memory - held - beside))
        whole = session.machine.with_capacity(self._fast, max(1, session.memory - session.grown_bytes))
        resident = least_bound(programs[True], lambda each: make_offload(each, small, self._room))
        streamed = least_bound(programs[False], lambda each: make_offload(each, whole, self._room))
        step = 2 * session.trained_bytes + session.state_bytes
        if streamed is not None:
            streamed += step * PICOSECONDS // min(each.bandwidth for each in session.machine.links)
        stay = resident is not None and (streamed is None or resident <= streamed)
        session.may_return = stay
        if session.hold_statics != stay:
            raise MoveWeights

    def _measure(self, captured: Captured) -> None:
        """The program with the times of its ops, and what its kernels take."""
        session, program = self.session, captured.program
        costs = None if session.measure is None else session.measure(captured)
        known = program if costs is None else apply_costs(program, costs)
        room = kernel_room(program.n_ops, costs, "cuda" if session.is_cuda else "cpu")
        self._program, self._room = known, room
        self.needed = self._needed(known)

    def _needed(self, program: Program) -> int:
        """Bytes with which nothing ever has to leave, kernels' room included."""
        roomy = self.session.machine.with_capacity(self._fast, UNLIMITED)
        problem = make_offload(repeat(program, []), roomy, self._room)
        return problem.model.needed + problem.for_kernels

    @property
    def _fast(self) -> str:
        machine = self.session.machine
        return machine.memories[machine.reach[0][0]].name

    def _machine(self, capacity: int) -> Machine:
        return self.session.machine.with_capacity(self._fast, max(1, int(capacity * self._shrunk)))

    def _set_private(self) -> None:
        """Whether this graph gets memory for itself."""
        session = self.session
        if session.memory is None:
            return
        others = [each for each in session.graphs if each is not self and each.choice is not None]
        if self.private or not others or session.all_shared:
            return
        # Steps of several graphs wait for their backward calls at once.
        part = SMALL if self.prepared.forward_outputs is None else 2
        before = sum(each.private for each in others)
        own = -(-(self.needed + 2 * GRAIN) // GRAIN) * GRAIN
        if part * (before + own) <= session.usable:
            self.private, self.private_after = own, before

    def _problem(self, repeated: Repeated, machine: Machine) -> Offload:
        room, learned = self._room, self._learned
        if learned:
            ops = self._program.n_ops if self._program is not None else 0
            kernels = room.kernels or Kernels(np.zeros(ops, dtype=np.int64))
            workspace = kernels.workspace.copy()
            for op, node in enumerate([] if self._base is None else self._base.op_node):
                workspace[op] = max(int(workspace[op]), learned.get(node, 0))
            room = replace(room, kernels=replace(kernels, workspace=workspace))
        try:
            return make_offload(repeated, machine, room)
        except BadMachine as error:
            session = self.session
            if session.memory is None:
                raise
            needs = make_offload(repeated, machine.with_capacity(self._fast, UNLIMITED), room)
            # What is left of the memory for the block is no number of the user's.
            reason = error.message.removesuffix(error.remedy or "").partition(f" and '{self._fast}' has ")[0]
            reason = f"{reason.removesuffix(': ')}: "
            raise self._too_little(session.memory, needs.least + needs.for_kernels, reason) from error

    def _too_little(self, memory: int, least: int, reason: str) -> BadMachine:
        least = self.session.memory_for(self, ceil(least / self._shrunk))  # with all that is no part of plans
        return BadMachine(
            f"'{self.name}' can't run in {show_bytes(memory)}: {reason}needs {show_bytes(least)} in all",
            object=self.name,
            number=least,
            remedy=f'give memory="{size_text(least)}" or more, or a smaller batch'
            + ("" if self.prepared.forward_outputs is None else "; under torch.no_grad() less will do"),
        )

    def _choice(
        self, base: Captured, repeated: Repeated, problem: Offload, found: Solution, how: str
    ) -> Choice:
        if found.decision is None or found.value is None:
            raise Refused(
                f"no plan was found for '{self.name}' in {show_bytes(self._capacity)}",
                object=self.name,
                number=self._capacity,
                remedy="give more memory",
            )
        ops = [] if repeated.program.repeats is None else repeated.program.repeats.ops
        captured = base.repeated(ops) if ops else base
        return Choice(captured, problem.plan(found.decision), problem, int(found.value), how)

    def _improve(self, base: Captured, program: Program, machine: Machine, capacity: int) -> None:
        """Search for a better plan; it is taken at the next forward call, if the graph is still the same then."""
        session, began = self.session, clock.now()
        auto, training = make_solver("offload", "auto"), bool(program.op_backward.any())
        budget = session.budget
        if (
            training and budget.seconds is not None
        ):  # two programs are planned for: with ops that run again, and without
            budget = replace(budget, seconds=budget.seconds / 2)
        try:
            if training:
                found = with_repeats(
                    program,
                    lambda each: self._problem(each, machine),
                    lambda each: solve(auto, each, budget, observer=session.observer),
                )
                better = self._choice(base, found.repeated, found.problem, found.solution, "search")
            else:
                plain = repeat(program, [])
                problem = self._problem(plain, machine)
                solution = solve(auto, problem, budget, observer=session.observer)
                better = self._choice(base, plain, problem, solution, "search")
        except LoadmasterError as error:
            session.say(f"no better plan for '{self.name}': {error}")
            return
        self.seconds["search"] = clock.now() - began
        if capacity == self._capacity and base is self._base:
            self._better = better

    def wait(self, seconds: float | None = None) -> None:
        """Until its searches have ended."""
        for search in self._searches:
            search.join(seconds)

    def _follow(self, choice: Choice, args: Sequence[Any]) -> None:
        """Let calls be made as a plan says."""
        session = self.session
        self._close()
        session.claim(self)
        self._executor = CallExecutor(
            choice.captured,
            choice.plan,
            choice.problem.machine,
            session.device,
            args,
            session.rows,
            lend=lambda row: session.lend(self, row),
            ahead=session.goes_ahead,
            as_graph=session.is_cuda
            and session.as_graphs
            and choice.how == "search"
            and self._pays_as_graph(choice),
            capacity=self._capacity,
            workspace=self._room.kept,
            placement=session.placement,
            block=session.block_of(self),
        )
        self.choice, self._away = choice, False

    def _pays_as_graph(self, choice: Choice) -> bool:
        """Whether a CUDA graph gains more than it costs: results on the host are copied once more for callers."""
        captured = choice.captured
        if has_nested(captured.graph):
            return False
        on_device = captured.forward_ops is None or all(each.sink for each in captured.results)
        return on_device or choice.value < choice.problem.model.steps * LAUNCH_PS

    def _roles(self, args: Sequence[Any], *, hold: bool) -> list[Role]:
        session, training = self.session, self.prepared.forward_outputs is not None
        roles, states = [], self._states(args)
        for at, arg in enumerate(args):
            if at in states:
                roles.append(Role(TensorKind.WEIGHT, f"state {at}", held=True))
                continue
            static = session.statics.get(arg.untyped_storage().data_ptr()) if arg.numel() else None
            if static is not None:
                session.read.add(static.name)
            there = arg.is_cuda if hold == session.hold_statics else hold
            held = (session.is_cuda and there) or (hold and (session.is_cuda or static is not None))
            # What an optimizer or the graph itself changes has to come anew with every call, and is no weight to the
            # planner.
            fixed = (
                static is not None and at not in self.prepared.updates and not (training and static.trained)
            )
            kind = TensorKind.WEIGHT if fixed or held else TensorKind.INPUT
            roles.append(Role(kind, "" if static is None else static.name, held))
        return roles

    def _with_retries(self, step: Step, run: Callable[[], list[Any]]) -> list[Any]:
        """Run; where kernels take more than was known, plan again with what was learned."""
        for _ in range(RETRIES):
            try:
                return run()
            except Refused as error:
                if not own_allocator.is_shortage(error) or not self._learn(error):
                    raise
            except RuntimeError as error:
                if not own_allocator.is_shortage(error) or not self._learn(error):
                    raise
            self.retries += 1
            # What they have on the device must be gone before another one is there.
            for executor in {self._executor, step.executor}:
                if executor is not None:
                    executor.close()
            self._executor = step.executor = None
            self._capacity = -1  # so that it is planned again
            set_random_state(step.random, self.session.device)
        return run()

    def _learn(self, error: BaseException) -> bool:
        """What an error says about the room that a kernel takes; False: nothing."""
        assert self.choice is not None
        text = ""
        cause: BaseException | None = error
        while cause is not None:
            text += str(cause)
            cause = cause.__cause__ or cause.__context__
        found = _NO_ROOM.search(text)
        if found is None or self._executor is None:
            self._shrunk *= SHRINK
            self.session.say(f"planning again for less: {text[:300]}")
            return self._shrunk > LEAST_SHRUNK
        count, step = int(found[1]), int(found[2])
        op = self._executor.script.steps[step].call.op
        node = self.choice.captured.op_node[op]
        before = self._learned.get(node, 0)
        if self._room.kernels is not None and self._base is not None:
            before = max(before, int(self._room.kernels.workspace[self._base.op_node.index(node)]))
        self._learned[node] = max(count, before) + count  # it may ask for more than once
        self.session.say(f"'{node}' takes {show_bytes(count)} for itself: planning again")
        return True

    def report(self) -> Mapping[str, Any]:
        """Figures of the plan in use."""
        choice = self.choice
        if choice is None:
            return {"name": self.name}
        resident = choice.problem.limit_ps
        return {
            "name": self.name,
            "ops": choice.captured.program.n_ops,
            "plan": choice.how,
            "parts": self._parts,
            "needed_bytes": self.needed,
            "capacity_bytes": self._capacity,
            "predicted_seconds": choice.value / PICOSECONDS,
            "resident_seconds": resident / PICOSECONDS,
            "bound_seconds": choice.problem.bound().value / PICOSECONDS,
            "copies": len(choice.plan.copy_rows),
            "planned_again": self.retries,
            "call_seconds": {} if self._executor is None else self._executor.call_seconds,
            "seconds": dict(self.seconds),
        }
