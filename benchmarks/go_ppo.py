"""PPO on GO's choice of small changes, from a trained policy, on training graphs.

    python benchmarks/go_ppo.py --policy go.npz --iterations 30 --out ppo.npz

An action is what `ScreenedStretch` does: some thirty of a pool of changes, drawn without replacement by utilities with
Gumbel noise (Plackett-Luce). The changes of an action are tried as the search tries them; what each gained over the best
so far is its reward. The baseline is the mean over all actions from the same plan in hand. That a change does not fit is
a constraint: its price rises while such changes are more than they were at first. Ratios are clipped, and an iteration
ends its steps where the policy has moved too far (KL). Writes a policy for `go --init`; `go_validation.py` judges it.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from loadmaster.arrays import Float32, Float64, Int64
from loadmaster.graph.go.cases import make_case
from loadmaster.graph.go.scores import Network, RunView, change_features, rank, take_changes
from loadmaster.graph.go.search import GUMBEL, Go, Policy, ScreenedStretch, load_policy
from loadmaster.graph.go.training import Options, descend
from loadmaster.graph.large_neighbourhood import FIRST_HEAT, Proposer, Standing, Stretch
from loadmaster.graph.moves import Changes
from loadmaster.graph.problem import UNFIT
from loadmaster.learn.policies import read_policy, save_policy
from loadmaster.search.solver import Budget, solve

ACTIONS, STATES, PICKS = 4, 2, 32
"""Actions from a plan in hand, plans in hand of a search, changes in an action at most."""
CLIP, MOST_KL = 0.2, 0.02
PRICE_STEP = 2.0
FIRST_CASE = 5_000_000
"""Numbers that the training before has not had."""


@dataclass
class Batch:
    """Actions from one plan in hand: the pool's features [K, F], picks [A, P] in their order, and of each its reward,
    whether it did not fit, and its log_prob when it was drawn."""

    rows: Float32
    picks: Int64
    reward: Float64
    unfit: Float64
    log_prob: Float64


class Rollouts(ScreenedStretch):
    """A stretch that tries some actions from the plan in hand before it goes on as the search does."""

    batches: list[Batch]

    def draw(self, rng: np.random.Generator, standing: Standing, start: Float64) -> Changes:
        if standing.value < UNFIT and len(self.batches) < STATES:
            self.batches.append(self.try_actions(rng, standing, start))
            self.climb.start(start)
        return super().draw(rng, standing, start)

    def try_actions(self, rng: np.random.Generator, standing: Standing, start: Float64) -> Batch:
        run = RunView(self.graph, self.climb, start)
        pool = self.pool(rng, run)
        rows = change_features(run, pool)
        logits = rank(self.network, rows) / GUMBEL
        picks, rewards, unfit = [], [], []
        for _ in range(ACTIONS):
            chosen = np.argsort(-(logits + rng.gumbel(size=len(logits))), kind="stable")[:PICKS]
            order = rng.permutation(len(chosen))
            scale = standing.value / max(1, self.problem.reference_ps)
            slack = rng.exponential(size=len(chosen)) * scale * 0.3 * FIRST_HEAT
            self.climb.start(start)
            judged, accepted = self.climb.run(*take_changes(pool, chosen[order]), slack, False)
            values = self.problem.values(*judged)
            taken = np.where((accepted != 0) & (values >= 0), values, standing.value).astype(np.float64)
            best = np.minimum.accumulate(np.append(standing.value, taken))
            reward, over = np.zeros(len(chosen)), np.zeros(len(chosen))
            reward[order] = np.log(best[:-1] / np.maximum(1.0, best[1:]))
            over[order] = values >= UNFIT
            picks.append(chosen)
            rewards.append(reward)
            unfit.append(over)
        made = np.stack(picks)
        log_prob = np.stack([plackett_luce(logits, each)[0] for each in made])
        return Batch(rows, made, np.stack(rewards), np.stack(unfit), log_prob)


class Player(Go):
    """The search with a policy, whose stretches are rollouts."""

    def __init__(self, policy: Policy) -> None:
        super().__init__("none", threads=1)
        self.policy = policy
        self.batches: list[Batch] = []

    def make_stretch(self, proposer: Proposer, begun: float, budget: Budget) -> Stretch:
        assert self.policy.changes is not None
        self._stretch = Rollouts(proposer, begun, budget, self.policy.changes)
        self._stretch.batches = self.batches
        return self._stretch


def plackett_luce(logits: Float64, picks: Int64) -> tuple[Float64, Float64]:
    """(log-probabilities [P] of picks one after another, shares [P, K] of all that was left before each)"""
    weight = np.exp(logits - logits.max())
    left = np.repeat(weight[None], len(picks), axis=0)
    for number, pick in enumerate(picks[:-1].tolist()):
        left[number + 1 :, pick] = 0.0
    total = np.maximum(left.sum(axis=1, keepdims=True), 1e-300)
    return np.log(np.maximum(weight[picks], 1e-300) / total[:, 0]), left / total


def advantages(batches: list[Batch], price: float) -> list[Float64]:
    """[A, P] of each: rewards less the price of what does not fit, over the mean of all from the same plan in hand."""
    scale = np.std(np.concatenate([each.reward.ravel() for each in batches])) + 1e-9
    found = [each.reward / scale - price * each.unfit for each in batches]
    return [each - each.mean() for each in found]


def update(
    network: Network, batches: list[Batch], price: float, options: Options, seed: int
) -> tuple[Network, list[float]]:
    """(the network after an iteration's steps of the clipped surrogate, how far each step's batch had moved)"""
    rng, advantage, moved = np.random.default_rng([seed, 8]), advantages(batches, price), list[float]()

    def draw() -> tuple[Float32, object]:
        some = rng.choice(len(batches), size=min(16, len(batches)), replace=False).tolist()
        cuts = np.cumsum([0, *(len(batches[each].rows) for each in some)])

        def error(out: Float32) -> Float32:
            logit, gain = out.astype(np.float64).T
            utility = -np.logaddexp(0.0, -logit) + np.log(np.maximum(gain, 0.0) + 0.02)  # as `rank` has it
            by_logits, kl = np.zeros(len(out)), []
            for at, number in enumerate(some):
                own, batch = slice(cuts[at], cuts[at + 1]), batches[number]
                for picks, before, wanted in zip(batch.picks, batch.log_prob, advantage[number], strict=True):
                    log_prob, share = plackett_luce(utility[own] / GUMBEL, picks)
                    ratio = np.exp(np.clip(log_prob - before, -20, 20))
                    kl.append((ratio - 1 - (log_prob - before)).mean())
                    clipped = np.where(wanted > 0, ratio > 1 + CLIP, ratio < 1 - CLIP)
                    weight = np.where(clipped, 0.0, ratio * wanted) / (len(some) * batch.picks.size)
                    by_logits[own] += weight @ share
                    np.subtract.at(by_logits[own], picks, weight)
            moved.append(float(np.mean(kl)))
            found = np.zeros_like(out)
            if max(moved) <= MOST_KL:
                found[:, 0] = by_logits / GUMBEL / (1 + np.exp(np.clip(logit, -30, 30)))
                found[:, 1] = np.where(gain > 0, by_logits / GUMBEL / (np.maximum(gain, 0.0) + 0.02), 0.0)
            return found

        return np.concatenate([batches[each].rows for each in some]), error

    return descend(network, draw, options, None), moved  # type: ignore[arg-type]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--policy", default="pretrained:ranker")
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--graphs", type=int, default=48, help="an iteration")
    parser.add_argument("--steps", type=int, default=8, help="an iteration")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--seed", type=int, default=3, help="of the graphs")
    parser.add_argument("--out", type=Path, default=Path("ppo.npz"))
    arguments = parser.parse_args()
    policy = load_policy(arguments.policy)
    _, header = read_policy(arguments.policy, "go")
    options = Options(steps=arguments.steps, learning_rate=arguments.learning_rate, decay=0.0)
    price, allowed = 0.0, None
    for iteration in range(arguments.iterations):
        batches: list[Batch] = []
        for number in range(arguments.graphs):
            case = FIRST_CASE + iteration * arguments.graphs + number
            player = Player(policy)
            solve(player, make_case(case, arguments.seed), Budget(192), case)
            batches += player.batches
        unfit = float(np.mean(np.concatenate([each.unfit.ravel() for each in batches])))
        allowed = unfit if allowed is None else allowed
        price = max(0.0, price + PRICE_STEP * (unfit - allowed))
        assert policy.changes is not None
        changes, moved = update(policy.changes, batches, price, options, iteration)
        policy = replace(policy, changes=changes)
        gained = float(np.mean([each.reward.sum(axis=1).mean() for each in batches]))
        steps = sum(each <= MOST_KL for each in moved)
        print(
            f"{iteration}: {len(batches)} plans, gain {gained:.5f}, unfit {unfit:.4f}, price {price:.3f}, "
            f"{steps} steps, KL {max(moved):.4f}",
            flush=True,
        )
        save_policy(
            arguments.out,
            policy.arrays(),
            {**header, "ppo": vars(arguments) | {"out": "", "done": iteration + 1}},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
