"""`loadmaster watch` as it is typed: the table, the address, Ctrl-C, and what is refused."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import toy
from loadmaster.runs import run_solver
from loadmaster.search.solver import Budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        run_solver(toy.Climb(), toy.Toy(), Budget(40), seed, folder=parent)
    return parent


def test_the_table_once(run: Any, run_json: Any, folder: Path, tmp_path: Path) -> None:
    document = run_json("watch", folder)
    own = {row["run"]: row for row in run_json("runs", folder)["rows"]}
    assert len(document["rows"]) == 2 and document["warnings"] == []
    for row in document["rows"]:
        assert own[row["run"]].items() <= row.items() and row["state"] == "budget"
    assert [row["run"] for row in document["rows"]] == sorted(own, reverse=True)
    shown = run("watch", folder, "--once")
    assert shown.exit == 0 and shown.out.count("\n") == 3 and "climb" in shown.out and "left" in shown.out
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "log.jsonl").write_text("")
    alone = run("watch", tmp_path, "--once")
    assert alone.exit == 0 and "no runs in" in alone.out and "broken" in alone.err


def test_wrong_folders_and_ports_are_one_line(run: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in ("nowhere", tmp_path / "file"):
        refused = run("watch", wrong)
        assert refused.exit == 2 and "there is no folder" in refused.error_line
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run("watch", folder, "--port", port)
        assert refused.exit == 2 and f"port {port} is in use: give another one" in refused.error_line
    for port in ("-1", "65536", "x"):
        refused = run("watch", folder, "--port", port)
        assert refused.exit == 2 and "--port" in refused.error_line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "loadmaster", "watch", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as served:  # type: ignore[call-overload]
        line = served.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:") and "Ctrl-C" in line
        with urllib.request.urlopen(address) as page:
            assert page.status == 200 and b"<title>Loadmaster watch</title>" in page.read()
        served.send_signal(number)
        out, err = served.communicate()
    assert served.returncode == 0 and out == "" and "Traceback" not in err and err in ("", "stopping\n")
