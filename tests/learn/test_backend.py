"""NumPy and JAX do the same, and padding grows in steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loadmaster.learn.backend import JaxBackend, NumpyBackend, bucket, pad_rows, softmax


@pytest.mark.parametrize("threads", [1, 2])
def test_both_backends_reduce_segments_and_work_in_blocks_alike(threads: int) -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    values = rng.random((12, 3)).astype(np.float32)
    segment = np.array([0, 0, 1, 1, 1, 3, 3, 3, 3, 5, 6, 6], dtype=np.int32)  # 6: padding
    ours, other = NumpyBackend(threads), JaxBackend()

    def work(a: Any, b: Any) -> Any:
        return a * 2 + b

    for name in ("segment_max", "segment_sum"):
        found = getattr(ours, name)(values, segment, 6)
        assert found.shape == (6, 3) and not found[[2, 4]].any()
        assert np.allclose(found, getattr(other, name)(values, segment, 6))
    assert np.allclose(ours.blocks(work, (values, values)), other.blocks(work, (values, values)))


def test_padded_sizes_grow_by_a_quarter_in_whole_steps() -> None:
    sizes = sorted({bucket(count, 16) for count in range(1, 2_000)})
    assert all(size % 16 == 0 for size in sizes) and bucket(17, 16) == 32
    assert all(new <= max(old + 16, 1.25 * old + 16) for old, new in pairwise(sizes))
    assert all(count <= bucket(count) for count in range(1, 300))


def test_rows_are_padded_behind() -> None:
    padded = pad_rows(np.arange(4, dtype=np.int8).reshape(2, 2), 3, -1)
    assert padded.tolist() == [[0, 1], [2, 3], [-1, -1]] and padded.dtype == np.int8


def test_shares_of_no_choices_are_none() -> None:
    assert softmax(np.zeros((2, 0))).shape == (2, 0)
    found = softmax(np.array([[0.0, np.log(3.0)], [-1e9, 0.0]]))
    assert np.allclose(found, [[0.25, 0.75], [0, 1]]) and found.dtype == np.float32
