"""Compiles the TPU programs and keeps their Programs and the production compiler's placements.

    python tools/extract_tpu.py                          the whole suite, what is missing of it
    python tools/extract_tpu.py bert-base --again
    python tools/extract_tpu.py bert-base --machine tpu-v4i-32m
    python tools/extract_tpu.py my_module:my_function --out my_folder

The function returns (function, shapes of its arguments, numbers of donated arguments). Needs JAX and
libtpu (`pip install 'loadmaster[tpu]'`), here or in the interpreter that --python names. No TPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from loadmaster.errors import BadProgram, LoadmasterError
from loadmaster.files import replacing
from loadmaster.machine import Machine, load_machine
from loadmaster.plan import Plan
from loadmaster.plan.json import plan_to_json
from loadmaster.program import Program, save
from loadmaster.program.importers.hlo import import_hlo
from loadmaster.program.storage import load
from loadmaster.program.zoo.tpu import DATA, MANIFEST
from loadmaster.simulate import simulate
from tools.tpu.checks import check_accesses, check_order, check_sizes, check_totals
from tools.tpu.compile import ALL_SLOW, Compiled, compile_for_tpu, with_capacity
from tools.tpu.replay import replay
from tools.tpu.suite import SUITE, source_hash

MACHINES = ("tpu-v4i", "tpu-v4i-16m")
FORMAT = 1


def main() -> int:
    """Extract what was named; the exit code counts failures."""
    options = _options()
    failures = 0
    for source in options.source or list(SUITE):
        started = time.monotonic()
        try:
            said = extract(source, options)
        except LoadmasterError as error:
            failures, said = failures + 1, f"failed: {error}"
        print(f"{source}: {said} ({time.monotonic() - started:.0f} s)", flush=True)
    return failures


def plan_text(plan: Plan, program: Program, machine: Machine) -> str:
    """A plan as it is shipped: without names, and without the hash of the machine."""
    document = json.loads(plan_to_json(plan, program, machine))
    document["machine"]["hash"] = None
    for row in document["residencies"] + document["copies"]:
        del row["name"]
    return json.dumps(document, separators=(",", ":")) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("source", nargs="*", help="programs of the suite, or module:function")
    parser.add_argument("--machine", action="append", help=f"presets; by default {', '.join(MACHINES)}")
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--out", type=Path, default=Path(str(DATA)), help="folder")
    parser.add_argument("--python", default=sys.executable, help="has JAX and libtpu")
    parser.add_argument("--dumps", type=Path, help="folder that keeps what the compiler writes")
    parser.add_argument("--seconds", type=float, default=900, help="for one compilation")
    return parser.parse_args()


def extract(source: str, options: argparse.Namespace) -> str:
    """One program on all machines; returns a line about it."""
    name = source if source in SUITE else source.partition(":")[2]
    path = options.out / f"{name}.npz"
    record = _read_manifest(options.out)["programs"].get(name)
    machines = [load_machine(machine) for machine in options.machine or MACHINES]
    if options.again or record is None or not path.exists():
        old, (program, record) = record, _program(source, name, options)
        if old is not None and old["hash"] == program.hash:
            renewed = {machine.name for machine in machines}
            record["plans"] = {m: p for m, p in old["plans"].items() if m not in renewed}
    else:
        program = load(path)
    if program.hash != record["hash"]:
        raise BadProgram(
            f"'{path.name}' is not the program of the manifest", object=name, remedy="extract it --again"
        )
    said = [f"{program.n_ops} ops"]
    plans: dict[str, str] = {}
    for machine in machines:
        if machine.name not in record["plans"]:
            plan, record["plans"][machine.name] = _placement(source, program, machine, options)
            plans[machine.name] = plan_text(plan, program, machine)
        about = record["plans"][machine.name]
        said.append(
            f"{machine.name} {about['simulated_ps'] / 1e9:.3f} of {about['all_slow_ps'] / 1e9:.3f} ms"
        )
    if plans:  # all together, so that nobody finds a half of it
        save(program, path)
        for machine_name, text in plans.items():
            with replacing(options.out / f"{name}.{machine_name}.json") as temporary:
                temporary.write_text(text, encoding="utf-8")
        _write_record(options.out, name, record)
    elif source in SUITE and record["source"] != source_hash():
        said.append("made from other functions than those of today")
    return ", ".join(said)


def _program(source: str, name: str, options: argparse.Namespace) -> tuple[Program, dict[str, Any]]:
    """The program itself, from a compilation that leaves everything in HBM."""
    compiled = _compile(source, ALL_SLOW, options)
    program = replace(import_hlo(compiled.before), name=name)
    record = {
        "command": f"python tools/extract_tpu.py {source}",
        "device": compiled.facts["device"],
        "versions": compiled.facts["versions"],
        "source": source_hash() if source in SUITE else None,
        "hash": program.hash,
        "ops": program.n_ops,
        "tensors": program.n_tensors,
        "sites": len(program.read_tensor) + len(program.write_tensor),
        "tensor_bytes": int(program.tensor_bytes.sum()),
        "warnings": list(program.warnings),
        "flags": ALL_SLOW,
        "checks": {
            "totals": check_totals(program, compiled.facts["cost_analysis"]),
            "order": check_order(program, compiled.before, compiled.live_ranges),
            "sizes": check_sizes(compiled.after, compiled.assignment),
        },
        "plans": {},
    }
    return program, record


def _placement(
    source: str, program: Program, machine: Machine, options: argparse.Namespace
) -> tuple[Plan, dict[str, Any]]:
    """The compiler's placement with the machine's capacity."""
    flags = with_capacity(machine.memories[0].capacity)
    compiled = _compile(source, flags, options)
    if import_hlo(compiled.before).hash != program.hash:
        raise BadProgram(
            f"'{source}' is another program with other flags",
            object=source,
            remedy="extract it --again, with one version of the compiler",
        )
    found = replay(program, machine, compiled.after, compiled.assignment)
    if found.violations:
        raise BadProgram(
            f"the placement of '{source}' on {machine.name} is refused: {found.violations[0]}",
            object=source,
            number=len(found.violations),
            remedy="leave this machine out",
        )
    about = {
        "flags": flags,
        "machine_hash": machine.hash,
        "residencies": len(found.plan.residency_rows),
        "copies": len(found.plan.copy_rows),
        "partial": {what: count for what, count in found.partial.items() if count},
        "violations": len(found.violations),
        "sizes": check_sizes(compiled.after, compiled.assignment),
        "accesses": check_accesses(program, machine, found.plan, compiled.after),
        "simulated_ps": simulate(program, machine, found.plan).total_ps,
        "as_issued_ps": simulate(program, machine, found.as_issued).total_ps,
        "all_slow_ps": simulate(program, machine, Plan()).total_ps,
    }
    return found.plan, about


def _compile(source: str, flags: dict[str, str], options: argparse.Namespace) -> Compiled:
    keep = None
    if options.dumps is not None:
        version = source_hash()[:8]
        keep = options.dumps / "-".join([source.replace(":", "."), version, *flags.values()])
    return compile_for_tpu(source, flags, python=options.python, seconds=options.seconds, keep=keep)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.exists():
        return {"loadmaster_tpu": FORMAT, "programs": {}}
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _write_record(folder: Path, name: str, record: dict[str, Any]) -> None:
    """Read again before writing: another extraction may have added a program meanwhile."""
    document = _read_manifest(folder)
    document["programs"][name] = record
    document["programs"] = dict(sorted(document["programs"].items()))
    with replacing(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
