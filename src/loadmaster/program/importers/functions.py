"""'module:function' as the user names it: the function itself."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram, nearest, require

FRAMEWORKS = {"torch": "torch", "jax": "agents"}
"""Packages that a user's module may import, and our extras that bring them."""


def load_function(spec: str) -> Callable[..., Any]:
    """Import 'module:function' from the current directory or the installed packages."""
    module_name, _, function_name = spec.partition(":")
    if not module_name or not function_name:
        raise BadProgram(f"'{spec}' names no function", object=spec, remedy="write module:function")
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if error.name is not None and error.name in FRAMEWORKS:
            require(error.name, FRAMEWORKS[error.name])
        raise BadProgram(
            f"module '{module_name}' can't be imported: {error}",
            object=module_name,
            remedy="run this where the module is",
        ) from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise BadProgram(
            f"module '{module_name}' has no function '{function_name}'{nearest(function_name, known)}",
            object=spec,
            remedy="check the name",
        )
    return function  # type: ignore[no-any-return]


def torch_result(spec: str) -> Any:
    """What a function gives if that is a PyTorch module with its inputs, else None: asked by calling
    it, on the meta device, if it takes no arguments and PyTorch is installed."""
    function = load_function(spec)
    if not takes_nothing(function) or find_spec("torch") is None:
        return None
    from loadmaster.program.importers.torch.importer import is_model, made_on_meta

    result = made_on_meta(function)
    return result if is_model(result) else None


def takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True
