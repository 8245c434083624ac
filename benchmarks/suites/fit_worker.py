"""One process of `benchmarks/fit_peers.py`: some ways to run one model, one after the other, each with clean memory.

The parent forks it before its turn. It makes the model on the host, waits for the word to go, and only then touches
the device. What it finds goes line by line into a file: `{"begin": …}`, `{"row": …}`, `{"late": …}`, `{"unclean": …}`.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.suites.fit_models import MODELS, HostWeights, parameter_bytes, to_device
from benchmarks.suites.fit_ways import OURS, RATE, Case, NotHere, TooSmall, Way, Work, first_tensor, ways
from loadmaster.execute import own_allocator

WARMUPS, REPEATS, LEAST_REPEATS = 2, 5, 3
OWN_WARMUPS = 9
REST_SECONDS = 1.5
SLOW_SECONDS = 1.5
"""Passes that take longer are repeated less often."""
LEFT_OVER = 2**26
"""More than that left by one way: the next gets a new process."""
SAMPLES = 64
OVER = 1.01
"""How far above the budget ours may be measured: rounding of what is no tensor."""


@dataclass(frozen=True)
class Job:
    """One row to be."""

    model: str
    way: str
    share: float | None
    """None: everything resident."""
    estimate: float = 0.0
    limit: float = 60.0
    """Seconds after which the process is ended."""

    @property
    def case(self) -> str:
        return f"{self.model}@{100 if self.share is None else round(100 * self.share)}"


@dataclass(frozen=True)
class Group:
    """Jobs of one process."""

    model: str
    jobs: tuple[Job, ...]

    @property
    def ours(self) -> bool:
        return self.jobs[0].way == OURS


@dataclass(frozen=True)
class Settings:
    """What is the same for every process."""

    device: str
    tiny: bool
    ahead_threads: int = 2
    wait_for_plan: float = 60.0
    search: float = 8.0
    """Seconds that fit may look for a better plan."""
    only_compile: bool = False
    """One pass, to fill Inductor's cache."""


@dataclass
class Attempt:
    """What one setting of a way took."""

    times: list[float] = field(default_factory=list)
    out_of_memory: bool = False
    allocated: int = 0
    reserved: int = 0
    device_used: int = 0
    """Of the whole process beyond a bare context."""
    sample: list[float] = field(default_factory=list)
    setting: Any = None


