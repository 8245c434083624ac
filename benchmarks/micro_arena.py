"""TFLite Micro's real arenas over other people's models: predicted, measured, made smaller. Also Vela's SRAM.

    python benchmarks/micro_arena.py --data FOLDER [--data FOLDER …] [--vela FOLDER]
    python benchmarks/micro_arena.py --data FOLDER [--data FOLDER …] --executorch FOLDER
    python benchmarks/micro_arena.py --held-out FOLDER
    python benchmarks/micro_arena.py --data FOLDER [--data FOLDER …] --predict
    python benchmarks/micro_arena.py --data FOLDER [--data FOLDER …] --again MODEL [--again MODEL …]

runs every .tflite file under the folders (each content once; take them out of packages with
`benchmarks/tflite_models.py`) and writes `results/micro_arena.json`; `--vela` is a folder that
`pip install --target` has put ethos-u-vela into. The second adds what ExecuTorch's greedy planner makes of the
same tensors and lives to the rows that are there. The third predicts and measures models that no size was fitted
to, and records them apart: contents that are among the rows are left out. The fourth
computes anew what is computed, beside what was measured; the fifth measures these models again, whose rows then name
their own commit. Without `--data` the page `results/micro_arena.md` is
rewritten from there; `--check` fails if it would change. No model is part of the repository.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.mapping_table import table
from benchmarks.pages import rewrite
from benchmarks.record import commit, write
from loadmaster.errors import LoadmasterError
from loadmaster.export.tflm_arena import TARGETS, compute_arena
from loadmaster.export.tflm_fits import fit_micro, verify_same
from loadmaster.export.tflm_measure import measure_least
from loadmaster.export.tflm_rewrite import make_draft
from loadmaster.machine import load_machine
from loadmaster.program.importers.tflite.read import read_tflite
from loadmaster.units import UNLIMITED

HERE = Path(__file__).parent
PAGE = HERE / "results" / "micro_arena.md"
BEGIN, END = "<!-- results: made by benchmarks/micro_arena.py -->", "<!-- end of results -->"
VELA = ("ethos-u55-256", "Ethos_U55_High_End_Embedded", "Shared_Sram")
PEERS = (
    "SRAM that Vela uses with `--optimise Size` on Ethos-U55-256 (`Ethos_U55_High_End_Embedded`, `Shared_Sram`), "
    "beside the planned part of TFLite Micro's arena, with its own greedy planner and rewritten by us. They are not "
    "the same machine: Vela cascades stripes through an NPU, and what float operators at the ends hold is not in its "
    "figure. Its time is its own estimate; ours is the simulator's on the preset `ethos-u55`, where every operator "
    "reaches the peak rate: below Vela's, and not to be taken for a faster plan."
)
GREEDY = """
import json, sys, torch
from executorch.exir.memory_planning import greedy
from executorch.exir.tensor import TensorSpec

def height(lives):
    specs = []
    for size, first, last in lives:
        spec = TensorSpec(torch.int8, torch.Size([size]))
        spec.lifetime, spec.mem_id = [first, last], 1
        specs.append(spec)
    graph = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    return greedy(16, specs, graph, None, 0).bufsizes[1]

