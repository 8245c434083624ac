"""TFLite Micro's least arenas on a target of 32 bits, measured: an image for Cortex-M55 in an emulator.

    python benchmarks/tflm_target.py --wheel mlia_ethos_u-….whl --data FOLDER [--data FOLDER …]

The package `mlia-ethos-u` carries images of Arm's inference runner for Corstone-300: TFLite Micro with Arm's kernels, its
symbols and all. `tflm_target.cc` is compiled (`arm-none-eabi-g++`) against one, takes the place of its main function,
and runs in `qemu-system-arm` (machine mps3-an547, a Cortex-M55): the least arena of every model under the folders (each
content once; `benchmarks/tflite_models.py` takes them out of packages) is bisected to 8 bytes there. Models of few
multiply-adds are run in it, as they are and rewritten by `loadmaster fits`, and what both compute is compared. Writes
`results/tflm_target.json`, and goes on where it was stopped (delete the file to begin anew); `benchmarks/micro_arena.py` makes its part of the page. Of the image nothing is committed.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.micro_arena import files, ops
from benchmarks.record import commit, write
from loadmaster.errors import LoadmasterError
from loadmaster.export.tflm_arena import TARGETS, carried_offsets, compute_arena
from loadmaster.export.tflm_fits import fit_micro
from loadmaster.machine import load_machine
from loadmaster.program.importers.tflite.importer import import_tflite
from loadmaster.program.importers.tflite.read import TfliteModel, read_tflite
from loadmaster.units import UNLIMITED

DRIVER = Path(__file__).with_suffix(".cc")
IMAGE = "inference_runner-sse-300-*-tflm-ethos-U55-*/*.axf"
IN_PLACE_OF = {"main": "measure", "_exit": "crash", "DebugLog": "be_quiet"}
"""Function of the image -> function of the driver."""
COMPILE = (
    "arm-none-eabi-g++ -std=c++17 -Os -mcpu=cortex-m55 -mthumb -mfloat-abi=hard -fno-exceptions -fno-rtti -ffreestanding "
    "-fno-tree-loop-distribute-patterns -nostdlib -Wl,-Ttext=0x90000000 -Wl,-emeasure"
)
EMULATE = "qemu-system-arm -M mps3-an547 -display none -serial null -monitor none -semihosting-config enable=on,target=native"
REQUEST, MODEL = 0x91000000, 0x92000000
TARGET = "cortex-m55"
AS_BUILT = TARGETS[TARGET]._replace(enum=1, recent=False)
"""The image's own: its compiler packs enums, and it is of March 2026."""
MOST_MACS = 5_000_000
"""Multiply-adds of models that are run: the image is built for debugging, and emulated."""
SECONDS = 300


class Image:
    """An image whose main function is ours."""

    def __init__(self, elf: Path, folder: Path) -> None:
        self.folder, self.driver, self.path = folder, folder / "driver.elf", folder / "image.axf"
        link = [f"-Wl,--just-symbols={elf}", str(DRIVER), "-o", str(self.driver)]
        subprocess.run([*COMPILE.split(), *link], check=True)
        theirs, ours = symbols(elf), symbols(self.driver)
        data = bytearray(elf.read_bytes())
        for name, function in IN_PLACE_OF.items():
            jump(data, theirs[name], ours[function])
        self.path.write_bytes(data)

    def ask(self, model: TfliteModel, data: bytes, guess: int, *, invoke: bool) -> dict[str, int]:
        """{'least': bytes, 'computes': a checksum of the outputs}, as far as the image gets."""
        first = model.graphs[0]
        handles = (op for graph in model.graphs for op in graph.operators if op.name == "VAR_HANDLE")
        variables = len({"" if op.options is None else op.options.text(1) for op in handles})
        asked = struct.pack("<5I", variables, len(first.inputs), len(first.outputs), guess, invoke)
        (self.folder / "request").write_bytes(asked)
        (self.folder / "model").write_bytes(data)
        load = ["-kernel", str(self.path), "-device", f"loader,file={self.driver}"]
        for name, address in (("request", REQUEST), ("model", MODEL)):
            load += ["-device", f"loader,file={self.folder / name},addr={address},force-raw=on"]
        try:
            done = subprocess.run(
                [*EMULATE.split(), *load], capture_output=True, text=True, timeout=SECONDS, check=True
            )
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            said = b"".join(each for each in (late.stdout, late.stderr) if each).decode()
        lines = [line.split() for line in said.splitlines()]
        return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def symbols(elf: Path) -> dict[str, int]:
    listed = subprocess.run(["arm-none-eabi-nm", str(elf)], check=True, capture_output=True, text=True)
    return {name: int(at, 16) for at, _, name in (line.split() for line in listed.stdout.splitlines())}


