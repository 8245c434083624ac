"""What changed from one plan to another: tensors moved, offsets, copies, and decisions per op."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]
"""A plan's JSON: it names its tensors and memories, so no program is needed to compare two."""
HOME = "home"
"""Where a tensor lives that a plan does not mention."""


@dataclass(frozen=True)
class Change:
    """One tensor in both plans. `kind` is 'moved', 'offset' or 'lifetime'."""

    kind: str
    tensor: int
    name: str
    before: str
    after: str


@dataclass
class Difference:
    """Empty for two equal plans."""

    tensors: list[Change] = field(default_factory=list)
    copies_added: list[Document] = field(default_factory=list)
    copies_gone: list[Document] = field(default_factory=list)
    ops: dict[str, int] = field(default_factory=dict)
    """'device', 'order', 'fusion', 'priority' -> ops for which it changed"""
    others: list[str] = field(default_factory=list)
    """Of 'queue', 'tie' and 'transfers', those that changed."""

    @property
    def is_empty(self) -> bool:
        return not (self.tensors or self.copies_added or self.copies_gone or self.ops or self.others)

    def of(self, kind: str) -> list[Change]:
        return [change for change in self.tensors if change.kind == kind]


def difference(before: Document, after: Document) -> Difference:
    """All that differs, tensors by number."""
    found = Difference()
    old, new = _by_tensor(before), _by_tensor(after)
    for tensor in sorted({*old, *new}):
        change = _change(tensor, old.get(tensor, []), new.get(tensor, []))
        if change is not None:
            found.tensors.append(change)
    gone, added = _copies(before), _copies(after)
    found.copies_gone = [_copy(row) for row in (gone - added).elements()]
    found.copies_added = [_copy(row) for row in (added - gone).elements()]
    for column in ("device", "order", "fusion", "priority"):
        a, b = before.get(column), after.get(column)
        if a != b:
            found.ops[column] = _count(a, b)
    found.others = [key for key in ("queue", "tie", "transfers") if before.get(key) != after.get(key)]
    return found


def _by_tensor(document: Document) -> dict[int, list[Document]]:
    rows: dict[int, list[Document]] = defaultdict(list)
    for row in document.get("residencies") or []:
        if type(row.get("tensor")) is int:
            rows[row["tensor"]].append(row)
    for entries in rows.values():
        entries.sort(key=lambda row: repr((row.get("first"), row.get("last"), row.get("memory"))))
    return rows


def _change(tensor: int, old: list[Document], new: list[Document]) -> Change | None:
    name = str((old or new)[0].get("name", tensor))
    for kind, keys in (
        ("moved", ("memory",)),
        ("lifetime", ("memory", "first", "last")),
        ("offset", ("memory", "first", "last", "offset")),
    ):
        before, after = ([tuple(row.get(key) for key in keys) for row in rows] for rows in (old, new))
        if before != after:
            return Change(kind, tensor, name, _text(old, kind), _text(new, kind))
    return None


def _text(rows: list[Document], kind: str) -> str:
    if not rows:
        return HOME
    if kind == "moved":
        return ", ".join(str(row.get("memory")) for row in rows)
    if kind == "lifetime":
        return ", ".join(f"{row.get('memory')} {row.get('first')}..{row.get('last')}" for row in rows)
    return ", ".join(str(row.get("offset")) for row in rows)


_COPY = ("tensor", "name", "from", "to", "issued_after", "needed_by", "bytes")


def _copies(document: Document) -> Counter[tuple[Any, ...]]:
    rows = document.get("copies") or []
    return Counter(
        tuple(repr(row.get(key)) if key == "bytes" else _plain(row.get(key)) for key in _COPY) for row in rows
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | str | None) else repr(value)


def _copy(row: tuple[Any, ...]) -> Document:
    return dict(zip(_COPY, row, strict=True))


def _count(a: Any, b: Any) -> int:
    """Entries that differ; all of them if one side leaves the column out."""
    before: list[Any] = a if isinstance(a, list) else []
    after: list[Any] = b if isinstance(b, list) else []
    changed = sum(1 for x, y in zip(before, after, strict=False) if x != y)
    return changed + abs(len(before) - len(after))
