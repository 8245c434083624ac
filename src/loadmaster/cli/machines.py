"""`loadmaster machines`: the machines that come with Loadmaster, and where their numbers are from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free, one_line, write_text
from loadmaster.units import UNLIMITED, show_bytes, show_count, show_time

if TYPE_CHECKING:
    from loadmaster.machine import Machine


def command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A machine, a TOML file, or arena:SIZE.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="TOML", help="Write the machine to a file, to change it.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """List the machines; with a name, its parts, its rules and the source of every number.

    Example: loadmaster machines nnp-i --out mine.toml
    """
    from loadmaster.machine import load_machine

    if name is None:
        if out is not None:
            raise Usage("--out needs a machine", object="--out", remedy="give its name first")
        return _list()
    if out is not None:
        check_free(out, overwrite)
    machine = load_machine(name)
    answer = _details(name, machine)
    if out is not None:
        from loadmaster.machine.presets import machine_text

        write_text(out, machine_text(machine))
        answer.blocks.append(f"wrote {out}")
        answer.more["out"] = str(out)
    return answer


def _list() -> Answer:
    from loadmaster.machine import load_machine, preset_names
    from loadmaster.machine.presets import VARIANTS

    machines = [load_machine(name) for name in preset_names()]
    rows: list[dict[str, Any]] = [
        {
            "name": machine.name,
            "devices": len(machine.devices),
            "memories": len(machine.memories),
            "links": len(machine.links),
            "description": machine.description,
            "hash": machine.hash,
        }
        for machine in machines
    ]
    cells = [
        (m.name, str(len(m.devices)), str(len(m.memories)), str(len(m.links)), m.description)
        for m in machines
    ]
    suffixes = ", ".join(f"-{suffix} ({what})" for suffix, what in VARIANTS.items())
    return Answer(
        rows,
        [
            Table(("machine", "devices", "memories", "links", "what it is"), cells),
            f"Machines with links have variants: {suffixes}.\nAlso: a TOML file, or arena:SIZE.",
        ],
    )


def _details(name: str, machine: Machine) -> Answer:
    from loadmaster.machine.presets import list_sources

    rows: list[dict[str, Any]] = [
        {
            "what": "machine",
            "name": machine.name,
            "description": machine.description,
            "ports": machine.rules.ports,
            "overlap": machine.rules.overlap / 10**6,
            "copies": machine.rules.copies,
            "hash": machine.hash,
        }
    ]
    rows += [
        {
            "what": "device",
            "name": d.name,
            "memories": d.memories,
            "rates": dict(d.rates),
            "launch_seconds": d.launch / 10**12,
            "units": d.units,
        }
        for d in machine.devices
    ]
    rows += [
        {
            "what": "memory",
            "name": m.name,
            "read": m.read,
            "write": m.write,
            "capacity_bytes": None if m.capacity >= UNLIMITED else m.capacity,
            "latency_seconds": m.latency / 10**12,
            "alignment_bytes": m.alignment,
        }
        for m in machine.memories
    ]
    rows += [
        {
            "what": "link",
            "source": k.source,
            "target": k.target,
            "bandwidth": k.bandwidth,
            "latency_seconds": k.latency / 10**12,
            "engines": k.engines,
        }
        for k in machine.links
    ]
    texts = list_sources(name, machine)
    rows += [{"what": "source", "name": part, "text": text} for part, text in texts]
    rules = machine.rules
    blocks: list[str | Table] = [f"{machine.name}: {one_line(machine.description)}".rstrip(": ")]
    blocks.append(
        f"rules: {rules.ports} ports; {rules.overlap / 10**4:g} % of the smaller of compute and "
        f"memory time is added to the larger; copies {rules.copies}"
    )
    blocks += _tables(machine)
    blocks += [f"\n--- {part} ---\n{text.strip()}" for part, text in texts]
    return Answer(rows, blocks)


def _tables(machine: Machine) -> list[str | Table]:
    devices, memories, links = machine.devices, machine.memories, machine.links
    tables: list[str | Table] = [
        Table(
            ("device", "memories", "flops per second", "launch"),
            [(d.name, " ".join(d.memories), _rates(d.rates), show_time(d.launch)) for d in devices],
        ),
        Table(
            ("memory", "capacity", "read", "write", "latency", "alignment"),
            [
                (
                    m.name,
                    show_bytes(m.capacity),
                    f"{show_count(m.read)}B/s",
                    f"{show_count(m.write)}B/s",
                    show_time(m.latency),
                    f"{m.alignment} B",
                )
                for m in memories
            ],
        ),
    ]
    if links:
        rows = [
            (
                f"{k.source} to {k.target}",
                f"{show_count(k.bandwidth)}B/s",
                show_time(k.latency),
                " ".join(k.engines),
            )
            for k in links
        ]
        tables.append(Table(("link", "bandwidth", "latency", "engines it holds"), rows))
    return tables


def _rates(rates: Any) -> str:
    texts = []
    for kind, by_type in rates.items():
        if len(by_type) == 1:
            texts.append(f"{kind} {show_count(*by_type.values())}")
        else:
            each = [f"{t.replace('*', 'other')} {show_count(n)}" for t, n in by_type.items()]
            texts.append(f"{kind} {', '.join(each)}")
    return "; ".join(texts)
