"""The section of CHANGELOG.md that a tag releases: `python tools/release_notes.py v0.1.0`.

It refuses a tag that is not the version of the package, and a version that the changelog does not have or still calls
unreleased. A release is: the version in `src/loadmaster/__init__.py`, the date in its heading, a tag.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, changelog: str, version: str) -> str:
    """The section's text; raises `ValueError` with what is wrong."""
    if tag != f"v{version}":
        raise ValueError(f"the tag is '{tag}' and the package is version {version}: tag it v{version}")
    sections = re.split(r"^## (.*)$", changelog, flags=re.M)
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if heading.split(" ")[0] == version:
            if "unreleased" in heading:
                raise ValueError(f"CHANGELOG.md still has '{heading}': put the date in its place")
            return text.strip()
    raise ValueError(f"CHANGELOG.md has no section '## {version}': add one")


def package_version(text: str) -> str:
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    if found is None:
        raise ValueError("src/loadmaster/__init__.py has no __version__")
    return found[1]


def main() -> int:
    try:
        version = package_version((ROOT / "src/loadmaster/__init__.py").read_text(encoding="utf-8"))
        print(
            notes(
                sys.argv[1] if len(sys.argv) > 1 else "",
                (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
                version,
            )
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
