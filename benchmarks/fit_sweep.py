"""Does `loadmaster.fit` run other people's models, and do they say the same: a table, and JSON.

    python benchmarks/fit_sweep.py --out sweep.json                      all models, inference and training, CPU
    python benchmarks/fit_sweep.py --only 'timm/*' --modes train --out sweep.json --resume
    python benchmarks/fit_sweep.py --scale wide --device cuda --jobs 6 --shuffle 0 --limit 240 --out sweep.json
    python benchmarks/fit_sweep.py --backend aot_eager --out eager.json  torch.compile in fit's place
    python benchmarks/fit_sweep.py --catalogue packages --out sweep.json models of fit_packages.py, tiny
    python benchmarks/fit_sweep.py --catalogue loops --out sweep.json    training loops of fit_loops.py
    python benchmarks/fit_sweep.py --backend run --out run.json          the command `loadmaster run` in fit's place
    python benchmarks/fit_sweep.py --backend plan --out plan.json        `loadmaster plan`, then `run` of its file
    python benchmarks/fit_sweep.py --scale gpu --device meta             only builds, and counts the weights

A case (of `fit_models.py`) and a mode have a process of their own, forked from one that has imported the
libraries. It builds the model; a child of it runs the ordinary model twice, which says how far it is from itself,
then (in training, and tiny ones) with weights that differ by 1e-7, which says how far rounding moves each tensor,
then (tiny ones) under `torch.compile(backend="aot_eager")`, a second reference; then it fits the model, which is the
first that uses CUDA there, and runs it twice. Outputs, gradients by parameter name and the buffers that a step
changes are compared with the first run.

A loop is run as it is written, with every model fitted and with none; losses of all steps and the weights after the last
are compared.

Outcomes: `ran`; `differs`, some tensor by more than all of 1e-4 of the largest value (the limit "tolerance"), 10
times as far as the model is from itself ("itself"), and as far as weights that differ by 1e-7 move that tensor
("rounding of weights"); `refused` by a LoadmasterError; `crashed`, also by running out of time; `skipped`: the
libraries have no such model, or the ordinary model does not run there, or is not the same twice. With
`--device meta` it is `built`. `judged_by` is the last of these limits that some tensor of a case that ran needed.

Commands get a function that builds the case; a training step's gives the loss first. What they write with `--out`
is compared; one that ends with an exit code of its own refuses (2, 4), differs (1) or crashes (all others).

The file is written after every case; `--resume` goes on from it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import inspect
import io
import json
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from fnmatch import fnmatch
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting GPUs must not start CUDA before a fork

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fit_loops import LOOPS, run_loop
from benchmarks.fit_models import (
    CASES,
    SCALES,
    Built,
    Case,
    Unavailable,
    attribute,
    first_line,
    library,
    tensors_of,
)
from benchmarks.fit_more_packages import MORE_PACKAGES
from benchmarks.fit_packages import PACKAGES, modules_of_packages

CATALOGUES: dict[str, Mapping[str, Any]] = {
    "libraries": {case.name: case for case in CASES},
    "packages": {**PACKAGES, **MORE_PACKAGES},
    "loops": LOOPS,
}
MODES = ("inference", "train")
LIBRARIES = ("torch", "transformers", "diffusers", "torchvision", "timm", "accelerate", "triton")
OUTCOMES = ("ran", "built", "differs", "refused", "crashed", "skipped")
TOLERANCE = 1e-4
"""Of the largest value, for float32, which all cases are in."""

SMALL = 1e-3
"""A tensor's largest value counts as at least so much of the largest of all: below are rounding errors of zeros."""

LIMITS = ("tolerance", "itself", "rounding of weights")
"""By which a tensor may agree, tried in this order."""

COMMANDS = ("run", "plan")
"""Backends that are commands: `run`, which makes a plan, and `plan`, whose file a `run` follows."""

VAGUE = 1e-2
"""A model that is farther from itself can't be compared with."""

Values = dict[str, Tensor]
"""What one call gives, on the host: `output/0`, `gradient/NAME`, `buffer/NAME`."""


