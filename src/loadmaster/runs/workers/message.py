"""What goes between a run and its workers: JSON and arrays in one npz, which runs no code when read."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    with np.load(io.BytesIO(data), allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    return Message(json.loads(arrays.pop(_ABOUT).tobytes()), arrays)
