"""The machine that a file of dnn-partitioning is about: accelerators beside a host.

Accelerator i has a memory of its own; processors share the host's. An edge's cost is the time
between an accelerator and host memory, so from one accelerator to another it takes twice as long:
out to host memory, and in again (ours). Times of ops come from the program's cost table.
"""

from __future__ import annotations

from pathlib import Path

from loadmaster.machine.machine import Device, Link, Machine, Memory
from loadmaster.program.importers.dnn_partitioning import NOMINAL, Graph, read_graph
from loadmaster.units import UNLIMITED

_RATE = 10**12
"""Of what the cost table leaves nothing to: it names every op on every device."""
_RATES = {"matrix": {"*": _RATE}, "vector": {"*": _RATE}}
_HOST = "host"


def read_dnn_machine(path: str | Path) -> Machine:
    """The machine of a file. It does not depend on the units of its times."""
    return make_dnn_machine(read_graph(path))


def make_dnn_machine(graph: Graph) -> Machine:
    """Devices in the order of the cost table's columns: accelerators, then processors."""
    own = [f"memory{i}" for i in range(graph.accelerators)]
    memories = [Memory(name, graph.capacity, _RATE, _RATE) for name in own]
    devices = [Device(f"accelerator{i}", (name,), _RATES) for i, name in enumerate(own)]
    links = [
        Link(source, target, NOMINAL // 2, engines=(f"out.{source}", f"in.{target}"))
        for source in own
        for target in own
        if source != target
    ]
    if graph.processors:
        memories.append(Memory(_HOST, UNLIMITED, _RATE, _RATE))
        devices += [Device(f"processor{i}", (_HOST,), _RATES) for i in range(graph.processors)]
        for name in own:  # host memory serves all accelerators at once
            links.append(Link(name, _HOST, NOMINAL, engines=(f"out.{name}",)))
            links.append(Link(_HOST, name, NOMINAL, engines=(f"in.{name}",)))
    return Machine(
        graph.name,
        tuple(devices),
        tuple(memories),
        tuple(links),
        description=f"{graph.accelerators} accelerators and {graph.processors} processors",
    )
