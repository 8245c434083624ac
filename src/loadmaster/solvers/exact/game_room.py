"""What copies under way and strands take of fast memory, step by step (see `game_linear`)."""

from __future__ import annotations

from bisect import bisect_left

from loadmaster.solvers.exact.game_variables import GameLinear, Terms
from loadmaster.solvers.exact.mapping_linear import FREE


def add_leads(game: GameLinear, tensor: int, lookback: int) -> None:
    """The room of copies in over `lookback` steps before they are needed."""
    model, sites, made = game.model, game.ties.sites[tensor], game.made(tensor)
    for number, site in enumerate(sites):
        if model.site_write[site]:
            continue
        step, after, known = int(model.site_step[site]), game.copy(site, 1), game.lead[site]
        _copied_back(game, tensor, after, step)
        for point in range(step - 1, max(made, step - 1 - lookback, -1), -1):
            lead = game.new()
            game.row([*after, (lead, -1)], 0, FREE)
            known[point], after = lead, [(lead, 1)]
            _copied_back(game, tensor, after, point)
        for earlier in sites[:number]:  # one spot at a time: it may not be fast in another
            point = int(model.site_step[earlier])
            if point in known:
                game.row([(known[point], 1), (int(game.fast[earlier]), 1)], -FREE, 1)


def _copied_back(game: GameLinear, tensor: int, copied: Terms, step: int) -> None:
    """A copy in that is issued before a step finds what was written in slow memory then."""
    made, nodes = game.made(tensor), dict(game.back[tensor])
    if made >= 0 and (step - 1 == made or step - 1 in nodes):
        write = (int(game.fast[game.ties.sites[tensor][0]]), 1)
        back = [(nodes[step - 1], -1)] if step - 1 in nodes else []
        game.row([*copied, write, *back], -FREE, 1)


def add_tails(game: GameLinear, tensor: int, write: int, near: range) -> None:
    """The room of a copy back at the steps `near` the write."""
    nodes = game.back[tensor]
    before: Terms = [(write, 1)]  # what holds it one step before: a tail has no beginning
    for step, back in nodes:
        if step not in near:
            continue
        site, gap = _at(game, tensor, step)
        if site is not None:
            held = [(int(game.fast[site]), 1)]
        else:
            tail = game.new()
            game.tail[tensor][step] = tail
            game.row([*before, (tail, -1)], 0, FREE)
            held = [(tail, 1)] + ([(int(game.stay[gap]), 1)] if gap is not None else [])
        game.row([(back, 1), (nodes[-1][1], -1), *held], 0, FREE)
        before = held


def _at(game: GameLinear, tensor: int, step: int) -> tuple[int | None, int | None]:
    """(the site at a step, the read whose gap contains the step)"""
    sites = game.ties.sites[tensor]
    steps = [int(game.model.site_step[site]) for site in sites]
    i = bisect_left(steps, step)
    if i == len(sites):
        return None, None
    return (sites[i], None) if steps[i] == step else (None, sites[i] if i else None)


def add_capacities(game: GameLinear) -> None:
    """All that is held at a step fits."""
    model = game.model
    held: list[dict[int, Terms]] = [{} for _ in range(model.steps)]  # step -> tensor -> variables
    for tensor, sites in enumerate(game.ties.sites):
        steps = [int(model.site_step[site]) for site in sites]
        for i, site in enumerate(sites):
            held[steps[i]][tensor] = [(int(game.fast[site]), 1)]
            if i:
                for step in range(steps[i - 1] + 1, steps[i]):
                    held[step].setdefault(tensor, []).append((int(game.stay[site]), 1))
            for point, lead in game.lead[site].items():
                if point not in steps:
                    held[point].setdefault(tensor, []).append((lead, 1))
        for point, tail in game.tail[tensor].items():
            held[point].setdefault(tensor, []).append((tail, 1))
    for by_tensor in held:
        places: dict[int, list[tuple[int, Terms]]] = {}
        for tensor, terms in by_tensor.items():
            places.setdefault(int(game.ties.place[tensor]), []).append((tensor, terms))
        row: Terms = []
        for members in places.values():
            size = max(int(model.tensors.size[tensor]) for tensor, _ in members)
            row += [(v, size * times) for v, times in _once(game, [terms for _, terms in members])]
        if sum(size for _, size in row) > model.capacity:
            game.row(row, -FREE, model.capacity)


def _once(game: GameLinear, members: list[Terms]) -> Terms:
    """Tensors of one place take room once: the largest of what they hold."""
    distinct = list({tuple(terms): terms for terms in members}.values())
    if len(distinct) == 1:
        return distinct[0]
    place = game.new()
    for terms in distinct:
        game.row([(place, 1), *((v, -times) for v, times in terms)], 0, FREE)
    return [(place, 1)]
