"""`loadmaster watch`: how the runs of a folder stand, and the local page that follows them.

The server answers on loopback alone, reads and never writes, and knows runs by numbers that it gave them itself: no
request names a file. A run that can't be read is one line with its reason.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shlex
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loadmaster import __version__
from loadmaster.errors import LoadmasterError
from loadmaster.report.page import Page, render_page, render_watch_page
from loadmaster.report.report import collect_content, collect_curves
from loadmaster.report.subject import read_run
from loadmaster.runs.folder import CHAMPION, RunFolder, resume_line
from loadmaster.runs.history import History, describe_run
from loadmaster.runs.log import BadRun, LogFollower, is_written
from loadmaster.search.request import BadRequest

MOST_RUNS = 1_000
"""More are not followed: the latest folders are."""
HOST = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
"""A page elsewhere whose name is made to lead to this computer asks with its own name, and is refused."""
_LONGEST = 300
"""Characters of a text in a row."""
_NOTES = 5
_FILES = ("run.json", "log.jsonl", "best.json", CHAMPION, "program.npz", "machine.toml", "plans")
"""A change of one of them may change what is shown."""
_OPEN = ("running", "killed", "unfinished")
"""States of runs that somebody may be writing, or may go on with."""
_ENDED_EARLY = ("interrupted", "killed", "error")

Row = dict[str, Any]


class WatchedRun:
    """One folder below the one that is watched; what was read of it is kept until its files change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
        self.history = History([])
        self.about: dict[str, Any] = {}
        self.row: Row = {}
        self._log = path / "log.jsonl"
        self._follower = LogFollower(self._log)
        self._files = [str(path), *(f"{path}/{name}" for name in _FILES)]
        self._seen: tuple[object, ...] = ()

    def refresh(self) -> None:
        """Read what has changed. Whatever is wrong with the folder is its row's error, and nobody else's."""
        try:
            stamps = tuple(map(_stamp, self._files))
            changed = not self._seen or stamps != self._seen[0]
            if not changed and self.row.get("state") not in _OPEN:
                return  # it has ended, or can't be read
            running = self._is_running()
            if changed or running != self._seen[1]:
                self._seen = (stamps, running)
                self.row = self._read(running)
                json.dumps(self.row, allow_nan=False)
        except Exception as error:  # it may hold anything
            self._fail(error)

    def _is_running(self) -> bool | None:
        links = any(path.is_symlink() for path in (self.path, self._log))
        return False if links or not self._log.is_file() else is_written(self._log)

    def _fail(self, error: Exception) -> None:
        self.row = {"id": self.id, "run": self.path.name[:_LONGEST], "error": _one_line(error)}

    def _read(self, running: bool | None) -> Row:
        if self.path.is_symlink():
            raise BadRun(
                f"'{self.path}' is a link", object=str(self.path), remedy="put the folder itself there"
            )
        run = RunFolder.open(self.path)
        history = self.history = History(self._follower.read())
        self.about = run.about
        row = describe_run(run, history)
        for name, value in row.items():
            row[name] = value[:_LONGEST] if isinstance(value, str) else value
        if running is not None and row["state"] == "unfinished":
            row["state"] = "running" if running else "killed"
        rate = self._follower.per_second if row["state"] == "running" else None
        left, share = _budget_left(history, rate)
        return row | {
            "id": self.id,
            "error": None,
            "evals_per_s": rate,
            "seconds_left": left if row["state"] == "running" else None,
            "budget_share": share,
        }

    def look_closer(self) -> Row | None:
        """Its row, and what the page shows beside it of the run that is looked at; None: that can't be read."""
        try:
            row = self.row | self._details()
            json.dumps(row, allow_nan=False)
            return row
        except Exception as error:  # as above
            self._fail(error)
            return None

    def _details(self) -> Row:
        about, history, state = self.about, self.history, self.row["state"]
        name = f"{self.row['solver']}, seed {self.row['seed']}"
        notes = [f"{line['what']}: {line['message']}"[:_LONGEST] for line in history.of("error")[-_NOTES:]]
        return {
            "curves": collect_curves([(name, about, history)], self.row["unit"]),
            "bound_method": None if history.bound is None else history.bound.method[:_LONGEST],
            "command": shlex.join(["loadmaster", *map(str, about["command"])])[: 4 * _LONGEST],
            "resume": resume_line(self.path) if state in _ENDED_EARLY else None,
            "notes": notes,
        }


