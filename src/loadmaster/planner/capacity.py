"""How much memory a plan may use: bytes, shares of what a program needs, and what kernels take of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loadmaster.errors import BadMachine, LoadmasterError
from loadmaster.machine.machine import Machine
from loadmaster.offload.model import Kernels, measured_kernels, offload_model, unmeasured_kernels
from loadmaster.program.measured_costs import MeasuredCosts
from loadmaster.program.program import Program
from loadmaster.units import UNLIMITED, parse_bytes


class BadRequest(LoadmasterError):
    """What is to be planned makes no sense together."""


@dataclass(frozen=True)
class Bytes:
    """A capacity in bytes."""

    count: int
    text: str = ""
    """As it was written: it becomes part of the machine's name."""

    def __str__(self) -> str:
        return self.text or str(self.count)


@dataclass(frozen=True)
class Share:
    """A capacity as a part of what a program needs if nothing ever leaves the memory: 0.5 is a half."""

    part: float

    def __str__(self) -> str:
        return f"{100 * self.part:g}%"


Capacity = Mapping[str, Bytes | Share]
"""Memory -> its capacity."""
GivenCapacity = Mapping[str, Bytes | Share | int | str] | Sequence[str]
"""As users write capacities: {"sram": 2**21}, {"sram": "2MiB"}, {"hbm": "50%"}, ["hbm=50%"]."""


def parse_capacity(given: GivenCapacity) -> dict[str, Bytes | Share]:
    """Capacities from texts such as 'sram=2MiB' and 'hbm=50%', or from sizes by name of the memory."""
    if isinstance(given, Mapping):
        return {memory: _typed(memory, size) for memory, size in given.items()}
    pairs = (text.partition("=") for text in ([given] if isinstance(given, str) else given))
    return {memory: _parse_size(memory, size) for memory, _, size in pairs}


def _typed(memory: str, size: Bytes | Share | int | str) -> Bytes | Share:
    if isinstance(size, Bytes | Share):
        return size
    if isinstance(size, int | str) and not isinstance(size, bool):
        return _parse_size(memory, str(size))
    raise BadRequest(
        f"the capacity {size!r} of '{memory}' is neither bytes nor text",
        object=memory,
        number=size,
        remedy="give bytes, '2MiB' or '50%'",
    )


def _parse_size(memory: str, size: str) -> Bytes | Share:
    if not size.endswith("%"):
        try:
            return Bytes(parse_bytes(size, f"the capacity of '{memory}'"), size)
        except ValueError as error:
            raise BadMachine(f"{error}", object=memory, number=size, remedy="write sram=2MiB") from None
    try:
        part = float(size.removesuffix("%")) / 100
    except ValueError:
        part = 0.0
    if not 0 < part <= 100:
        raise BadRequest(
            f"--capacity '{memory}={size}' is no share of a memory",
            object="--capacity",
            number=f"{memory}={size}",
            remedy="write hbm=50%",
        )
    return Share(part)


def has_shares(capacity: Capacity) -> bool:
    """Whether some are parts of what a program needs."""
    return any(isinstance(size, Share) for size in capacity.values())


def with_bytes(machine: Machine, capacity: Capacity) -> Machine:
    """The machine with those capacities that are given in bytes; its name tells them."""
    sizes = {memory: size for memory, size in capacity.items() if isinstance(size, Bytes)}
    for memory, size in sizes.items():
        machine = machine.with_capacity(memory, size.count)
    written = ",".join(f"{memory}={size}" for memory, size in sizes.items())
    return replace(machine, name=f"{machine.name}:{written}") if sizes else machine


def with_shares(machine: Machine, capacity: Capacity, program: Program, reserve: int) -> Machine:
    """The machine with those capacities that are shares of what a program needs, `reserve` bytes for
    kernels included."""
    for memory, size in capacity.items():
        if isinstance(size, Share):
            machine = with_bytes(machine, {memory: _share_bytes(machine, memory, size, program, reserve)})
    return machine


def _share_bytes(machine: Machine, memory: str, share: Share, program: Program, reserve: int) -> Bytes:
    fast, text = machine.memories[machine.reach[0][0]].name, f"{memory}={share}"
    if memory != fast:
        raise BadRequest(
            f"--capacity '{text}' is no share of '{fast}'",
            object="--capacity",
            number=text,
            remedy=f"write {fast}=50%",
        )
    if program.repeats is not None:
        raise BadRequest(
            f"ops of '{program.name}' run again: shares are of what it needs without that",
            object="--capacity",
            number=text,
            remedy="give the capacity in bytes, or the model itself",
        )
    roomy = machine.with_capacity(fast, UNLIMITED)
    return Bytes(int((offload_model(program, roomy).needed + reserve) * share.part))


@dataclass(frozen=True, eq=False)
class KernelRoom:
    """What kernels take beside the tensors of a program: one answer for planning and for running."""

    kernels: Kernels | None = None
    """What a plan leaves to each op and to libraries"""
    reserve: int = 0
    """What it leaves all the time, where no more is known than one number"""
    needed: int = 0
    """What counts into the bytes that a program needs with nothing ever leaving"""
    kept: int = 0
    """What a run has to have beside the peak of a plan that leaves ops their room"""


def kernel_room(ops: int, measured: MeasuredCosts | None, device: str | None) -> KernelRoom:
    """For a program of so many ops: what was measured, else what any run takes on the device that it was
    captured for (None: it is not known)."""
    if measured is None:
        if device is None or device.partition(":")[0] != "cuda":
            return KernelRoom()
        known = unmeasured_kernels(ops)
        return KernelRoom(known, needed=known.kept + known.spare, kept=known.kept)
    kernels = measured_kernels(measured.op_workspace, measured.kept_bytes)
    everything = measured.workspace_bytes
    if kernels is None:
        return KernelRoom(None, everything, everything, everything)
    return KernelRoom(kernels, needed=everything, kept=measured.kept_bytes)
