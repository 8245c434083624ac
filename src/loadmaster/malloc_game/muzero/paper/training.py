"""Training mallocMuZero: one network over all programs together, in parts that go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.learn.checkpoints import BadState, read_state, state_path, write_state
from loadmaster.learn.policies import policy_arrays
from loadmaster.learn.session import Interval
from loadmaster.learn.training import Report, ignore, policy_header, require_agents
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.solver import Budget, Meter, Observer, rename_options

if TYPE_CHECKING:
    from loadmaster.malloc_game.muzero.paper.session import Session

SAVE_SECONDS = 60.0
REPORT_SECONDS = 10.0


class Progress(NamedTuple):
    """How a training stands, over all programs and all its sessions."""

    seconds: float
    evaluations: int
    gap: float | None
    """The mean; None where a program has no bound."""
    metrics: Mapping[str, float]


class Trained(NamedTuple):
    """What a training leaves."""

    rows: list[dict[str, Any]]
    """For each program: its best game's time, all-slow's, the share saved, the gap, games."""
    gradient_steps: int
    seconds: dict[str, float]
    """Part of the work -> how long it took."""


def train(
    problems: Sequence[tuple[str, MallocGame]],
    *,
    out: Path,
    evaluations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    init: str | None = None,
    resume: Path | None = None,
    report: Report = ignore,
    log: Callable[[Progress], None] | None = None,
) -> Trained:
    """Train one network on all problems at once. Ctrl-C ends it and keeps what was learned.

    Args:
      problems: (name, problem) pairs; games of all of them are played side by side.
      out: where the policy is written, in half precision; beside it, as '.state.npz', what training goes on from.
      evaluations: games of each program; `seconds`: of all together. One of them must be given.
      seed: the same seed gives the same network.
      options: fields of `Settings`.
      init: a network to start from; without it, from scratch.
      resume: a '.state.npz' of an earlier training with the same names and options.
      report: takes a line now and then; `log`: takes the metrics of every round.
    """
    from loadmaster.malloc_game.muzero.paper import PACKAGES, PaperMuZero, can_gain, start_of

    require_agents(*PACKAGES)
    if evaluations is None and seconds is None:
        raise LoadmasterError(
            "training has no end", object="--time-limit", remedy="give --time-limit 20m, or --budget GAMES"
        )
    for name, problem in problems:
        if not can_gain(problem):
            raise LoadmasterError(
                f"there is nothing to gain by playing '{name}' on {problem.machine.name}",
                object=name,
                number=problem.moves,
                remedy="leave it out",
            )
    from loadmaster.malloc_game.muzero.paper.session import Session

    names, options = [name for name, _ in problems], rename_options(options or {})
    solver = PaperMuZero(init=init or "scratch", **options)
    state, before = (None, {}) if resume is None else _read(resume, names, options)
    trainer = _Trainer(names, out, seed, options, init, before.get("sessions", []), report, log)
    games = [row["evaluations"] for row in before.get("trained_on", [])] or [0] * len(problems)
    budget = Budget(evaluations, seconds)
    meters = [
        Meter(problem, budget, trainer, evaluations=count)
        for (_, problem), count in zip(problems, games, strict=True)
    ]
    moves = [problem.moves for _, problem in problems]
    report(f"{len(problems)} programs of {min(moves):,} to {max(moves):,} moves")
    start = None if state is not None else start_of(solver.init, solver.settings)
    session = trainer.session = Session(meters, seed, solver.settings, start, state)
    for meter, program in zip(meters, session.replay.programs, strict=True):
        if len(program.best_times):
            meter.restore(program.best.actions[0])
    try:
        session.run()
    except KeyboardInterrupt:
        report("stopped; what was learned is kept")
    trainer.save()
    return Trained(trainer.rows(), session.steps, dict(session.seconds))


class _Trainer(Observer):
    """Reports how it goes, and keeps network and state on disk."""

    def __init__(
        self,
        names: Sequence[str],
        out: Path,
        seed: int,
        options: dict[str, Any],
        init: str | None,
        before: list[dict[str, Any]],
        report: Report,
        log: Callable[[Progress], None] | None,
    ) -> None:
        super().__init__()
        self.names, self.out, self.seed, self.options, self.init = list(names), out, seed, options, init
        self.before, self.report, self.log = before, report, log
        self.session: Session | None = None
        self._started = now()
        self._earlier = sum(session["seconds"] for session in before)
        self._report_due, self._save_due = Interval(REPORT_SECONDS), Interval(SAVE_SECONDS)

    def wants_checkpoint(self, meter: Meter) -> bool:
        """Never: `save` keeps what is needed."""
        return False

    def progress(self, meter: Meter, metrics: Mapping[str, float]) -> None:
        """Called for every program; the first one's speaks for all."""
        if self.session is None or meter is not self.session.meters[0]:
            return
        if self.log is not None:
            self.log(self._progress(metrics))
        if self._report_due.due:
            self._report_due.restart()
            self.report(self._line(metrics))
        if self._save_due.due:
            self.save()

    def _progress(self, metrics: Mapping[str, float]) -> Progress:
        assert self.session is not None
        meters = self.session.meters
        gaps = [meter.solution().gap for meter in meters]
        known = [gap for gap in gaps if gap is not None]
        return Progress(
            self._earlier + now() - self._started,
            sum(meter.evaluations for meter in meters),
            float(np.mean(known)) if len(known) == len(gaps) else None,
            {**metrics, "share_saved": float(np.mean([share_saved(meter) for meter in meters]))},
        )

    def _line(self, metrics: Mapping[str, float]) -> str:
        assert self.session is not None
        meters = self.session.meters
        left = meters[0].seconds_left
        losses = [
            f"{name.removesuffix('_loss')} {value:.2f}"
            for name, value in metrics.items()
            if name.endswith("_loss")
        ]
        parts = [
            f"round {metrics['generation']:.0f}",
            f"{sum(meter.evaluations for meter in meters):,} games",
            f"mean best {np.mean([share_saved(meter) for meter in meters]):.3f}",
            f"last batch {metrics.get('mean_reward', 0):.3f}",
            f"{metrics['moves_per_s']:,.0f} moves/s",
            f"{metrics['steps']:,.0f} steps",
            f"{metrics['steps_per_s']:.1f} steps/s",
            *([f"loss: {', '.join(losses)}"] if losses else []),
            "seconds: " + ", ".join(f"{part} {metrics[part]:.0f}" for part in self.session.seconds),
        ]
        return "  ".join(parts + ([] if left is None else [f"{left:.0f} s left"]))

    def rows(self) -> list[dict[str, Any]]:
        """How each program stands."""
        assert self.session is not None
        return [_row(name, meter) for name, meter in zip(self.names, self.session.meters, strict=True)]

    def save(self) -> None:
        """The small file to play with, and beside it what training goes on from."""
        from loadmaster.malloc_game.muzero.paper import save_small

        session = self.session
        assert session is not None
        about = policy_header(
            "muzero",
            self.seed,
            self.options,
            init=self.init,
            models=self.names,
            gradient_steps=session.steps,
            iterations=session.iteration,
            sessions=[*self.before, {"seconds": now() - self._started, "steps": session.steps}],
            trained_on=self.rows(),
        )
        save_small(self.out, policy_arrays(session.learner.network), about, session.settings)
        write_state(state_path(self.out), session.arrays(full=False), about)
        self._save_due.restart()


def share_saved(meter: Meter) -> float:
    """Of all that could be saved, by the best game so far; 1: at the bound."""
    problem: Any = meter.problem
    best = problem.all_slow_ps if meter.best_value is None else meter.best_value
    return float((problem.all_slow_ps - best) / problem.scale_ps)


def _row(name: str, meter: Meter) -> dict[str, Any]:
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


def _read(path: Path, names: list[str], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the session's arrays, what made them) of a state file, if it is about the same."""
    state, about = read_state(path, "muzero")
    if isinstance(about.get("settings"), dict):
        about["settings"] = rename_options(about["settings"])
    for what, ours in (("models", names), ("settings", options)):
        if about.get(what) != ours:
            raise BadState(
                f"'{path}' was made with the {what} {about.get(what)}, not {ours}",
                object=str(path),
                remedy=f"give the same {what}, or start from its policy with --init",
            )
    return state, about
