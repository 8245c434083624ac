"""Progress on standard error: plain lines, none with `--quiet`."""

from __future__ import annotations

import sys

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Whether `say` is silent from now on."""
    global _quiet
    _quiet = quiet


def say(text: str) -> None:
    """One line of progress."""
    if not _quiet:
        print(text, file=sys.stderr, flush=True)