def _one_line(error: Exception) -> str:
    message = error.message if isinstance(error, LoadmasterError) else f"{type(error).__name__}: {error}"
    return " ".join(str(message).split())[:_LONGEST]


def _stamp(path: str) -> tuple[int, ...] | None:
    """What tells that a file has changed; None: it is not there."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def _budget_left(history: History, per_second: float | None) -> tuple[float | None, float | None]:
    """Seconds until the budget is spent, and the share of it that is; None: there is none, or no telling."""
    budget = history.budget
    left, shares = [], []
    if budget.seconds is not None:
        left.append(budget.seconds - history.seconds)
        shares.append(history.seconds / budget.seconds if budget.seconds > 0 else 1.0)
    if budget.evaluations is not None:
        left += [(budget.evaluations - history.evaluations) / per_second] if per_second else []
        shares.append(history.evaluations / budget.evaluations if budget.evaluations > 0 else 1.0)
    known = all(map(math.isfinite, (*left, *shares)))
    return (
        max(0.0, min(left)) if left and known else None,
        min(1.0, max(0.0, *shares)) if shares and known else None,
    )


class Watch:
    """The runs of a folder, or one run. Methods may be called by several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs: dict[str, WatchedRun] = {}
        """By the names of their folders."""
        self._lock = threading.Lock()
        self._view_lock = threading.Lock()
        self._view: tuple[str, bytes] = ("", b"")

    def rows(self) -> list[Row]:
        """A row for each run, newest first; those that can't be read are last, with an `error`."""
        with self._lock:
            self._refresh()
            return self._rows()

    def state(self, chosen: str | None = None) -> Row:
        """All rows, and the details of one run: the chosen, else the latest that runs, else the latest."""
        with self._lock:
            left_out = self._refresh()
            sound = [row for row in self._rows() if row["error"] is None]
            running = [row for row in sound if row["state"] == "running"]
            wanted = [row for row in sound if row["id"] == chosen]
            shown = next(iter(wanted or running or sound), None)
            run = None if shown is None else self._find(shown["id"])
            closer = None if run is None else run.look_closer()
            return {
                "version": __version__,
                "folder": str(self.folder)[:_LONGEST],
                "left_out": left_out,
                "rows": self._rows(),
                "chosen": closer,
            }

    def view(self, wanted: str) -> bytes:
        """The report's data about the plan that a run hands over now, as JSON; what is wrong, as its `error`."""
        with self._view_lock:  # one at a time: it is the search that needs the processors
            path, history, row = self._known(wanted)
            key = json.dumps([row["id"], row["plan"], row["started"]])
            if self._view[0] == key:
                return self._view[1]
            try:
                subject = read_run(path, history)
                columns, content = collect_content([subject])
            except Exception as error:  # as above
                return _json({"error": _one_line(error)})
            content |= {"error": None, "plan": subject.plan.hash, "version": __version__}
            self._view = (key, _json(content | {"columns": columns.table, "packed": columns.pack()}))
            return self._view[1]

    def report(self, wanted: str) -> Page:
        """The whole report about a run as it stands."""
        with self._view_lock:
            path, history, _ = self._known(wanted)
            return render_page(*collect_content([read_run(path, history)]))

    def _known(self, wanted: str) -> tuple[Path, History, Row]:
        """A run as it is now; raises KeyError if there is none that can be read."""
        with self._lock:
            self._refresh()
            run = self._find(wanted)
            if run is None or run.row["error"] is not None:
                raise KeyError(wanted)
            return run.path, run.history, run.row

    def _find(self, wanted: str) -> WatchedRun | None:
        return next((run for run in self._runs.values() if run.id == wanted), None)

    def _refresh(self) -> int:
        """Look at the folder again; returns how many runs are left out."""
        found, left_out = self._list()
        self._runs = {path.name: self._runs.get(path.name) or WatchedRun(path) for path in found}
        for run in self._runs.values():
            run.refresh()
        return left_out

    def _rows(self) -> list[Row]:
        rows = [run.row for run in self._runs.values()]
        rows.sort(key=lambda row: (row["error"] is None, row.get("started", ""), row["run"]), reverse=True)
        return rows

    def _list(self) -> tuple[list[Path], int]:
        """Folders with the files of a run, the latest of them if they are many."""
        if (self.folder / "run.json").is_file():
            return [self.folder], 0
        with os.scandir(self.folder) as entries:
            found = [
                (_stamp(entry.path) or (), entry.name)  # it may have gone meanwhile
                for entry in entries
                if any(os.path.lexists(f"{entry.path}/{name}") for name in ("run.json", "log.jsonl"))
            ]
        found.sort(reverse=True)
        return [self.folder / name for _, name in found[:MOST_RUNS]], max(0, len(found) - MOST_RUNS)


