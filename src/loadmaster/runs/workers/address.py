"""Where workers are: what `--workers` says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from loadmaster.errors import LoadmasterError

MOST = 4096
FORMS = "local:N, ray:N, ray:HOST:PORT or ray://HOST:PORT"


@dataclass(frozen=True)
class Address:
    """`kind` is 'local' (processes of this computer) or 'ray'."""

    kind: str
    workers: int | None = None
    """None: as many as the cluster has room for."""
    cluster: str | None = None
    """None: a cluster on this computer, for this run."""
    resource: str | None = None
    """What a worker takes one of, by Ray's name for it; None: a CPU."""


def parse_workers(text: str) -> Address:
    """`FORMS`; the last two may end in '?workers=4&resource=board'."""
    where, _, options = text.partition("?")
    if found := re.fullmatch(r"(local|ray):([0-9]{1,6})", where):
        if not 1 <= int(found[2]) <= MOST or options:
            raise _wrong(text)
        return Address(found[1], int(found[2]))
    if not (found := re.fullmatch(r"(ray://|ray:)(auto|\[[0-9a-fA-F:]+\]:[0-9]+|[\w.-]+:[0-9]+)", where)):
        raise _wrong(text)
    if found[1] == "ray://" and found[2] == "auto":
        raise _wrong(text)
    given = dict(parse_qsl(options, keep_blank_values=True))
    workers, resource = given.pop("workers", None), given.pop("resource", None)
    if given or resource == "" or (options and workers is None and resource is None):
        raise _wrong(text)
    if workers is not None and not (workers.isdecimal() and 1 <= int(workers) <= MOST):
        raise _wrong(text)
    cluster = where if found[1] == "ray://" else found[2]
    return Address("ray", None if workers is None else int(workers), cluster, resource)


def _wrong(text: str) -> LoadmasterError:
    return LoadmasterError(
        f"'{text}' says not where the workers are",
        object="--workers",
        number=text,
        remedy=f"write {FORMS}, with N from 1 to {MOST:,}",
    )
