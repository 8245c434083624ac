"""Training GO: one policy over many graphs together, or on one graph alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.go.actions import Actions, padded, vectors_of
from loadmaster.graph.go.cases import Case, KnownPlan
from loadmaster.graph.go.graph import Graph, graph_of, padded_sizes
from loadmaster.graph.go.learner import (
    Batch,
    Learner,
    LossWeights,
    batch_logits,
    draw,
    hint_times,
    imitate_batch,
    learn_batch,
    learn_hint_choice,
    make_learner,
)
from loadmaster.graph.go.settings import Shape
from loadmaster.host import cores
from loadmaster.learn.backend import bucket
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
from loadmaster.search.problem import Scores
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve

if TYPE_CHECKING:
    from loadmaster.graph import GraphOptimization
    from loadmaster.graph.go.cases import Case
    from loadmaster.graph.go.settings import Shape

# Batch mode: one policy for many graphs, by imitating good plans, by choosing among hints, by rewards.
#
# All graphs of a size class lie on the accelerator; an update draws some of them, plans for each, times
# the plans on all cores, and learns. A plan that beats the one imitated so far takes its place.

Float64 = npt.NDArray[np.float64]
CLASSES = ((2_048, 16), (12_800, 4), (32_768, 2))
"""Nodes at most, and graphs per update."""
DEVICES = 8
REPORT_SECONDS = 15.0


@dataclass
class TrainingCase:
    """A case with its best plan so far and its running reward."""

    case: Case
    best: Actions
    value: int
    reference: int
    hinted: npt.NDArray[np.int32]
    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    @cached_property
    def problem(self) -> GraphOptimization:
        return self.case.load()

    def advantages(self, rewards: Float64, decay: float, bound: float) -> Float64:
        """Rewards less the running mean, over the running deviation."""
        self.mean = decay * self.mean + (1 - decay) * float(rewards.mean())
        self.square = decay * self.square + (1 - decay) * float((rewards**2).mean())
        self.weight = decay * self.weight + 1 - decay
        mean = self.mean / self.weight
        deviation = np.sqrt(max(0.0, self.square / self.weight - mean**2))
        gain: Float64 = np.clip((rewards - mean) / (deviation + 1e-6), -bound, bound)
        return gain


@dataclass
class SizeClass:
    """Graphs of one size: on the accelerator, stacked."""

    cases: list[TrainingCase]
    graphs: Graph
    best: Actions
    batch: int

    def take(self, rows: npt.NDArray[np.int64]) -> Graph:
        graphs: Graph = _taken(self.graphs, jnp.asarray(rows))
        return graphs


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _taken(tree: Any, rows: Any) -> Any:
    return jax.tree.map(lambda part: part[rows], tree)


@dataclass
class Trainer:
    """Everything that training over many graphs needs and changes."""

    shape: Shape
    learner: Learner
    classes: list[SizeClass]
    rng: np.random.Generator
    threads: int
    samples: int = 32
    epochs: int = 2
    report: Report = print
    curve: list[dict[str, float]] = field(default_factory=list)

    def learn_hints(self, seed: int) -> None:
        """Learn which hint a graph should follow, from the measured times of all of them."""
        rows = []
        for each in self.classes:
            for row, case in enumerate(each.cases):
                times = (
                    hint_times(case.problem, case.hinted, self.threads)
                    if "placement" in case.case.tasks
                    else None
                )
                if times is not None:
                    rows.append(
                        (np.asarray(each.graphs.stats[row]), np.asarray(each.graphs.about[row]), times)
                    )
        if not rows:
            return
        network = jax.tree.map(np.asarray, self.learner.network)
        network, worse = learn_hint_choice(network, rows, self.shape, seed)
        self.learner = make_learner(network)
        self.report(f"chose among hints of {len(rows)} graphs: {worse - 1:.1%} behind the best of each")

    def imitate(self, seconds: float, rate: float, rate_end: float) -> None:
        """Steps towards the best known plans, as many as there is time for."""
        started = reported = now()
        losses, steps = [], 0
        while (passed := now() - started) < seconds:
            chosen = self._choose()
            rows = self.rng.integers(len(chosen.cases), size=chosen.batch)
            current = rate * (rate_end / rate) ** min(1.0, passed / seconds)
            actions = _taken(chosen.best, jnp.asarray(rows))
            self.learner, loss = imitate_batch(
                self.learner, chosen.take(rows), actions, make_weights(current), self.shape
            )
            losses.append(loss)
            steps += 1
            if steps % 50 == 0:
                jax.block_until_ready(loss)  # the queue must not run ahead of the clock
            if now() - reported > REPORT_SECONDS:
                reported = now()
                mean = float(jnp.stack(losses[-100:]).mean())
                self.curve.append({"seconds": passed, "steps": steps, "loss": mean})
                self.report(f"imitate {passed:.0f} s, {steps} steps, loss {mean:.4f}")

    def reinforce(
        self,
        seconds: float,
        rate: float,
        rate_end: float,
        entropy: float,
        imitation: float,
        decay: float = 0.9,
    ) -> None:
        """Updates of PPO, as many as there is time for."""
        started = reported = now()
        updates, beaten, means = 0, 0, []
        while (passed := now() - started) < seconds:
            current = rate * (rate_end / rate) ** min(1.0, passed / seconds)
            gain, better = self._update(make_weights(current, entropy, imitation), decay)
            means.append(gain)
            beaten += better
            updates += 1
            if now() - reported > REPORT_SECONDS:
                reported = now()
                mean = float(np.mean(means[-100:]))
                self.curve.append({"seconds": passed, "updates": updates, "reward": mean})
                self.report(
                    f"ppo {passed:.0f} s, {updates} updates, mean reward {mean:.4f}, {beaten} plans beaten"
                )

    def _update(self, weights: LossWeights, decay: float) -> tuple[float, int]:
        chosen = self._choose()
        rows = self.rng.integers(len(chosen.cases), size=chosen.batch)
        graphs = chosen.take(rows)
        key = jax.random.key(int(self.rng.integers(2**31)))
        actions, log_prob = _draw_batch(self.learner.network, graphs, key, self.samples, self.shape)
        host = jax.tree.map(np.asarray, actions)
        advantages, rewards, better = [], [], 0
        threads = max(1, self.threads // len(rows))

        def score(place: int) -> tuple[Actions, Scores]:
            problem = chosen.cases[int(rows[place])].problem
            drawn = Actions(*(part[place] for part in host))
            return drawn, problem.score(vectors_of(problem, drawn), threads=threads)

        with ThreadPoolExecutor(len(rows)) as pool:
            found = list(pool.map(score, range(len(rows))))
        for (drawn, scores), row in zip(found, rows.tolist(), strict=True):
            case = chosen.cases[row]
            better += self._keep(chosen, row, drawn, scores.value)
            advantages.append(case.advantages(scores.reward, decay, 5.0))
            rewards.append(float(scores.reward.mean()))
        best = _taken(chosen.best, jnp.asarray(rows))
        batch = Batch(actions, log_prob, jnp.asarray(np.stack(advantages), jnp.float32), best)
        for _ in range(self.epochs):
            self.learner, _ = learn_batch(self.learner, graphs, batch, weights, self.shape, True)
        return float(np.mean(rewards)), better

    def _keep(self, chosen: SizeClass, row: int, drawn: Actions, values: npt.NDArray[np.int64]) -> int:
        """A plan that beats the best known is imitated from now on."""
        case = chosen.cases[row]
        values = np.where(values < 0, np.iinfo(np.int64).max, values)
        first = int(values.argmin())
        if int(values[first]) >= case.value:
            return 0
        case.value = int(values[first])
        case.best = Actions(*(part[first] for part in drawn))
        chosen.best = Actions(
            *(part.at[row].set(new) for part, new in zip(chosen.best, case.best, strict=True))
        )
        return 1

    def compile(self, imitation: bool = True) -> None:
        """Everything for all sizes at once: compilers use one core each."""
        key = jax.random.key(0)

        def one(each: SizeClass) -> None:
            graphs = each.take(np.zeros(each.batch, dtype=np.int64))
            actions, log_prob = _draw_batch(self.learner.network, graphs, key, self.samples, self.shape)
            best = _taken(each.best, jnp.zeros(each.batch, dtype=jnp.int32))
            batch = Batch(actions, log_prob, jnp.zeros(log_prob.device.shape[:2]), best)
            learn_batch(self.learner, graphs, batch, make_weights(0.0), self.shape, True)

        def other(each: SizeClass) -> None:
            graphs = each.take(np.zeros(each.batch, dtype=np.int64))
            if imitation:
                best = _taken(each.best, jnp.zeros(each.batch, dtype=jnp.int32))
                imitate_batch(self.learner, graphs, best, make_weights(0.0), self.shape)
            batch_logits(self.learner.network, graphs, self.shape)

        with ThreadPoolExecutor(2 * len(self.classes)) as pool:
            waiting = [pool.submit(job, each) for each in self.classes for job in (one, other)]
            for job in waiting:
                job.result()

    def _choose(self) -> SizeClass:
        """Classes by the number of their graphs, large ones less often than that."""
        shares = np.array([len(each.cases) ** 0.7 for each in self.classes])
        return self.classes[int(self.rng.choice(len(self.classes), p=shares / shares.sum()))]


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _draw_batch(network: Any, graphs: Graph, key: Any, plans: int, shape: Shape) -> tuple[Actions, Actions]:
    logits = batch_logits(network, graphs, shape)
    keys = jax.random.split(key, len(graphs.kind))
    drawn: tuple[Actions, Actions] = jax.vmap(lambda each, k: draw(each, k, plans))(logits, keys)
    return drawn


def make_weights(rate: float, entropy: float = 0.0, imitation: float = 0.0) -> LossWeights:
    """With the clip ratio and the gradient's bound of training over many graphs."""
    return LossWeights(*(jnp.float32(x) for x in (rate, entropy, imitation, 0.2, 1.0)))