print(json.dumps({name: height(lives) for name, lives in json.load(sys.stdin).items()}))
"""
MAIN = "import sys; from ethosu.vela.vela import main; main(sys.argv[1:])"
Row = dict[str, Any]


def files(folders: list[Path]) -> dict[str, Path]:
    """Name -> file of every content, once; the name tells the package's folder."""
    found: dict[str, Path] = {}
    seen: set[str] = set()
    for path in sorted(each for folder in folders for each in folder.rglob("*.tflite")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in seen:
            seen.add(digest)
            found[f"{path.parent.name}/{path.stem}"] = path
    return found


def measure(name: str, path: Path) -> Row:
    """One model: predicted and least arena, and that of every way, each run beside the original."""
    data = path.read_bytes()
    row: Row = {"model": name, "file_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()[:16]}
    started = time.perf_counter()
    try:
        model = read_tflite(data, name)
        computed = compute_arena(model)
        least = measure_least(data, computed.total)
    except LoadmasterError as error:
        return {**row, "status": "not read", "reason": error.message[:160]}
    if least is None:
        return {**row, "status": "not run", "reason": "TFLite Micro has no kernels for it", "ops": ops(model)}
    found = fit_micro(str(path), load_machine(f"arena:{UNLIMITED}"), everything=True, seconds=10.0)
    best = min(found.ways, key=lambda way: way.arena.total)
    for way in found.ways:
        if way.smaller is not None:
            seeds = range(1 if least > 2**20 else 3)
            verify_same(data, way.smaller.data, way.smaller.packed, name, seeds)  # raises where a bit differs
    again = None if best.smaller is None else measure_least(best.smaller.data, best.arena.total)
    return {
        **row,
        "status": "run",
        "ops": ops(model),
        "least_bytes": least,
        **predicted(model),
        "need_bytes": found.need or None,
        "ways": {way.name: way.arena.total for way in found.ways},
        "way": best.name,
        "smaller_planned_bytes": best.arena.planned,
        "smaller_bytes": least if again is None else again,
        "smaller_predicted_bytes": None if best.smaller is None else best.smaller.arena.total,
        "extra_macs": 0.0 if best.smaller is None else best.smaller.packed.draft.extra_macs,
        "how": best.text,
        "seconds": time.perf_counter() - started,
    }


def predicted(model: Any) -> Row:
    """All that needs no interpreter."""
    computed = compute_arena(model)
    return {
        "predicted_bytes": computed.total,
        "planned_bytes": computed.planned,
        "persistent_bytes": computed.persistent,
        "startup_bytes": computed.startup,
        "cortex_m_bytes": compute_arena(model, TARGETS["cortex-m"]).total,
        "cortex_m55_bytes": compute_arena(model, TARGETS["cortex-m55"]).total,
    }


def predict_again(folders: list[Path]) -> None:
    answer = json.loads((HERE / "results" / "micro_arena.json").read_text(encoding="utf-8"))
    found = {hashlib.sha256(path.read_bytes()).hexdigest()[:16]: path for path in files(folders).values()}
    for row in (*answer["rows"], *answer["held_out"]["rows"]):
        if row["status"] == "run" and row["sha256"] in found:
            row |= predicted(read_tflite(found[row["sha256"]].read_bytes()))
        elif row["status"] == "run":
            print(f"{row['model']} is not there: it keeps what was predicted before")
    answer["predicted_at"] = commit()
    write("micro_arena", answer)


def ops(model: Any) -> int:
    return sum(len(graph.operators) for graph in model.graphs)


def vela(path: Path, packages: Path) -> Row:
    """Vela's SRAM and its own estimate of time, for the model as it is."""
    accelerator, system, mode = VELA
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-c", MAIN, str(path), "--output-dir", folder),
                *("--accelerator-config", accelerator, "--system-config", system, "--memory-mode", mode),
                *("--config", "Arm/vela.ini", "--optimise", "Size"),
            ],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONPATH": str(packages)},
        )
        summary = next(Path(folder).glob("*_summary_*.csv"), None)
        if done.returncode or summary is None:
            return {"vela": "not compiled", "vela_reason": (done.stderr or done.stdout)[-160:]}
        with summary.open(encoding="utf-8") as file:
            cells = next(csv.DictReader(file))
    return {
        "vela": "compiled",
        "vela_sram_bytes": round(1024 * float(cells["sram_memory_used"])),
        "vela_seconds": float(cells["inference_time"]),
    }


def record(folders: list[Path], packages: Path | None) -> None:
    rows = []
    for name, path in files(folders).items():
        row = measure(name, path)
        if packages is not None and row["status"] == "run":
            row |= vela(path, packages) | ours_on_u55(path)
        rows.append(row)
        print(name, row["status"], row.get("least_bytes"), row.get("smaller_bytes"), flush=True)
    versions = {"tflite-micro": version("tflite-micro")}
    if packages is not None:
        versions["ethos-u-vela"] = (
            next(packages.glob("ethos_u_vela-*.dist-info")).name.split("-")[1].removesuffix(".dist")
        )
    command = "python benchmarks/micro_arena.py --data FOLDER --vela FOLDER"
    write("micro_arena", {"command": command, "commit": commit(), "versions": versions, "rows": rows})


