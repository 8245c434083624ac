"""Trees of arrays by name and back, and the file that training goes on from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("jax")

from loadmaster.learn.checkpoints import (
    BadState,
    read_state,
    restore_tree,
    state_path,
    tree_arrays,
    write_state,
)


class Learner(NamedTuple):
    weight: Any
    activation: Any
    steps: Any


def test_a_tree_comes_back_and_leaves_that_are_no_arrays_stay() -> None:
    learner = Learner([np.arange(3.0, dtype=np.float32), np.zeros((2, 0))], abs, np.int32(7))
    arrays = tree_arrays(learner)
    assert list(arrays) == ["leaf0", "leaf1", "leaf2"] and arrays["leaf2"] == 7
    like = Learner([np.zeros(3, np.float32), np.ones((2, 0))], max, np.int32(0))
    again = restore_tree(like, arrays)
    assert again.activation is max and again.steps == 7
    assert np.array_equal(again.weight[0], [0, 1, 2]) and again.weight[1].shape == (2, 0)


def test_a_state_file_keeps_arrays_and_what_made_them(tmp_path: Path) -> None:
    path = state_path(tmp_path / "policy.npz")
    assert path.name == "policy.state.npz"
    write_state(path, {"leaf0": np.arange(4), "rng": np.zeros(2, np.uint8)}, {"seed": 3})
    arrays, about = read_state(path, "go")
    assert about == {"seed": 3} and sorted(arrays) == ["leaf0", "rng"]
    assert np.array_equal(arrays["leaf0"], np.arange(4)) and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("what", ["nothing", "text", "no header", "list", "objects"])
def test_other_files_are_refused_in_one_line(what: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.state.npz"
    header = np.frombuffer(b"[1]" if what == "list" else b"{}", dtype=np.uint8)
    if what == "text":
        path.write_text("a state, honestly")
    elif what == "no header":
        np.savez(path, leaf0=np.zeros(2))
    elif what == "objects":
        np.savez(path, about=header, leaf0=np.array([print], dtype=object))
    elif what == "list":
        np.savez(path, about=header)
    with pytest.raises(BadState, match="can't be resumed") as error:
        read_state(path, "go")
    assert error.value.object == str(path) and "'train go'" in str(error.value.remedy)


def test_a_state_of_another_agent_is_called_so(tmp_path: Path) -> None:
    """Its options are others by nature: to give them again would not help."""
    path = tmp_path / "p.state.npz"
    write_state(path, {}, {"agent": "muzero", "options": {"fold": ""}, "seed": 0})
    assert read_state(path, "muzero")[1]["options"] == {"fold": ""}
    with pytest.raises(
        BadState, match=r"it is of 'train muzero': give the \.state\.npz beside .* 'train go'"
    ):
        read_state(path, "go")