class Worker:
    """State of the process."""

    def __init__(self, group: Group, settings: Settings, emit: Callable[[dict[str, Any]], None]) -> None:
        self.group, self.settings, self.emit = group, settings, emit
        self.spec = MODELS[group.model]
        self.device = torch.device(settings.device)
        self.is_cuda = self.device.type == "cuda"
        self.host: HostWeights | None = None
        self.module: Any = None
        self.fixed: dict[str, Attempt] = {}
        self.bare = self.total = 0
        self.case: Case | None = None

    def stage(self) -> None:
        """What needs no device: weights on the host."""
        torch.set_num_threads(self.settings.ahead_threads)
        known = ways(self.spec.training)
        if self.group.ours:
            self.module = to_device(self.spec.build(tiny=self.settings.tiny), "cpu")
        elif not self.spec.training and not all(known[job.way].unlimited for job in self.group.jobs):
            self.host = HostWeights(self.spec.build(tiny=self.settings.tiny))

    def run(self, go: Mapping[str, Any]) -> None:
        deadline, resident = go["deadline"], go.get("resident")
        if resident is None and not any(job.way == "eager" for job in self.group.jobs):
            for job in self.group.jobs:
                self.emit({"row": self._row(job, None)})
            return
        if self._late(self.group.jobs[0], deadline):
            for job in self.group.jobs:
                self.emit({"late": asdict(job)})
            return
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0))))
        self.emit({"begin": "device"})
        began = time.perf_counter()
        pinned = self._open()
        self.emit({"note": {"open_seconds": time.perf_counter() - began, "pinned": pinned}})
        for number, job in enumerate(self.group.jobs):
            if self._late(job, deadline):
                self.emit({"late": asdict(job)})
                continue
            self.emit({"begin": asdict(job)})
            row = self._row(job, resident)
            if job.way == "eager":
                resident = row if row["status"] == "ok" else None
            self.emit({"row": row})
            left = self._tidy()
            if left > LEFT_OVER and number + 1 < len(self.group.jobs):
                self.emit({"unclean": left})
                return

    def _late(self, job: Job, deadline: float) -> bool:
        return time.time() + job.estimate > deadline

    def _open(self) -> str:
        """The context, pinned weights and inputs."""
        pinned = ""
        if self.is_cuda:
            if self.group.ours:
                own_allocator.install()  # as fit does, before CUDA is first used
            torch.cuda.set_device(0)
            torch.cuda.synchronize()  # makes the context, and nothing else
            self.total = torch.cuda.get_device_properties(self.device).total_memory
            self.bare = self._used()
            if not self.group.ours:
                _expandable_segments()
            torch.cuda.empty_cache()
            if self.host is not None:
                pinned = self.host.pin()
        inputs = {
            name: value.to(self.device) for name, value in self.spec.inputs(tiny=self.settings.tiny).items()
        }
        self.case = Case(self.spec, self.device, self.settings.tiny, inputs, self.host)
        return pinned

    def _used(self) -> int:
        """Bytes that this process has on the device, by the driver's own count."""
        return own_allocator.used_bytes(self.device) if self.is_cuda else 0

    def _row(self, job: Job, resident: Mapping[str, Any] | None) -> dict[str, Any]:
        """Whatever happens, a row."""
        row: dict[str, Any] = {"job": asdict(job), "case": job.case, "way": job.way, "status": "failed"}
        began = time.perf_counter()
        if resident is None and job.way != "eager":
            return row | {"status": "skipped", "reason": "no figures with everything resident"}
        case = self.case
        assert case is not None
        if job.share is not None and resident is not None:
            case.resident_peak = resident["allocated"]
            case.activation_bytes = resident["activation_bytes"]
            case.budget = int(job.share * case.resident_peak)
            case.libraries = int(resident.get("libraries") or 0)
            row["budget"] = case.budget
        else:
            case.budget = None
        try:
            found = self._ours(case) if job.way == OURS else self._measure(case, job)
        except NotHere as error:
            found = {"status": "skipped", "reason": str(error)}
        except Exception as error:  # one way that breaks is a row, not the end
            traceback.print_exc()
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:300]}
        finally:
            case.close()
        row |= found
        if resident is not None and row.get("sample"):
            row["difference"] = _difference(row["sample"], resident.get("sample") or [])
        row["wall_seconds"] = time.perf_counter() - began
        return row

    def _measure(self, case: Case, job: Job) -> dict[str, Any]:
        way = ways(self.spec.training)[job.way]
        if way.fixed:
            return self._measure_fixed(case, way)
        if self.settings.only_compile:
            self._attempt(case, way, way.settings(case)[0], None, repeats=0)
            return {"status": "skipped"}
        tried: list[str] = []
        needs, last = 0, None
        for setting in way.settings(case):
            try:
                found = self._attempt(case, way, setting, case.budget)
            except TooSmall as error:
                needs, last = error.needs, None
                break
            tried.append(f"{setting}: {'out of memory' if found.out_of_memory else 'ok'}")
            last = setting
            if found.out_of_memory:
                continue
            found = self._improved(case, way, found, tried)
            return self._found(found, way) | {"tried": tried}
        if not needs and last is not None:
            self._tidy()
            needs = self._attempt(case, way, last, None, repeats=0).allocated
        return {
            "status": "does not fit",
            "needs": needs or case.activation_bytes,
            "tried": tried,
            "setting": _words(last),
        }

    def _improved(self, case: Case, way: Way, found: Attempt, tried: list[str]) -> Attempt:
        """A larger setting, where the budget is not used up."""
        larger = way.better(case, found.setting, found.reserved) if way.better is not None else None
        if larger is None:
            return found
        self._tidy()
        again = self._attempt(case, way, larger, case.budget)
        tried.append(f"{larger}: {'out of memory' if again.out_of_memory else 'ok'}")
        if again.out_of_memory or statistics.median(again.times) > statistics.median(found.times):
            return found
        return again

    def _measure_fixed(self, case: Case, way: Way) -> dict[str, Any]:
        """Once without a limit; with one only where the allocator held more than it needed."""
        if case.budget is not None and case.activation_bytes > case.budget:
            needs = case.activation_bytes
            return {"status": "does not fit", "needs": needs, "reason": "activations alone need more"}
        if way.name not in self.fixed:
            self.fixed[way.name] = self._attempt(case, way, way.settings(case)[0], None)
        found, budget = self.fixed[way.name], case.budget
        if budget is not None and found.reserved > budget:
            again = None
            if found.allocated <= budget:
                self._tidy()
                again = self._attempt(case, way, found.setting, budget)
            if again is None or again.out_of_memory:
                return {"status": "does not fit", "needs": found.allocated}
            found = again
        return self._found(found, way)

    def _found(self, found: Attempt, way: Way) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "status": "ok",
            "times": found.times,
            "allocated": found.allocated,
            "reserved": found.reserved,
            "device_used": found.device_used,
            "context": self.bare,
            "setting": _words(found.setting),
            "sample": found.sample,
        }
        if way.name == "eager":
            weights = parameter_bytes(self.spec.build(tiny=self.settings.tiny))
            if not self.is_cuda:
                answer["allocated"] = weights  # a rehearsal
            copies = 4 if self.spec.training else 1
            answer["weight_bytes"] = weights
            answer["activation_bytes"] = max(0, answer["allocated"] - copies * weights)
            answer["libraries"] = max(0, found.device_used - found.reserved)
            answer["process_used"] = _process_used() if self.is_cuda else None
        return answer

    def _attempt(
        self, case: Case, way: Way, setting: Any, limit: int | None, repeats: int = REPEATS
    ) -> Attempt:
        self._limit(limit)
        found = Attempt(setting=setting)
        work: Work | None = None
        try:
            work = way.make(case, setting)
            found.sample, found.times = self._timed(work, repeats)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            found.out_of_memory = True
        finally:
            work = None
            case.close()
            if self.is_cuda:
                found.allocated = torch.cuda.max_memory_allocated(self.device)
                found.reserved = torch.cuda.max_memory_reserved(self.device)
                found.device_used = self._used() - self.bare
            self._limit(None)
        self._tidy()
        return found

    def _limit(self, limit: int | None) -> None:
        if self.is_cuda:
            share = 1.0 if limit is None else min(1.0, limit / self.total)
            torch.cuda.set_per_process_memory_fraction(share, self.device)
            torch.cuda.reset_peak_memory_stats(self.device)

    def _timed(self, work: Work, repeats: int) -> tuple[list[float], list[float]]:
        """A sample of what the passes gave, and the seconds of each pass after the warm-ups. In training the sample
        is the loss of each warm-up."""
        if self.is_cuda and repeats:
            self._wait()
            time.sleep(REST_SECONDS)  # a device that was busy before is slower: all begin alike
        sample: list[float] = []
        longest = 0.0
        for number in range(WARMUPS if repeats else 1):
            began = time.perf_counter()
            result = work()
            self._wait()
            longest = time.perf_counter() - began
            if self.spec.training:
                sample += _sample(result)
            elif number == 0:
                sample = _sample(result)
            del result
        times: list[float] = []
        wanted = repeats if longest < SLOW_SECONDS else min(repeats, LEAST_REPEATS)
        for _ in range(wanted):
            began = time.perf_counter()
            result = work()
            self._wait()
            times.append(time.perf_counter() - began)
            del result
        return sample, times

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def _tidy(self) -> int:
        """Bytes that are left, beyond the inputs."""
        gc.collect()
        if not self.is_cuda or self.group.ours:  # with our allocator PyTorch counts nothing
            return 0
        self._wait()
        for clear in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):
            with suppress(AttributeError):
                getattr(torch._C, clear)()
        torch.cuda.empty_cache()
        inputs = 0 if self.case is None else sum(t.nbytes for t in self.case.inputs.values())
        return int(torch.cuda.memory_allocated(self.device)) - inputs

    def _ours(self, case: Case) -> dict[str, Any]:
        import loadmaster

        fit = getattr(loadmaster, "fit", None)
        if fit is None:
            raise NotHere("this version of Loadmaster has no fit")
        module, budget = self.module, case.budget
        inputs = self.spec.inputs(tiny=self.settings.tiny)
        optimizer = torch.optim.AdamW(module.parameters(), lr=RATE) if self.spec.training else None
        began = time.perf_counter()
        with Sampler(self._used, self.is_cuda) as fitting:
            fitted = fit(
                module,
                (),
                inputs,
                memory=None if budget is None else budget + case.libraries,  # as others' processes have
                device=str(self.device.type),
                optimizer=optimizer,
                search=self.settings.search,
            )
            first_answer = time.perf_counter() - began
            fitted.fitted.wait_for_plan(self.settings.wait_for_plan)
        fit_seconds = time.perf_counter() - began
        work, where = _callable(fitted, case.inputs, inputs, optimizer, self.spec.training)
        sample, _ = self._timed(work, LEAST_REPEATS)  # of the first steps, as the others' is
        for _ in range(OWN_WARMUPS):  # results move to the device, then both ways to call are tried
            work()
            fitted.fitted.wait_for_plan(self.settings.wait_for_plan)
        self._wait()
        _, times = self._timed(work, REPEATS)
        with Sampler(self._used, self.is_cuda) as running:  # one pass more, which is not timed
            work()
            self._wait()
        report = _plain(fitted.fitted.report)
        answer: dict[str, Any] = {
            "status": "ok",
            "times": times,
            "fit_seconds": fit_seconds,
            "first_answer_seconds": first_answer,
            "report": report,
            "predicted": _predicted(report),
            "inputs_on": where,
            "sample": sample,
            "context": self.bare,
            "device_used": max(0, running.most - self.bare),
            "device_used_fitting": max(0, fitting.most - self.bare),
        }
        if self.is_cuda:
            answer["process_used"] = _process_used()
        return answer


