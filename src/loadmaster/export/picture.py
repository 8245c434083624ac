"""A placement as a picture: address over time, one box per piece of a buffer. SVG or PNG.

Drawn by hand, not by matplotlib: `loadmaster allocate --plot` is a command of the core, which needs NumPy
alone, and every box of the SVG tells its buffer's name, bytes and times where the mouse is.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from xml.sax import saxutils

import numpy as np
import numpy.typing as npt

from loadmaster.allocation.buffers import Buffers
from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.program.build import clean_name
from loadmaster.units import show_bytes

# Eight hues that stay apart for colour-blind readers (after Okabe and Ito).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999")
_LEFT, _TOP, _BOTTOM, _RIGHT = 90, 34, 46, 16
_LETTER, _LINE = 7.5, 18
"""Pixels that a letter and a line take, about."""
_MOST_BOXES = 20_000
"""Above it an SVG is too heavy for a browser; a PNG takes any number."""
_DIGITS = (0o75557, 0o26227, 0o71747, 0o71717, 0o55711, 0o74717, 0o74757, 0o71111, 0o75757, 0o75717)
_SIGNS = (0o00002, 0o00700, 0o65656, 0o55655, 0o57755, 0o74557, 0o72222, 0o20222, 0o27221, 0o00775, 0o02563)
_FONT = dict(zip("0123456789.-BKMGTitme", _DIGITS + _SIGNS, strict=True))
"""What the scales of a PNG are written with: five rows of three pixels, an octal digit for each."""
_DOT = 2
"""Pixels that one of them takes each way."""


def escape(text: str) -> str:
    """Text of other people as XML: what can't be seen, or turns the text around, is written out, as `\\x1b`."""
    return saxutils.escape(clean_name(text))


