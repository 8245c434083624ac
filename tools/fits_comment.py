"""What a pull request does to a model's arena, as Markdown: `fits_comment.py fits.json [base.json]`.

Both are answers of `loadmaster fits --json`; the second, of the branch that is merged into, may be missing.
`--bytes fits.json` prints the line `arena-bytes=N` alone. `action.yml` runs it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def read(path: str) -> dict[str, Any] | None:
    """The first row of an answer; None if there is none."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError):
        return None
    return rows[0] if rows else None


def main(new: str, old: str = "") -> str:
    now, before = read(new), read(old) if old else None
    if now is None:
        return "`loadmaster fits` gave no answer: see the log."
    answer = {True: "fits", False: "does **not** fit", None: "was not decided"}[now["fits"]]
    lines = [
        f"### `{Path(now['model']).name}` {answer} `{now['memory']}` of `{now['machine']}`",
        "",
        "| | this branch | base | change |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, key in (("arena, bytes", "kTensorArenaSize"), ("file, bytes", "flash_bytes")):
        theirs = None if before is None else before[key]
        change = "" if theirs is None else f"{now[key] - theirs:+,} ({now[key] / max(1, theirs) - 1:+.1%})"
        lines.append(f"| {name} | {now[key]:,} | {'' if theirs is None else f'{theirs:,}'} | {change} |")
    lines += ["", f"There are {now['capacity_bytes']:,} bytes; {now['blame']}."]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bytes"]:
        row = read(sys.argv[2])
        print(f"arena-bytes={'' if row is None else row['kTensorArenaSize']}")
    else:
        print(main(*sys.argv[1:]))