class Sampler:
    """The most that was in use on the device while the body ran, looked at every 5 ms."""

    def __init__(self, used: Callable[[], int], is_cuda: bool) -> None:
        self.used, self.is_cuda, self.most, self.over = used, is_cuda, 0, threading.Event()

    def __enter__(self) -> Sampler:
        self.thread = threading.Thread(target=self._look, daemon=True)
        if self.is_cuda:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.is_cuda:
            self.thread.join()

    def _look(self) -> None:
        while True:
            self.most = max(self.most, self.used())
            if self.over.wait(0.005):
                self.most = max(self.most, self.used())
                return


def judged(row: dict[str, Any], resident: Mapping[str, Any] | None) -> dict[str, Any]:
    """Ours may hold memory that PyTorch's allocator does not know: `measured` is the larger of what the allocator held
    and of what the process held beyond its context and the libraries' own share, as seen in the resident run."""
    libraries = int((resident or {}).get("libraries") or 0)
    reserved, used = int(row.get("reserved") or 0), int(row.get("device_used") or 0)
    measured = reserved if row["way"] != OURS else max(reserved, used - libraries)
    row["measured"] = measured
    budget = row.get("budget")
    if row["way"] == OURS and row["status"] == "ok" and budget and measured > OVER * budget:
        row["status"] = "over budget"
        row["needs"] = measured
    return row


