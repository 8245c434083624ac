"""What the agent is to reach, held against the rows: met, missed, or not measured yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from benchmarks.suites.mapping_cells import MACHINES, WORKLOADS
from benchmarks.suites.mapping_summary import BEATS, LOSES, Summary, compare, verdict

Found = Mapping[tuple[str, str], Summary]
SPEC = [f"{model}/{machine}" for machine in MACHINES for model in WORKLOADS]
RIVALS = ("ea", "pg", "ageing-evolution", "greedy-dp", "random")
MOST_GAP = {"resnet50": 0.02, "resnet101": 0.02, "bert": 0.04}
SEEDS = 5
SAME = 1e-3
"""Gaps that differ by less are the same."""
MOST_SECONDS = {"resnet50": 180.0, "bert": 900.0}


@dataclass(frozen=True)
class Target:
    """One line: the goal, what came out, and whether it was reached (None: not measured)."""

    goal: str
    result: str
    met: bool | None

    @property
    def word(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "**missed**"


def targets(found: Found) -> list[Target]:
    """All of them, in the order of the specification."""
    checks: tuple[Callable[[Found], Target], ...] = (
        _gaps,
        _never_worse,
        _often_better,
        _early,
        _seconds,
        _zero_shot,
        _as_good_as_compiler,
        _warm,
    )
    return [check(found) for check in checks]


def _gaps(found: Found) -> Target:
    goal = "mean gap within 2 % on the ResNets and 4 % on BERT, in all nine cells"
    gaps = {case: found[case, "egrl"].gap for case in SPEC if (case, "egrl") in found}
    over = [case for case, gap in gaps.items() if gap > MOST_GAP[case.split("/")[0]]]
    if len(gaps) < len(SPEC):
        return Target(goal, f"{len(gaps)} of {len(SPEC)} cells measured", None if not over else False)
    worst = max(gaps, key=lambda case: gaps[case])
    text = f"largest {gaps[worst]:.2%} (`{worst}`)"
    few = [case for case in gaps if len(found[case, "egrl"].rows) < SEEDS]
    text += "".join(f", over in `{case}`" for case in over) + "".join(
        f", too few seeds in `{case}`" for case in few
    )
    return Target(goal, text, False if over else None if few else True)


def _never_worse(found: Found) -> Target:
    goal = f"not worse than {', '.join(RIVALS)} in any of the nine cells"
    versus = [compare(found, "egrl", rival, SPEC) for rival in RIVALS]
    lost = [
        f"`{rival.other}` in `{case}`"
        for rival in versus
        for case, word in rival.verdicts.items()
        if word == LOSES
    ]
    whole = all(len(each.verdicts) == len(SPEC) for each in versus)
    return Target(
        goal,
        "worse than " + ", ".join(lost) if lost else "nowhere worse",
        not lost if whole or lost else None,
    )


def _often_better(found: Found) -> Target:
    goal = "better than each of them in at least three"
    counts = {rival: compare(found, "egrl", rival, SPEC) for rival in RIVALS}
    text = ", ".join(f"{rival} {each.count(BEATS)}" for rival, each in counts.items())
    whole = all(len(each.verdicts) == len(SPEC) for each in counts.values())
    return Target(goal, text, all(each.count(BEATS) >= 3 for each in counts.values()) if whole else None)


def _early(found: Found) -> Target:
    goal = "95 % of the gain in at most half of EA's evaluations"
    ratios = {}
    for case in SPEC:
        pair = [
            found[case, s].median("to_95pct_of_gain") if (case, s) in found else None for s in ("egrl", "ea")
        ]
        if pair[0] is not None and pair[1]:
            ratios[case] = pair[0] / pair[1]
    if not ratios:
        return Target(goal, "–", None)
    reached = sum(ratio <= 0.5 for ratio in ratios.values())
    mean = sum(ratios.values()) / len(ratios)
    return Target(goal, f"in {reached} of {len(ratios)} cells; mean ratio {mean:.2f}", reached == len(ratios))


def _seconds(found: Found) -> Target:
    goal = "ResNet-50 under 3 minutes and BERT under 15, on 2 cores"
    took = {
        model: max(
            (
                fmean(row["seconds"] for row in found[case, "egrl"].on_cpu)
                for case in SPEC
                if case.startswith(f"{model}/") and (case, "egrl") in found and found[case, "egrl"].on_cpu
            ),
            default=None,
        )
        for model in MOST_SECONDS
    }
    known = {model: seconds for model, seconds in took.items() if seconds is not None}
    text = ", ".join(f"{model} {seconds:.0f} s" for model, seconds in known.items()) or "–"
    met = all(seconds < MOST_SECONDS[model] for model, seconds in known.items())
    return Target(goal, text, met if len(known) == len(MOST_SECONDS) else None)


def _transferred(found: Found, model: str) -> list[Summary]:
    return [summary for (case, _), summary in found.items() if case == f"transfer/bert/{model}"]


def _zero_shot(found: Found) -> Target:
    goal = "a policy trained on BERT beats all-slowest and random maps on both ResNets"
    words = []
    for model in ("resnet50", "resnet101"):
        own, random = _transferred(found, model), found.get((f"transfer/none/{model}", "random"))
        if not own or random is None:
            return Target(goal, "–", None)
        best = min(own, key=lambda summary: summary.mean)
        slowest = best.rows[0]["extra"]["all_slowest"]
        words.append((verdict(best.times, random.times) == BEATS and best.mean < slowest, model, best))
    text = ", ".join(f"{model} {best.speedup:.3f} × compiler ({best.solver})" for _, model, best in words)
    return Target(goal, text, all(word[0] for word in words))


def _as_good_as_compiler(found: Found) -> Target:
    goal = "its best checkpoint is at least as good as the compiler"
    best = {}
    for model in ("resnet50", "resnet101"):
        times = [(min(s.times), s.baseline) for s in _transferred(found, model)]
        if not times:
            return Target(goal, "–", None)
        best[model] = max(baseline / time for time, baseline in times)
    text = ", ".join(f"{model} {speedup:.3f} ×" for model, speedup in best.items())
    return Target(goal, f"{text} (best seed and checkpoint)", all(s >= 1 for s in best.values()))


def _warm(found: Found) -> Target:
    goal = "200 evaluations of fine-tuning reach what 2,000 reach from scratch"
    words = {}
    for model in WORKLOADS:
        warm, cold = (found.get((f"{case}", "egrl")) for case in (f"warm/{model}/200", f"cold/{model}/2000"))
        if warm is not None and cold is not None:
            words[model] = (warm.gap <= cold.gap + SAME, warm.gap, cold.gap)
    text = ", ".join(f"{model} gap {warm:.2%} against {cold:.2%}" for model, (_, warm, cold) in words.items())
    return Target(goal, text or "–", all(word[0] for word in words.values()) if words else None)
