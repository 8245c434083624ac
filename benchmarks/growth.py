"""How time and memory grow with the size of a problem: `python benchmarks/growth.py --before SRC`.

Every row is a process of its own, timed by the CPU seconds that it takes (user and system, all threads: a
busy computer changes them little) and by its peak of memory, set-up of Python left out of the first and not
of the second. A first plan (`plan NAME`) has a time limit of 60 CPU seconds, which counts reading the program, known
methods and the last check. `--before` names the `src` folder of another version, with its native core: its rows are
measured in the same run, in turn with ours, and a row that takes longer than `--limit` seconds is not
repeated in a larger size. Writes benchmarks/results/growth.json, growth.md, and docs/images/growth.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FAMILIES = ("nested", "chains", "random", "heavy-tailed")
SIZES = (50_000, 100_000, 200_000, 400_000, 1_000_000)
COUNTED_SECONDS = 10.0
"""Rows that take longer are not counted: valgrind takes fifty times as long."""
COUNTED_NOTE = (
    "Instructions are counted by valgrind (`--instructions`): how they grow is the algorithm, how seconds grow beyond",
    "that is caches.",
)
PLANS = {
    "allocation": "arena:100GiB",
    "mapping": "nnp-i",
    "malloc-game": "tpu-v4i",
    "offload": "h200:hbm=2GiB",
    "order": "nnp-i",
    "graph": "p100x4",
}
"""Problem -> the machine that a layered graph is planned for."""
PLAN_SECONDS = 60.0
ZOO = {
    "unet": 20_121,
    "moe": 21_289,
    "amoebanet": 23_970,
    "mamba": 27_334,
    "gnmt-2": 27_684,
    "gnmt-4": 45_284,
    "gnmt-8": 80_484,
}
"""Workload -> its ops: those above 20,000."""
IMPORTS = ("onnx", "tflite", "hlo")
"""Formats of files that are read."""
WEIGHTS = ("onnx", "tflite")
"""Formats of files with weights in them, which are read for their sizes alone."""
Measure = Callable[[], dict[str, Any]]


def make_buffers(family: str, count: int, seed: int = 0) -> Any:
    """Lives of one of four families, with heavy-tailed sizes (Pareto, index 1.1, from 64 bytes)."""
    from loadmaster.allocation.buffers import Buffers

    rng = np.random.default_rng([seed, FAMILIES.index(family), count])
    if family == "nested":  # forward and back again
        lower = rng.permutation(count)
        upper = 2 * count - lower + rng.integers(0, 2, count)
    elif family == "chains":
        lower = np.arange(count)
        upper = lower + rng.integers(1, 4, count)
    elif family == "random":
        ends = np.sort(rng.integers(0, 2 * count, (2, count)), axis=0)
        lower, upper = ends[0], ends[1] + 1
    else:
        lower = rng.integers(0, count, count)
        upper = lower + 1 + np.minimum(count, 4 * rng.pareto(0.7, count)).astype(np.int64)
    size = np.minimum(2**30, 64 * (1 + 16 * rng.pareto(1.1, count))).astype(np.int64)
    return Buffers.of(lower, upper, size)


def make_layers(ops: int) -> Any:
    """A graph of 11 ops a layer, four with weights, two with a second input from the layer before."""
    from loadmaster.program.build import Builder

    build = Builder("layers")
    shape, layers = (64, 64), ops // 11
    x = build.tensor("x", shape=shape, dtype="f32", kind="input")
    for layer in range(layers):
        value = x
        for k in range(11):
            reads = [value] + ([x] if k in (5, 10) else [])
            if k % 3 == 0:
                reads.append(build.tensor(f"w{layer}.{k}", shape=shape, dtype="f32", kind="weight"))
            last = layer == layers - 1 and k == 10
            out = build.tensor(
                f"y{layer}.{k}", shape=shape, dtype="f32", kind="output" if last else "activation"
            )
            kind, flops = ("matmul", 2 * 64**3) if k % 3 == 0 else ("add", 0)
            build.op(f"op{layer}.{k}", kind, reads=reads, writes=[out], matrix=flops)
            value = out
        x = value
    return build.build()


def first_fit(family: str, count: int) -> Measure:
    """One pass of size-ordered first fit."""
    from loadmaster.allocation.heuristics import SizeFirstFit
    from loadmaster.allocation.problem import Allocation
    from loadmaster.search.solver import Budget, solve

    problem = Allocation(make_buffers(family, count))
    problem.native.height(np.zeros(count, dtype=np.int64))

    def run() -> dict[str, Any]:
        found = solve(SizeFirstFit(), problem, Budget())
        return {"value": found.value, "bound": found.bound.value, "status": str(found.status)}

    return run


def allocate(family: str, count: int) -> Measure:
    """`loadmaster allocate --minimize --time-limit 60s --out`: read, solve, check, compare, write."""
    from loadmaster.allocation.buffers_csv import write_buffers
    from loadmaster.cli.main import main

    folder = tempfile.mkdtemp()
    write_buffers(make_buffers(family, count), None, f"{folder}/buffers.csv")
    command = ["loadmaster", "allocate", f"{folder}/buffers.csv", "--minimize", "--time-limit", "60s"]
    sys.argv = [*command, "--out", f"{folder}/placed.csv", "--json"]

    def run() -> dict[str, Any]:
        try:
            main()
        except SystemExit as ended:
            return {"status": f"exit {ended.code or 0}"}
        return {"status": "exit 0"}

    return run


def check_buffers(family: str, count: int) -> Measure:
    """`check` of a placement by first fit in order of start (a legal one, whatever its height)."""
    from loadmaster import _core
    from loadmaster.allocation.problem import Allocation
    from loadmaster.plan.check import check

    problem = Allocation(make_buffers(family, count))
    stop = _core.Stop(-1.0, 1)  # the first placement will do
    answer = problem.native.large(-1, 0, 1, 0, stop, lambda _: None)
    program, plan = problem.program, problem.plan(np.asarray(answer[1]))
    return lambda: {"status": f"{len(check(program, problem.machine, plan))} violations"}


def graph_stages(ops: int) -> Iterator[tuple[str, Measure]]:
    """What is done with a layered graph on one device, one after the other."""
    from loadmaster.machine import load_machine
    from loadmaster.plan.check import check
    from loadmaster.plan.plan import Plan
    from loadmaster.program.storage import load, save
    from loadmaster.report.report import write_plan_report
    from loadmaster.simulate.simulator import simulate

    made: list[Any] = []

    def keep(value: Any) -> dict[str, Any]:
        made.append(value)
        return {}

    def write() -> dict[str, Any]:
        save(program, path)
        return {"value": path.stat().st_size}

    path, machine = Path(tempfile.mkdtemp()) / "program.npz", load_machine("arena:unlimited")
    yield "build", lambda: keep(make_layers(ops))
    program = made[0]
    yield "save", write
    yield "load", lambda: {"status": f"{load(path).n_ops} ops"}
    yield "simulate", lambda: keep(simulate(program, machine))
    yield "check", lambda: {"status": f"{len(check(program, machine, Plan(), made[1]))} violations"}
    page = path.with_suffix(".html")
    yield "report", lambda: {"value": write_plan_report(program, machine, [("plan", Plan())], page).bytes}


def write_onnx(ops: int, path: Path) -> None:
    """A layered graph with one weight for all its products."""
    from onnx import TensorProto, helper

    nodes = [helper.make_node(kind, reads, [out], name=out) for kind, reads, out in layer_ops(ops)]
    whole = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 64)) for name in ("x", "w")]
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, (64, 64))
    graph = helper.make_graph(nodes, "layers", whole, [last])
    path.write_bytes(helper.make_model(graph).SerializeToString())


def write_tflite(ops: int, path: Path) -> None:
    """The same in int8."""
    sys.path.insert(0, str(ROOT / "tests"))
    from generate_tflite import GraphMaker, tflite

    graph = GraphMaker()
    number = {"x": graph.tensor("x", [64, 64]), "w": graph.tensor("w", [64, 64], data=bytes(64 * 64))}
    graph.inputs = [number["x"]]
    for kind, reads, out in layer_ops(ops):
        number[out] = graph.tensor(out, [64, 64])
        name = "FULLY_CONNECTED" if kind == "MatMul" else "ADD"
        graph.op(name, [number[read] for read in reads], [number[out]], {})
    graph.outputs = [number[out]]
    path.write_bytes(tflite(graph))


def write_hlo(ops: int, path: Path) -> None:
    """The same as a compiler's text."""
    made = list(layer_ops(ops))
    with path.open("w", encoding="utf-8") as file:
        file.write(
            "HloModule layers, is_scheduled=true\n\nENTRY %main (x: f32[64,64], w: f32[64,64]) -> f32[64,64] {\n"
        )
        for number, name in enumerate("xw"):
            file.write(f"  %{name} = f32[64,64]{{1,0}} parameter({number})\n")
        for kind, reads, out in made:
            root = "ROOT " if out == made[-1][2] else ""
            operands = ", ".join(f"%{read}" for read in reads)
            call = f"dot({operands}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
            call = call if kind == "MatMul" else f"add({operands})"
            file.write(f"  {root}%{out} = f32[64,64]{{1,0}} {call}\n")
        file.write("}\n")


