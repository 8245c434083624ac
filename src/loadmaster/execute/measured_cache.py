"""What was measured before, on disk: a JSON file for each device, driver and version of PyTorch.

A file that is damaged, too large, of another format or about something else is as good as none: what it
should hold is measured again and the file is written anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError, require
from loadmaster.files import read_regular, replacing
from loadmaster.host import host
from loadmaster.json_text import read_json

FORMAT = 1
"""Of the files, and of how is measured: raise it where numbers would not compare with older ones."""
_MOST_BYTES = 2**24
_DRIVER = Path("/proc/driver/nvidia/version")
_CUDA_SETTINGS = (
    "backends.fp32_precision",
    "backends.cuda.matmul.fp32_precision",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.preferred_blas_library",
    "backends.cuda.flash_sdp_enabled",
    "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled",
    "backends.cuda.cudnn_sdp_enabled",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.conv.fp32_precision",
    "are_deterministic_algorithms_enabled",
)
_CPU_SETTINGS = (
    "get_num_threads",
    "backends.mkldnn.enabled",
    "backends.mkldnn.matmul.fp32_precision",
    "are_deterministic_algorithms_enabled",
)
"""What chooses kernels, as attributes and functions of `torch`."""
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Of the environment, likewise."""


def cache_folder() -> Path | None:
    """$LOADMASTER_CACHE, $XDG_CACHE_HOME/loadmaster or ~/.cache/loadmaster; None: there is no home."""
    own, shared = os.environ.get("LOADMASTER_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own)
    if shared and Path(shared).is_absolute():  # others are to be ignored, says its specification
        return Path(shared) / "loadmaster"
    try:
        return Path.home() / ".cache" / "loadmaster"
    except RuntimeError:
        return None


def describe_device(device: Any) -> dict[str, str]:
    """All that times on a device depend on and that can change: the device, versions, settings."""
    torch = require("torch", "torch")
    cuda = device.type == "cuda"
    found = {"torch": str(torch.__version__)}
    if cuda:
        about = torch.cuda.get_device_properties(device)
        found |= {
            "device": str(about.name),
            "memory": str(about.total_memory),
            "processors": str(about.multi_processor_count),
            "driver": _driver_version(),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
        }
    else:
        found |= {"device": str(host()["cpu"]), "cores": str(host()["cores"])}
    found |= {name: _setting(torch, name) for name in (_CUDA_SETTINGS if cuda else _CPU_SETTINGS)}
    return found | {name: os.environ[name] for name in _VARIABLES if cuda and name in os.environ}


def _driver_version() -> str:
    try:
        text = read_regular(_DRIVER, 2**16).decode("utf-8", "replace").splitlines()
        return text[0][:200] if text else ""
    except OSError:
        return ""


def _setting(torch: Any, name: str) -> str:
    """What a setting of PyTorch is; empty: this version has none, or can't tell."""
    value = torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for part in name.split("."):
                value = getattr(value, part)
            return str(value() if callable(value) else value)
        except Exception:  # the old and the new names of one setting refuse to be mixed
            return ""


@dataclass(frozen=True)
class MeasuredCache:
    """One file: `what` was measured of what `about` says."""

    folder: Path
    what: str
    about: Mapping[str, str]

    @property
    def path(self) -> Path:
        words = re.sub(r"[^a-z0-9]+", "-", self.about.get("device", "").lower()).strip("-")[:60]
        text = json.dumps([FORMAT, self.what, dict(self.about)], sort_keys=True)
        key = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
        return self.folder / "-".join(word for word in (self.what, words, f"{key}.json") if word)

    def read(self) -> dict[str, Any]:
        """What was kept; empty: nothing that could be used."""
        try:
            document = read_json(read_regular(self.path, _MOST_BYTES))
        except (OSError, ValueError):
            return {}
        if not isinstance(document, dict) or document.get("loadmaster_measured") != FORMAT:
            return {}
        same = document.get("what") == self.what and document.get("about") == dict(self.about)
        content = document.get("content")
        return content if same and isinstance(content, dict) else {}

    def write(self, content: Mapping[str, Any]) -> str | None:
        """Keep it; returns what went wrong, which is no reason to end a run."""
        document = {
            "loadmaster_measured": FORMAT,
            "what": self.what,
            "about": dict(self.about),
            "content": dict(content),
        }
        text = json.dumps(document, allow_nan=False) + "\n"
        if len(text) > _MOST_BYTES:
            return f"'{self.path}' would be larger than it may be"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self.path) as temporary:
                temporary.write_text(text, encoding="utf-8")
        except (OSError, LoadmasterError, ValueError) as error:
            return f"'{self.path}' can't be written: {getattr(error, 'strerror', None) or error}"
        return None
