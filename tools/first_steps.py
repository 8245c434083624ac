"""What a new user types first, with whatever Loadmaster is installed: every wheel and the sdist are tried by it.

    python tools/first_steps.py

It needs NumPy, Typer and Rich alone, works in a folder of its own, and ends with 1 at the first command that fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = """
import loadmaster as lm
from loadmaster.program import save
build = lm.Builder("mine")
x = build.tensor("x", bytes=4096, kind="input")
y = build.tensor("y", bytes=8192)
z = build.tensor("z", bytes=1024, kind="output")
build.op("first", "matmul", reads=[x], writes=[y], matrix=10**6)
build.op("second", "relu", reads=[y], writes=[z], vector=10**3)
save(build.build(), "mine.npz")
"""
COMMANDS = (
    "--version",
    "machines nnp-i",
    "plan bert:layers=1 --machine nnp-i --budget 50 --exact-seconds 0 --report",
    "resume RUN --budget 60",
    "simulate RUN",
    "replay RUN",
    "export trace RUN --out trace.json.gz",
    "plan mine.npz --machine arena:16KiB --fits",
    "demo --out shown",
)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-c", MODEL], cwd=folder, check=True)
        for line in COMMANDS:
            runs = sorted((folder / "runs").glob("*")) if (folder / "runs").is_dir() else []
            words = [str(runs[0]) if word == "RUN" else word for word in line.split()]
            print(f"$ loadmaster {line}", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "loadmaster", *words, "--quiet"], cwd=folder, check=False
            )
            if done.returncode:
                print(f"exit {done.returncode}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