def measure_again(folders: list[Path], names: list[str]) -> None:
    """These models anew; what Vela and ExecuTorch made of them stays."""
    answer = json.loads((HERE / "results" / "micro_arena.json").read_text(encoding="utf-8"))
    found = files(folders)
    for row in answer["rows"]:
        if row["model"] in names:
            row |= measure(row["model"], found[row["model"]]) | {"commit": commit()}
            print(row["model"], row["smaller_bytes"], flush=True)
    write("micro_arena", answer)


def add_executorch(folders: list[Path], packages: Path) -> None:
    """ExecuTorch's planner on the tensors of each model, in the file's order: no reshape is a view for it either."""
    place = HERE / "results" / "micro_arena.json"
    answer = json.loads(place.read_text(encoding="utf-8"))
    found = files(folders)
    lives = {
        row["model"]: lives_of(found[row["model"]])
        for row in answer["rows"]
        if row["status"] == "run" and len(read_tflite(found[row["model"]].read_bytes()).graphs) == 1
    }
    done = subprocess.run(
        [sys.executable, "-c", GREEDY],
        input=json.dumps(lives),
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(packages)},
    )
    heights = json.loads(done.stdout.splitlines()[-1])
    for row in answer["rows"]:
        row["executorch_bytes"] = heights.get(row["model"])
    installed = next(packages.glob("executorch-*.dist-info")).name.split("-")[1]
    answer["versions"]["executorch"] = installed.removesuffix(".dist")
    write("micro_arena", answer)


