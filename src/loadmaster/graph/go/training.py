"""Training GO: one policy over many graphs together, or on one graph alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.host import cores
from loadmaster.learn.checkpoints import (
    BadState,
    read_state,
    restore_tree,
    state_path,
    tree_arrays,
    write_state,
)
from loadmaster.learn.policies import policy_arrays, save_policy
from loadmaster.learn.session import (
    Interval,
    Report,
    Unfinished,
    ignore,
    make_settings,
    policy_header,
    require_agents,
)
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve

if TYPE_CHECKING:
    from loadmaster.graph import GraphOptimization
    from loadmaster.graph.go.cases import Case
    from loadmaster.graph.go.settings import Shape
    from loadmaster.graph.go.trainer import SizeClass, Trainer

PACKAGES = ("jax", "equinox", "optax")
SYNTHETIC = 60
"""Graphs of each synthetic family in a split."""
SAVE_SECONDS = 60.0
PLANS_SHARE, IMITATED_SHARE = 0.25, 0.5
"""Of the time limit: for making good plans; and of what is left then, for imitating them."""
RATES, PPO_RATES = (1e-3, 1e-4), (3e-5, 1e-5)
ENTROPY, IMITATION = 0.0, 0.1
"""Of rewards. Faster rates, or a reward for entropy, forget which hint to follow."""
ROUND_SECONDS = 60.0
"""Of rewards, between two looks at the validation graphs."""
VALIDATION_GRAPHS, VALIDATION_EVALUATIONS = 20, 60
"""Synthetic ones of each family; what is spent on a plan to compare with."""


def train_one(
    problem: GraphOptimization,
    *,
    name: str,
    out: Path,
    evaluations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    init: str | None = None,
    run_solver: Callable[..., Solution] = solve,
) -> dict[str, Any]:
    """Train a policy on one graph: a run of the solver in its mode 'one', whose policy is kept.

    Args:
      problem: the graph and its devices; `name` is what it is called in the row.
      out: where the policy is written.
      evaluations, seconds: what ends it; one of them must be given.
      seed: the same seed and evaluations give the same policy.
      options: fields of `Settings`; `init`: a policy to start from, else from scratch.
      run_solver: called as `solve(solver, problem, budget, seed)`; one that writes run folders may stand here.

    Returns:
      A row: the best plan's time, the base plan's, the gap to the bound, evaluations and updates.
    """
    require_agents(*PACKAGES)
    if evaluations is None and seconds is None:
        raise LoadmasterError(
            "training has no end", object="--budget", remedy="give --budget 2000, or --time-limit 5m"
        )
    options = dict(options or {})
    solver: Any = make_solver("graph", "go", {"init": init or "scratch", "mode": "one", **options})
    solution = run_solver(solver, problem, Budget(evaluations, seconds), seed)
    if solution.policy is None:
        source = name.partition("@")[0]
        raise Unfinished(
            f"training on '{source}' ended before there was a policy",
            object=source,
            remedy="let it run longer",
        )
    row = {
        "what": "graph",
        "model": name,
        "machine": problem.machine.name,
        "picoseconds": solution.value,
        "base_picoseconds": problem.reference_ps,
        "gap": solution.gap,
        "evaluations": solution.evaluations,
        "updates": solution.metrics["updates"],
    }
    about = _about(solver.settings.shape, "one", seed, options, init) | {"trained_on": [row]}
    save_policy(out, solution.policy, about)
    return row


def train(
    cases: Sequence[Case],
    *,
    out: Path,
    seconds: float,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    init: str | None = None,
    resume: Path | None = None,
    split: str | None = None,
    report: Report = ignore,
    about: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Train one policy on many graphs together. Ctrl-C ends it and keeps what was learned.

    Good plans come first, kept beside the policy; then imitation of them, the choice among hints, and
    rewards. With `init` or `resume` it begins with the rewards.

    Args:
      cases: the graphs, machines and tasks.
      out: where the policy is written; beside it '.state.npz', what training goes on from, and the plans.
      seconds: how long.
      seed: of the first network and of all draws.
      options: fields of `Settings`; of them the network's shape and `samples` count.
      init: a policy to start from; resume: a '.state.npz' to go on from.
      split: the name of the split that `cases` are; 'train' is judged by the validation graphs.
      report: takes a line now and then.
      about: what else the policy's file should say.

    Returns:
      For each case the times (ps) of the policy's likeliest plan ('value'), of the best plan known ('best')
      and of the base plan ('reference').
    """
    require_agents(*PACKAGES)
    training = _Training(
        cases, out, seed, dict(options or {}), init, resume, split, report, dict(about or {})
    )
    return training.train(seconds)


