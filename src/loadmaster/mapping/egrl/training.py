"""Training EGRL on several programs, and what a trained policy decides for others as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Mapping as Options
from pathlib import Path
from typing import Any

from loadmaster.arrays import Int8
from loadmaster.learn.policies import save_policy
from loadmaster.learn.session import Unfinished, policy_header, require_agents
from loadmaster.mapping.problem import Mapping
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve

EVALUATIONS = 4000
"""Maps evaluated on each program by default."""


def train(
    problems: Iterable[tuple[str, Mapping]],
    *,
    out: Path,
    agent: str = "egrl",
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    options: Options[str, Any] | None = None,
    init: str | None = None,
    run_solver: Callable[..., Solution] = solve,
) -> list[dict[str, Any]]:
    """Train one policy on problems one after the other, each from the policy that the last one left.

    Args:
      problems: (name, problem) pairs; each is made when its turn comes.
      out: where the policy is written after every problem.
      agent: 'egrl', or 'pg', its gradient learner alone.
      evaluations: maps to evaluate on each problem.
      seed: the same seed gives the same policy.
      options: of the solver.
      init: a policy to start from: 'pretrained:bert', or a file of an earlier training.
      run_solver: called as `solve(solver, problem, budget, seed)`; one that writes run folders may stand here.

    Returns:
      A row for each problem: its best map's time, the compiler's, the gap to the bound, evaluations.
    """
    require_agents("jax", "equinox", "optax")
    options = dict(options or {})
    rows: list[dict[str, Any]] = []
    for name, problem in problems:
        solver = make_labelled("mapping", agent, options | ({} if init is None else {"init": init}))
        solution = run_solver(solver, problem, Budget(evaluations), seed)
        if solution.policy is None:
            raise Unfinished(
                f"training on '{problem.program.name}' ended before there was a policy",
                object=problem.program.name,
                remedy="let it run longer",
            )
        rows.append(_training_row(name, problem, solution))
        memories = [problem.machine.memories[number].name for number in problem.memories]
        about = policy_header(
            agent, seed, options, memories=memories, trained_on=[_kept(row) for row in rows]
        )
        save_policy(out, solution.policy, about)
        init = str(out)  # the next problem goes on from here
        if solution.interrupted:
            break
    return rows


def _training_row(name: str, problem: Mapping, solution: Solution) -> dict[str, Any]:
    value = solution.value
    return {
        "model": name,
        "machine": problem.machine.name,
        "picoseconds": value,
        "compiler_picoseconds": problem.compiler_ps,
        "speedup": None if value is None else problem.compiler_ps / value,
        "gap": solution.gap,
        "evaluations": solution.evaluations,
        "took_seconds": solution.seconds,
        "run": None if solution.run is None else str(solution.run),
    }


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("model", "machine", "evaluations", "picoseconds", "speedup", "gap")}


def transfer(policy: str, problems: Iterable[tuple[str, Mapping]], *, seed: int = 0) -> list[dict[str, Any]]:
    """One greedy pass of a policy on each problem, beside controls: no search, nothing learned.

    Args:
      policy: 'pretrained:bert', or a file of `train`.
      problems: (name, problem) pairs that it has not seen.
      seed: of the random map and the untrained network.

    Returns:
      Five rows a problem ('policy', 'untrained', 'random', 'all-slowest', 'compiler'): whether the map fits as
      it is, which share of bytes had to move to a slower memory, and the time of what then fits.
    """
    require_agents("jax", "equinox")
    from loadmaster.mapping.egrl.agent import random_map, untrained_map, zero_shot

    rows: list[dict[str, Any]] = []
    for name, problem in problems:
        maps = {
            "policy": zero_shot(policy, problem),
            "untrained": untrained_map(problem, seed),
            "random": random_map(problem, seed),
            "all-slowest": problem.all_slowest(),
            "compiler": problem.compiler,
        }
        rows += [_transfer_row(name, problem, what, decision) for what, decision in maps.items()]
    return rows


def _transfer_row(model: str, problem: Mapping, name: str, decision: Int8) -> dict[str, Any]:
    time_ps, epsilon, _ = problem.rectify(decision[None])
    value, bound = int(time_ps[0]), problem.bound()
    return {
        "model": model,
        "machine": problem.machine.name,
        "name": name,
        "white_box": name in ("all-slowest", "compiler"),
        "fits": bool(epsilon[0] == 0),
        "epsilon": float(epsilon[0]),
        "picoseconds": value,
        "seconds": value / 10**12,
        "speedup": problem.compiler_ps / value,
        "gap": value / bound.value - 1 if bound.value else None,
    }