def ticks(top: int) -> range:
    """Addresses to name beside a scale: round ones, three to seven of them."""
    return range(0, top + 1, 1 << max(0, (top // 6).bit_length()))


def check_picture(path: Path, buffers: Buffers | None = None) -> None:
    """Refuse what `draw` can't write, before anything is sought: another ending, too many boxes."""
    ending = path.suffix.lower()
    if ending not in (".svg", ".png"):
        raise LoadmasterError(
            f"'{path}' has no ending of a picture", object=str(path), remedy="name it .svg or .png"
        )
    boxes = 0 if buffers is None else int((buffers.pieces.high > buffers.pieces.low).sum())
    if ending == ".svg" and boxes > _MOST_BOXES:
        raise LoadmasterError(
            f"{boxes:,} boxes are too many for SVG",
            object="--plot",
            number=boxes,
            remedy="name the picture .png",
        )


def draw(
    buffers: Buffers,
    offsets: npt.NDArray[np.int64],
    capacity: int | None,
    path: str | Path,
    title: str,
    *,
    size: tuple[int, int] = (1200, 640),
    top: int = 1,
) -> None:
    """Write a picture of `size` pixels; the path's ending says which kind. Addresses go up to `top` at least, so that
    pictures can share a scale."""
    path = Path(path)
    check_picture(path, buffers)
    boxes = _Boxes(buffers, np.asarray(offsets, dtype=np.int64), capacity, size, top)
    if path.suffix.lower() == ".svg":
        data = _svg(boxes, buffers, capacity, title).encode()
    else:
        data = _png(_raster(boxes))
    with replacing(path) as temporary:
        temporary.write_bytes(data)


class _Boxes:
    """Pieces in pixels: x and width over time, y and height over addresses (0 at the bottom)."""

    def __init__(
        self,
        buffers: Buffers,
        offsets: npt.NDArray[np.int64],
        capacity: int | None,
        size: tuple[int, int],
        top: int,
    ) -> None:
        self.width, self.height = size
        p = buffers.pieces
        kept = np.flatnonzero(p.high > p.low)
        self.buffer = p.buffer[kept]
        self.low = offsets[self.buffer] + p.low[kept]
        self.high = offsets[self.buffer] + p.high[kept]
        self.begin, self.end = p.lower[kept], p.upper[kept]
        self.times = (int(self.begin.min(initial=0)), int(self.end.max(initial=1)))
        self.top = int(max(self.high.max(initial=1), capacity or 0, top))
        self.capacity = capacity

    def x(self, time: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        first, last = self.times
        return _LEFT + (np.asarray(time) - first) / max(1, last - first) * (self.width - _LEFT - _RIGHT)

    def y(self, address: npt.NDArray[np.int64] | int) -> npt.NDArray[np.float64]:
        return self.height - _BOTTOM - np.asarray(address) / self.top * (self.height - _TOP - _BOTTOM)


def _svg(boxes: _Boxes, buffers: Buffers, capacity: int | None, title: str) -> str:
    width, height = boxes.width, boxes.height
    x0, x1, y0, y1 = (boxes.x(boxes.begin), boxes.x(boxes.end), boxes.y(boxes.high), boxes.y(boxes.low))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15">{escape(title)}</text>',
    ]
    for address in ticks(boxes.top):
        y = float(boxes.y(address))
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{show_bytes(address)}</text>')
        lines.append(f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
    for i, b in enumerate(boxes.buffer.tolist()):
        name = escape(
            f"{buffers.ids[b]}: {int(buffers.size[b]):,} bytes at {int(boxes.low[i]):,}, "
            f"time {int(boxes.begin[i])} to {int(boxes.end[i])}"
        )
        lines.append(
            f'<rect x="{x0[i]:.2f}" y="{y0[i]:.2f}" width="{max(0.2, x1[i] - x0[i]):.2f}" '
            f'height="{max(0.2, y1[i] - y0[i]):.2f}" fill="{_COLOURS[b % len(_COLOURS)]}" fill-opacity="0.75" '
            f'stroke="#333" stroke-width="0.3"><title>{name}</title></rect>'
        )
        if x1[i] - x0[i] > _LETTER * (len(clean_name(buffers.ids[b])) + 1) and y1[i] - y0[i] > _LINE:
            at = f'x="{x0[i] + 6:.1f}" y="{(y0[i] + y1[i]) / 2 + 4:.1f}"'
            lines.append(f'<text {at} pointer-events="none">{escape(buffers.ids[b])}</text>')
    if capacity is not None:
        y = float(boxes.y(capacity))
        lines.append(
            f'<line x1="{_LEFT}" x2="{width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#c00" stroke-dasharray="6 3"/>'
        )
        lines.append(
            f'<text x="{width - _RIGHT}" y="{y - 4:.1f}" text-anchor="end" fill="#c00">capacity {capacity:,} bytes</text>'
        )
    first, last = boxes.times
    for time, anchor in ((first, "start"), (last, "end")):
        lines.append(
            f'<text x="{float(boxes.x(time)):.1f}" y="{height - _BOTTOM + 18}" text-anchor="{anchor}">{time}</text>'
        )
    lines.append(f'<text x="{(_LEFT + width) // 2}" y="{height - 10}" text-anchor="middle">time</text>')
    return "\n".join([*lines, "</svg>", ""])


def _raster(boxes: _Boxes) -> npt.NDArray[np.uint8]:
    image = np.full((boxes.height, boxes.width, 3), 255, dtype=np.uint8)
    x0, x1 = (np.floor(boxes.x(t)).astype(int) for t in (boxes.begin, boxes.end))
    y0, y1 = (np.floor(boxes.y(a)).astype(int) for a in (boxes.high, boxes.low))
    colours = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in _COLOURS], dtype=np.uint8)
    for i, b in enumerate(boxes.buffer.tolist()):
        box = image[y0[i] : max(y0[i] + 1, y1[i]), x0[i] : max(x0[i] + 1, x1[i])]
        box[:] = colours[b % len(colours)]
        if box.shape[0] > 3 and box.shape[1] > 3:  # a thin dark edge keeps neighbours apart
            box[[0, -1], :], box[:, [0, -1]] = 60, 60
    left, bottom = _LEFT - 1, boxes.height - _BOTTOM
    image[_TOP:bottom, left] = image[bottom, left : boxes.width - _RIGHT] = 0
    if boxes.capacity is not None:
        y = int(boxes.y(boxes.capacity))
        image[y, left : boxes.width - _RIGHT] = (204, 0, 0)
    for address in ticks(boxes.top):
        y = int(boxes.y(address))
        image[y, left - 4 : left] = 0
        _write(image, show_bytes(address), left - 8, y - 5, 1.0)
    for time, share in ((boxes.times[0], 0.0), (boxes.times[1], 1.0)):
        _write(image, str(time), int(boxes.x(time)), bottom + 8, share)
    _write(image, "time", (_LEFT + boxes.width) // 2, bottom + 24, 0.5)
    return image


def _write(image: npt.NDArray[np.uint8], text: str, x: int, y: int, share: float) -> None:
    """A line with `share` of its width left of x."""
    rows = np.arange(5)[:, None]
    for place, letter in enumerate(text):
        dots = (_FONT.get(letter, 0) >> (3 * (4 - rows) + 2 - np.arange(3))) & 1
        left = x + 4 * _DOT * place - round((4 * len(text) - 1) * _DOT * share)
        if left >= 0:
            image[y : y + 5 * _DOT, left : left + 3 * _DOT][np.kron(dots, np.ones((_DOT, _DOT))) > 0] = 0


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    height, width, _ = image.shape
    rows = np.hstack([np.zeros((height, 1), dtype=np.uint8), image.reshape(height, width * 3)])

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