def add_held_out(folder: Path) -> None:
    """Predicted and least arena of models that nothing was fitted to; they stand apart."""
    answer = json.loads((HERE / "results" / "micro_arena.json").read_text(encoding="utf-8"))
    known = {row["sha256"] for row in answer["rows"]}
    rows: list[Row] = []
    for name, path in files([folder]).items():
        data = path.read_bytes()
        row: Row = {"model": name, "file_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()[:16]}
        if row["sha256"] in known:
            continue
        try:
            model = read_tflite(data, name)
            computed = compute_arena(model)
            least = measure_least(data, computed.total)
        except LoadmasterError as error:
            rows.append({**row, "status": "not read", "reason": error.message[:160]})
            continue
        found = {"ops": ops(model), "predicted_bytes": computed.total, "least_bytes": least}
        rows.append({**row, "status": "not run" if least is None else "run", **found})
        print(name, computed.total, least, flush=True)
    answer["held_out"] = {
        "command": "python benchmarks/micro_arena.py --held-out FOLDER",
        "commit": commit(),
        "versions": {"tflite-micro": version("tflite-micro")},
        "rows": rows,
    }
    write("micro_arena", answer)


def held_out(answer: Row) -> list[str]:
    """The part of the page about models that were held out."""
    rows = answer.get("held_out", {}).get("rows", [])
    run = [row for row in rows if row["status"] == "run"]
    if not run:
        return []
    over = [row["predicted_bytes"] / row["least_bytes"] - 1 for row in run]
    said = (
        f"{len(rows)} models of other packages and versions, looked for after the sizes were fitted; {len(run)} run. "
        f"Predicted against least: from {min(over):+.2%} to {max(over):+.2%}, below it {sum(each < 0 for each in over)} times. "
        "No size was changed for them. They are few and near to the others: what reading the sources and models of one "
        "operator found is in `tests/export/test_tflm_arena.py`."
    )
    cells = [
        [
            f"`{row['model']}`",
            str(row["ops"]),
            f"{row['predicted_bytes']:,}",
            f"{row['least_bytes']:,}",
            f"{each:+.2%}",
        ]
        for row, each in zip(run, over, strict=True)
    ]
    return [
        "",
        "### Held out",
        "",
        said,
        "",
        table(["model", "ops", "predicted", "least", "difference"], cells),
    ]


def on_a_target() -> list[str]:
    """The part of the page about arenas on a target of 32 bits: measured, beside what is computed for it."""
    answer = json.loads((HERE / "results" / "tflm_target.json").read_text(encoding="utf-8"))
    run: list[Row] = [row for row in answer["rows"] if row["status"] == "run"]
    shares = {
        key: [row[key] / row["least_bytes"] - 1 for row in run]
        for key in ("computed_bytes", "as_built_bytes")
    }
    above = [row for row, share in zip(run, shares["computed_bytes"], strict=True) if share > 0.02]
    more = max((row["computed_bytes"] - row["least_bytes"] for row in above), default=0)
    rewritten = [row for row in run if row.get("smaller_bytes")]
    change = sorted(row["smaller_bytes"] / row["least_bytes"] - 1 for row in rewritten)
    said = (
        f"The image `{answer['image']}` of {answer['package']} is Arm's inference runner for Corstone-300: TFLite Micro with "
        f"CMSIS-NN, built for a Cortex-M55 by its maker. Its interpreter was asked in an emulated one ({answer['emulator']}) "
        f"by `benchmarks/tflm_target.py`: {len(run)} of {len(answer['rows'])} models start there, "
        f"{sum(row['is_computed'] for row in run)} were run too (those of few multiply-adds: the image is built for "
        "debugging). No chip was measured, and no Cortex-M4, M7 or M33: their structs are the same, what CMSIS-NN asks "
        "for on them is computed."
    )
    lines = [
        "",
        "### 32 bits, measured",
        "",
        said,
        "",
        (
            "* **Computed as the image is built** (enums packed into a byte, March 2026) against the least arena there, bisected "
            f"to 8 bytes: from {min(shares['as_built_bytes']):+.2%} to {max(shares['as_built_bytes']):+.2%}, below it "
            f"{sum(each < 0 for each in shares['as_built_bytes'])} times."
        ),
        (
            "* **Computed as `loadmaster fits` does** (enums of 32 bits, which other compilers make, and what newer versions "
            f"keep): from {min(shares['computed_bytes']):+.2%} to {max(shares['computed_bytes']):+.2%}, below it "
            f"{sum(each < 0 for each in shares['computed_bytes'])} times; more than 2 % above on {len(above)} small models, by "
            f"at most {more} bytes."
        ),
        (
            f"* **Rewritten models**, run there with Arm's kernels beside the original: {len(rewritten)} smaller, "
            f"{sum(row['is_identical'] for row in rewritten)} of them the same to the last bit; median "
            f"{100 * change[len(change) // 2]:.1f} %, best {100 * change[0]:.1f} %; "
            f"{sum(row['smaller_computed_bytes'] < row['smaller_bytes'] for row in rewritten)} predicted below."
        ),
        "",
    ]
    cells = [
        [
            f"`{row['model']}`",
            f"{row['least_bytes']:,}",
            f"{row['as_built_bytes']:,}",
            f"{row['computed_bytes']:,}",
            f"{row['computed_bytes'] / row['least_bytes'] - 1:+.2%}",
            f"{row['smaller_bytes']:,}" if row.get("smaller_bytes") else "",
            row.get("way", ""),
            ("yes" if row["is_identical"] else "no") if row.get("smaller_bytes") else "",
        ]
        for row in run
    ]
    head = ["model", "least", "as built", "`fits`", "difference", "rewritten, least", "way", "same bits"]
    return [*lines, table(head, cells)]


def thirty_two_bits() -> list[str]:
    """The part of the page about the sizes that targets of 32 bits are computed with."""
    answer = json.loads((HERE / "results" / "tflm_sizes.json").read_text(encoding="utf-8"))
    rows: list[Row] = answer["rows"]
    of = {name: [row for row in rows if row["compiler"] == name] for name in answer["compilers"]}
    differing = [row["struct"] for row in of["Cortex-M7"] if row["bytes"] != row["ours_bytes"]]
    size = {(row["struct"], row["compiler"]): row for row in rows}
    said = (
        f"The sizes of {len(of['Cortex-M7'])} structs for other cores. Headers of TFLite Micro that "
        f"{', '.join(answer['headers'])} carries (a fork, older than the interpreters above) were compiled for each and "
        "compared; where the fork's struct has fewer fields, ours is larger and is the one that the interpreter shows."
    )
    counts = [
        [
            name,
            f"`{answer['compilers'][name]}`",
            str(sum(row["bytes"] == row["ours_bytes"] for row in found)),
            str(sum(row["bytes"] < row["ours_bytes"] for row in found)),
            str(sum(row["bytes"] > row["ours_bytes"] for row in found)),
        ]
        for name, found in of.items()
    ]
    different = [
        [
            f"`{name}`",
            *(
                str(size[name, compiler][key])
                for compiler in ("64 bits", "Cortex-M7")
                for key in ("bytes", "ours_bytes")
            ),
        ]
        for name in differing
    ]
    return [
        "",
        "### Structs of 32 bits",
        "",
        said,
        "",
        table(["target", "compiler", "same", "ours larger", "ours smaller"], counts),
        "",
        table(["struct", "64 bits", "ours", "Cortex-M7", "ours"], different),
    ]


def lives_of(path: Path) -> list[tuple[int, int, int]]:
    draft = make_draft(read_tflite(path.read_bytes()))
    return [
        (made.size, first, end - 1)
        for made, (first, end) in zip(draft.tensors, draft.life, strict=True)
        if (first, end) != (0, 0)
    ]


def ours_on_u55(path: Path) -> Row:
    """Our placement of the same model on the same system, simulated."""
    from loadmaster.mapping.problem import Mapping
    from loadmaster.planner import solve_checked
    from loadmaster.program.importers.tflite import import_tflite
    from loadmaster.search.solver import Budget

    try:
        found = solve_checked(
            Mapping(import_tflite(path), load_machine("ethos-u55")), "auto", Budget(seconds=5)
        )
    except LoadmasterError as error:
        return {"u55_reason": error.message[:160]}
    value = found.solution.value
    return {"u55_seconds": None if value is None else value / 1e12}


def made() -> str:
    answer = json.loads((HERE / "results" / "micro_arena.json").read_text(encoding="utf-8"))
    rows: list[Row] = answer["rows"]
    run = [row for row in rows if row["status"] == "run"]
    over = [row["predicted_bytes"] / row["least_bytes"] - 1 for row in run]
    change = {row["model"]: row["smaller_bytes"] / row["least_bytes"] - 1 for row in run}
    smaller = [each for each in change.values() if each < 0]
    split = [row for row in run if row["way"] == "bands of rows" and change[row["model"]] <= -0.25]
    others = len(rows) - len(run)
    coverage = (
        f"{len(rows)} models of PyPI packages; {len(run)} run in TFLite Micro "
        f"({answer['versions']['tflite-micro']}), {others} have no kernels there (float16 weights, custom or "
        "sparse operators)."
    )
    predicted = (
        "* **Predicted total** (no interpreter asked) against the least arena in which the interpreter starts and "
        f"runs, bisected to 8 bytes: from {min(over):+.2%} to {max(over):+.2%}, "
        f"below it {sum(each < 0 for each in over)} times."
    )
    shrunk = (
        f"* **Made smaller**, measured again and run beside the original, bit for bit: {len(smaller)} of {len(run)}, "
        f"larger {sum(each > 0 for each in change.values())}; median of those {100 * sorted(smaller)[len(smaller) // 2]:.1f} %, "
        f"best {100 * min(smaller):.1f} %."
    )
    lines = [
        coverage,
        "",
        predicted,
        shrunk,
        f"* **Bands of rows** bring 25 % or more on {len(split)} models.",
        "",
        (
            "`as it is` is the runtime's own greedy planner; `Cortex-M` is computed for 32 bits with CMSIS-NN's scratch, "
            '`M55` for a core with Helium, which was measured (see "32 bits, measured").'
        ),
        "",
        table(
            [
                "model",
                "ops",
                "predicted",
                "least",
                "Cortex-M",
                "M55",
                "smaller",
                "change",
                "way",
                "multiply-adds",
            ],
            [
                [
                    f"`{row['model']}`",
                    str(row["ops"]),
                    f"{row['predicted_bytes']:,}",
                    f"{row['least_bytes']:,}",
                    f"{row['cortex_m_bytes']:,}",
                    f"{row['cortex_m55_bytes']:,}",
                    f"{row['smaller_bytes']:,}",
                    f"{change[row['model']]:+.1%}",
                    row["way"],
                    f"{row['extra_macs']:+.1%}",
                ]
                for row in sorted(run, key=lambda row: change[row["model"]])
            ],
        ),
    ]
    lines += held_out(answer)
    lines += on_a_target() + thirty_two_bits()
    # Vela leaves float operators to the core: then there is no SRAM of its own to compare.
    theirs = [row for row in run if row.get("vela_sram_bytes")]
    less = sum(row["vela_sram_bytes"] < row["smaller_planned_bytes"] for row in theirs)
    more = sum(row["vela_sram_bytes"] > row["smaller_planned_bytes"] for row in theirs)
    if theirs:
        lines += [
            "",
            f"### Vela {answer['versions'].get('ethos-u-vela', '')}",
            "",
            PEERS,
            "",
            f"Of {len(theirs)} int8 models Vela's SRAM is smaller than our planned part on {less}, larger on {more}.",
            "",
            table(
                ["model", "Vela SRAM", "greedy planner", "ours", "Vela's ms", "ours, ms"],
                [
                    [
                        f"`{row['model']}`",
                        f"{row['vela_sram_bytes']:,}",
                        f"{row['planned_bytes']:,}",
                        f"{row['smaller_planned_bytes']:,}",
                        f"{1e3 * row['vela_seconds']:.3f}",
                        "–" if row.get("u55_seconds") is None else f"{1e3 * row['u55_seconds']:.3f}",
                    ]
                    for row in theirs
                ],
            ),
        ]
    planned = [row for row in run if row.get("executorch_bytes")]
    if planned:
        worse = [row for row in planned if row["executorch_bytes"] > row["planned_bytes"]]
        better = [row for row in planned if row["executorch_bytes"] < row["planned_bytes"]]
        ours = [row for row in planned if row["executorch_bytes"] < row["smaller_planned_bytes"]]
        said = (
            f"Its greedy planner on the same tensors and lives of models with one graph, aligned to 16 bytes: {len(better)} of {len(planned)} "
            f"models need fewer planned bytes than with TFLite Micro's, {len(worse)} more; fewer than ours, which "
            f"also reorders and rewrites: {len(ours)}."
        )
        lines += ["", f"### ExecuTorch {answer['versions']['executorch']}", "", said]
        different = [row for row in planned if row["executorch_bytes"] != row["planned_bytes"]]
        if different:
            lines += [
                "",
                table(
                    ["model", "ExecuTorch", "TFLite Micro", "ours"],
                    [
                        [
                            f"`{row['model']}`",
                            f"{row['executorch_bytes']:,}",
                            f"{row['planned_bytes']:,}",
                            f"{row['smaller_planned_bytes']:,}",
                        ]
                        for row in different
                    ],
                ),
            ]
    missing = [row for row in rows if row["status"] != "run"]
    if missing:
        lines += ["", "Not run: " + ", ".join(f"`{row['model']}`" for row in missing) + "."]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, action="append", default=[])
    parser.add_argument("--vela", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--executorch", type=Path)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--again", action="append", default=[], metavar="MODEL")
    given = parser.parse_args()
    if given.data and given.executorch is not None:
        add_executorch(given.data, given.executorch)
    elif given.data and given.again:
        measure_again(given.data, given.again)
    elif given.data and given.predict:
        predict_again(given.data)
    elif given.held_out is not None:
        add_held_out(given.held_out)
    elif given.data:
        record(given.data, given.vela)
    else:
        sys.exit(rewrite(PAGE, BEGIN, END, made()))
