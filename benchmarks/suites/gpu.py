"""`loadmaster bench gpu`: models under a budget on a CUDA device, measured: our plan, plans that do
what others do, and peers with hooks. `--quick` runs the tiny models where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from benchmarks.suites import Case, Options, Row
from benchmarks.suites.gpu_folder import ROWS, Folder
from benchmarks.suites.gpu_plans import VARIANTS
from loadmaster.errors import LoadmasterError, require

NAMES = ("llama", "moe", "bert", "vit", "unet", "resnet50", "gpt_train", "resnet50_train")
_QUICK = ("llama", "gpt_train")
_QUICK_SOLVERS = ("prefetch", "auto")
_SECONDS = 30


def run_model(name: str, options: Options, seed: int) -> Iterator[Row]:
    """Measure, plan for every budget, execute, and the peers; on a GPU each stage is a process, since
    plans are run with another allocator than all else."""
    if options.quick and name not in _QUICK and not options.cases:
        return
    cuda = bool(require("torch", "torch").cuda.is_available())
    device = "cpu" if options.quick and not cuda else "cuda"
    words = [
        "--models",
        name,
        "--device",
        device,
        "--size",
        "tiny" if options.quick else "full",
        "--seconds",
        "1" if options.quick else str(_SECONDS),
    ]
    solvers = options.solvers or (_QUICK_SOLVERS if options.quick else ())
    words += ["--solvers", *solvers] if solvers else []
    words += ["--percents", "50", "--repeats", "3"] if options.quick else ["--cuda-graph"]
    with tempfile.TemporaryDirectory() as folder:
        for stage in ("measure", "plan", "execute", *(() if options.solvers else ("peers",))):
            _run_stage([stage, "--folder", folder, *words], device)
        for line in Folder(Path(folder)).lines(ROWS):
            for row in line["rows"]:
                yield Row(**{**row, "seed": seed})


def _run_stage(words: list[str], device: str) -> None:
    if device == "cpu":
        from benchmarks.suites.gpu_stages import main

        with redirect_stdout(sys.stderr):
            main(words)
        return
    command = [sys.executable, "-m", "benchmarks.suites.gpu_stages", *words]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise LoadmasterError(
            f"stage '{words[0]}' of the GPU suite failed", object=words[0], remedy="see the lines above"
        )


def _case(name: str, options: Options, seed: int) -> Iterator[Row]:
    try:
        yield from run_model(name, options, seed)
    except LoadmasterError as error:
        if not options.quick:
            raise
        yield Row(name, 0.0, "ps", "skipped", seed=seed, extra={"reason": error.message})


CASES: dict[str, Case] = {name: partial(_case, name) for name in (*NAMES, *VARIANTS)}