def jump(elf: bytearray, at: int, to: int) -> None:
    """Put `ldr.w pc, [pc]` and an address where a function begins."""
    (table,) = struct.unpack_from("<I", elf, 28)
    (count,) = struct.unpack_from("<H", elf, 44)
    for number in range(count):
        kind, offset, address, _, size = struct.unpack_from("<5I", elf, table + 32 * number)
        if kind == 1 and address <= at < address + size and at % 4 == 0:
            struct.pack_into("<HHI", elf, offset + at - address, 0xF8DF, 0xF000, to | 1)
            return
    sys.exit(f"nothing of the image lies at {at:#x}")


def measure(image: Image, name: str, path: Path) -> dict[str, Any]:
    """One model: the least arena there, what we compute, and the same of the model rewritten."""
    data = path.read_bytes()
    row: dict[str, Any] = {"model": name}
    try:
        model = read_tflite(data, name)
        offsets = carried_offsets(model)
        computed, as_built = (
            compute_arena(model, each, offsets=offsets).total for each in (TARGETS[TARGET], AS_BUILT)
        )
        flops = int(import_tflite(data).op_flops.sum())
    except LoadmasterError as error:
        return {**row, "status": "not read", "reason": error.message[:160]}
    is_run = flops <= 2 * MOST_MACS
    found = image.ask(model, data, computed, invoke=is_run)
    row |= {"ops": ops(model), "computed_bytes": computed, "as_built_bytes": as_built}
    if "least" not in found:
        return {**row, "status": "not run", "reason": "the image does not start it"}
    row |= {"status": "run", "least_bytes": found["least"], "is_computed": "computes" in found}
    if not is_run:
        return row
    best = min(
        fit_micro(
            str(path), load_machine(f"arena:{UNLIMITED}"), target=TARGET, everything=True, seconds=10.0
        ).ways,
        key=lambda way: way.arena.total,
    )
    if best.smaller is not None:
        again = image.ask(read_tflite(best.smaller.data), best.smaller.data, best.arena.total, invoke=True)
        row |= {
            "way": best.name,
            "smaller_computed_bytes": best.arena.total,
            "smaller_bytes": again.get("least"),
            "is_identical": "computes" in found and again.get("computes") == found["computes"],
        }
    return row


def record(wheel: Path, folders: list[Path]) -> None:
    """Measure what is not recorded yet: every model is recorded as soon as it is done."""
    path = Path(__file__).parent / "results" / "tflm_target.json"
    answer: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = {row["model"]: row for row in answer["rows"]}
    with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
        folder = Path(name)
        archive.extractall(folder, [each for each in archive.namelist() if each.endswith(".axf")])
        elf = next(folder.rglob(IMAGE))
        image = Image(elf, folder)
        version = subprocess.run(["qemu-system-arm", "--version"], capture_output=True, text=True, check=True)
        about = {
            "command": "python benchmarks/tflm_target.py --wheel WHEEL --data FOLDER",
            "commit": commit(),
            "package": "-".join(wheel.name.split("-")[:2]),
            "image": elf.parent.name,
            "emulator": version.stdout.splitlines()[0],
        }
        for model, file in files(folders).items():
            if model not in rows:
                rows[model] = measure(image, model, file)
                write("tflm_target", {**about, "rows": [rows[each] for each in sorted(rows)]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--data", type=Path, action="append", required=True)
    chosen = parser.parse_args()
    record(chosen.wheel, chosen.data)