def _callable(
    fitted: Any, near: dict[str, Any], far: dict[str, Any], optimizer: Any, training: bool
) -> tuple[Work, str]:
    """One pass of ours, with the inputs on the device if it takes them, else on the host."""

    def over(inputs: dict[str, Any]) -> Work:
        def work() -> Any:
            if not training:
                with torch.no_grad():
                    return first_tensor(fitted(**inputs))
            loss = first_tensor(fitted(**inputs))
            if loss.requires_grad:  # else the call was the whole step
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        return work

    if training:
        return over(near), "device"  # a try would be a step
    try:
        over(near)()
        return over(near), "device"
    except Exception:
        traceback.print_exc()
        over(far)()
        return over(far), "host"


def _expandable_segments() -> None:
    """The allocator that wastes least; where it does not work, the ordinary one."""
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        return
    change("expandable_segments:True")
    try:
        torch.empty(2**24, device="cuda")
    except RuntimeError:
        change("expandable_segments:False")


def _is_out_of_memory(error: BaseException) -> bool:
    words = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
    return isinstance(error, torch.OutOfMemoryError) or any(word in str(error) for word in words)


def _sample(result: Any) -> list[float]:
    """A few values, spread over the result."""
    flat = first_tensor(result).detach().reshape(-1)
    step = max(1, flat.numel() // SAMPLES)
    return [float(value) for value in flat[::step][:SAMPLES].float().cpu()]


def _difference(ours: list[float], theirs: list[float]) -> float | None:
    """The largest, as a share of the largest value."""
    if not theirs or len(ours) != len(theirs):
        return None
    largest = max(abs(value) for value in theirs) or 1.0
    found = max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) / largest
    return found if found == found else None


def _words(setting: Any) -> str:
    return "" if setting is None else f"{setting:.3g}" if isinstance(setting, float) else str(setting)


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)[:200]


def _predicted(report: Mapping[str, Any]) -> float:
    """Of a call, with what passes before the device begins, and of the optimizer's step after it."""
    return sum(float(report[name]) for name in ("host_seconds", "predicted_seconds", "optimizer_seconds"))


def _process_used() -> int | None:
    """What the driver says that this process holds, context included."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=3).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [line.split(",") for line in text.splitlines() if line.count(",") == 1]
    mine = [row for row in rows if row[0].strip() == str(os.getpid())] or (rows if len(rows) == 1 else [])
    try:
        return int(mine[0][1]) * 2**20
    except (IndexError, ValueError):
        return None


def child(group: Group, settings: Settings, go: int, lines: Path, log: Path) -> None:
    """The body of a forked process: never returns."""
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(out, 1)
        os.dup2(out, 2)
        print(f"\n== {group.model}: {', '.join(job.way + '@' + job.case for job in group.jobs)}", flush=True)
        with lines.open("a", encoding="utf-8", buffering=1) as file:

            def emit(line: dict[str, Any]) -> None:
                file.write(json.dumps(line) + "\n")
                file.flush()

            worker = Worker(group, settings, emit)
            try:
                worker.stage()
            except Exception as error:
                traceback.print_exc()
                status = "skipped" if isinstance(error, ImportError) else "failed"
                emit({"unbuilt": {"status": status, "reason": f"{type(error).__name__}: {error}"[:300]}})
                return
            with os.fdopen(go, encoding="utf-8") as word:
                line = word.readline()
            if line:
                worker.run(json.loads(line))
                emit({"done": True})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
