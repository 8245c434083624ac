"""Is what pip would install free of CUDA: says so by its exit status.

pip install --dry-run --quiet --report - --no-deps torch==2.13.0 | python tools/cpu_build.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from packaging.requirements import Requirement

CUDA = ("nvidia", "cuda", "triton", "pytorch-triton")


def is_cpu_build(report: Mapping[str, Any]) -> bool:
    """Whether nothing in pip's report needs CUDA's packages here; what is installed already is not in it."""
    return not any(_needs_cuda(each["metadata"]) for each in report["install"])


def _needs_cuda(metadata: Mapping[str, Any]) -> bool:
    if metadata["version"].endswith("+cpu"):
        return False
    needed = [Requirement(each) for each in metadata.get("requires_dist", [])]
    here = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    return any(each.name.startswith(CUDA) for each in here)


def main() -> int:
    try:
        return 0 if is_cpu_build(json.load(sys.stdin)) else 1
    except json.JSONDecodeError:  # pip has found nothing, and has said so
        return 1


if __name__ == "__main__":
    sys.exit(main())
