"""Pictures of placements: every box is there, in its place, and hostile names stay text."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import numpy as np
import pytest

from loadmaster.allocation.buffers import Buffers, Gap
from loadmaster.errors import LoadmasterError
from loadmaster.export.picture import draw, ticks

NAME = '</title><script>alert(1)</script>&"'


def example() -> tuple[Buffers, np.ndarray]:
    buffers = Buffers.of([0, 0, 5], [10, 5, 10], [50, 30, 50], ids=[NAME, "b", "c"], gaps={0: [Gap(4, 6)]})
    return buffers, np.array([0, 50, 50])


def test_svg(tmp_path: Path) -> None:
    buffers, offsets = example()
    draw(buffers, offsets, 120, tmp_path / "p.svg", f"title {NAME}")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    boxes = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if len(box)]
    assert len(boxes) == 4, "the gap cuts a buffer in two"
    titles = [box[0].text or "" for box in boxes]
    assert sum(title.startswith(NAME) for title in titles) == 2
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert "capacity 120 bytes" in (tmp_path / "p.svg").read_text()


def test_characters_that_xml_cannot_hold_or_that_turn_text_around_are_written_out(tmp_path: Path) -> None:
    names = ["a\x1b[31m", "b\x00\x0b\ufffe", "c\ud800", "tab\tü😀", "\u202elive"]
    buffers = Buffers.of([0] * 5, [9] * 5, [50] * 5, ids=names)
    draw(buffers, np.arange(5) * 50, None, tmp_path / "p.svg", "title\x01")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    titles = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    shown = ["a\\x1b[31m", "b\\x00\\x0b\\ufffe", "c\\ud800", "tab\\tü😀", "\\u202elive"]
    assert [title.partition(":")[0] for title in titles] == shown


def test_png(tmp_path: Path) -> None:
    buffers, offsets = example()
    draw(buffers, offsets, None, tmp_path / "p.png", "title")
    data = (tmp_path / "p.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    at, pixels = 8, b""
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        pixels += body if kind == b"IDAT" else b""
        at += 12 + length
    image = np.frombuffer(zlib.decompress(pixels), dtype=np.uint8).reshape(height, width * 3 + 1)
    colours = {tuple(pixel) for pixel in image[:, 1:].reshape(-1, 3)[::7].tolist()}
    assert len(colours) >= 4, "white and three buffers"
    margin = image[:, 1 : 1 + 3 * 80].reshape(height, -1, 3).max(axis=2) == 0
    written = np.flatnonzero(margin.any(axis=1))
    lines = 1 + int((np.diff(written) > 1).sum())
    assert lines == len(ticks(100)) == 4, "a scale, with a line of text at each of its addresses"


@pytest.mark.parametrize("top", [1, 5, 81, 1000, 3_121_152, 2**40, 2**62])
def test_scales_are_round(top: int, tmp_path: Path) -> None:
    marks = ticks(top)
    assert marks.step & (marks.step - 1) == 0 and top - marks[-1] < marks.step
    assert 2 <= len(marks) <= 7
    draw(Buffers.of([0], [1], [1]), np.zeros(1, dtype=np.int64), top, tmp_path / "p.png", "title")


def test_other_endings_and_too_many_boxes(tmp_path: Path) -> None:
    buffers, offsets = example()
    with pytest.raises(LoadmasterError, match=r"name it \.svg or \.png"):
        draw(buffers, offsets, None, tmp_path / "p.gif", "title")
    many = Buffers.of(np.arange(30_000), np.arange(30_000) + 1, np.ones(30_000))
    with pytest.raises(LoadmasterError, match="too many for SVG"):
        draw(many, np.zeros(30_000, dtype=np.int64), None, tmp_path / "p.svg", "title")
    draw(many, np.zeros(30_000, dtype=np.int64), None, tmp_path / "p.png", "title")
    assert [path.name for path in tmp_path.iterdir()] == ["p.png"]


def test_pictures_share_a_scale_and_large_boxes_are_named(tmp_path: Path) -> None:
    buffers, offsets = example()
    svg = "{http://www.w3.org/2000/svg}"
    heights = {}
    for top in (1, 400):
        draw(buffers, offsets, 120, tmp_path / "p.svg", "title", size=(560, 420), top=top)
        root = ElementTree.parse(tmp_path / "p.svg").getroot()
        assert root.get("viewBox") == "0 0 560 420"
        heights[top] = [float(box.get("height") or 0) for box in root.iter(f"{svg}rect") if len(box)]
        lines = [float(line.get("y1") or 0) for line in root.iter(f"{svg}line")]
        assert max(lines) == lines[0] == 420 - 46 and min(lines) >= 34
    assert heights[400] == pytest.approx([120 / 400 * height for height in heights[1]], rel=0.01)
    draw(buffers, offsets, 120, tmp_path / "p.svg", "title")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    texts = [text.text for text in root.iter(f"{svg}text")]
    assert {NAME, "b", "c"} <= set(texts)  # there is room, and names stay text
    draw(buffers, offsets, 120, tmp_path / "p.svg", "title", size=(300, 200))
    small = [text.text for text in ElementTree.parse(tmp_path / "p.svg").getroot().iter(f"{svg}text")]
    assert NAME not in small and "b" in small
