"""Plans as JSON, for programs and machines that stay as they are."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from generate import random_case
from loadmaster.machine import Machine
from loadmaster.plan import load_planned, plan_to_json
from loadmaster.program import Program

from . import mutate
from .use import use_plan

_CASES = 8


@cache
def _case(number: int) -> tuple[Program, Machine, bytes]:
    program, machine, plan = random_case(np.random.default_rng(number), max_ops=8, valid_only=True)
    return program, machine, plan_to_json(plan, program, machine).encode()


def seeds(place: Path) -> list[bytes]:
    """The first byte names the program and machine that a plan is for."""
    return [bytes([65 + number]) + _case(number)[2] for number in range(_CASES)]


def changed(rng: Random, data: bytes) -> bytes:
    head, text = data[:1], data[1:]
    kind = rng.random()
    if kind < 0.05:
        return head + mutate.octets(rng, text)
    if kind < 0.12:
        return head + mutate.encoded(
            rng, mutate.lines(rng, text.decode(), tokens=("null", "1e400", "NaN", "-0.0"))
        )
    document = json.loads(text)
    columns = [
        key for key in ("device", "order", "fusion", "priority") if isinstance(document.get(key), list)
    ]
    if columns and kind < 0.4:  # what decides most is changed most
        key = rng.choice(columns)
        document[key] = mutate.tree(rng, document[key])
    elif kind < 0.6:
        for key in ("residencies", "copies", "transfers"):
            if document.get(key):
                document[key] = mutate.tree(rng, document[key], times=rng.choice((1, 2, 4)))
    else:
        document = mutate.tree(rng, document)
    if rng.random() < 0.8 and isinstance(document, dict):  # else the hashes would refuse nearly all
        document.update({key: json.loads(text)[key] for key in ("loadmaster_plan", "program", "machine")})
    return head + json.dumps(document).encode()


def read(data: bytes, place: Path) -> None:
    program, machine, _ = _case((data[0] - 65) % _CASES if data else 0)
    path = place / "plan.json"
    path.write_bytes(data[1:])
    program, plan = load_planned(path, program, machine)
    use_plan(program, machine, plan)
