"""Compare `loadmaster.fit` with what PyTorch users have today, at the same measured memory, on other people's models.

    $ python benchmarks/fit_peers.py --dry-run                                  # what would run, and how long
    $ python benchmarks/fit_peers.py --tiny --device cpu --out /tmp/fit.json    # a rehearsal without a GPU
    $ python benchmarks/fit_peers.py --seconds-limit 540 --out fit.json         # on the GPU
    $ python benchmarks/fit_peers.py --seconds-limit 540 --out fit.json --resume

Rows are written as they come: `{"suite": "fit-peers", "versions", "host", "rows"}`; `fit_table.py` makes the page.
Budgets are shares of the bytes of tensors at the peak of eager PyTorch with everything resident. PyTorch's allocator
is limited to the budget (`set_per_process_memory_fraction`); of ours the use of the device is measured. Ways of one model
share a process where memory can be proven to be clean in between; what compiles and ours have their own. Every process
is forked from one that has imported everything, makes its weights on the host before its turn, and is ended when a row
takes too long.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("USE_HUB_KERNELS", "0")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # else JAX takes most of the device for itself
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # a look for CUDA must not forbid forks
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages: weights are made and pinned faster
sys.path.insert(0, str(Path(__file__).parents[1]))  # the file runs by its name as well as by `python -m`

from benchmarks.suites import Row
from benchmarks.suites.fit_models import MODELS, Guess
from benchmarks.suites.fit_ways import OURS, ways
from benchmarks.suites.fit_worker import Group, Job, Settings, child, judged
from loadmaster.host import host, versions

SHARES = (0.75, 0.5, 0.3)
FIRST_SHARE = 0.5
LINK_GB = 50.0
OPEN_SECONDS = 3.5
"""A context and pinning, guessed."""
ROW_SECONDS, COMPILE_SECONDS, OURS_SECONDS = 45.0, 150.0, 120.0
POLL = 0.02
PACKAGES = ("torch", "transformers", "accelerate", "diffusers", "triton")
NO_DEEPSPEED = (
    "DeepSpeed (ZeRO-Offload, ZeRO-Infinity) is not compared: it cannot be installed on the machine"
)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="names, with commas; default: all")
    parser.add_argument("--peers", help=f"names, with commas; '{OURS}' is one of them; default: all")
    parser.add_argument("--shares", default=",".join(str(share) for share in SHARES))
    parser.add_argument("--mode", choices=("inference", "training"), help="only these models")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at once; times of several disturb each other"
    )
    parser.add_argument(
        "--compile-jobs",
        type=int,
        default=1,
        help="fill Inductor's cache first, with so many processes at once",
    )
    parser.add_argument(
        "--compile-only", action="store_true", help="fill Inductor's cache, and measure nothing"
    )
    parser.add_argument(
        "--compile-seconds",
        type=float,
        default=COMPILE_SECONDS,
        help="until the process of a row that compiles is ended",
    )
    parser.add_argument("--seconds-limit", type=float, default=1e9, help="for everything")
    parser.add_argument(
        "--row-seconds", type=float, default=ROW_SECONDS, help="until a row's process is ended"
    )
    parser.add_argument(
        "--fit-seconds", type=float, default=20.0, help="guess of what fit takes, for the plan"
    )
    parser.add_argument(
        "--search", type=float, default=8.0, help="seconds that fit may look for a better plan"
    )
    parser.add_argument("--together", action="store_true", help="all budgets of a model in one process")
    parser.add_argument("--no-ahead", action="store_true", help="don't prepare the next process in advance")
    parser.add_argument("--out", type=Path, default=Path("fit.json"))
    parser.add_argument("--resume", action="store_true", help="keep the rows of --out and run the others")
    parser.add_argument("--retry", action="store_true", help="with --resume: failed rows again")
    parser.add_argument("--tiny", action="store_true", help="tiny models")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--start", choices=("auto", "fork", "exec"), default="auto", help="auto: fork, if forks can use CUDA"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", action="store_true", help="print the plan")
    return parser.parse_args(words)


def chosen(text: str | None, known: Sequence[str], what: str) -> list[str]:
    if not text:
        return list(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            sys.exit(f"there is no {what} '{name}'; use {', '.join(known)}")
    return names


def estimate(name: str, way: str, share: float | None, options: argparse.Namespace) -> float:
    """Seconds of a row, guessed: what is made, and seven passes."""
    if options.tiny:
        return 1.0
    guess: Guess = MODELS[name].guess
    copied = guess.weight_gib * 1.07 / LINK_GB
    moved = max(0.0, guess.resident_gib * (1 - (share or 1.0))) * 1.07 / LINK_GB
    plain = guess.pass_ms / 1e3
    if way == OURS:
        return options.fit_seconds + 8 * max(plain, moved) * 1.1
    if MODELS[name].training:
        passes = {
            "eager": plain,
            "checkpoint": 1.4 * plain,
            "grad-accumulation": 1.3 * plain,
            "host-optimizer": plain + 6 * copied,
            "save_on_cpu": 6 * plain,
            "activation-budget": 1.3 * plain,
            "inductor": plain,
        }[way]
        compiling = _compile_seconds(guess, options) if ways(True)[way].compiles else 0.0
        return 1.5 + 7 * passes + compiling * (1.5 if way == "activation-budget" else 1)
    passes, setup = {
        "eager": (plain, 0.5),
        "prefetch-spread": (max(plain, moved) * 1.2, 1.0),
        "prefetch-first": (plain + 0.8 * moved, 1.0),
        "split-batch": (1.2 * plain, 1.0),
        "accelerate-map": (plain + 3 * moved, 5.0),
        "group-block": (plain + copied, 1.5),
        "group-leaf": (plain + 2 * copied, 2.0),
        "accelerate-offload": (plain + 4 * copied, 1.0),
        "inductor": (plain, _compile_seconds(guess, options)),
    }[way]
    room = (share or 1.0) * guess.resident_gib
    weights_fit, activations_fit = guess.weight_gib < room, guess.resident_gib - guess.weight_gib < room
    if not (weights_fit if way == "split-batch" else activations_fit):
        return 0.2  # refused without a run
    return setup + 7 * passes


def _compile_seconds(guess: Guess, options: argparse.Namespace) -> float:
    """With a cache that was filled by several at once there is still the tracing."""
    jobs = options.compile_jobs
    return guess.compile_s if jobs < 2 else 12 + 1.6 * guess.compile_s / jobs


def plan(options: argparse.Namespace, done: set[tuple[str, str]]) -> list[Group]:
    """Processes in the order of their importance: half of the memory, training, the other budgets, upper lines and
    ways that are rarely the best."""
    names = chosen(options.models, list(MODELS), "model")
    if options.mode:
        names = [name for name in names if MODELS[name].training == (options.mode == "training")]
    known = list(dict.fromkeys([*ways(False), *ways(True), OURS]))
    peers = chosen(options.peers, known, "peer")
    shares = sorted((float(share) for share in options.shares.split(",")), key=lambda s: s != FIRST_SHARE)
    inference = [name for name in names if not MODELS[name].training]
    training = [name for name in names if MODELS[name].training]
    groups: list[Group] = []
    for part in [shares] if options.together else [shares[:1], shares[1:]]:
        for members in (inference, training):
            for late in (False, True):
                for name in members:
                    groups += _groups(name, part, peers, options, compiled=late)
    for late in (False, True):
        for name in names:
            groups += _groups(name, shares, peers, options, compiled=late, weak=True)
    return _with_residents(groups, done, options)


def _groups(
    name: str,
    shares: Sequence[float],
    peers: Sequence[str],
    options: argparse.Namespace,
    *,
    compiled: bool,
    weak: bool = False,
) -> Iterator[Group]:
    """Those that compile have a process each, and so has ours; the others share one."""
    together: list[Job] = []
    for way in ways(MODELS[name].training).values():
        if way.name in peers and (way.weak, way.compiles) == (weak, compiled) and way.name != "eager":
            jobs = [_job(name, way.name, share, options) for share in ([None] if way.unlimited else shares)]
            if way.fixed and jobs:  # measured once
                jobs = [jobs[0], *(replace(job, estimate=0.1) for job in jobs[1:])]
            together += jobs
    if together and not compiled:
        yield Group(name, tuple(together))
    if compiled:
        yield from (Group(name, (job,)) for job in together)
    elif OURS in peers and not weak:
        yield from (Group(name, (_job(name, OURS, share, options),)) for share in shares)


def _job(name: str, way: str, share: float | None, options: argparse.Namespace) -> Job:
    guess = estimate(name, way, share, options)
    if way == OURS:
        limit = max(OURS_SECONDS, 3 * guess)
    elif ways(MODELS[name].training)[way].compiles:
        limit = options.compile_seconds
    else:
        limit = options.row_seconds
    return Job(name, way, share, guess, limit)


def _with_residents(
    groups: list[Group], done: set[tuple[str, str]], options: argparse.Namespace
) -> list[Group]:
    """Without rows that are done; every model's first process begins with everything resident."""
    ready = {case.split("@")[0] for case, way in done if way == "eager"}
    found = []
    for group in groups:
        jobs = tuple(job for job in group.jobs if (job.case, job.way) not in done)
        if not jobs:
            continue
        if group.model not in ready:
            ready.add(group.model)
            eager = _job(group.model, "eager", None, options)
            if group.ours or _compiles(group):
                found.append(Group(group.model, (eager,)))
            else:
                jobs = (eager, *jobs)
        found.append(Group(group.model, jobs))
    return found


