"""An evaluator as a command: measures a plan's pass on this computer's processor.

    loadmaster plan MODEL --machine examples/measure_cpu/cpu-cache.toml \
        --evaluator "python examples/measure_cpu/measure.py"

Loadmaster gives the plan on standard input and the program in the file $LOADMASTER_PROGRAM; the
compiled pass.c prints the seconds. It runs anew for each measurement, so nothing slow is imported
after the first: what it needs of the program is kept beside it.
"""
# pathlib alone would take as long to import as all the rest.
# ruff: noqa: PTH100, PTH105, PTH110, PTH118, PTH120, PTH123, PTH204

from __future__ import annotations

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PASS = os.path.join(HERE, "build", "pass")
KINDS = {"cache": 0, "dram": 1, "file": 2}
"""The memories of cpu-cache.toml, and their kinds in pass.c."""


def compiled() -> str:
    """The compiled program, made if it is older than its source."""
    source = os.path.join(HERE, "pass.c")
    if not os.path.exists(PASS) or os.path.getmtime(PASS) < os.path.getmtime(source):
        import subprocess

        subprocess.run([os.path.join(HERE, "build.sh")], check=True, stdout=sys.stderr)
    return PASS


def described(path: str) -> dict:
    """'tensors': (bytes, given) each; 'ops': (reads, writes) each, of (tensor, bytes)."""
    kept = f"{path}.json"
    if not os.path.exists(kept):
        content = json.dumps(_described(path))
        with open(f"{kept}.new", "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(f"{kept}.new", kept)
    with open(kept, encoding="utf-8") as file:
        return json.load(file)


def _described(path: str) -> dict:
    from loadmaster.program import TensorKind, load

    program = load(path)
    if len(program.loop_trips):
        sys.exit("programs with loops are not measured here")
    root = program.tensor_alias.tolist()
    read, size = {}, program.storage_bytes.tolist()
    for tensor, count in zip(program.read_tensor.tolist(), program.read_bytes.tolist(), strict=True):
        read[root[tensor]] = max(read.get(root[tensor], 0), min(count, size[root[tensor]]))
    made = (TensorKind.ACTIVATION, TensorKind.OUTPUT)
    tensors = [[size[t], int(program.tensor_kind[t] not in made)] for t in range(len(root))]
    ops = []
    for op in range(program.n_ops):
        if program.op_view[op]:
            continue
        sides = []
        for start, tensor, count in (
            (program.read_start, program.read_tensor, program.read_bytes),
            (program.write_start, program.write_tensor, program.write_bytes),
        ):
            rows = range(int(start[op]), int(start[op + 1]))
            sides.append([[root[tensor[i]], min(int(count[i]), size[root[tensor[i]]])] for i in rows])
        # All that is ever read has been written.
        ops.append([sides[0], [[t, max(n, read.get(t, 0))] for t, n in sides[1]]])
    return {"tensors": tensors, "ops": ops}


def layout(plan: dict, program: dict) -> str:
    """What pass.c reads. What a plan does not place (inputs) lives in the file, after the rest."""
    tensors = program["tensors"]
    places = [None] * len(tensors)
    top = 0
    for row in plan["residencies"]:
        places[row["tensor"]] = (KINDS[row["memory"]], row["offset"])
        if row["memory"] == "file":
            top = max(top, row["offset"] + tensors[row["tensor"]][0])
    words = [len(KINDS), *KINDS.values(), len(tensors)]
    for place, (size, given) in zip(places, tensors, strict=True):
        if place is None:
            top = -(-top // 64) * 64
            place = (KINDS["file"], top)
            top += size
        words += [*place, size, given]
    words.append(len(program["ops"]))
    for reads, writes in program["ops"]:
        words += [len(reads), len(writes)]
        for tensor, size in [*reads, *writes]:
            words += [tensor, size]
    return " ".join(map(str, words))


def main() -> None:
    path = os.environ.get("LOADMASTER_PROGRAM")
    if path is None:
        sys.exit("LOADMASTER_PROGRAM is not set: Loadmaster sets it when it runs an evaluator")
    text = layout(json.load(sys.stdin), described(path))
    file = f"{path}.layout"
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    os.execv(compiled(), ["pass", file])


if __name__ == "__main__":
    main()
