"""A learning loop of your own on a Gymnasium environment, in NumPy: the cross-entropy method gives every tensor
of ResNet-50 a memory.

    pip install 'loadmaster[agents]'
    python examples/own_loop.py                        # seconds

It sees rewards alone: a probability of each memory for each tensor, drawn from, moved towards the best tenth. Beside
what it learned stand random maps from as many evaluations, our stand-in for a compiler, greedy by density (which
reads the machine) and a proven bound.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import loadmaster as lm
from loadmaster.errors import require

if TYPE_CHECKING:
    import gymnasium

Floats = npt.NDArray[np.float64]


def draw(rng: np.random.Generator, probability: Floats) -> npt.NDArray[np.int64]:
    """A memory for each entry, by its own probabilities."""
    return (rng.random((len(probability), 1)) > probability.cumsum(axis=1)[:, :-1]).sum(axis=1)


def best_of(env: gymnasium.Env, maps: list[npt.NDArray[np.int64]]) -> tuple[Floats, float]:
    """The rewards of maps, and the microseconds of the best that fits."""
    rewards, times = [], []
    for each in maps:
        env.reset()
        _, reward, _, _, info = env.step(each)
        rewards.append(reward)
        times.append(1e6 * info["time_s"] if info["speedup"] else np.inf)
    return np.array(rewards), min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--machine", default="nnp-i-half")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--maps", type=int, default=100, help="of each round; the best tenth is learned from")
    parser.add_argument("--rate", type=float, default=0.3, help="how far towards the best maps")
    args = parser.parse_args()

    gymnasium = require("gymnasium", "agents")  # or the line that installs it
    env = gymnasium.make("loadmaster.envs:Loadmaster/Mapping-v0", model=args.model, machine=args.machine)
    problem, rng = env.unwrapped.problem, np.random.default_rng(0)
    seen, _ = env.reset(seed=0)
    entries, memories = len(seen["action_mask"]), len(problem.memories)
    # Hardly a map fits if all memories are as likely: begin where slower, larger ones are likelier.
    start = np.tile(np.arange(1, memories + 1) / np.arange(1, memories + 1).sum(), (entries, 1))
    probability = start.copy()
    learned, curve = np.inf, []
    for _ in range(args.rounds):
        maps = [draw(rng, probability) for _ in range(args.maps)]
        rewards, time = best_of(env, maps)
        elite = np.stack(maps)[np.argsort(rewards)[-max(1, args.maps // 10) :]]
        share = (elite[:, :, None] == np.arange(memories)).mean(axis=0)
        probability += args.rate * (share - probability)
        learned = min(learned, time)
        curve.append(learned)
    _, randomly = best_of(env, [draw(rng, start) for _ in range(args.rounds * args.maps)])

    evaluations = args.rounds * args.maps
    print(f"{args.model} on {args.machine}, {int(seen['action_mask'].sum())} tensors, simulated microseconds")
    rows = {
        f"random maps, drawn as the first ones, best of {evaluations:,}": randomly,
        f"cross-entropy after {args.maps:,} maps": curve[0],
        f"cross-entropy after {args.maps * (args.rounds // 2):,} maps": curve[args.rounds // 2 - 1],
        f"cross-entropy after {evaluations:,} maps": learned,
        "compiler stand-in (reads the machine)": problem.compiler_ps / 1e6,
    }
    for solver in ("density", "egrl"):
        found = lm.solve(problem, solver, evaluations=200)
        assert found.value is not None  # everything in the slowest memory is a map that fits
        rows[f"solver {solver}, {found.evaluations} evaluations (reads the machine)"] = found.value / 1e6
    rows[f"bound ({problem.bound().method})"] = problem.bound().value / 1e6
    for name, value in rows.items():
        print(f"  {name:60} {value:9.3f}")


if __name__ == "__main__":
    main()