def write_weights(mebibytes: int, path: Path) -> None:
    """Products with a weight of 16 MiB each, so many mebibytes of them."""
    made = [(["x" if k == 0 else f"y{k - 1}", f"w{k}"], f"y{k}") for k in range(mebibytes // 16)]
    if path.suffix == ".onnx":
        from onnx import TensorProto, helper

        nodes = [helper.make_node("MatMul", reads, [out], name=out) for reads, out in made]
        weights = [
            TensorProto(name=reads[1], data_type=TensorProto.FLOAT, dims=(2048, 2048), raw_data=bytes(2**24))
            for reads, _ in made
        ]
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 2048)) for name in ("x", made[-1][1])
        ]
        graph = helper.make_graph(nodes, "weights", ends[:1], ends[1:], weights)
        path.write_bytes(helper.make_model(graph).SerializeToString())
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from generate_tflite import GraphMaker, tflite

    graph = GraphMaker()
    number = {"x": graph.tensor("x", [64, 4096])}
    graph.inputs = [number["x"]]
    for reads, out in made:
        number[reads[1]] = graph.tensor(reads[1], [4096, 4096], data=bytes(2**24))
        number[out] = graph.tensor(out, [64, 4096])
        graph.op("FULLY_CONNECTED", [number[read] for read in reads], [number[out]], {})
    graph.outputs = [number[made[-1][1]]]
    path.write_bytes(tflite(graph))


