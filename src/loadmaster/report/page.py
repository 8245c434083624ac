"""The page: HTML, style and script are files of this package; a report joins them with its data.

The page's own rules allow this style and this script, by their hashes, and nothing else: no other
script, no request. Data is inert text that the script reads; it reaches the page as text only.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from loadmaster import __version__
from loadmaster.report.columns import Columns

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
    "main.js",
)


def page(columns: Columns, content: dict[str, Any]) -> str:
    """The whole file."""
    style = "\n".join(_asset(name) for name in _STYLES)
    script = '"use strict";\n' + "\n".join(_asset(name) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; script-src 'sha256-{_sha256(script)}'; "
        f"style-src 'sha256-{_sha256(style)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    about = {"version": __version__, "columns": columns.table, **content}
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "SCRIPT": script,
        "CONTENT": _inert(about),
        "COLUMNS": columns.packed(),
    }
    # Piece by piece: what a part holds is never searched for the place of another.
    return "".join(parts.get(piece, piece) for piece in _asset("page.html").split("@@"))


def _asset(name: str) -> str:
    return (resources.files("loadmaster.report") / "assets" / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _inert(content: dict[str, Any]) -> str:
    """JSON that ends no script tag and opens no comment, whatever the names hold."""
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")
