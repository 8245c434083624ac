"""How `train` teaches mallocMuZero: one network over all models together, in parts that go on."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.arrays import json_entry, read_npz
from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.files import check_free, writing
from loadmaster.cli.model import Model
from loadmaster.cli.progress import gap_text, say
from loadmaster.errors import LoadmasterError, require
from loadmaster.files import replacing
from loadmaster.runs.log import Log
from loadmaster.search.solver import Budget, Meter, Observer, State
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.session import Session
    from loadmaster.malloc_game.problem import MallocGame

SAVE_SECONDS = 60.0
SAY_SECONDS = 10.0
_MOST_STATE = 2**33
"""Bytes of a file that training goes on from, also unpacked: games are full of zeros."""


@dataclass(frozen=True)
class Lessons:
    """What the user asked for."""

    models: list[str]
    machine: str | None
    out: Path
    budget: int | None
    seconds: float | None
    seed: int
    options: dict[str, Any]
    init: str | None
    resume: Path | None
    overwrite: bool


class Teacher(Observer):
    """Tells how it goes, and keeps network and state on disk."""

    def __init__(self, lessons: Lessons, before: list[dict[str, Any]]) -> None:
        super().__init__()
        self.lessons, self.before = lessons, before
        self.session: Session | None = None
        self._said = self._saved = self._started = time.monotonic()
        self._ran = sum(session["seconds"] for session in before)
        self.log: Log | None = None

    def begin(self) -> None:
        """A new log, or the one that a resumed training has left."""
        path = log_path(self.lessons.out)
        with writing(path):
            if self.lessons.resume is None:
                path.unlink(missing_ok=True)
            self.log = Log(path, create=not path.exists())

    def _log(self, now: float, metrics: Mapping[str, float]) -> None:
        """One line, the same names as in the log of a run: means over all programs."""
        if self.log is None or self.session is None:
            return
        meters, took = self.session.meters, now - self._started
        played = sum(meter.evaluations for meter in meters)
        gaps = [meter.solution().gap for meter in meters]
        known = [gap for gap in gaps if gap is not None]
        told = {**metrics, "share_saved": float(np.mean([share_saved(meter) for meter in meters]))}
        self.log.append(
            "progress",
            self._ran + took,
            played,
            best=None,
            bound=None,
            gap=float(np.mean(known)) if len(known) == len(gaps) else None,
            evals_per_s=played / max(self._ran + took, 1e-9),
            metrics=told,
        )

    def wants_checkpoint(self, meter: Meter) -> bool:
        return False  # `save` keeps what is needed

    def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
        if self.session is None or meter is not self.session.meters[0]:
            return
        now = time.monotonic()
        self._log(now, metrics)
        if now - self._said >= SAY_SECONDS:
            self._said = now
            say(self._line(metrics))
        if now - self._saved >= SAVE_SECONDS:
            self.save()

    def _line(self, metrics: Mapping[str, float]) -> str:
        assert self.session is not None
        meters = self.session.meters
        reward = np.mean([share_saved(meter) for meter in meters])
        left = meters[0].seconds_left
        parts = [
            f"round {metrics['generation']:.0f}",
            f"{sum(meter.evaluations for meter in meters):,} games",
            f"mean best {reward:.3f}",
            f"last batch {metrics.get('mean_reward', 0):.3f}",
            f"{metrics['moves_per_s']:,.0f} moves/s",
            f"{metrics['steps']:,.0f} steps",
            f"{metrics['steps_per_s']:.1f} steps/s",
            *losses_text(metrics),
            "seconds: " + ", ".join(f"{part} {metrics[part]:.0f}" for part in self.session.seconds),
        ]
        return "  ".join(parts + ([] if left is None else [f"{left:.0f} s left"]))

    def save(self) -> None:
        """The small file to play with, and beside it what training goes on from."""
        from loadmaster.host import command_line, versions
        from loadmaster.malloc_game.muzero.agent import policy_arrays, save_small

        session, lessons = self.session, self.lessons
        assert session is not None
        about = {
            "agent": "muzero",
            "command": command_line(),
            "seed": lessons.seed,
            "settings": lessons.options,
            "versions": versions(),
            "init": lessons.init,
            "models": lessons.models,
            "gradient_steps": session.steps,
            "iterations": session.iteration,
            "sessions": [*self.before, {"seconds": time.monotonic() - self._started, "steps": session.steps}],
            "trained_on": [
                row_of(name, meter) for name, meter in zip(lessons.models, session.meters, strict=True)
            ],
        }
        with writing(lessons.out):
            save_small(lessons.out, policy_arrays(session.learner.network), about, session.settings)
            write_state(state_path(lessons.out), session.arrays(full=False), about)
        self._saved = time.monotonic()


def train_muzero(lessons: Lessons) -> Answer:
    """One network over all models at once; writes the policy and, beside it, the state."""
    from loadmaster.malloc_game.muzero.agent import PACKAGES, MuZero, start_of

    for package in PACKAGES:
        require(package, "agents")
    from loadmaster.malloc_game.muzero.session import Session

    if lessons.budget is None and lessons.seconds is None:
        raise Usage(
            "training has no end", object="--time-limit", remedy="give --time-limit 20m, or --budget GAMES"
        )
    if not lessons.resume:
        check_free(state_path(lessons.out), lessons.overwrite)
    solver = MuZero(init=lessons.init or "scratch", **lessons.options)
    problems = [_problem(name, lessons.machine) for name in lessons.models]
    state, about = (None, {}) if lessons.resume is None else read_state(lessons.resume, lessons)
    teacher = Teacher(lessons, about.get("sessions", []))
    budget = Budget(lessons.budget, lessons.seconds)
    played = [row["evaluations"] for row in about.get("trained_on", [])] or [0] * len(problems)
    meters = [
        Meter(problem, budget, teacher, evaluations=count)
        for problem, count in zip(problems, played, strict=True)
    ]
    say(
        f"{len(problems)} programs of {min(p.moves for p in problems):,} to {max(p.moves for p in problems):,} moves"
    )
    start = None if state is not None else start_of(solver.init, solver.settings)
    session = teacher.session = Session(meters, lessons.seed, solver.settings, start, state)
    for meter, program in zip(meters, session.replay.programs, strict=True):
        if len(program.best_times):
            meter.restore(program.best.actions[0])
    teacher.begin()
    try:
        session.run()
    except KeyboardInterrupt:
        say("stopped; what was learned is kept")
    finally:
        if teacher.log is not None:
            teacher.log.close()
    teacher.save()
    rows = [row_of(name, meter) for name, meter in zip(lessons.models, meters, strict=True)]
    return _answer(rows, lessons.out, session)


def _problem(name: str, machine: str | None) -> MallocGame:
    """Of MODEL, or of MODEL@MACHINE where that is another machine; 'synthetic-07' is a made-up model."""
    from loadmaster.malloc_game.muzero.agent import check_playable, worth_playing
    from loadmaster.malloc_game.problem import MallocGame
    from loadmaster.program.zoo.synthetic import COUNT, synthetic

    source, _, own = name.partition("@")
    model = Model(source)
    number = re.fullmatch(r"synthetic-([0-9]{2})", source)
    if number and int(number[1]) < COUNT:
        program = synthetic(int(number[1]))
    else:
        program = model.load()
    problem = MallocGame(program, model.machine(own or machine))
    check_playable(problem)
    if not worth_playing(problem):
        raise LoadmasterError(
            f"there is nothing to gain by playing '{name}' on {problem.machine.name}",
            object=name,
            number=problem.moves,
            remedy="leave it out",
        )
    return problem


def share_saved(meter: Meter) -> float:
    """Of all that could be saved, by the best game so far; 1: at the bound."""
    problem: Any = meter.problem
    best = problem.all_slow_ps if meter.best_value is None else meter.best_value
    return float((problem.all_slow_ps - best) / problem.scale_ps)


def losses_text(metrics: Mapping[str, float]) -> list[str]:
    found = [
        f"{name.removesuffix('_loss')} {value:.2f}"
        for name, value in metrics.items()
        if name.endswith("_loss")
    ]
    return [f"loss: {', '.join(found)}"] if found else []


def row_of(name: str, meter: Meter) -> dict[str, Any]:
    problem: Any = meter.problem
    value, bound = meter.best_value, meter.bound.value
    return {
        "what": "game",
        "model": name,
        "machine": problem.machine.name,
        "moves": problem.moves,
        "picoseconds": value,
        "all_slow_picoseconds": problem.all_slow_ps,
        "share_saved": share_saved(meter),
        "gap": value / bound - 1 if value is not None and bound > 0 else None,
        "evaluations": meter.evaluations,
    }


def _answer(rows: list[dict[str, Any]], out: Path, session: Session) -> Answer:
    cells = [
        (
            row["model"],
            f"{row['moves']:,}",
            show_time(row["all_slow_picoseconds"]),
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            f"{row['share_saved']:.3f}",
            gap_text(row["gap"]),
            f"{row['evaluations']:,}",
        )
        for row in rows
    ]
    columns = (
        "trained on",
        "moves",
        "all-slow",
        "best game",
        "share of the savings",
        "gap to bound",
        "games",
    )
    ending = (
        f"wrote {out} and {state_path(out)} after {session.steps:,} gradient steps\n"
        f"use it:  loadmaster plan MODEL --solver muzero --init {out}\n"
        f"go on:   loadmaster train muzero MODEL… --resume {state_path(out)} --out {out} --overwrite"
    )
    more = {
        "out": str(out),
        "state": str(state_path(out)),
        "log": str(log_path(out)),
        "gradient_steps": session.steps,
        "seconds_split": dict(session.seconds),
    }
    return Answer(rows, [Table(columns, cells), ending], more=more)


def state_path(out: Path) -> Path:
    """Where what training goes on from is kept."""
    return out.with_suffix(".state.npz")


def log_path(out: Path) -> Path:
    """Where training tells how it goes, line by line."""
    return out.with_suffix(".log.jsonl")


def write_state(path: Path, state: State, about: Mapping[str, Any]) -> None:
    header = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    arrays: dict[str, Any] = {f"array.{name}": array for name, array in state.items()}
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, about=header, **arrays)


def stored_state(path: Path, agent: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, what made them) of a file of `write_state`."""

    def refuse(reason: str) -> Usage:
        return Usage(
            f"'{path}' can't be resumed: {reason}",
            object=str(path),
            remedy=f"give the .state.npz beside a policy of 'train {agent}'",
        )

    stored = read_npz(path, refuse, most_file=_MOST_STATE, most_bytes=_MOST_STATE)
    about = json_entry(stored, "about", refuse)
    if not isinstance(about, dict):
        raise refuse("it does not say what made it")
    return {name.removeprefix("array."): stored[name] for name in stored if name != "about"}, about


def read_state(path: Path, lessons: Lessons) -> tuple[State, dict[str, Any]]:
    """(the session's arrays, what made them) of a file of `write_state`, if it is about the same."""
    state, about = stored_state(path, "muzero")
    for name, mine in (("models", lessons.models), ("settings", lessons.options)):
        if about.get(name) != mine:
            raise Usage(
                f"'{path}' was made with the {name} {about.get(name)}, not {mine}",
                object=str(path),
                remedy=f"give the same {name}, or start from its policy with --init",
            )
    return state, about
