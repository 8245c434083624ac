"""One way to say that something is wrong: the object, the number and the remedy.

Every error that a user can cause is a `LoadmasterError`; the command line prints it
as one line and turns its class into an exit code.
"""

from __future__ import annotations

import importlib
from types import ModuleType


class LoadmasterError(Exception):
    """An error with a message for people and its parts for programs."""

    exit_code = 2

    def __init__(
        self,
        message: str,
        *,
        object: str | None = None,
        number: int | float | str | None = None,
        remedy: str | None = None,
    ) -> None:
        text = " ".join(message.split("\n"))
        if remedy and remedy not in text:
            text = f"{text}: {remedy}"
        super().__init__(text)
        self.message = text
        self.object = object
        self.number = number
        self.remedy = remedy


class BadProgram(LoadmasterError):
    """A program that makes no sense, or a model file that can't be read."""


class BadMachine(LoadmasterError):
    """A machine description that makes no sense."""


class BadPlan(LoadmasterError):
    """A plan that can't be read, or that can't be simulated."""


class Refused(LoadmasterError):
    """The answer is no: a plan with violations, a model that does not fit."""

    exit_code = 1


class NoAnswer(LoadmasterError):
    """Nothing was found within the limit, and nothing was proven."""

    exit_code = 4


class MissingPackage(LoadmasterError):
    """An optional package is not installed."""

    exit_code = 3


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module, or say the one line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackage(
            f"this needs the package '{module.split('.')[0]}', which is not installed",
            object=module,
            remedy=f"pip install 'loadmaster[{extra}]'",
        ) from error


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """' (did you mean …?)' for a name that is not known, or the empty string."""
    import difflib

    if len(name) > 200 or len(known) > 5_000:  # a search takes time with both
        return ""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean '{match[0]}'?)" if match else ""
