"""What kernels take of fast memory beside the tensors of a program: a plan leaves them their room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.offload.model import Int32, Int64

GRAIN = 512
SLACK = 2 * 2**20
"""Bytes that an op that takes some may take beside them."""
SPARE = 16 * 2**20
"""Bytes beside what was measured, for all that is not modelled."""
LIBRARIES = 36 * 2**20
"""What libraries keep on an H200 for a stream, at the least: a plan's stream has its own."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """What kernels take beside the tensors of a program."""

    workspace: Int64
    """[n_ops] bytes while an op runs"""
    kept: int = 0
    """Bytes that libraries keep"""
    spare: int = 0
    """Bytes beside what was measured"""

    def room(self, ops: Int32) -> Int64:
        """Bytes for themselves while ops run: pieces of it are rounded up and come and go in some order."""
        own = self.workspace[ops]
        found: Int64 = np.where(own > 0, -(-own // GRAIN) * GRAIN + SLACK, 0)
        return found

    def as_json(self) -> dict[str, Any]:
        some = np.flatnonzero(self.workspace)
        return {
            "workspace": [some.tolist(), self.workspace[some].tolist()],
            "kept": self.kept,
            "spare": self.spare,
        }

    @classmethod
    def of_json(cls, about: dict[str, Any], ops: int) -> Kernels:
        """The inverse of `as_json`."""
        workspace = np.zeros(ops, dtype=np.int64)
        workspace[np.array(about["workspace"][0], dtype=np.int64)] = about["workspace"][1]
        return cls(workspace, about["kept"], about.get("spare", 0))


def unmeasured_kernels(ops: int) -> Kernels:
    """Of a GPU on which nothing was measured: libraries keep what they do, and ops get nothing for themselves."""
    return Kernels(np.zeros(ops, dtype=np.int64), LIBRARIES, SPARE)


def measured_kernels(op_workspace: Sequence[int], kept: int) -> Kernels | None:
    """What was measured of kernels; None on a device whose memory is one arena: there they take nothing."""
    own = np.array(op_workspace, dtype=np.int64)
    return Kernels(own, max(kept, LIBRARIES), SPARE) if kept or own.any() else None