def _json(content: Row) -> bytes:
    return json.dumps(content, allow_nan=False).encode("ascii")


class WatchServer(ThreadingHTTPServer):
    """Serves the page of one `Watch` on loopback."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two servers share a port

    def __init__(self, watch: Watch, port: int = 0) -> None:
        self.watch, self.page = watch, render_watch_page()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            raise BadRequest(
                f"port {port} {'is in use' if used else f'can not be had: {error.strerror}'}",
                object="--port",
                number=port,
                remedy="give another one, or none",
            ) from None

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # the base class would ask for our name in the network
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error, and nothing else comes here."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of four addresses; everything else is refused."""

    server: WatchServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "loadmaster", ""
    timeout = 60.0

    def do_GET(self) -> None:
        if not self._is_local():
            said = "this page is for this computer alone: ask for it as 127.0.0.1 or localhost\n"
            return self._send(HTTPStatus.FORBIDDEN, said.encode())
        url = urlsplit(self.path)
        wanted = parse_qs(url.query).get("run", [""])[0]
        watch = self.server.watch
        try:
            match url.path:
                case "/":
                    self._send_page(self.server.page)
                case "/state.json":
                    self._send(HTTPStatus.OK, _json(watch.state(wanted)), "application/json")
                case "/view.json":
                    self._send(HTTPStatus.OK, watch.view(wanted), "application/json")
                case "/report.html":
                    self._send_page(watch.report(wanted))
                case _:
                    self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n")
        except KeyError:
            self._send(HTTPStatus.NOT_FOUND, b"there is no such run\n")
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error.strerror}\n".encode())
        except Exception as error:  # a run's report that can't be made
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, f"{_one_line(error)}\n".encode("utf-8", "replace"))

    def do_HEAD(self) -> None:
        self.do_GET()

    def _is_local(self) -> bool:
        """Whether it was asked for by a name that can't be anybody else's."""
        names = self.headers.get_all("Host") or []
        host, _, port = names[0].rpartition(":") if len(names) == 1 else ("", "", "")
        known = host if port.isdigit() else names[0] if names else ""
        return len(names) == 1 and known.lower() in LOCAL_NAMES

    def _send_page(self, page: Page) -> None:
        rules = f"{page.policy}; frame-ancestors 'none'"
        self._send(HTTPStatus.OK, page.text.encode("utf-8"), "text/html", {"Content-Security-Policy": rules})

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
            **({"Connection": "close"} if self.close_connection else {}),
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Another method, or no HTTP at all: refused, without a word of it in the answer or a look at its body."""
        self.close_connection = True
        only_read = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if only_read else HTTPStatus(code)
        self._send(status, f"{status.phrase}\n".encode(), more={"Allow": "GET, HEAD"} if only_read else None)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are nothing to tell."""
