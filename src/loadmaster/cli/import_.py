"""`loadmaster import`: a model of another framework as a program file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import Model, takes_model
from loadmaster.files import writing
from loadmaster.units import show_bytes, show_count


@takes_model
def command(
    model: Model,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="Where to write the program.")] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Import a model, tell what was found, and save it for later commands.

    ONNX, TFLite and HLO files, or a JAX function with --arg for each of its arguments.

    Example: loadmaster import resnet50.onnx --shape data=1,3,224,224 --out resnet50.npz
    """
    if out is not None:
        if out.suffix != ".npz":
            raise Usage(
                f"program file '{out}' must end in .npz",
                object=str(out),
                remedy=f"write --out {out.with_suffix('.npz').name}",
            )
        check_free(out, overwrite, model.source)
    from loadmaster.program import save
    from loadmaster.program.kinds import is_unknown
    from loadmaster.simulate.needs import needs

    program = model.load()
    total = needs(program)
    unknown = Counter(kind for kind in program.op_kind if is_unknown(kind))
    row: dict[str, Any] = {
        "name": program.name,
        "ops": total.ops,
        "views": total.views,
        "tensors": total.tensors,
        "loops": program.n_loops,
        "weights_bytes": total.bytes_of["weight"],
        "flops": total.flops,
        "order_source": program.order_source,
        "unknown_kinds": {k.removeprefix("unknown:"): count for k, count in unknown.items()},
        "hash": program.hash,
        "named_hash": program.named_hash,
        "out": None if out is None else str(out),
    }
    cells = [
        ("ops", f"{total.ops:,}"),
        ("of them views", f"{total.views:,}"),
        ("tensors", f"{total.tensors:,}"),
        ("weights", show_bytes(total.bytes_of["weight"])),
        ("flops", show_count(total.flops)),
        ("order", program.order_source),
        ("unknown kinds", ", ".join(f"{k} ×{n}" for k, n in row["unknown_kinds"].items()) or "none"),
        ("hash", program.hash),
    ]
    blocks: list[str | Table] = [Table(("program", program.name), cells)]
    if out is not None:
        with writing(out):
            save(program, out)
        blocks.append(f"wrote {out}")
    return Answer([row], blocks, program.warnings)
