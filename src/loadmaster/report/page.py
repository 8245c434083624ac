"""The page: HTML, style and script are files of this package; a report joins them with its data.

The page's own rules allow this style and this script, by their hashes, and nothing else: no other
script, no request. Data is inert text that the script reads; it reaches the page as text only. Numbers
go there as little-endian typed arrays in one gzip stream, with a table of where each begins.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import __version__

_STYLES = ("base.css", "parts.css")
_SCRIPTS = (
    "text.js",
    "data.js",
    "axis.js",
    "raster.js",
    "memory.js",
    "lanes.js",
    "details.js",
    "explorer.js",
    "tables.js",
    "curves.js",
    "changes.js",
    "head.js",
)


@dataclass(frozen=True)
class Page:
    """HTML, and the rules that it has in itself: its own style and script, by their hashes, and nothing else."""

    text: str
    policy: str


def render_page(columns: Columns, content: dict[str, Any]) -> Page:
    """The whole file of a report."""
    about = {"version": __version__, "columns": columns.table, **content}
    parts = {"CONTENT": _inert(about), "COLUMNS": columns.pack()}
    return _render("page.html", _STYLES, (*_SCRIPTS, "main.js"), parts)


def render_watch_page() -> Page:
    """The page of `loadmaster watch`, which asks its own server, and nobody else, for what it shows."""
    parts = {"VERSION": escape(__version__)}
    return _render(
        "watch.html", (*_STYLES, "watch.css"), (*_SCRIPTS, "watch.js"), parts, more="; connect-src 'self'"
    )


def _render(
    name: str, styles: tuple[str, ...], scripts: tuple[str, ...], parts: dict[str, str], more: str = ""
) -> Page:
    style = "\n".join(_asset(each) for each in styles)
    script = '"use strict";\n' + "\n".join(_asset(each) for each in scripts)
    policy = (
        f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; "
        f"style-src 'sha256-{_sha256(style)}'; img-src data:; base-uri 'none'; form-action 'none'{more}"
    )
    parts = {"POLICY": policy, "STYLE": style, "SCRIPT": script, **parts}
    # Piece by piece: what a part holds is never searched for the place of another.
    text = "".join(parts.get(piece, piece) for piece in _asset(name).split("@@"))
    return Page(text, policy)


def _asset(name: str) -> str:
    return (resources.files("loadmaster.report") / "assets" / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert(content: dict[str, Any]) -> str:
    """JSON that ends no script tag and opens no comment, whatever the names hold."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


_MANY = 1_000
_SAMPLE = 1 << 16
_KINDS = {"i1": "Int8Array", "u1": "Uint8Array", "i4": "Int32Array", "f8": "Float64Array"}


_LARGE = 2**25
"""Bytes from which on packing is quick and not tight."""


class Columns:
    """Collects arrays by name. Whole numbers take the smallest type that holds them; what is above
    32 bits becomes a float, exact up to 2^53."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self.table: dict[str, list[Any]] = {}
        """Name -> [type in JavaScript, byte offset, length]; a fourth entry: what is there are the
        differences from each number to the next, of that type."""

    def add(self, name: str, values: npt.ArrayLike) -> None:
        array = np.asarray(values)
        kind = _smallest(array)
        data = array.astype(f"<{kind}").tobytes()
        entry = [_KINDS[kind], self._length + -self._length % 8, array.size]
        if array.size >= _MANY and array.dtype.kind in "iu" and np.abs(array).max() < 2**53:
            steps = np.diff(array.astype(np.int64), prepend=0)
            by_steps = steps.astype(f"<{_smallest(steps)}").tobytes()
            if _packed_sample(by_steps) < _packed_sample(data):
                data = by_steps
                entry.append(_KINDS[_smallest(steps)])
        self._pad()
        self.table[name] = entry
        self._parts.append(data)
        self._length += len(data)

    def add_texts(self, name: str, texts: tuple[str, ...] | list[str]) -> None:
        """Texts as one UTF-8 stream and their ends: any character survives."""
        # Lone surrogates come from names that were no text; they are shown as '?'.
        data = "".join(texts).encode("utf-8", "replace")
        lengths = list(map(len, texts))
        if len(data) != sum(lengths):  # not plain ASCII: a character may be several bytes
            lengths = [len(text.encode("utf-8", "replace")) for text in texts]
        self.add(f"{name}.ends", np.cumsum(lengths, dtype=np.int64))
        self._pad()
        self.table[name] = ["text", self._length, len(data)]
        self._parts.append(data)
        self._length += len(data)

    def pack(self) -> str:
        """Everything, as base64."""
        level = 6 if self._length < _LARGE else 1  # a second of waiting would save a tenth of a large page
        data = gzip.compress(b"".join(self._parts), compresslevel=level, mtime=0)
        return base64.b64encode(data).decode("ascii")

    def _pad(self) -> None:
        # Typed arrays must begin at a multiple of their element size.
        gap = -self._length % 8
        self._parts.append(bytes(gap))
        self._length += gap


def _packed_sample(data: bytes) -> int:
    """About how many bytes are left of each when packed, told by a piece of it."""
    return len(zlib.compress(data[:_SAMPLE], 1)) * max(1, len(data) // _SAMPLE)


def _smallest(array: npt.NDArray[Any]) -> str:
    if array.dtype.kind == "f":
        return "f8"
    if array.dtype.kind == "b":
        return "u1"
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind, least, most in (("u1", 0, 255), ("i1", -128, 127), ("i4", -(2**31), 2**31 - 1)):
        if least <= low and high <= most:
            return kind
    return "f8"
