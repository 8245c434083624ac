"""How `train` teaches GO: one policy over many graphs together, or on one graph alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.files import writing
from loadmaster.cli.model import Model
from loadmaster.cli.progress import LiveLine, gap_text, say
from loadmaster.errors import require
from loadmaster.host import command_line, cores, versions
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.graph.go.cases import Case, Taught
    from loadmaster.graph.go.pretrain import Course, SizeClass
    from loadmaster.graph.go.settings import Shape

MODES = ("batch", "one")
SAVE_SECONDS = 60.0
TAUGHT_SHARE, IMITATED_SHARE = 0.25, 0.5
"""Of the time limit: for making good plans; and of what is left then, for imitating them."""
RATES, PPO_RATES = (1e-3, 1e-4), (3e-5, 1e-5)
ENTROPY, IMITATION = 0.0, 0.1
"""Of rewards. Faster rates, or a reward for entropy, forget which hint to follow."""
ROUND_SECONDS = 60.0
"""Of rewards, between two looks at the validation graphs."""
VALIDATION_GRAPHS, VALIDATION_EVALUATIONS = 20, 60
"""Synthetic ones of each family; what is spent on a plan to compare with."""


@dataclass(frozen=True)
class Asked:
    """What the user asked for."""

    models: Sequence[str]
    machine: str | None
    out: Path
    split: str | None
    mode: str
    budget: int | None
    seconds: float | None
    seed: int
    options: Mapping[str, Any]
    init: str | None
    resume: Path | None
    run: Path | None


def train_go(asked: Asked) -> Answer:
    from loadmaster.graph.go.agent import PACKAGES

    for package in PACKAGES:
        require(package, "agents")
    if asked.mode not in MODES:
        raise Usage(f"there is no --mode '{asked.mode}'", object="--mode", remedy=f"use {' or '.join(MODES)}")
    if asked.mode == "one":
        return _one(asked)
    if asked.seconds is None:
        raise Usage(
            "training over many graphs has no end", object="--time-limit", remedy="give --time-limit 25m"
        )
    return _Batch(asked).train(asked.seconds)


# --- one graph -------------------------------------------------------------------------------


def _one(asked: Asked) -> Answer:
    """A run of the solver, whose policy is kept."""
    from loadmaster.graph import GraphOptimization
    from loadmaster.runs.session import Interrupted, run_solver
    from loadmaster.search.registry import make_solver
    from loadmaster.search.solver import Budget

    if len(asked.models) != 1 or asked.split or asked.resume:
        raise Usage(
            "--mode one trains on one model",
            object="--mode",
            number=len(asked.models),
            remedy="give one MODEL, or --mode batch",
        )
    if asked.budget is None and asked.seconds is None:
        raise Usage("training has no end", object="--budget", remedy="give --budget 2000, or --time-limit 5m")
    source, _, own = asked.models[0].partition("@")
    model = Model(source)
    problem = GraphOptimization(model.load(), model.machine(own or asked.machine))
    solver: Any = make_solver(
        "graph", "go", {"init": asked.init or "scratch", "mode": "one", **asked.options}
    )
    budget = Budget(asked.budget, asked.seconds)
    solution = run_solver(solver, problem, budget, asked.seed, folder=asked.run, display=LiveLine())
    if "policy" not in solution.extra:
        raise Interrupted(
            f"training on '{source}' ended before there was a policy",
            object=source,
            remedy="let it run longer",
        )
    row = {
        "what": "graph",
        "model": asked.models[0],
        "machine": problem.machine.name,
        "picoseconds": solution.value,
        "base_picoseconds": problem.reference_ps,
        "gap": solution.gap,
        "evaluations": solution.evaluations,
        "updates": solution.extra["updates"],
    }
    _write(asked, solution.extra["policy"], solver.settings.shape, {"trained_on": [row]})
    found = "–" if solution.value is None else show_time(solution.value)
    cells = [
        (
            row["model"],
            show_time(problem.reference_ps),
            found,
            gap_text(solution.gap),
            f"{solution.evaluations:,}",
            f"{row['updates']:,}",
        )
    ]
    columns = ("trained on", "base plan", "go", "gap to bound", "evaluations", "updates")
    return Answer([row], [Table(columns, cells), _ending(asked.out)], more={"out": str(asked.out)})


# --- many graphs -----------------------------------------------------------------------------


class _Batch:
    """Good plans first, kept beside the policy; then imitation of them, the choice among hints, and
    rewards."""

    def __init__(self, asked: Asked) -> None:
        from loadmaster.graph.go.agent import start_of
        from loadmaster.graph.go.learner import make_learner
        from loadmaster.graph.go.settings import Settings
        from loadmaster.learn.settings import make_settings

        options = dict(asked.options)
        self.synthetic = int(options.pop("synthetic", 60))
        settings = make_settings(Settings, "go", options, {})
        self.asked, self.shape, self.samples = asked, settings.shape, settings.samples
        self.cases = _cases(asked, self.synthetic)
        self.learner = make_learner(start_of(asked.init or "scratch", asked.seed, self.shape))
        self.started = self.saved = time.monotonic()
        self.before: list[dict[str, float]] = []
        self.course: Course | None = None
        if asked.resume is not None:
            self._resume(asked.resume)

    def train(self, seconds: float) -> Answer:
        from loadmaster.graph.go.pretrain import Course, judged

        classes = self._classes(TAUGHT_SHARE * seconds)
        rng = np.random.default_rng([self.asked.seed, len(self.before)])
        course = self.course = Course(
            self.shape, self.learner, classes, rng, cores(), samples=self.samples, told=self._told
        )
        try:
            course.compile()
            say(f"compiled after {time.monotonic() - self.started:.0f} s")
            left = self.started + seconds - time.monotonic()
            if self.asked.init is None and self.asked.resume is None:
                course.imitate(IMITATED_SHARE * left, *RATES)
                if self.shape.hints:
                    course.trust(self.asked.seed)
            self._reinforce(course, classes, self.started + seconds)
        except KeyboardInterrupt:
            say("stopped; what was learned is kept")
        rows = judged(course.learner.network, classes, self.shape, cores())
        self.save(rows)
        return _answer(rows, self.asked.out)

    def _reinforce(self, course: Course, classes: list[SizeClass], until: float) -> None:
        """Learn from rewards in rounds; what is kept is the policy whose likeliest plans were best on
        graphs that it does not learn from, which may be the one before."""
        judges = self._judges() or classes
        best, kept = self._saved(course, judges), course.learner
        say(f"before rewards: {best:.1%} saved")
        start = time.monotonic()
        while (now := time.monotonic()) < until:
            first, last = (
                (PPO_RATES[1] / PPO_RATES[0]) ** ((t - start) / max(1.0, until - start))
                for t in (now, min(until, now + ROUND_SECONDS))
            )
            course.reinforce(
                min(ROUND_SECONDS, until - now), PPO_RATES[0] * first, PPO_RATES[0] * last, ENTROPY, IMITATION
            )
            found = self._saved(course, judges)
            say(f"rewards for {time.monotonic() - start:.0f} s: {found:.1%} saved, {best:.1%} before")
            course.curve.append({"seconds": time.monotonic() - start, "judged": found})
            if found > best:
                best, kept = found, course.learner
        course.learner = kept

    def _saved(self, course: Course, classes: list[SizeClass]) -> float:
        from loadmaster.graph.go.pretrain import judged, mean_saved

        return mean_saved(judged(course.learner.network, classes, self.shape, cores()))

    def _judges(self) -> list[SizeClass]:
        """The validation split, where the training split is learned from."""
        from loadmaster.graph.go.cases import cases_of, teach_all
        from loadmaster.graph.go.pretrain import classes_of

        if self.asked.split != "train":
            return []
        cases = cases_of("validation", VALIDATION_GRAPHS, self.asked.seed)
        folder = plans_path(self.asked.out)
        teach_all(cases, folder, cores(), None, say, VALIDATION_EVALUATIONS)
        return classes_of(taught_in(folder, cases), self.shape, cores())

    def _classes(self, seconds: float) -> list[SizeClass]:
        from loadmaster.graph.go.cases import teach_all
        from loadmaster.graph.go.pretrain import classes_of

        folder = plans_path(self.asked.out)
        say(f"{len(self.cases)} graphs; good plans for them are kept in {folder}")
        teach_all(self.cases, folder, cores(), self.started + seconds, say)
        classes = classes_of(taught_in(folder, self.cases), self.shape, cores())
        if not classes:
            raise Usage(
                "there was no time for a good plan of any graph",
                object="--time-limit",
                number=seconds,
                remedy="give more time, or fewer graphs",
            )
        return classes

    def _told(self, line: str) -> None:
        say(line)
        if time.monotonic() - self.saved > SAVE_SECONDS:
            self.save([])

    def save(self, rows: list[dict[str, Any]]) -> None:
        """The policy, and beside it what training goes on from."""
        import jax

        from loadmaster.graph.go.pretrain import mean_saved
        from loadmaster.learn.checkpoints import state_path, tree_arrays, write_state
        from loadmaster.learn.policies import policy_arrays

        assert self.course is not None
        pupils = [pupil for each in self.course.classes for pupil in each.pupils]
        session = {"seconds": time.monotonic() - self.started}
        about: dict[str, Any] = {
            "split": self.asked.split,
            "models": list(self.asked.models),
            "synthetic": self.synthetic,
            "cases": [pupil.case.name for pupil in pupils],
            "sessions": [*self.before, session],
            "curve": self.course.curve,
            "mean_saved": mean_saved(rows) if rows else None,
        }
        if rows:  # hashes need every graph: once is enough
            problems = [pupil.problem for pupil in pupils]
            about["programs"] = sorted({problem.program.hash for problem in problems})
            about["machines"] = sorted({problem.machine.hash for problem in problems})
        network = jax.tree.map(np.asarray, self.course.learner.network)
        _write(self.asked, policy_arrays(network), self.shape, about)
        with writing(self.asked.out):
            write_state(state_path(self.asked.out), tree_arrays(self.course.learner), about)
        self.saved = time.monotonic()

    def _resume(self, path: Path) -> None:
        from loadmaster.learn.checkpoints import read_state, restore_tree, tree_arrays

        arrays, about = read_state(path, "go")
        for name, like in tree_arrays(self.learner).items():
            if name not in arrays or arrays[name].shape != like.shape:
                raise Usage(
                    f"'{path}' can't be resumed: it has no '{name}' of shape {like.shape}",
                    object=str(path),
                    remedy="give the .state.npz beside a policy of 'train go'",
                )
        self.learner = restore_tree(self.learner, arrays)
        self.before = about.get("sessions", [])


def _cases(asked: Asked, synthetic: int) -> list[Case]:
    """Those of a split, or MODEL@MACHINE by name, jointly and placed alone."""
    from loadmaster.graph.go.cases import JOINT, PLACED, Case, cases_of

    if bool(asked.models) == bool(asked.split):
        raise Usage(
            "give models, or a split of them", object="MODEL", remedy="give --split train, or MODEL@MACHINE…"
        )
    if asked.split:
        return cases_of(asked.split, synthetic, asked.seed)
    found = []
    for name in asked.models:
        graph, _, machine = name.partition("@")
        own = machine or asked.machine or Model(graph).machine(None).name
        found += [Case(graph, own, *what) for what in (JOINT, PLACED)]
    return found


def taught_in(folder: Path, cases: Sequence[Case]) -> dict[Case, Taught]:
    """The plans that are there."""
    from loadmaster.graph.go.cases import file_of, load

    return {case: load(path) for case in cases if (path := file_of(folder, case)).exists()}


def plans_path(out: Path) -> Path:
    """Where plans to imitate are kept."""
    return out.with_suffix(".plans")


def _write(asked: Asked, policy: Mapping[str, Any], shape: Shape, about: Mapping[str, Any]) -> None:
    from loadmaster.graph.go.graph import SCHEMA
    from loadmaster.learn.policies import save_policy

    made = {
        "agent": "go",
        "schema": SCHEMA,
        "shape": asdict(shape),
        "command": command_line(),
        "mode": asked.mode,
        "seed": asked.seed,
        "settings": dict(asked.options),
        "init": asked.init,
        "versions": versions(),
        **about,
    }
    with writing(asked.out):
        save_policy(asked.out, policy, made)


def _answer(found: list[dict[str, Any]], out: Path) -> Answer:
    """The likeliest plan of each graph, beside the base plan and the best that is known."""
    from loadmaster.graph import UNFIT

    def fitting(value: int) -> int | None:
        return value if 0 <= value < UNFIT else None

    rows = [
        {
            "what": "case",
            "case": row["case"],
            "picoseconds": fitting(row["value"]),
            "best_picoseconds": fitting(row["best"]),
            "base_picoseconds": row["reference"],
        }
        for row in found
    ]
    names = ("base_picoseconds", "best_picoseconds", "picoseconds")
    cells = [
        (row["case"], *("does not fit" if row[name] is None else show_time(row[name]) for name in names))
        for row in rows
    ]
    columns = ("trained on", "base plan", "best known", "the policy's likeliest plan")
    return Answer(rows, [Table(columns, cells), _ending(out)], more={"out": str(out)})


def _ending(out: Path) -> str:
    return f"wrote {out}\nuse it:  loadmaster plan MODEL --solver go --init {out}"