def size_classes(
    plans: Mapping[Case, KnownPlan], shape: Shape, processes: int = 1, method: str = "spawn"
) -> list[SizeClass]:
    """Cases sorted into size classes, each padded to its largest. Reading a graph takes longer than
    learning from it once, so several processes read."""
    cases = [case for case, plan in plans.items() if plan.value < UNFIT]
    with multiprocessing.get_context(method).Pool(processes) as pool:
        sizes = pool.starmap(_sizes, [(case, shape) for case in cases], chunksize=4)
        sorted_: dict[int, list[int]] = {}
        for row, (nodes, *_) in enumerate(sizes):
            number = next(
                (n for n, (most, _) in enumerate(CLASSES) if nodes <= bucket(most, shape.segment)), None
            )
            if number is not None:
                sorted_.setdefault(number, []).append(row)
        classes = []
        for number, rows in sorted(sorted_.items()):
            top = np.array([sizes[row] for row in rows]).max(axis=0)
            common = (int(top[0]), int(top[1]), int(top[2]), DEVICES)
            jobs = [(cases[row], common, plans[cases[row]].hinted) for row in rows]
            graphs = pool.starmap(_graph, jobs, chunksize=4)
            members = [(cases[row], plans[cases[row]]) for row in rows]
            classes.append(_class(members, graphs, common, CLASSES[number][1]))
    return classes


