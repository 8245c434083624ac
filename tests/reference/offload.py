"""The slow, obvious way to repair gaps and to time copies of an offload plan, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from loadmaster.offload.model import BEFORE_USE, BETWEEN, OffloadModel
from loadmaster.offload.residencies import FETCHED, SMALL, Residencies


def uses(model: OffloadModel, item: int) -> list[tuple[int, int]]:
    """(step, gap before it or -1)"""
    rows = range(int(model.use_start[item]), int(model.use_start[item + 1]))
    return [(int(model.use_step[row]), int(model.use_gap[row])) for row in rows]


def is_held(model: OffloadModel, keep: list[bool], item: int) -> bool:
    return bool(model.persistent[item]) and keep[int(model.first_gap[item])]


def there(model: OffloadModel, keep: list[bool], item: int) -> set[int]:
    """The steps at which an item is in fast memory, copies left out."""
    if is_held(model, keep, item):
        return set(range(model.steps))
    own = uses(model, item)
    found = {own[0][0]}
    left = False
    for (before, _), (step, gap) in pairwise(own):
        residencies = gap < 0 or keep[gap]
        found |= set(range(before, step + 1)) if residencies else {step}
        left |= not residencies
    after = int(model.end_gap[item])
    if model.output[item] and not left and (after < 0 or keep[after]):
        found |= set(range(own[-1][0], model.steps))
    return found


def room(model: OffloadModel, keep: list[bool]) -> list[int]:
    """[S] bytes"""
    total = [0] * model.steps
    for item in range(model.items):
        for step in there(model, keep, item):
            total[step] += int(model.size[item])
    return total


def settled(model: OffloadModel, keep: list[bool]) -> list[bool]:
    kept = list(keep)
    for gap in range(model.gaps):
        kept[gap] |= is_held(model, keep, int(model.gap_item[gap]))
    for gap in range(model.gaps):
        end = int(model.end_gap[model.gap_item[gap]])
        if model.gap_kind[gap] == BETWEEN and not kept[gap] and end >= 0:
            kept[end] = False
    return kept


def repaired(model: OffloadModel, keep: list[bool], capacity: int) -> list[bool]:
    """One gap after the other, at the first step that is too full, the one used again last; tiny ones only where
    there are no others."""
    kept = settled(model, keep)
    clock = model.clock.tolist()
    free = {gap for gap in range(model.gaps) if kept[gap]}
    for step in range(model.steps):
        while room(model, kept)[step] > capacity:
            ranked = []
            for gap in free:
                item = int(model.gap_item[gap])
                if model.gap_kind[gap] == BEFORE_USE:
                    own = [use for use, _ in uses(model, item)]
                    if step in own:
                        continue
                    later = [use for use in own if use > step]
                    again = clock[later[0]] if later else clock[-1] + clock[own[0]]
                elif is_held(model, kept, item) or not model.gap_from[gap] < step < model.gap_to[gap]:
                    continue
                else:
                    end = int(model.gap_to[gap])
                    again = 2 * clock[-1] if end == model.steps else clock[end]
                size = int(model.size[item])
                ranked.append((size <= capacity // SMALL, -again, -size, gap))
            if not ranked:
                break
            gap = min(ranked)[3]
            kept[gap] = False
            free.remove(gap)
    return settled(model, kept)


@dataclass
class Timed:
    first: int
    last: int
    issued: int = -1
    out_needed: int = -1
    earliest: int = -1


def scheduled(model: OffloadModel, residencies: Residencies, capacity: int, lead: int) -> list[Timed]:
    """Copies out, then copies in, each step looked at by itself."""
    clock, steps = model.clock.tolist(), model.steps
    item = residencies.item.tolist()
    first, last = residencies.first.tolist(), residencies.last.tolist()
    timed = [
        Timed(a, b, earliest=e) for a, b, e in zip(first, last, residencies.earliest.tolist(), strict=True)
    ]
    size = [int(model.size[i]) for i in item]
    total = [0] * steps
    for row in range(len(item)):
        for step in range(first[row], last[row] + 1):
            total[step] += size[row]
    free_at = delay = 0
    leaving = [row for row in range(len(item)) if residencies.leaves[row]]
    for row in sorted(leaving, key=lambda row: int(model.made[item[row]])):
        made = int(model.made[item[row]])
        free_at = max(free_at, clock[made + 1] + delay) + int(model.copy_out[item[row]])
        again = row + 1 < len(item) and item[row + 1] == item[row]
        until = last[row] + 1
        while (
            until < steps
            and clock[until] < free_at - delay
            and not (again and until >= first[row + 1] - 1)
            and total[until] + size[row] <= capacity
        ):
            total[until] += size[row]
            until += 1
        if until < steps:
            delay = max(delay, free_at - clock[until])
        timed[row].last, timed[row].out_needed = until - 1, until
    for row in range(1, len(item)):
        if item[row] == item[row - 1]:
            timed[row].earliest = max(timed[row].earliest, timed[row - 1].last + 1)
    fetched = [row for row in range(len(item)) if residencies.begins[row] == FETCHED]
    fetched.sort(key=lambda row: first[row])
    latest = latest_issues(model, item, first, fetched, lead)
    turn = -1
    for row in fetched:
        wanted = max([-1] + [s for s in range(steps) if clock[s + 1] <= latest[row]])
        wanted = max(min(max(wanted, timed[row].earliest), first[row] - 1), turn)
        issued = first[row] - 1
        while issued > wanted and total[issued] + size[row] <= capacity:
            total[issued] += size[row]
            issued -= 1
        timed[row].issued, timed[row].first = issued, issued + 1
        turn = issued
    return timed


def latest_issues(
    model: OffloadModel, item: list[int], first: list[int], fetched: list[int], lead: int
) -> dict[int, int]:
    """When each copy in, one after the other, must be issued so that none is late."""
    clock = model.clock.tolist()
    due, latest = clock[-1], {}
    for row in reversed(fetched):
        due = min(due, clock[first[row]]) - int(model.copy_in[item[row]])
        latest[row] = due - lead
    return latest
