"""The GitHub Action: what it says is right, and its steps run as they are written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from generate_tflite import convolutional

ROOT = Path(__file__).parents[1]
COMMENT = ROOT / "tools" / "fits_comment.py"


def say(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(COMMENT), *words], cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout


def answer(path: Path, total: int, fits: bool) -> None:
    row = {
        "fits": fits,
        "model": "models/net.tflite",
        "memory": "axi",
        "machine": "stm32h743",
        "kTensorArenaSize": total,
        "flash_bytes": 1000,
        "capacity_bytes": 524288,
        "blame": "operator 3 (CONV_2D) holds 5 bytes",
    }
    path.write_text(json.dumps({"rows": [row]}))


def test_the_comment_tells_the_difference(tmp_path: Path) -> None:
    answer(tmp_path / "new.json", 1200, False)
    answer(tmp_path / "old.json", 1000, True)
    text = say("new.json", "old.json", cwd=tmp_path)
    assert "does **not** fit `axi`" in text and "| arena, bytes | 1,200 | 1,000 | +200 (+20.0%) |" in text
    alone = say("old.json", "none.json", cwd=tmp_path)
    assert "fits `axi`" in alone and "| arena, bytes | 1,000 |  |  |" in alone
    assert say("--bytes", "new.json", cwd=tmp_path) == "arena-bytes=1200\n"
    assert "gave no answer" in say("none.json", cwd=tmp_path)
    assert say("--bytes", "none.json", cwd=tmp_path) == "arena-bytes=\n"


def test_the_action_runs_what_is_there() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"GITHUB_ACTION_PATH/([\w/.]+)", text)) == {"tools/fits_comment.py"}
    # Nothing that a pull request controls is pasted into a script: it goes through the environment.
    scripts = re.findall(r"run: (\|(?:\n {8}.*)+|[^|\n].*)", text)
    assert len(scripts) == 4 and not any("${{" in script for script in scripts)


def filled(text: str, known: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found: known[found[1]], text)


class Runner:
    """Runs the steps of action.yml as GitHub does: expressions filled in, each step by bash, outputs from a file.

    `python3` and `loadmaster` are this Python; `pip install` and `gh` are written down and not done."""

    def __init__(self, folder: Path, base: bytes | None, branch: bytes) -> None:
        self.folder, self.said = folder, folder / "said"
        self.outputs: dict[str, str] = {}
        for name in ("bin", "temp", "work", "origin"):
            (folder / name).mkdir()
        self._command("loadmaster", f'exec "{sys.executable}" -m loadmaster.cli.main "$@"')
        self._command("gh", f'echo "gh $*" >> "{self.said}"')
        pip = f'if [ "$2" = pip ]; then echo "$*" >> "{self.said}"; exit 0; fi'
        self._command("python3", f'{pip}\nexec "{sys.executable}" "$@"')
        origin, work = folder / "origin", folder / "work"
        self._git("init", "-q", "-b", "main", str(origin), cwd=folder)
        (origin / "README").write_text("a firmware")
        if base is not None:
            (origin / "net.tflite").write_bytes(base)
        self._git("add", ".", cwd=origin)
        self._git("commit", "-q", "-m", "base", cwd=origin)
        self._git("clone", "-q", str(origin), str(work), cwd=folder)
        (work / "net.tflite").write_bytes(branch)

    def _command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def _git(self, *words: str, cwd: Path) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True)

    def run(self, event: str, **inputs: str) -> int:
        """The exit code of the step that failed; 0 if none did."""
        action = pytest.importorskip("yaml").safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
        given = {name: about.get("default", "") for name, about in action["inputs"].items()} | inputs
        is_pull = event == "pull_request"
        values = {f"inputs.{name}": text for name, text in given.items()} | {
            "github.base_ref": "main" if is_pull else "",
            "github.token": "secret",
            "github.event.pull_request.number": "7",
            "github.event_name": event,
            "runner.temp": str(self.folder / "temp"),
        }
        for step in action["runs"]["steps"]:
            if "if" in step:
                assert step["if"] == "inputs.comment == 'true' && github.event_name == 'pull_request'"
                if not (given["comment"] == "true" and is_pull):
                    continue
            known = values | {f"steps.fits.outputs.{name}": text for name, text in self.outputs.items()}
            env = {name: filled(text, known) for name, text in step.get("env", {}).items()}
            done = self._step(step["run"], env)
            if done.returncode:
                return done.returncode
        return 0

    def _step(self, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        output, summary = self.folder / "output", self.folder / "summary"
        output.write_text("")
        about = {"GITHUB_ACTION_PATH": ROOT, "GITHUB_OUTPUT": output, "GITHUB_STEP_SUMMARY": summary}
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.folder / "work",
            env={**os.environ, "PATH": path, **{name: str(text) for name, text in about.items()}, **env},
            capture_output=True,
            text=True,
        )
        self.outputs |= dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done

    @property
    def comment(self) -> str:
        return (self.folder / "temp" / "fits.md").read_text()


def small_and_large() -> tuple[bytes, bytes]:
    return convolutional(18, operators=9, side=20), convolutional(18, operators=9, side=40)


def test_a_model_that_outgrows_its_budget_fails_the_pull_request(tmp_path: Path) -> None:
    small, large = small_and_large()
    runner = Runner(tmp_path, small, large)
    assert runner.run("pull_request", model="net.tflite", machine="stm32h743", budget="8KiB") == 1
    assert runner.outputs["code"] == "1" and int(runner.outputs["arena-bytes"]) > 8192
    assert "does **not** fit" in runner.comment and "The budget" not in runner.comment
    arena = next(line for line in runner.comment.splitlines() if line.startswith("| arena"))
    assert re.fullmatch(r"\| arena, bytes \| [\d,]+ \| [\d,]+ \| \+[\d,]+ \(\+[\d.]+%\) \|", arena)
    said = runner.said.read_text()
    assert "pip install --quiet loadmaster[tflite]" in said and "gh pr comment 7 --edit-last" in said
    assert (tmp_path / "summary").read_text() == runner.comment


@pytest.mark.parametrize("event", ["pull_request", "push"])
def test_a_model_within_its_budget_passes(event: str, tmp_path: Path) -> None:
    small, _ = small_and_large()
    runner = Runner(tmp_path, None, small)
    assert runner.run(event, model="net.tflite", machine="stm32h743", budget="64KiB") == 0
    assert runner.outputs["code"] == "0" and "fits `dtcm`" in runner.comment
    assert ("gh pr comment" in runner.said.read_text()) == (event == "pull_request")


def test_a_damaged_model_fails_with_its_own_code(tmp_path: Path) -> None:
    runner = Runner(tmp_path, small_and_large()[0], b"1234TFL3" + bytes(40))
    assert runner.run("pull_request", model="net.tflite", machine="stm32h743") == 2
    assert "gave no answer" in runner.comment and runner.outputs["arena-bytes"] == ""
