"""Documents without what changes by itself, and the differences of two."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

CLOCKS = {"took_seconds", "seconds", "search_seconds", "started", "created", "load"}
"""Times that something took. What a plan takes is there in picoseconds too."""
ELSEWHERE = {"loadmaster", "versions", "host"}
LONG_LIST, LONG_TEXT = 60, 300
_DATE = re.compile(r"\d{8}-\d{6}")


def normal(value: Any, folder: str = "") -> Any:
    """Without clocks, versions, hosts, dates and the name of a folder; what is long becomes a hash."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in CLOCKS | ELSEWHERE}
        if value.get("unit") in ("s", "ms", "us", "1/s") or str(value.get("unit", "")).endswith("/s"):
            kept = {key: each for key, each in kept.items() if key not in ("value", "gap", "status", "extra")}
        return {key: normal(each, folder) for key, each in kept.items()}
    if isinstance(value, list):
        made = [normal(each, folder) for each in value]
        return {"long": len(made), "hash": hashed(made)} if len(made) > LONG_LIST else made
    if isinstance(value, str):
        text = _DATE.sub("DATE", value.replace(folder, "FOLDER") if folder else value)
        return {"long": len(text), "hash": hashed(text)} if len(text) > LONG_TEXT else text
    return value


def hashed(value: Any) -> str:
    """Of anything that is JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def differences(before: Any, now: Any, relative: float = 1e-9, where: str = "") -> list[str]:
    """One line for each place where two documents differ; numbers may by a share."""
    here = where or "all of it"
    if isinstance(before, dict) and isinstance(now, dict):
        lines = [f"{where}.{key}: is gone" for key in before.keys() - now.keys()]
        lines += [f"{where}.{key}: is new" for key in now.keys() - before.keys()]
        for key in before.keys() & now.keys():
            lines += differences(before[key], now[key], relative, f"{where}.{key}")
        return sorted(lines)
    if isinstance(before, list) and isinstance(now, list):
        lines = [] if len(before) == len(now) else [f"{here}: {len(before)} entries are now {len(now)}"]
        for i, (one, other) in enumerate(zip(before, now, strict=False)):
            lines += differences(one, other, relative, f"{where}[{i}]")
        return lines
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (before, now))
    if numbers and isinstance(before, float | int) and (isinstance(before, float) or isinstance(now, float)):
        same = math.isclose(before, now, rel_tol=relative, abs_tol=relative * 1e-2)
    else:
        same = before == now and isinstance(before, bool) == isinstance(now, bool)
    return [] if same else [f"{here}: was {before!r}, is {now!r}"]
