"""Which builds of PyTorch `make test` may install."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tools import cpu_build


def report(version: str, *needed: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"version": version, "requires_dist": list(needed)}}]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (report("2.13.0+cpu", "sympy"), True),
        (report("2.13.0", "sympy", 'nvidia-cublas; sys_platform == "no such"'), True),
        (report("2.13.0", 'nvidia-cublas; extra == "cuda"'), True),
        (report("2.13.0", "nvidia-cublas==13.0"), False),
        (report("2.13.0", "triton==3.5; python_version >= '3'"), False),
        (report("2.13.0+cu130", "cuda-bindings"), False),
        ({"install": []}, True),
    ],
)
def test_builds_that_need_cuda_are_told_from_others(
    found: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cpu_build.is_cpu_build(found) is expected
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(found)))
    assert cpu_build.main() == (0 if expected else 1)


def test_no_report_is_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cpu_build.main() == 1
