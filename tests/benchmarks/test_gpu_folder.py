"""Processes that share a device: one at a time, the most urgent of those that wait."""

from __future__ import annotations

import threading
from pathlib import Path

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import Folder, Step, alone
from clocks import wait_until


def waiting(folder: Folder, count: int) -> None:
    wait_until(lambda: len(list((folder.path / "waiting").iterdir())) >= count, "a place in the queue")


def test_the_most_urgent_of_those_that_wait_comes_next(tmp_path: Path) -> None:
    folder, order = Folder(tmp_path), []

    def work(urgency: int) -> None:
        with alone(folder, urgency):
            order.append(urgency)

    threads = [threading.Thread(target=work, args=(urgency,)) for urgency in (7, 3, 5)]
    with alone(folder, 9):
        for number, thread in enumerate(threads):
            thread.start()
            waiting(folder, number + 1)
    for thread in threads:
        thread.join()
    assert order == [3, 5, 7] and not list((tmp_path / "waiting").iterdir())


def test_those_that_died_while_they_waited_hold_nobody_up(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "waiting" / "0.4194999").touch()  # beyond the largest process number
    with alone(folder, 1):
        pass
    assert not list((tmp_path / "waiting").iterdir())


def test_lines_are_there_when_they_are_made_and_torn_ones_are_left_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    folder.keep(Row("m-large-batch@50", 2.0, "ps", "ok", solver="auto"))
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"job": ["torn')
    folder.keep(Row("m@50", 3.0, "ps", "ok", solver="msa+graph"))
    assert folder.done() == {("m-large-batch@50", "auto"), ("m@50", "msa+graph")}
    folder.keep(Row("m@50", -1.0, "ps", "failed", solver="auto"))
    assert ("m@50", "auto") in folder.done() - folder.done(retry=True)
    assert all(line["made"]["versions"]["numpy"] for line in folder.lines("rows.jsonl"))


def test_what_fails_is_told_and_the_next_goes_on(capsys: object) -> None:
    with Step("one") as one:
        raise RuntimeError("broken")
    with Step("two") as two:
        pass
    assert one.failed and not two.failed
