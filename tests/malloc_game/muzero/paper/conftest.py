"""Compiling takes most of the time here, and nothing here is worth a compiler's effort."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quickly(quickly_compiled: None) -> None: ...
