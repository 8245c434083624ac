"""What this process has of a GPU, by the driver's own count: what other processes have is no part of it."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from loadmaster.errors import require

_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
_TOO_FEW_ROWS = 7
"""NVML_ERROR_INSUFFICIENT_SIZE."""
_NOT_KNOWN = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE."""
_SPARE_ROWS = 16
"""For processes that begin while the driver is asked."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def process_bytes(device: Any) -> int | None:
    """What this process has of the device, its context included. None: the driver does not say, as in containers that
    have process numbers of their own."""
    try:
        library, handle = _library(), _handle(_uuid(device))
        count = ctypes.c_uint(0)
        ask = library.nvmlDeviceGetComputeRunningProcesses_v3
        if ask(handle, ctypes.byref(count), None) not in (0, _TOO_FEW_ROWS):
            return None
        count = ctypes.c_uint(count.value + _SPARE_ROWS)
        rows = (_Process * count.value)()
        if ask(handle, ctypes.byref(count), rows):
            return None
    except (OSError, AttributeError):
        return None
    mine = [int(row.bytes) for row in rows[: count.value] if row.pid == os.getpid()]
    return mine[0] if len(mine) == 1 and mine[0] != _NOT_KNOWN else None


@cache
def _library() -> Any:
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if library.nvmlInit_v2():
            raise OSError("NVML does not start")
        return library
    raise OSError("there is no NVML")


@cache
def _handle(uuid: str) -> Any:
    handle = ctypes.c_void_p()
    if _library().nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        raise OSError(f"NVML does not know {uuid}")
    return handle


def _uuid(device: Any) -> str:
    """As NVML writes it: numbers of devices are not the same in CUDA and in NVML."""
    return f"GPU-{require('torch', 'torch').cuda.get_device_properties(device).uuid}"
