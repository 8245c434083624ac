"""Stable-Baselines3 on the malloc game: MaskablePPO learns which copies of tensors into a TPU's fast memory pay.

    pip install 'loadmaster[agents]' sb3-contrib
    python examples/train_stable_baselines3.py          # under a minute of one core

One network learns on one program; what it learned stands beside random legal moves, one-line greedy play,
XLA's algorithm and a bound that no plan can beat. `--steps`, `--model` and `--machine` change what is learned on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

import loadmaster as lm
from loadmaster.errors import require

if TYPE_CHECKING:
    import gymnasium

SEEN = ["current", "globals"]
"""Enough for a small network; `grid`, `series`, `ahead` and `back` are for larger ones."""


def make(model: str, machine: str) -> gymnasium.Env:
    """The game, of which a few parts are seen."""
    gymnasium = require("gymnasium", "agents")  # or the line that installs it
    env = gymnasium.make("loadmaster.envs:Loadmaster/MallocGame-v0", model=model, machine=machine)
    return gymnasium.wrappers.FilterObservation(env, SEEN)


def play(env: gymnasium.Env, choose: Callable[[dict[str, np.ndarray], np.ndarray], int]) -> float:
    """One game; the simulated milliseconds of its plan."""
    seen, _ = env.reset()
    while True:
        move = choose(seen, env.unwrapped.action_masks())
        seen, _, ended, _, info = env.step(move)
        if ended:
            return 1e3 * info["time_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="alexnet-train")
    parser.add_argument("--machine", default="tpu-v4i")
    parser.add_argument("--steps", type=int, default=6_144, help="moves that are learned from")
    parser.add_argument("--games", type=int, default=8, help="of random moves, and of the policy")
    args = parser.parse_args()
    try:
        from sb3_contrib import MaskablePPO
    except ImportError:
        raise SystemExit("Stable-Baselines3 is not installed: pip install sb3-contrib") from None

    env = make(args.model, args.machine)
    problem, rng = env.unwrapped.problem, np.random.default_rng(0)
    randomly = [play(env, lambda seen, mask: rng.choice(np.flatnonzero(mask))) for _ in range(args.games)]
    # The first legal of NoCopy, Copy, Drop: what is made in fast memory stays there while there is room.
    greedy = play(env, lambda seen, mask: next(move for move in (1, 0, 2) if mask[move]))

    agent = MaskablePPO(
        "MultiInputPolicy", env, n_steps=512, batch_size=256, gamma=1.0, ent_coef=0.01, seed=0, device="cpu"
    )
    untrained = play(
        env, lambda seen, mask: int(agent.predict(seen, action_masks=mask, deterministic=True)[0])
    )
    agent.learn(args.steps)
    learned = play(env, lambda seen, mask: int(agent.predict(seen, action_masks=mask, deterministic=True)[0]))
    sampled = [
        play(env, lambda seen, mask: int(agent.predict(seen, action_masks=mask)[0]))
        for _ in range(args.games)
    ]

    print(f"{args.model} on {args.machine}, {problem.moves} moves a game, simulated milliseconds")
    rows = {
        "everything in slow memory": problem.all_slow_ps / 1e9,
        f"random legal moves, mean of {args.games} games": float(np.mean(randomly)),
        f"random legal moves, best of {args.games} games": min(randomly),
        "greedy, one line": greedy,
        "the network untrained, likeliest moves": untrained,
        f"MaskablePPO after {agent.num_timesteps:,} moves, likeliest moves": learned,
        f"MaskablePPO, best of {args.games} sampled games": min(sampled),
    }
    for solver in ("msa", "msa-order"):
        found = lm.solve(problem, solver, evaluations=150)
        assert found.value is not None  # everything in slow memory is a plan
        rows[f"solver {solver}, {found.evaluations} evaluations"] = found.value / 1e9
    rows[f"bound ({problem.bound().method})"] = problem.bound().value / 1e9
    for name, value in rows.items():
        print(f"  {name:62} {value:8.4f}")


if __name__ == "__main__":
    main()
