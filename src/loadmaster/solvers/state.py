"""A random generator's state as arrays, so that a solver can go on where it was."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.json_text import read_json


def generator_state(rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """The whole state, as bytes."""
    text = json.dumps(rng.bit_generator.state, default=int)
    return np.frombuffer(text.encode(), dtype=np.uint8)


def restore_generator(state: npt.NDArray[np.uint8]) -> np.random.Generator:
    """The generator that `generator_state` saw."""
    rng = np.random.default_rng(0)
    try:
        rng.bit_generator.state = read_json(state.tobytes())
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise LoadmasterError(
            f"the checkpoint's random generator can't be restored: {error}",
            object="rng",
            remedy="go on from an older checkpoint, or start again",
        ) from None
    return rng
