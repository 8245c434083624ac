"""The GitHub Action's parts: what it runs is there, and what it says is right."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

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