def group_seconds(group: Group, options: argparse.Namespace) -> float:
    return (0.2 if options.tiny else OPEN_SECONDS) + sum(job.estimate for job in group.jobs)


def show_plan(groups: list[Group], options: argparse.Namespace) -> None:
    total = 0.0
    for group in groups:
        seconds = group_seconds(group, options)
        total += seconds
        jobs = ", ".join(f"{job.case.split('@')[1]} % {job.way} ({job.estimate:.0f})" for job in group.jobs)
        print(f"{total:7.0f} s  +{seconds:4.0f}  {group.model}: {jobs}")
    rows = sum(len(group.jobs) for group in groups)
    print(f"{len(groups)} processes, {rows} rows, about {total / 60:.1f} minutes (guessed)")
    for training in (False, True):
        for percent in sorted({job.case.split("@")[1] for group in groups for job in group.jobs}, key=int):
            mine = [
                job.estimate
                for group in groups
                for job in group.jobs
                if MODELS[job.model].training == training and job.case.endswith(f"@{percent}")
            ]
            if mine:
                word = "training" if training else "inference"
                print(f"  {word}, {percent} %: {len(mine)} rows, {sum(mine) / 60:.1f} minutes")
    print(NO_DEEPSPEED)


class Process:
    """A forked worker and what it has said."""

    def __init__(self, group: Group, settings: Settings, folder: Path, log: Path, *, fork: bool) -> None:
        self.group = group
        self.lines = Path(tempfile.mkstemp(dir=folder, suffix=".jsonl")[1])
        self.read, self.left = 0, list(group.jobs)
        self.current: Job | None = None
        self.began, self.ended = time.monotonic(), False
        self.going = self.whole = self.unclean = False
        reading, self.writing = os.pipe()
        os.set_inheritable(reading, True)
        sys.stdout.flush()
        self.pid = self._fork(settings, reading, log) if fork else self._start(settings, reading, log)
        os.close(reading)

    def _fork(self, settings: Settings, reading: int, log: Path) -> int:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.close(self.writing)
            child(self.group, settings, reading, self.lines, log)
        return pid

    def _start(self, settings: Settings, reading: int, log: Path) -> int:
        """A new interpreter, where forks of one that has imported everything cannot use CUDA."""
        told: dict[str, Any] = {"settings": asdict(settings), "group": asdict(self.group)}
        told |= {"lines": str(self.lines), "log": str(log), "go": reading}
        command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(told)]
        return os.posix_spawn(sys.executable, command, dict(os.environ), setpgroup=0)

    def go(self, resident: Any, deadline: float) -> None:
        word = json.dumps({"resident": resident, "deadline": deadline}) + "\n"
        with suppress(BrokenPipeError):  # it ended while it prepared; `poll` sees that
            os.write(self.writing, word.encode())
        self.going, self.began = True, time.monotonic()

    def poll(self) -> list[dict[str, Any]]:
        """New lines; afterwards `ended` says whether the process is over."""
        over = os.waitpid(self.pid, os.WNOHANG)[0] != 0 if not self.ended else True
        text = self.lines.read_text(encoding="utf-8")
        fresh = text[self.read :]
        fresh = fresh[: fresh.rfind("\n") + 1]
        self.read += len(fresh)
        self.ended = over
        return [json.loads(line) for line in fresh.splitlines()]

    def limit(self) -> float:
        """Seconds without a word after which it is ended."""
        return self.current.limit if self.current is not None else ROW_SECONDS

    def overdue(self) -> bool:
        return self.going and time.monotonic() - self.began > self.limit()

    def kill(self) -> None:
        """End it, and whatever it started."""
        if self.ended:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.ended = True

    def close(self) -> None:
        self.kill()
        os.close(self.writing)
        self.lines.unlink(missing_ok=True)


