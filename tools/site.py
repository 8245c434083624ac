"""Lay out the pages of the documentation site as they lie in the repository, so that every link between them holds:
`python tools/site.py build/pages`, then `mkdocs build --strict` (`make docs` does both)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
FOLDERS = {
    "docs": ("*.md", "*.svg", "*.css", "images/*.png"),
    "benchmarks/results": ("*.md", "*.svg", "*.png"),
    "examples": ("*.py",),
    "reproduce": ("*.md", "*.svg"),
}


def main(out: Path) -> int:
    """Copy what the site shows; how many files that is."""
    shutil.rmtree(out, ignore_errors=True)
    files = [ROOT / name for name in PAGES]
    files += [
        file
        for folder, kinds in FOLDERS.items()
        for kind in kinds
        for file in sorted((ROOT / folder).glob(kind))
    ]
    for file in files:
        target = out / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return len(files)


if __name__ == "__main__":
    print(f"{main(Path(sys.argv[1]))} files")
