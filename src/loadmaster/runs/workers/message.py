"""What goes between a run and its workers: JSON and arrays in one npz, which runs no code when read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.npz import json_entry, read_npz

Array = npt.NDArray[Any]
_ABOUT = "about.json"


class Message(NamedTuple):
    """`about` is JSON; `arrays` have names."""

    about: dict[str, Any]
    arrays: dict[str, Array]


def packed(about: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """A message as bytes."""
    file = io.BytesIO()
    text = np.frombuffer(json.dumps(dict(about)).encode(), np.uint8)
    np.savez(file, allow_pickle=False, **{_ABOUT: text}, **(arrays or {}))
    return file.getvalue()


def unpacked(data: bytes) -> Message:
    """The inverse of `packed`."""
    arrays = read_npz(data, _refuse)
    about = json_entry(arrays, _ABOUT, _refuse)
    if not isinstance(about, dict):
        raise _refuse("its text is no JSON object")
    del arrays[_ABOUT]
    return Message(about, arrays)


def _refuse(reason: str) -> LoadmasterError:
    return LoadmasterError(
        f"a message between a run and its workers can't be read: {reason}",
        object="worker",
        remedy="start the run and its workers again with one version",
    )
