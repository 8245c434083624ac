"""The native core under the address and undefined-behaviour sanitizers, built in `build/fuzz` and installed nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import CORE, ROOT

FOLDER = ROOT / "build" / "fuzz" / "core"


def build() -> Path:
    """The path of the module; what is up to date is left alone."""
    cmake = _tool("cmake")
    nanobind = _said([sys.executable, "-m", "nanobind", "--cmake_dir"])
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={nanobind}",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1",
        "-DLOADMASTER_SANITIZE=ON",
    ]
    ninja = shutil.which("ninja", path=_path())
    if ninja is not None:
        options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    # Without MAKEFLAGS: ninja would take make's job slots for its own and complain.
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(FOLDER), *options],
        [cmake, "--build", str(FOLDER), "--parallel", str(os.cpu_count() or 1)],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    modules = sorted(FOLDER.glob("_core*.so"))
    if len(modules) != 1:
        raise SystemExit(f"'{FOLDER}' has {len(modules)} modules '_core': remove the folder")
    return modules[0]


def environment(core: Path) -> dict[str, str]:
    """In which a process loads that core: the sanitizers' library must be there before all others."""
    # libstdc++ beside it: else the sanitizer does not find the functions that throw exceptions.
    compiler = os.environ.get("CXX", "c++")
    libraries = [_said([compiler, f"-print-file-name={name}"]) for name in ("libasan.so", "libstdc++.so.6")]
    return {
        CORE: str(core),
        "LD_PRELOAD": ":".join(libraries),
        # Python keeps what it has until it ends; memory is limited here, as the sanitizer reserves terabytes.
        "ASAN_OPTIONS": "detect_leaks=0:max_allocation_size_mb=1024:allocator_may_return_null=1:exitcode=77",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "PYTHONMALLOC": "malloc",
    }


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _tool(name: str) -> str:
    found = shutil.which(name, path=_path())
    if found is None:
        raise SystemExit(f"there is no '{name}': pip install {name}")
    return found


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
