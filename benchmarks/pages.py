"""Results in a page: between two marks, made by a script and never typed."""

from __future__ import annotations

import sys
from pathlib import Path


def rewrite(page: Path, begin: str, end: str, made: str) -> int:
    """Put what was made between the marks; with --check on the command line, only say whether it is there.
    The exit code."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(begin, 1)
    _, after = rest.split(end, 1)
    new = f"{before}{begin}\n{made}\n{end}{after}"
    if "--check" in sys.argv[1:]:
        print("up to date" if new == text else f"{page.name} is out of date")
        return int(new != text)
    page.write_text(new, encoding="utf-8")
    return 0