@dataclass(frozen=True)
class Task:
    """One case in one mode, and how it is run."""

    case: str
    mode: str
    backend: str
    device: str
    scale: str
    share: float
    search: float
    threads: int
    catalogue: str = "libraries"

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same task in a file of an earlier run."""
        return (self.case, self.mode, self.backend, self.device, self.scale, f"{self.share:g}")


@dataclass
class Finding:
    """What is known of a task so far; sent after every stage, so that a killed process has told it."""

    outcome: str = "crashed"
    text: str = ""
    stage: str = "import"
    seconds: float | None = None
    value: float | None = None
    baseline: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


# In a case's own process.


def run_task(task: Task, send: Callable[[Finding], None]) -> Finding:
    """Build, run, fit, compare."""
    finding = Finding()
    if task.mode == "loop":
        return run_loop_task(finding, task, send)
    case, train = CATALOGUES[task.catalogue][task.case], task.mode == "train"

    def enter(stage: str) -> None:
        finding.stage = stage
        send(finding)

    torch.set_num_threads(task.threads)
    torch.backends.cudnn.allow_tf32 = False
    enter("build")
    try:
        built = build_on(case, task, train)
    except Unavailable as reason:
        return skip(finding, str(reason))
    except Exception as error:
        return skip(finding, f"can't be built: {last_lines(error)}")
    model = built.model
    finding.extra["weights_bytes"] = sum(p.numel() * p.element_size() for p in model.parameters())
    finding.extra["parameters"] = sum(p.numel() for p in model.parameters())
    if task.device == "meta":
        finding.outcome, finding.value = "built", finding.extra["weights_bytes"]
        return finding

    dense = {name: each for name, each in model.named_buffers() if each.layout == torch.strided}
    buffers = {name: each.detach().clone() for name, each in dense.items()}
    enter("eager")
    try:
        known = in_child(lambda: reference(built, task, train, buffers))
    except Exception as error:
        return skip(finding, f"the ordinary model does not run: {first_line(error)}")
    finding.extra |= known.extra
    finding.baseline, first, limits = known.peak_bytes, known.values, known.limits
    if known.skipped:
        return skip(finding, known.skipped)

    if task.backend in COMMANDS:
        judge_commands(finding, task, known, enter)
        return finding
    enter("fit")
    try:
        began = time.perf_counter()
        fitted = fit(model, built, task)
        finding.seconds = time.perf_counter() - began
        enter("first call")
        one = call(fitted, built, model, train, buffers, restored=False)
        finding.seconds = time.perf_counter() - began if task.backend == "aot_eager" else finding.seconds
        enter("second call")
        began = time.perf_counter()
        two = call(
            fitted, built, model, train, buffers
        )  # a codebook that learns gives other results next time
        finding.extra["call_seconds"] = time.perf_counter() - began
    except Exception as error:
        ours = loadmaster_error(error)
        finding.outcome = "crashed" if ours is None else "refused"
        finding.text = last_lines(error) if ours is None else str(ours)
        return finding
    finding.extra["graphs"] = graphs_seen()
    finding.extra["report"] = report = plain(getattr(getattr(fitted, "fitted", fitted), "report", None))
    finding.value = fitted_peak(task.device) or reported_peak(report)
    outer = {name: value for name, value in first.items() if not name.startswith("buffer/")}
    two = {name: value for name, value in two.items() if not name.startswith("buffer/")}
    judge(finding, [differences(one, first), differences(two, outer)], limits, known.moved)
    if finding.outcome == "differs" and known.moved:
        finding.extra["sensitivity"] = known.moved.get(finding.extra["worst"]["tensor"])
        finding.text += f"; weights that differ by 1e-7 move it by {finding.extra['sensitivity'] or 0.0:.2g}"
    return finding


def run_loop_task(finding: Finding, task: Task, send: Callable[[Finding], None]) -> Finding:
    """A training loop, without `fit` and with it."""
    import loadmaster

    loop = LOOPS[task.case]
    torch.set_num_threads(task.threads)
    finding.stage = "eager"
    send(finding)
    try:
        known = in_child(lambda: loop_reference(loop))
    except Exception as error:
        return skip(finding, f"the ordinary loop does not run: {first_line(error)}")
    if known.skipped:
        return skip(finding, known.skipped)
    finding.extra |= known.extra
    finding.stage = "fit"
    send(finding)
    reports: list[Any] = []

    def fit(model: nn.Module, *args: Any) -> Any:
        options: dict[str, Any] = {"device": task.device, "search": task.search, "quiet": True}
        fitted = loadmaster.fit(model, args, memory=f"{100 * task.share:g}%", **options)
        reports.append(fitted.fitted)
        return fitted

    began = time.perf_counter()
    try:
        values = run_loop(loop, fit)
    except Exception as error:
        ours = loadmaster_error(error)
        finding.outcome = "crashed" if ours is None else "refused"
        finding.text = last_lines(error) if ours is None else str(ours)
        return finding
    finding.seconds = time.perf_counter() - began
    finding.extra["graphs"] = graphs_seen()
    finding.extra["planned"] = [len(each.report["graphs"]) for each in reports]
    judge(finding, [differences(values, known.values)], known.limits, known.moved)
    return finding


def loop_reference(loop: Callable[..., Values]) -> Reference:
    """A loop with ordinary models, once more, and with weights that differ by 1e-7."""
    found, plain = Reference(), lambda model, *args: model

    def moved(model: nn.Module, *args: Any) -> nn.Module:
        with torch.no_grad():
            for each in model.parameters():
                noise = torch.randn(each.shape, generator=generator)
                each.mul_(noise.mul_(1e-7).add_(1).to(each.dtype))
        return model

    try:
        found.values = run_loop(loop, plain)
        again, near = run_loop(loop, plain), []
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            near.append(differences(run_loop(loop, moved), found.values))
    except Exception as error:
        found.skipped = f"the ordinary loop does not run: {last_lines(error)}"
        return found
    found.limits = {name: 10 * far for name, far in differences(again, found.values).items()}
    found.moved = {name: max(each.get(name, 0.0) for each in near) for name in found.values}
    itself = found.extra["self_difference"] = max(found.limits.values(), default=0.0) / 10
    if itself > VAGUE:
        found.skipped = f"the ordinary loop is {itself:.2g} from itself"
    return found


class WithLoss(nn.Module):
    """A model as a training step of the command line: its first output is the loss."""

    def __init__(self, built: Built) -> None:
        super().__init__()
        self.model, self.loss = built.model, built.loss

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        output = self.model(*args, **kwargs)
        return (self.loss(output), *tensors_of(output))


def judge_commands(finding: Finding, task: Task, known: Reference, enter: Callable[[str], None]) -> None:
    """Let commands do the case as a user's function, and judge what they write."""

    def build() -> tuple[Any, ...]:
        built = CATALOGUES[task.catalogue][task.case].build(task.scale, task.mode == "train")
        model = WithLoss(built) if task.mode == "train" else built.model
        return (model, built.args, built.kwargs)

    module = sys.modules["fit_case"] = ModuleType("fit_case")
    module.build = build  # type: ignore[attr-defined]
    train = ["--train"] if task.mode == "train" else []
    about = ["fit_case:build", "--capacity", f"hbm={100 * task.share:g}%", "--device", task.device, *train]
    search, found = ["--time-limit", f"{task.search:g}s"], {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan, out = f"{folder}/plan.json", f"{folder}/results.npz"
        commands = {"run": ["run", *about, "--out", out, *(search if task.backend == "run" else [])]}
        if task.backend == "plan":
            commands = {"plan": ["plan", *about, "-m", "h200", "--no-run", "--out", plan, *search]} | commands
            commands["run"].insert(2, plan)
        for stage, words in commands.items():
            enter(stage)
            code, answer = run_command([*words, "--json"])
            if code:
                finding.outcome = {1: "differs", 2: "refused", 4: "refused"}.get(code, "crashed")
                finding.text = f"{answer['error']['message']} (exit code {code})"
                return
        found = written_values(Path(out))
    finding.seconds = time.perf_counter() - began
    total, memory = answer["rows"][:2]
    finding.value = memory["peak_bytes"]
    finding.extra |= {name: total[name] for name in ("seconds", "predicted_seconds", "ordinary_seconds")}
    finding.extra |= {"compared_by_run": total["compared"], "largest_by_run": total["largest_difference"]}
    finding.extra["warnings"] = answer["warnings"]
    judge(finding, [differences(found, known.values)], known.limits, known.moved)


def run_command(words: list[str]) -> tuple[int, dict[str, Any]]:
    """A command's exit code and what it answers."""
    from loadmaster.cli.main import app

    text, code = io.StringIO(), 0
    with contextlib.redirect_stdout(text):
        try:
            app(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return code, json.loads(text.getvalue() or "{}")


def written_values(path: Path) -> Values:
    """Results that `run --out` wrote, by the names of `call`: of a training step the first output is the loss."""
    found: Values = {}
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    outputs = [value for name, value in arrays.items() if name.startswith("output_")]
    train = any(name.startswith("gradient_") for name in arrays)
    if train:
        found["output/loss"], *outputs = outputs
    found |= {f"output/{i}": value for i, value in enumerate(outputs)}
    for name, value in arrays.items():
        kind, _, own = name.partition("_")
        if kind in ("gradient", "update"):
            own = own.removeprefix("model.") if train else own
            found[f"{'buffer' if kind == 'update' else kind}/{own}"] = value
    return found


def skip(finding: Finding, text: str) -> Finding:
    """Nothing can be said about fit."""
    finding.outcome, finding.text = "skipped", text
    return finding


def build_on(case: Case, task: Task, train: bool) -> Built:
    """The model and its call, on the host, where a model is that does not fit on the device; on `meta` without
    values."""
    if task.device == "meta":
        with torch.device("meta"):
            return case.build(task.scale, train)
    if task.scale == "tiny":
        return case.build(task.scale, train)
    with CheapNoise():
        return case.build(task.scale, train)


class CheapNoise(TorchDispatchMode):
    """Large tensors get their random values from a table, again and again: weights of a GB in a second."""

    period, least = 1_000_003, 2**16
    """A period that no row of a weight has."""

    def __init__(self) -> None:
        super().__init__()
        self._normal, self._uniform = torch.randn(2 * self.period), torch.rand(2 * self.period)
        self._filled = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten, kwargs = torch.ops.aten, kwargs or {}
        large = func in (aten.normal_.default, aten.uniform_.default) and args[0].numel() >= self.least
        if not large or args[0].device.type != "cpu" or not args[0].is_contiguous():
            return func(*args, **kwargs)
        into, *given = args
        named = ("mean", "std") if func is aten.normal_.default else ("from", "to")
        low, high = (
            kwargs.get(name, default) if at >= len(given) else given[at]
            for at, (name, default) in enumerate(zip(named, (0.0, 1.0), strict=True))
        )
        table, scale = (self._normal, high) if named[0] == "mean" else (self._uniform, high - low)
        begin = 7919 * self._filled % self.period
        values = (table[begin : begin + min(self.period, into.numel())] * scale + low).to(into.dtype)
        self._filled += 1
        row = into.view(-1)
        whole = len(row) // self.period
        if whole:
            row[: whole * self.period].view(whole, self.period).copy_(values.expand(whole, -1))
        row[whole * self.period :].copy_(values[: len(row) - whole * self.period])
        return into


def move(value: Any, device: str) -> Any:
    """The tensors of nested arguments, on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: move(each, device) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(each, device) for each in value)
    return value


def fit(model: nn.Module, built: Built, task: Task) -> Any:
    """The fitted model, or what stands in for it."""
    if task.backend == "aot_eager":
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        return torch.compile(model.to(task.device), backend="aot_eager")
    import loadmaster

    chosen: dict[str, Any] = {"search": task.search, "quiet": True}
    taken = inspect.signature(loadmaster.fit).parameters
    more = {name: value for name, value in chosen.items() if name in taken}
    share = f"{100 * task.share:g}%"
    return loadmaster.fit(model, built.args, kwargs=built.kwargs, memory=share, device=task.device, **more)


@dataclass
class Reference:
    """What the ordinary model gives and takes."""

    values: Values = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    """How far each tensor may be from it: ten times as far as it is from itself."""
    moved: dict[str, float] = field(default_factory=dict)
    """How far weights that differ by 1e-7 move each tensor, where that is known."""
    peak_bytes: float | None = None
    skipped: str = ""
    """Why nothing can be compared with it."""
    extra: dict[str, Any] = field(default_factory=dict)


def reference(built: Built, task: Task, train: bool, buffers: Values) -> Reference:
    """Run the ordinary model twice on the device, and in other ways too; what it gives is compared there."""
    found, model = Reference(), built.model.to(task.device)
    args, kwargs = move((built.args, built.kwargs), task.device)
    built = built._replace(args=args, kwargs=kwargs)
    try:
        began = time.perf_counter()
        with peak_memory(task.device) as peak:
            found.values = call(model, built, model, train, buffers)
        found.extra["eager_seconds"] = time.perf_counter() - began
        found.peak_bytes = peak.get("bytes")
        again = call(model, built, model, train, buffers, device=task.device)
    except Exception as error:
        found.skipped = f"the ordinary model does not run: {last_lines(error)}"
        return found
    first: Values = move(found.values, task.device)  # only now: copies there would count as the model's
    found.limits = {name: 10 * far for name, far in differences(again, first).items()}
    del again
    itself = found.extra["self_difference"] = max(found.limits.values(), default=0.0) / 10
    if itself > VAGUE:
        found.skipped = f"the ordinary model is {itself:.2g} from itself"
        return found
    found.extra["compared"] = dict(Counter(name.split("/")[0] for name in found.values))
    tiny = task.scale == "tiny"
    if tiny or train:
        found.moved = sensitivity(model, built, train, buffers, first, task.device, 3 if tiny else 1)
    if tiny and task.backend != "aot_eager":
        found.extra["aot_eager"] = aot_eager(model, built, train, buffers, found.values)
    return found


def in_child(work: Callable[[], Reference]) -> Reference:
    """What is done in a process that is forked for it, and of which nothing is left in this one, nor on the device."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder) / "reference"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # idle threads of libraries hold no lock
            child = os.fork()
        if not child:
            try:
                torch.serialization.set_crc32_options(False)  # a checksum of GBs that nobody reads
                torch.save(vars(work()), path)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        if not path.exists():
            raise RuntimeError(f"its process died ({os.waitstatus_to_exitcode(status)})")
        return Reference(**torch.load(path, weights_only=True, mmap=True))  # it stays when its name is gone


def aot_eager(model: nn.Module, built: Built, train: bool, buffers: Values, first: Values) -> dict[str, Any]:
    """How far torch.compile without any code of its own is from the model, and into how many graphs it falls."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        values = call(torch.compile(model, backend="aot_eager"), built, model, train, buffers)
        return {"difference": max(differences(values, first).values(), default=0.0), **graphs_seen()}
    except Exception as error:
        return {"error": last_lines(error)}


def sensitivity(
    model: nn.Module, built: Built, train: bool, buffers: Values, first: Values, device: str, seeds: int
) -> dict[str, float]:
    """How far each tensor moves when the weights change by a rounding error: near a ReLU's corner, a lot.

    The noise is made and compared on the model's device: on a host it would take longer than all else.
    """
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    farthest: dict[str, float] = {}
    for seed in range(seeds):
        generator = torch.Generator(device).manual_seed(seed)
        with torch.no_grad():
            for name, each in model.named_parameters():
                noise = torch.randn(each.shape, generator=generator, device=device)
                each.copy_(noise.mul_(1e-7).add_(1) * weights[name])
        moved = call(model, built, model, train, buffers, device=device)
        for name, far in differences(moved, first).items():
            farthest[name] = max(farthest.get(name, 0.0), far)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(weights[name])
    return farthest


def graphs_seen() -> dict[str, Any]:
    """Graphs and breaks since dynamo's counters were cleared."""
    counters = torch._dynamo.utils.counters
    breaks = counters["graph_break"]
    reasons = [first_words(reason) for reason, _ in breaks.most_common(3)]
    return {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(breaks.values()), "reasons": reasons}


def call(
    function: Any,
    built: Built,
    model: nn.Module,
    train: bool,
    buffers: Values,
    *,
    restored: bool = True,
    device: str = "cpu",
) -> Values:
    """Call once, with a backward pass in training, and copy all that can be compared to the host, or a device."""
    if restored:
        restore(model, buffers)
    model.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    with torch.set_grad_enabled(train):
        output = function(*built.args, **built.kwargs)
        if train:
            loss = built.loss(output)
            loss.backward()
    found = {f"output/{i}": each for i, each in enumerate(tensors_of(output))}
    if train:
        found["output/loss"] = loss
        found |= {f"gradient/{n}": g for n, g in gradients(function, model).items()}
        now = named(function, model, nn.Module.named_buffers)
        found |= {f"buffer/{n}": b for n, b in now.items() if n in buffers and not same(b, buffers[n])}
    return {name: each.detach().to(device, copy=True) for name, each in found.items()}


def restore(model: nn.Module, buffers: Values) -> None:
    """Undo what a step changed: running means and their like; not what a model has made for a shape, and keeps."""
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name in buffers and buffers[name].shape == buffer.shape:
                buffer.copy_(buffers[name])


def same(one: Tensor, other: Tensor) -> bool:
    """Whether a buffer is as it was."""
    return one.shape == other.shape and bool(torch.equal(one.cpu(), other.cpu()))


def gradients(function: Any, model: nn.Module) -> Values:
    """Gradients by the names of the model's own parameters."""
    found = named(function, model, nn.Module.named_parameters)
    own = dict(model.named_parameters())
    chosen = {name: own[name].grad if own[name].grad is not None else found[name].grad for name in own}
    return {name: each for name, each in chosen.items() if each is not None}


def named(
    function: Any, model: nn.Module, walk: Callable[[nn.Module], Iterable[tuple[str, Any]]]
) -> dict[str, Any]:
    """Parameters or buffers by the model's names, from the module that is called where it has its own."""
    own = dict(walk(model))
    for name, value in walk(function) if isinstance(function, nn.Module) else ():
        while name not in own and "." in name:
            name = name.partition(".")[2]
        if name in own:
            own[name] = value
    return own


def differences(values: Values, wanted: Values) -> dict[str, float]:
    """How far each tensor is from the wanted one, as a share of the largest value there.

    A gradient that is not there counts as zeros; an output must be there.
    """
    sizes = {name: largest(each) for name, each in wanted.items()}
    tops: dict[str, float] = {}
    for name, size in sizes.items():
        kind = name.split("/")[0]
        tops[kind] = max(tops.get(kind, 0.0), size)
    found: dict[str, float] = {}
    for name in {**wanted, **values}:
        kind = name.split("/")[0]
        one, other = values.get(name), wanted.get(name)
        if one is None or other is None:
            there = one if other is None else other
            zeros = torch.zeros_like(there) if there is not None and kind == "gradient" else None
            one, other = (zeros if one is None else one), (zeros if other is None else other)
        size = max(sizes.get(name, 0.0), SMALL * tops.get(kind, 0.0))
        found[name] = float("inf") if one is None or other is None else difference(one, other, size)
    return found


def largest(values: Tensor) -> float:
    """The largest finite magnitude."""
    if not values.numel():
        return 0.0
    least, most = (float(each) for each in values.float().aminmax())
    if math.isfinite(least) and math.isfinite(most):
        return max(-least, most)
    return float(values.float().abs().nan_to_num(0.0, 0.0, 0.0).max())


def difference(values: Tensor, wanted: Tensor, size: float) -> float:
    """The largest difference over `size`; of integers, the share that differs."""
    if values.shape != wanted.shape or values.dtype != wanted.dtype:
        return float("inf")
    if torch.equal(values, wanted):  # as most are, and one pass says so
        return 0.0
    if not values.is_floating_point():
        return float((values != wanted).float().mean())
    gap = float((values.float() - wanted.float()).abs_().max())
    if not math.isfinite(gap):  # one of both is not finite somewhere: they must be so in the same places
        unlike = (values.isfinite() != wanted.isfinite()) | (values.isnan() != wanted.isnan())
        if bool(unlike.any()):
            return float("inf")
        gap = float((values.float() - wanted.float()).nan_to_num(0.0, 0.0, 0.0).abs().max())
    return gap / size if size else gap


def judge(
    finding: Finding, found: list[dict[str, float]], limits: Mapping[str, float], moved: Mapping[str, float]
) -> None:
    """Say whether all tensors agree, by which limits, and which tensor is farthest beyond what it may be."""
    finding.outcome, beyond, needed = "ran", 0.0, 0
    finding.extra["difference"] = max((far for each in found for far in each.values()), default=0.0)
    for each in found:
        for name, far in each.items():
            rounding = moved.get(name, 0.0)
            allowed = (TOLERANCE, limits.get(name, 0.0), rounding if math.isfinite(rounding) else 0.0)
            limit = max(allowed)
            if far / limit > beyond:
                beyond = far / limit
                finding.extra["worst"] = {"tensor": name, "difference": far, "limit": limit}
            if far > limit:
                worst = finding.extra["worst"]
                finding.outcome = "differs"
                finding.text = f"{worst['tensor']} is {worst['difference']:.2g} from the ordinary model's"
            else:
                needed = max(needed, next(at for at, most in enumerate(allowed) if far <= most))
    if finding.outcome == "ran":
        finding.extra["judged_by"] = LIMITS[needed]


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[dict[str, float]]:
    """The most bytes that torch had on the device; nothing is known on a CPU."""
    found: dict[str, float] = {}
    if device != "cuda":
        yield found
        return
    torch.cuda.reset_peak_memory_stats()
    yield found
    torch.cuda.synchronize()
    found["bytes"] = float(torch.cuda.max_memory_allocated())


def fitted_peak(device: str) -> float | None:
    """The most bytes that Loadmaster's allocator had; None: PyTorch's stayed, or there is no device."""
    if device != "cuda":
        return None
    from loadmaster.execute import own_allocator

    own = own_allocator.current()
    return None if own is None else float(own.most)


def plain(value: Any) -> Any:
    """A report as JSON can have it."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def reported_peak(report: Any) -> float | None:
    """The peak that a report names, else the memory that it was given."""
    for name in ("peak_bytes", "peak", "memory_bytes"):
        found = report.get(name) if isinstance(report, Mapping) else None
        if isinstance(found, int | float):
            return float(found)
    return None


def loadmaster_error(error: BaseException | None) -> BaseException | None:
    """The LoadmasterError that is or has caused an error: compilers wrap what their backends raise."""
    from loadmaster.errors import LoadmasterError

    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, LoadmasterError):
            return error
        seen.add(id(error))
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return None


def last_lines(error: BaseException, count: int = 8) -> str:
    """The error in one line, and where it was raised: below the checkout or the installed packages, wherever those are."""
    frames = traceback.format_tb(error.__traceback__)[-3:]
    where = [line.strip() for frame in frames for line in without_places(frame).strip().splitlines()]
    return "\n".join([first_line(error), *where][:count])


def without_places(text: str) -> str:
    """A traceback's text with files below the checkout or the installed packages, wherever those are."""
    here = re.escape(f"{Path(__file__).resolve().parents[1]}{os.sep}")
    return re.sub(rf'(?<=File ")([^"]*[/\\]site-packages[/\\]|{here})', "", text)


def first_words(text: Any) -> str:
    """The head of a message."""
    return str(text).strip().splitlines()[0][:120] if str(text).strip() else ""


def child(task: Task, pipe: Connection, log: str) -> None:
    """A case's process: sends findings, the last of which is marked."""
    os.setpgrp()  # it ends with the child that it may have
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    warnings.simplefilter("ignore")
    try:
        finding = run_task(task, lambda found: pipe.send((False, found)))
    except MemoryError as error:
        finding = Finding(text=first_line(error))
    except Exception as error:  # of the comparison itself
        finding = Finding(text=f"in the sweep: {last_lines(error)}")
    used = resource.getrusage(resource.RUSAGE_SELF)
    finding.extra["cpu_seconds"] = round(used.ru_utime + used.ru_stime, 2)
    pipe.send((True, finding))
    pipe.close()
    os._exit(0)  # threads that a backend has left must not hold the pool


# In the sweep's process.


@dataclass
class Running:
    """A process, what it has sent, and when it is killed."""

    task: Task
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    log: str
    began: float
    finding: Finding = field(default_factory=Finding)
    done: bool = False


def sweep(
    tasks: list[Task],
    jobs: int,
    timeout: float,
    finished: Callable[[Task, Finding, float], None],
    limit: float = math.inf,
) -> None:
    """Run all tasks, so many at a time; after `limit` seconds those that run are ended, and nothing is said of them."""
    context, ends = multiprocessing.get_context("fork"), time.monotonic() + limit
    waiting, running = list(reversed(tasks)), list[Running]()
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            if time.monotonic() > ends:
                for each in running:
                    conclude(each, True, timeout)
                return
            while waiting and len(running) < jobs:
                task = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                log = f"{folder}/{len(waiting)}.txt"
                process = context.Process(target=child, args=(task, theirs, log), daemon=True)
                process.start()
                theirs.close()
                running.append(Running(task, process, ours, log, time.monotonic()))
            wait([each.pipe for each in running], timeout=0.5)
            for each in list(running):
                receive(each)
                late = time.monotonic() - each.began > timeout
                if not (each.done or late or not each.process.is_alive()):
                    continue
                receive(each)
                conclude(each, late, timeout)
                running.remove(each)
                finished(each.task, each.finding, time.monotonic() - each.began)


def receive(each: Running) -> None:
    """Take what a process has sent."""
    with contextlib.suppress(EOFError, OSError):
        while not each.done and each.pipe.poll():
            each.done, each.finding = each.pipe.recv()


def conclude(each: Running, late: bool, timeout: float) -> None:
    """End a process; one that did not finish has crashed."""
    if not each.done and late:
        os.killpg(each.process.pid or 0, signal.SIGKILL)
    each.process.join(10)
    each.pipe.close()
    log = Path(each.log)
    if not each.done:
        code = each.process.exitcode
        text = without_places(log.read_text(errors="replace")) if log.exists() else ""
        tail = text.strip().splitlines()[-4:]
        reason = f"no end within {timeout:g} s" if late else f"the process died ({code})"
        each.finding.outcome = "crashed"
        each.finding.text = "\n".join([f"{reason}, at: {each.finding.stage}", *tail])
    log.unlink(missing_ok=True)


def row_of(task: Task, finding: Finding, wall: float) -> dict[str, Any]:
    """A row of the recorded table."""
    return {
        "case": task.case,
        "machine": task.device,
        "solver": task.backend,
        "seed": 0,
        "evaluations": None,
        "seconds": finding.seconds,
        "value": finding.value,
        "unit": "bytes",
        "baseline": finding.baseline,
        "bound": None,
        "gap": None,
        "status": finding.outcome,
        "extra": {
            "mode": task.mode,
            "scale": task.scale,
            "share": task.share,
            "library": task.case.split("/")[0],
            "stage": finding.stage,
            "text": finding.text,
            "wall_seconds": round(wall, 2),
            **finding.extra,
        },
    }


def key_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """`Task.key` of a recorded row."""
    extra = row["extra"]
    return (row["case"], extra["mode"], row["solver"], row["machine"], extra["scale"], f"{extra['share']:g}")


@cache
def made_on() -> dict[str, Any]:
    """Versions and host, asked of another process: a library mapped here would have to stay as it is for hours."""
    code = "import json; from loadmaster.host import host, versions; print(json.dumps([versions(), host()]))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    versions, host = json.loads(answer.stdout) if answer.returncode == 0 else ({}, {})
    packages = {case.library.replace("_", "-") for case in CATALOGUES["packages"].values()}
    for name in (*LIBRARIES, *sorted(packages)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"versions": versions, "host": host}


def document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written."""
    return {"suite": "fit-sweep", **made_on(), "rows": rows}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Replace the file as a whole: an interruption leaves the old or the new one."""
    new = path.with_suffix(".part")
    new.write_text(json.dumps(document(rows), indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def show(rows: list[dict[str, Any]]) -> None:
    """Counts by library and mode, then all that did not run."""
    groups = sorted({(row["extra"]["library"], row["extra"]["mode"]) for row in rows})
    used = [each for each in OUTCOMES if any(row["status"] == each for row in rows)]
    width = 2 + max(len("library"), *(len(name) for name, _ in groups))
    print(f"\n{'library':<{width}}{'mode':<11}{'cases':>7}" + "".join(f"{each:>9}" for each in used))
    for name, mode in [*groups, ("all", "")]:
        chosen = [
            r for r in rows if (r["extra"]["library"], r["extra"]["mode"]) == (name, mode) or name == "all"
        ]
        counts = Counter(row["status"] for row in chosen)
        print(f"{name:<{width}}{mode:<11}{len(chosen):>7}" + "".join(f"{counts[each]:>9}" for each in used))
    for outcome in ("differs", "refused", "crashed", "skipped"):
        for row in rows:
            if row["status"] == outcome:
                print(f"\n{outcome}: {row['case']} ({row['extra']['mode']}): {row['extra']['text']}")


def preload(device: str, catalogue: str) -> None:
    """Import what cases need before processes are forked; nothing may be computed here, nor a GPU be touched."""
    warnings.simplefilter("ignore")
    modules = ["transformers", "torchvision.models", "timm", "diffusers", "torch._dynamo"]
    if device != "cuda":  # these look for devices
        modules += [
            "torch._inductor.pattern_matcher",
            "torch._dynamo.testing",
            "torch.export._trace",
            "functorch.compile",
        ]
    if catalogue == "packages":
        modules += modules_of_packages()
    for name in modules:
        with contextlib.suppress(Unavailable):
            module = library(name)
            if name == "transformers":
                module.logging.set_verbosity_error()
                attribute(module, "BertForMaskedLM")  # brings what all models share
            elif name == "diffusers":
                attribute(module, "SD3Transformer2DModel")
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "a library has touched the GPU when it was imported: forked processes can't use it"
        )
    gc.collect()
    gc.freeze()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a case in one mode")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds for all of them")
    parser.add_argument(
        "--shuffle", type=int, help="seed of another order, for a part of all that has all kinds"
    )
    parser.add_argument("--only", default="*", help="patterns of names, with commas: 'timm/*,*/bert'")
    parser.add_argument("--catalogue", choices=tuple(CATALOGUES), default="libraries", help="whose models")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--scale", choices=tuple(SCALES), default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda", "meta"), default="cpu")
    parser.add_argument("--share", type=float, default=0.75, help="of the memory that a model needs")
    parser.add_argument(
        "--search", type=float, default=2.0, help="seconds that fit may look for a better plan"
    )
    parser.add_argument("--backend", choices=("fit", "aot_eager", *COMMANDS), default="fit")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each process")
    parser.add_argument("--out", type=Path, help="JSON, written after every case")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has")
    parser.add_argument("--list", action="store_true", help="only print the names")
    return parser.parse_args()