class Session:
    """Runs the processes and keeps the document."""

    def __init__(self, options: argparse.Namespace, document: dict[str, Any]) -> None:
        self.options, self.document = options, document
        self.deadline = time.time() + options.seconds_limit
        self.fork = options.start == "fork"
        device = "cuda:0" if options.device == "cuda" else options.device
        self.settings = Settings(device, options.tiny, search=options.search)
        self.log = options.out.with_suffix(".log")
        self.residents = {
            row["extra"]["model"]: row["extra"]
            for row in document["rows"]
            if row["solver"] == "eager" and row["status"] == "ok"
        }
        self.broken = {
            row["extra"]["model"]
            for row in document["rows"]
            if row["solver"] == "eager" and row["status"] != "ok"
        }
        """Models without figures of a resident run."""
        self.late = 0

    def run(self, groups: list[Group]) -> None:
        """In order; before the first of several in a row that compile, all of them are compiled at once."""
        jobs = self.options.compile_jobs
        for compiles, some in groupby(groups, _compiles):
            part = list(some)
            if compiles and (self.options.compile_only or (jobs > 1 and len(part) > 1)):
                self.settings, kept = replace(self.settings, only_compile=True), self.settings
                began = time.time()
                self._run(part, jobs)
                self.settings = kept
                print(f"compiled {len(part)} in {time.time() - began:.0f} s", flush=True)
            if not self.options.compile_only:
                self._run(part, self.options.jobs)

    def _run(self, groups: list[Group], jobs: int) -> None:
        pending, staged, running = deque(groups), deque[Process](), list[Process]()
        ahead = 0 if self.options.no_ahead else 1
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            while pending or staged or running:
                if time.time() > self.deadline:
                    self.late += sum(len(group.jobs) for group in pending)
                    pending.clear()
                    while staged:
                        self.late += len(staged[0].group.jobs)
                        staged.popleft().close()
                free = jobs - len(running)
                while pending and len(staged) < max(ahead, free):
                    staged.append(Process(pending.popleft(), self.settings, folder, self.log, fork=self.fork))
                if free > 0 and staged and self._may_go(staged[0]):
                    process = staged.popleft()
                    process.go(self.residents.get(process.group.model), self.deadline)
                    running.append(process)
                for process in list(running):
                    again = self._follow(process)
                    if process.ended:
                        process.close()
                        running.remove(process)
                        if again:
                            pending.appendleft(Group(process.group.model, tuple(again)))
                time.sleep(POLL)

    def _may_go(self, process: Process) -> bool:
        group = process.group
        return (
            group.model in self.residents
            or group.model in self.broken
            or any(job.way == "eager" for job in group.jobs)
        )

    def _follow(self, process: Process) -> list[Job]:
        """Take what the process says; the jobs that are to be run again elsewhere."""
        for line in process.poll():
            process.began = time.monotonic()
            if "row" in line:
                self._record(line["row"])
                process.left = [job for job in process.left if not _same(job, line["row"]["job"])]
                process.current = None
            elif "late" in line:
                self.late += 1
                process.left = [job for job in process.left if not _same(job, line["late"])]
                if line["late"]["way"] == "eager":
                    self.broken.add(process.group.model)
            elif "unbuilt" in line:
                for job in process.left:
                    self._record(_no_result(job, line["unbuilt"]["status"], line["unbuilt"]["reason"]))
                process.left = []
            elif isinstance(line.get("begin"), dict):
                process.current = Job(**line["begin"])
            process.whole |= "done" in line
            process.unclean |= "unclean" in line
        if process.ended:
            if process.whole or process.unclean or not process.left:
                return process.left if process.unclean else []
            return self._broken(process, "failed", "the process ended by itself: see the log")
        if time.time() > self.deadline:
            self.late += len(process.left)
            process.kill()
        elif process.overdue():
            process.kill()
            return self._broken(process, "timeout", f"ended after {process.limit():.0f} s")
        return []

    def _broken(self, process: Process, status: str, reason: str) -> list[Job]:
        """A row for the job at which it broke; the others are run again."""
        culprit = process.current or process.left[0]
        self._record(_no_result(culprit, status, reason))
        return [job for job in process.left if not _same(job, asdict(culprit))]

    def _record(self, raw: dict[str, Any]) -> None:
        if self.settings.only_compile:
            return
        job = Job(**raw["job"])
        if job.way == "eager":
            if raw["status"] == "ok":
                self.residents[job.model] = raw
            else:
                self.broken.add(job.model)
        row = as_row(job, judged(raw, self.residents.get(job.model)), self.residents.get(job.model))
        self.document["rows"] = [
            each
            for each in self.document["rows"]
            if (each["case"], each["solver"]) != (row["case"], row["solver"])
        ] + [row]
        self._write()
        time_ms = f"{row['value'] / 1e9:9.1f} ms" if row["value"] > 0 else " " * 12
        note = row["extra"].get("reason") or row["extra"].get("setting") or ""
        print(f"{row['case']:22} {row['solver']:18} {time_ms} {row['status']:12} {note}"[:150], flush=True)

    def _write(self) -> None:
        """Whole or not at all."""
        path = self.options.out
        part = path.with_suffix(path.suffix + ".part")
        part.write_text(json.dumps(self.document, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


def _compiles(group: Group) -> bool:
    job = group.jobs[0]
    return job.way != OURS and ways(MODELS[group.model].training)[job.way].compiles


def _no_result(job: Job, status: str, reason: str) -> dict[str, Any]:
    return {"job": asdict(job), "case": job.case, "way": job.way, "status": status, "reason": reason}


def _same(job: Job, other: dict[str, Any]) -> bool:
    return (job.model, job.way, job.share) == (other["model"], other["way"], other["share"])


def as_row(job: Job, raw: dict[str, Any], resident: dict[str, Any] | None) -> dict[str, Any]:
    """In the shape of every recorded row; times in picoseconds."""
    times = raw.get("times") or []
    baseline = statistics.median(resident["times"]) * 1e12 if resident else None
    predicted = raw.get("predicted")
    value = statistics.median(times) * 1e12 if times else -1.0
    extra = {
        "model": job.model,
        "mode": "training" if MODELS[job.model].training else "inference",
        "note": MODELS[job.model].note,
        "share": job.share,
        **{key: each for key, each in raw.items() if key not in ("job", "case", "way", "status", "sample")},
    }
    if predicted is not None and value > 0:
        extra["prediction_error"] = predicted * 1e12 / value - 1
    if job.way == "eager":  # later sessions compare with it
        extra["sample"] = raw.get("sample")
    return Row(
        raw["case"],
        value,
        "ps",
        raw["status"],
        machine=None,
        solver=raw["way"],
        evaluations=len(times),
        seconds=round(raw.get("wall_seconds", 0.0), 3),
        baseline=baseline,
        extra=extra,
    ).as_dict()


def import_all(names: Sequence[str]) -> dict[str, str]:
    """Before the first fork, so that no process needs to: versions of what is here. Nothing touches the device."""
    import importlib.metadata

    import loadmaster

    found = {}
    for package in PACKAGES:
        with suppress(Exception):
            __import__(package)
            found[package] = importlib.metadata.version(package)
    for name in ("diffusers.hooks", "torch._dynamo", "transformers.integrations.executorch"):
        with suppress(Exception):
            __import__(name)
    for name in names:
        with suppress(Exception):
            MODELS[name].load()
    getattr(loadmaster, "fit", None)
    if "diffusers" not in found and "diffusers" in sys.modules:
        found["diffusers"] = sys.modules["diffusers"].__version__
    return found


def gpu_name() -> str | None:
    """By the driver's tool: CUDA must not be started before the forks."""
    import subprocess

    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return lines[0].strip() if lines else None


def forks_work(device: str) -> bool:
    """Whether a fork of this process can use the device."""
    if device != "cuda":
        return True
    pid = os.fork()
    if pid == 0:
        try:
            import torch

            torch.zeros(1, device="cuda")
            os._exit(0)
        except BaseException as error:
            print(f"forks cannot use CUDA: {error}", flush=True)
            os._exit(1)
    until = time.monotonic() + 40
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(POLL)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def be_child(text: str) -> int:
    """The command that `Process._start` runs."""
    told = json.loads(text)
    group = Group(told["group"]["model"], tuple(Job(**job) for job in told["group"]["jobs"]))
    child(group, Settings(**told["settings"]), told["go"], Path(told["lines"]), Path(told["log"]))
    return 1


def main(words: Sequence[str] | None = None) -> int:
    options = arguments(words)
    if options.child:
        return be_child(options.child)
    document: dict[str, Any] = {"suite": "fit-peers", "rows": []}
    if options.resume and options.out.exists():
        document = json.loads(options.out.read_text(encoding="utf-8"))
        redo = {"skipped"} | ({"failed", "timeout"} if options.retry else set())
        document["rows"] = [row for row in document["rows"] if row["status"] not in redo]
    groups = plan(options, {(row["case"], row["solver"]) for row in document["rows"]})
    if options.dry_run:
        show_plan(groups, options)
        return 0
    began = time.time()
    packages = import_all(list(dict.fromkeys(group.model for group in groups)))
    gpu = gpu_name() if options.device == "cuda" else None
    document |= {
        "versions": versions() | packages,
        "host": host() | ({"gpu": gpu} if gpu else {}),
        "tiny": options.tiny,
        "not_compared": NO_DEEPSPEED,
        "rows": document["rows"],
    }
    print(f"{NO_DEEPSPEED}\n{len(groups)} processes; imports took {time.time() - began:.1f} s", flush=True)
    if options.start == "auto":
        options.start = "fork" if forks_work(options.device) else "exec"
    options.seconds_limit -= time.time() - began
    session = Session(options, document)
    session.run(groups)
    for row in document["rows"]:
        row["machine"] = gpu or options.device
    session._write()
    print(
        f"{len(document['rows'])} rows in {time.time() - began:.0f} s; {session.late} left out for want of time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