class _Training:
    """One training over many graphs."""

    def __init__(
        self,
        cases: Sequence[Case],
        out: Path,
        seed: int,
        options: dict[str, Any],
        init: str | None,
        resume: Path | None,
        split: str | None,
        report: Report,
        about: dict[str, Any],
    ) -> None:
        from loadmaster.graph.go.agent import start_of
        from loadmaster.graph.go.learner import make_learner
        from loadmaster.graph.go.settings import Settings

        settings = make_settings(
            Settings, "go", {name: value for name, value in options.items() if name != "synthetic"}, {}
        )
        self.cases, self.out, self.seed, self.options, self.init = cases, out, seed, options, init
        self.split, self.report, self.about = split, report, about
        self.shape, self.samples = settings.shape, settings.samples
        self.learner = make_learner(start_of(init or "scratch", seed, self.shape))
        self.fresh = init is None and resume is None
        self.started, self.save_due = now(), Interval(SAVE_SECONDS)
        self.before: list[dict[str, float]] = []
        if resume is not None:
            self._resume(resume)

    def train(self, seconds: float) -> list[dict[str, Any]]:
        from loadmaster.graph.go.trainer import Trainer, evaluate_policy

        end = self.started + seconds
        classes = self._training_classes(PLANS_SHARE * seconds)
        rng = np.random.default_rng([self.seed, len(self.before)])
        trainer = Trainer(self.shape, self.learner, classes, rng, cores(), samples=self.samples)
        trainer.report = lambda line: self._report(line, trainer)
        try:
            trainer.compile()
            self.report(f"compiled after {now() - self.started:.0f} s")
            if self.fresh:
                trainer.imitate(IMITATED_SHARE * (end - now()), *RATES)
                if self.shape.hints:
                    trainer.learn_hints(self.seed)
            self._reinforce(trainer, self._validation_classes() or classes, end)
        except KeyboardInterrupt:
            self.report("stopped; what was learned is kept")
        rows = evaluate_policy(trainer.learner.network, classes, self.shape, cores())
        self.save(trainer, rows)
        return rows

    def _reinforce(self, trainer: Trainer, judges: list[SizeClass], until: float) -> None:
        """Learn from rewards in rounds; what is kept is the policy whose likeliest plans were best on
        graphs that it does not learn from, which may be the one before."""
        best, kept = self._mean_saved(trainer, judges), trainer.learner
        self.report(f"before rewards: {best:.1%} saved")
        start = now()
        while (begin := now()) < until:
            first, last = (
                (PPO_RATES[1] / PPO_RATES[0]) ** ((t - start) / max(1.0, until - start))
                for t in (begin, min(until, begin + ROUND_SECONDS))
            )
            seconds = min(ROUND_SECONDS, until - begin)
            trainer.reinforce(seconds, PPO_RATES[0] * first, PPO_RATES[0] * last, ENTROPY, IMITATION)
            found = self._mean_saved(trainer, judges)
            self.report(f"rewards for {now() - start:.0f} s: {found:.1%} saved, {best:.1%} before")
            trainer.curve.append({"seconds": now() - start, "judged": found})
            if found > best:
                best, kept = found, trainer.learner
        trainer.learner = kept

    def _mean_saved(self, trainer: Trainer, classes: list[SizeClass]) -> float:
        from loadmaster.graph.go.trainer import evaluate_policy, mean_saved

        return mean_saved(evaluate_policy(trainer.learner.network, classes, self.shape, cores()))

    def _validation_classes(self) -> list[SizeClass]:
        """The validation split, where the training split is learned from."""
        from loadmaster.graph.go.cases import cases_of, find_plans
        from loadmaster.graph.go.trainer import size_classes

        if self.split != "train":
            return []
        cases = cases_of("validation", VALIDATION_GRAPHS, self.seed)
        plans = find_plans(cases, plans_path(self.out), cores(), None, self.report, VALIDATION_EVALUATIONS)
        return size_classes(plans, self.shape, cores())

    def _training_classes(self, seconds: float) -> list[SizeClass]:
        from loadmaster.graph.go.cases import find_plans
        from loadmaster.graph.go.trainer import size_classes

        folder = plans_path(self.out)
        self.report(f"{len(self.cases)} graphs; good plans for them are kept in {folder}")
        plans = find_plans(self.cases, folder, cores(), self.started + seconds, self.report)
        classes = size_classes(plans, self.shape, cores())
        if not classes:
            raise LoadmasterError(
                "there was no time for a good plan of any graph",
                object="--time-limit",
                number=seconds,
                remedy="give more time, or fewer graphs",
            )
        return classes

    def _report(self, line: str, trainer: Trainer) -> None:
        self.report(line)
        if self.save_due.due:
            self.save(trainer, [])

    def save(self, trainer: Trainer, rows: list[dict[str, Any]]) -> None:
        """The policy, and beside it what training goes on from."""
        import jax

        from loadmaster.graph.go.trainer import mean_saved

        cases = [case for each in trainer.classes for case in each.cases]
        about: dict[str, Any] = {
            "split": self.split,
            **self.about,
            "cases": [case.case.name for case in cases],
            "sessions": [*self.before, {"seconds": now() - self.started}],
            "curve": trainer.curve,
            "mean_saved": mean_saved(rows) if rows else None,
        }
        if rows:  # hashes need every graph: once is enough
            about["programs"] = sorted({case.problem.program.hash for case in cases})
            about["machines"] = sorted({case.problem.machine.hash for case in cases})
        network = jax.tree.map(np.asarray, trainer.learner.network)
        header = _about(self.shape, "batch", self.seed, self.options, self.init)
        save_policy(self.out, policy_arrays(network), header | about)
        write_state(state_path(self.out), tree_arrays(trainer.learner), about)
        self.save_due.restart()

    def _resume(self, path: Path) -> None:
        arrays, about = read_state(path, "go")
        for name, like in tree_arrays(self.learner).items():
            if name not in arrays or arrays[name].shape != like.shape:
                raise BadState(
                    f"'{path}' can't be resumed: it has no '{name}' of shape {like.shape}",
                    object=str(path),
                    remedy="give the .state.npz beside a policy of 'train go'",
                )
        self.learner = restore_tree(self.learner, arrays)
        self.before = about.get("sessions", [])


def plans_path(out: Path) -> Path:
    """Where plans to imitate are kept."""
    return out.with_suffix(".plans")


def _about(
    shape: Shape, mode: str, seed: int, options: Mapping[str, Any], init: str | None
) -> dict[str, Any]:
    from loadmaster.graph.go.graph import SCHEMA

    more = {"schema": SCHEMA, "shape": asdict(shape), "mode": mode, "init": init}
    return policy_header("go", seed, options, **more)