def main() -> None:
    options = parse()
    patterns = options.only.split(",")
    catalogue = CATALOGUES[options.catalogue]
    cases = {name: case for name, case in catalogue.items() if any(fnmatch(name, each) for each in patterns)}
    if options.list:
        print(*cases, sep="\n")
        return
    modes = ["inference"] if options.device == "meta" else options.modes.split(",")
    modes = ["loop"] if catalogue is LOOPS else modes
    tasks = [
        Task(
            name,
            mode,
            options.backend,
            options.device,
            options.scale,
            options.share,
            options.search,
            options.threads,
            options.catalogue,
        )
        for name, case in cases.items()
        for mode in modes
        if mode in ("inference", "loop") or case.trains
    ]
    if options.shuffle is not None:
        random.Random(options.shuffle).shuffle(tasks)
    rows: list[dict[str, Any]] = []
    if options.resume and options.out and options.out.exists():
        rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
        known = {key_of(row) for row in rows}
        tasks = [task for task in tasks if task.key not in known]
    preload(options.device, options.catalogue)
    if options.backend == "fit" and options.device != "meta":
        import loadmaster

        if "fit" not in loadmaster.__all__:
            sys.exit("this loadmaster has no `fit`; --backend aot_eager runs the sweep without it")
    total, began = len(tasks), time.monotonic()
    count = 0

    def finished(task: Task, finding: Finding, wall: float) -> None:
        nonlocal count
        count += 1
        rows.append(row_of(task, finding, wall))
        if options.out:
            write(options.out, rows)
        note = "" if finding.outcome == "ran" else first_words(finding.text)
        print(f"{count}/{total} {task.case} {task.mode}: {finding.outcome} {wall:.1f} s {note}", flush=True)

    try:
        sweep(tasks, options.jobs, options.timeout, finished, options.limit)
    except KeyboardInterrupt:
        print("interrupted: --resume goes on from here")
    show(rows)
    print(f"\n{count} runs in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
