"""A model that does not fit a microcontroller's arena, then does, run by the real interpreter.

    python examples/micro_demo.py [folder for the pictures]

Needs NumPy and `tflite-micro` (pip install 'loadmaster[tflite]'), and a few seconds. The model is
`four_branches.tflite` beside this file, made by `tools/demo_model.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from loadmaster import LoadmasterError, load_machine
from loadmaster.export.picture import draw
from loadmaster.export.tflm_arena import measure_least
from loadmaster.export.tflm_fits import ORDER, fit_micro, verify_same
from loadmaster.export.tflm_rewrite import make_draft, pack
from loadmaster.program.importers.tflite.read import read_tflite

MODEL = Path(__file__).with_name("four_branches.tflite")
ARENA = "arena:48KiB"


def main(folder: Path) -> None:
    machine = load_machine(ARENA)
    capacity = 48 * 1024
    data = MODEL.read_bytes()
    found = fit_micro(str(MODEL), machine, rewrite=False)
    ways = {way.name: way for way in found.ways}
    first, ours = ways["as it is"], ways[ORDER]
    assert ours.smaller is not None
    print(
        f"NO   {MODEL.name} as it is needs an arena of {first.arena.total:,} bytes; there are {capacity:,}."
    )
    print(f"     To blame: {found.blame}.")
    print(f"YES  in another order it needs {ours.arena.total:,} ({ours.text}).")
    print(f"     No order needs fewer than {found.need:,}; set kTensorArenaSize to {ours.arena.total}.")

    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "four_branches.planned.tflite"
    written.write_bytes(ours.smaller.data)
    verify_same(data, ours.smaller.data, ours.smaller.packed, MODEL.name, exact=ours.arena.total)
    print(f"RUN  {written}: TFLite Micro's interpreter starts and runs in {ours.arena.total:,} bytes;")
    print(f"     the original starts in no fewer than {measure_least(data, first.arena.total):,}.")
    print("     The outputs of both are the same to the last bit, on five inputs.")

    before = pack(make_draft(read_tflite(data)), in_place=False)
    for name, packed in (("before", before), ("after", ours.smaller.packed)):
        draw(
            *packed.buffers(),
            capacity,
            folder / f"arena_{name}.svg",
            f"{MODEL.name}, {name}: addresses over time",
        )
    print(f"SEE  {folder / 'arena_before.svg'}, {folder / 'arena_after.svg'}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    except LoadmasterError as problem:
        sys.exit(f"error: {problem.message}")