def layer_ops(ops: int) -> Iterator[tuple[str, list[str], str]]:
    """(kind, what it reads, what it makes) of 11 ops a layer, four of them products."""
    x = "x"
    for layer in range(ops // 11):
        value = x
        for k in range(11):
            out = f"y{layer}.{k}"
            yield ("MatMul", [value, "w"], out) if k % 3 == 0 else ("Add", [value, x], out)
            value = out
        x = value


def saved_layers(ops: int, ending: str = "npz", what: str = "") -> Path:
    """A layered graph's file, made once by another process: what making it takes is not counted here."""
    path = Path(tempfile.gettempdir()) / f"loadmaster-growth-{what}{ops}.{ending}"
    if not path.exists():
        subprocess.run(
            [sys.executable, str(Path(__file__).resolve()), "--make", str(ops), str(path)], check=True
        )
    return path


def make_file(ops: int, path: Path) -> None:
    """A layered graph in the format of the file's ending."""
    from loadmaster.program.storage import save

    writers = {".onnx": write_onnx, ".tflite": write_tflite, ".hlo": write_hlo}
    if "weights" in path.name:
        write_weights(ops, path)
    elif path.suffix in writers:
        writers[path.suffix](ops, path)
    else:
        save(make_layers(ops), path)


def read_format(format: str, ops: int) -> Measure:
    """`import_model` of a file."""
    from loadmaster.program.importers import import_model

    path = saved_layers(ops, format)
    return lambda: {"status": f"{import_model(str(path)).n_ops} ops of {path.stat().st_size:,} bytes"}


def read_weights(format: str, mebibytes: int) -> Measure:
    """`import_model` of a file that is nearly all weights."""
    from loadmaster.program.importers import import_model

    path = saved_layers(mebibytes, format, "weights-")
    return lambda: {"status": f"{import_model(str(path)).n_ops} ops of {path.stat().st_size:,} bytes"}


def first_plan(problem: str, ops: int) -> Measure:
    """`lm.plan` of a saved program, with its default solver, within `PLAN_SECONDS`."""
    import loadmaster as lm
    from loadmaster import clock

    path = saved_layers(ops)

    def run() -> dict[str, Any]:
        with clock.reading(time.process_time):
            found = lm.plan(
                str(path), PLANS[problem], problem=problem, budget=lm.Budget(seconds=PLAN_SECONDS)
            )
        if found.plan is None:
            return {"status": f"no plan: {found.error}"}
        return {"value": found.value, "bound": found.bound.value, "status": f"by {found.origin}"}

    return run


def load_zoo(name: str, size: int) -> Measure:
    """A workload for the first time, with nothing in the cache; JAX is imported before."""
    import jax  # noqa: F401

    from loadmaster.program.models import load_model

    os.environ["LOADMASTER_CACHE"] = tempfile.mkdtemp()
    return lambda: {"status": f"{load_model(name).n_ops} ops"}


def rows() -> list[tuple[str, str, int]]:
    """(what, of which family, size), small ones of a kind before large ones."""
    wanted = [("allocate", "heavy-tailed", size) for size in (100_000, 200_000, 400_000, 1_000_000)]
    wanted += [("first-fit", family, size) for family in FAMILIES for size in SIZES]
    wanted += [("check-buffers", family, size) for family in FAMILIES for size in (62_000, 1_000_000)]
    wanted += [("plan", problem, size) for problem in PLANS for size in (110_000, 1_000_000)]
    wanted += [("zoo", name, size) for name, size in ZOO.items()]
    wanted += [("import", format, size) for format in IMPORTS for size in (110_000, 1_000_000)]
    wanted += [("weights", format, size) for format in WEIGHTS for size in (64, 512)]
    return wanted + [("graph", "layers", size) for size in (110_000, 440_000, 1_000_000)]


STAGES = ("build", "save", "load", "simulate", "check", "report")


def measure(what: str, family: str, size: int, set_up: bool = False) -> list[dict[str, Any]]:
    """In this process; of a graph a row for each stage. `set_up`: nothing is run."""
    makers = {
        "first-fit": first_fit,
        "allocate": allocate,
        "check-buffers": check_buffers,
        "plan": first_plan,
        "zoo": load_zoo,
        "import": read_format,
        "weights": read_weights,
    }
    found = []
    for name, run in graph_stages(size) if what == "graph" else [(what, makers[what](family, size))]:
        if set_up:
            continue
        before, started = time.process_time(), time.perf_counter()
        result = run()
        seconds, wall = time.process_time() - before, time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        times = {"cpu_seconds": round(seconds, 3), "wall_seconds": round(wall, 3), "peak_mib": round(peak)}
        found.append({"what": name, "family": family, "size": size, **times, **result})
    return found


def measure_apart(source: Path, what: str, family: str, size: int, limit: float) -> list[dict[str, Any]]:
    """In a process of its own, with the package in `source`."""
    asked = {"what": what, "family": family, "size": size}
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one", what, family, str(size)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return [{**asked, "status": f"not done in {limit:.0f} s"}]
    if done.returncode != 0:
        return [{**asked, "status": f"failed: {done.stderr.strip().splitlines()[-1:]}"}]
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def count_instructions(family: str, size: int) -> int:
    """Of one pass of first fit, by valgrind: those of the row less those of its set-up."""
    command = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
        sys.executable,
    ]
    command += [str(Path(__file__).resolve()), "--one", "first-fit", family, str(size)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    counts = []
    for more in ([], ["--set-up"]):
        done = subprocess.run([*command, *more], env=environment, capture_output=True, text=True, check=True)
        line = next(line for line in done.stderr.splitlines() if "I refs" in line or "I   refs" in line)
        counts.append(int(line.rpartition(":")[2].replace(",", "")))
    return counts[0] - counts[1]


def record_instructions(only: str) -> None:
    """Adds them to the recorded rows of first fit."""
    path = RESULTS / "growth.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for row in document["rows"]:
        name = f"first-fit/{row['family']}/{row['size']}"
        mine = (row["what"], row["version"]) == ("first-fit", "now") and (not only or name in only.split(","))
        if mine and row["cpu_seconds"] < COUNTED_SECONDS:
            row["instructions"] = count_instructions(row["family"], row["size"])
            print(json.dumps(row), flush=True)
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    write_page(document["rows"])


def record(before: Path | None, limit: float, only: str) -> None:
    path = RESULTS / "growth.json"
    found: list[dict[str, Any]] = []
    if path.exists() and only:
        found = json.loads(path.read_text(encoding="utf-8"))["rows"]
    versions = [("now", ROOT / "src")] + ([] if before is None else [("before", before)])
    given_up: set[tuple[str, str, str]] = set()
    for what, family, size in rows():
        if only and f"{what}/{family}/{size}" not in only.split(","):
            continue
        for version, source in versions:
            if (version, what, family) in given_up:
                continue
            fresh = [{"version": version, **row} for row in measure_apart(source, what, family, size, limit)]
            if "cpu_seconds" not in fresh[0]:
                given_up.add((version, what, family))
            keys = [_key(row) for row in fresh]
            found = [row for row in found if _key(row) not in keys] + fresh
            print("\n".join(map(json.dumps, fresh)), flush=True)
            document = {"command": shown_command(limit), "rows": found}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    write_page(found)
    draw(found)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["what"], row["family"], row["size"], row["version"]


def shown_command(limit: float) -> str:
    return f"python benchmarks/growth.py --before SRC --limit {limit:.0f}"


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{row['cpu_seconds']:.2f} s" if "cpu_seconds" in row else str(row["status"])


def write_page(found: list[dict[str, Any]]) -> None:
    """benchmarks/results/growth.md, of the recorded rows."""
    at = {_key(row): row for row in found}
    lines = [
        "# Growth",
        "",
        "Made by `python benchmarks/growth.py --before SRC` (`growth.json`): CPU seconds of all threads, one run each, on two",
        "cores that were shared with a dozen other jobs (which cost caches, and nothing is averaged), `first-fit` on quiet ones.",
        "`first-fit`: one pass in order of size; `allocate`: the whole command; `ratio`: to half the size, scaled",
        "to a doubling. `plan`: `lm.plan` of a saved layered graph with a limit of 60 CPU seconds, all of it; `zoo`: a workload",
        "loaded for the first time; `import`: a layered graph's file read, such as a compiler or a converter leaves;",
        "`weights`: a file with so many MiB of weights.",
        *COUNTED_NOTE[: 2 * any("instructions" in row for row in found)],
        "",
        "| work | size | before | now | ratio | peak now | result now |",
        "| --- | --: | --: | --: | --: | --: | --- |",
    ]
    last: dict[tuple[str, str], dict[str, Any]] = {}
    shown = [row for row in rows() if row[0] != "graph"]
    shown += [(what, "layers", row[2]) for what in STAGES for row in rows() if row[0] == "graph"]
    for what, family, size in shown:
        now, before = at.get((what, family, size, "now")), at.get((what, family, size, "before"))
        if now is None:
            continue
        ratio, old = "", last.get((what, family))
        if old is not None and "cpu_seconds" in now and "cpu_seconds" in old:
            doublings = np.log2(size / old["size"])
            ratio = f"{(now['cpu_seconds'] / max(0.01, old['cpu_seconds'])) ** (1 / doublings):.2f}"
        last[what, family] = now
        result = now.get("status") or (f"{now['value']:,} bytes" if "value" in now else "")
        if now.get("bound") and now.get("value"):
            whose = f", {now['status']}" if what == "plan" else ""
            result = f"{now['value'] / now['bound'] - 1:.2%} above the bound{whose}"
        if "instructions" in now:
            each = now["instructions"] / size
            grown = ""
            if old is not None and "instructions" in old:
                more = (now["instructions"] / old["instructions"]) ** (1 / np.log2(size / old["size"]))
                grown = f", {more:.2f} × a doubling"
            result += f"; {each:,.0f} instructions each{grown}"
        peak = f"{now['peak_mib']:,} MiB" if "peak_mib" in now else "–"
        name = what if family == "layers" else f"{what}, {family}"
        lines.append(f"| {name} | {size:,} | {_cell(before)} | {_cell(now)} | {ratio} | {peak} | {result} |")
    (RESULTS / "growth.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(found: list[dict[str, Any]]) -> None:
    """docs/images/growth.svg: CPU seconds over size, before and now."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "growth"
    panels = {
        "size-ordered first fit": [("first-fit", family) for family in FAMILIES],
        "check": [("check", "layers"), *(("check-buffers", family) for family in ("heavy-tailed", "random"))],
        "a graph of so many ops": [
            (what, "layers") for what in ("build", "save", "load", "simulate", "report")
        ],
        "a first plan": [("plan", problem) for problem in PLANS],
    }
    figure, axes = pyplot.subplots(1, len(panels), figsize=(16, 3.6), layout="constrained")
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        for number, (what, family) in enumerate(curves):
            label = family if what == "first-fit" else what if family == "layers" else family
            for version, style in (("now", "-o"), ("before", ":x")):
                points = [
                    (row["size"], max(0.01, row["cpu_seconds"]))
                    for row in found
                    if (row["what"], row["family"], row["version"]) == (what, family, version)
                    and "cpu_seconds" in row
                ]
                if points:
                    x, y = zip(*points, strict=True)
                    text = label if version == "now" else None
                    axis.plot(x, y, style, color=f"C{number}", label=text, markersize=4)
        axis.set(xscale="log", yscale="log", title=title, xlabel="buffers or ops", ylabel="CPU seconds")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)
        axis.grid(alpha=0.3)
    figure.suptitle("solid: now, dotted: before", fontsize=9)
    figure.savefig(ROOT / "docs" / "images" / "growth.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="the src folder of another version")
    parser.add_argument("--limit", type=float, default=600.0, help="wall seconds of a row")
    parser.add_argument(
        "--only", default="", help="these rows (WHAT/FAMILY/SIZE, with commas); others are kept"
    )
    parser.add_argument("--one", nargs=3, metavar=("WHAT", "FAMILY", "SIZE"), help="measure one row here")
    parser.add_argument(
        "--make", nargs=2, metavar=("OPS", "FILE"), help="save a layered graph, as its ending says"
    )
    parser.add_argument("--set-up", action="store_true", help="with --one: all but what is measured")
    parser.add_argument(
        "--instructions", action="store_true", help="count those of first fit's recorded rows (valgrind)"
    )
    parser.add_argument("--draw", action="store_true", help="page and picture again, from the recorded rows")
    given = parser.parse_args()
    if given.one:
        what, family, size = given.one
        print(json.dumps(measure(what, family, int(size), given.set_up)))
    elif given.make:
        make_file(int(given.make[0]), Path(given.make[1]))
    elif given.instructions:
        record_instructions(given.only)
    elif given.draw:
        found = json.loads((RESULTS / "growth.json").read_text(encoding="utf-8"))["rows"]
        write_page(found)
        draw(found)
    else:
        record(given.before, given.limit, given.only)


if __name__ == "__main__":
    main()