def _sizes(case: Case, shape: Shape) -> tuple[int, int, int, int]:
    return padded_sizes(case.load(), shape.segment)


def _graph(case: Case, sizes: tuple[int, int, int, int], hinted: npt.NDArray[np.int32]) -> Graph:
    return graph_of(case.load(), sizes, hinted)


def _class(
    members: Sequence[tuple[Case, KnownPlan]],
    graphs: Sequence[Graph],
    sizes: tuple[int, int, int, int],
    batch: int,
) -> SizeClass:
    plans = [padded(plan.actions, sizes[0], sizes[2]) for _, plan in members]
    stacked = Graph(*(jnp.asarray(np.stack(part)) for part in zip(*graphs, strict=True)))
    best = Actions(*(jnp.asarray(np.stack(part)) for part in zip(*plans, strict=True)))
    cases = [
        TrainingCase(case, plan.actions, plan.value, plan.reference, plan.hinted) for case, plan in members
    ]
    return SizeClass(cases, stacked, best, min(batch, len(cases)))


def evaluate_policy(
    network: Any, classes: Sequence[SizeClass], shape: Shape, threads: int
) -> list[dict[str, Any]]:
    """Zero-shot: the likeliest plan of each case against its base plan and the best known."""
    rows = []
    for each in classes:
        for first in range(0, len(each.cases), each.batch):
            at = np.minimum(np.arange(first, first + each.batch), len(each.cases) - 1)
            logits = batch_logits(network, each.take(at), shape)
            likely = [np.asarray(part.argmax(axis=-1)) for part in logits]
            for place, row in enumerate(at[: len(each.cases) - first].tolist()):
                case = each.cases[row]
                vector = vectors_of(case.problem, Actions(*(part[place] for part in likely)))
                value = int(case.problem.score(vector[None], threads=threads).value[0])
                rows.append(
                    {"case": case.case.name, "value": value, "best": case.value, "reference": case.reference}
                )
    return rows


def mean_saved(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of the base plan's time; a plan that does not fit counts as twice that time."""
    shares = [min(2.0, row["value"] / row["reference"]) if 0 <= row["value"] < UNFIT else 2.0 for row in rows]
    return 1 - float(np.mean(shares))


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

        return mean_saved(evaluate_policy(trainer.learner.network, classes, self.shape, cores()))

    def _validation_classes(self) -> list[SizeClass]:
        """The validation split, where the training split is learned from."""
        from loadmaster.graph.go.cases import cases_of, find_plans

        if self.split != "train":
            return []
        cases = cases_of("validation", VALIDATION_GRAPHS, self.seed)
        plans = find_plans(cases, plans_path(self.out), cores(), None, self.report, VALIDATION_EVALUATIONS)
        return size_classes(plans, self.shape, cores())

    def _training_classes(self, seconds: float) -> list[SizeClass]:
        from loadmaster.graph.go.cases import find_plans

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
