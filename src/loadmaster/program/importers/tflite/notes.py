"""What the user should hear of after an import."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmaster.errors import BadProgram, nearest


@dataclass
class Notes:
    unknown: Counter[str] = field(default_factory=Counter)
    branches: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    guessed: list[str] = field(default_factory=list)
    folded: int = 0
    without_result: int = 0
    open: int = 0

    def trips(self, name: str, given: Mapping[str, int]) -> int:
        """How often a loop runs, at least once."""
        self.loops.append(name)
        if name not in given:
            self.guessed.append(name)
        return max(1, given.get(name, 1))

    def check_loops(self, given: Mapping[str, int]) -> None:
        """Refuse a length for a loop that the model does not have."""
        for name in given:
            if name not in self.loops:
                raise BadProgram(
                    f"the model has no loop '{name}'{nearest(name, self.loops)}",
                    object=name,
                    remedy=f"name one of {', '.join(self.loops[:8]) or 'none'}",
                )

    def texts(self, strict: bool) -> list[str]:
        """The warnings; `strict` makes an error of the first."""
        texts = []
        if self.unknown:
            kinds = ", ".join(
                f"{kind.removeprefix('unknown:')} ×{n}" for kind, n in self.unknown.most_common()
            )
            total = sum(self.unknown.values())
            if strict:
                raise BadProgram(
                    f"{total} ops of {len(self.unknown)} unknown kinds: {kinds}",
                    object=kinds,
                    number=total,
                    remedy="import without --strict to estimate them",
                )
            texts.append(f"{total} ops of {len(self.unknown)} unknown kinds got an estimate: {kinds}")
        if self.branches:
            names = ", ".join(self.branches[:8])
            texts.append(f"{len(self.branches)} branches: the one with most flops is taken at {names}")
        if self.guessed:
            texts.append(
                f"{len(self.guessed)} loops of unknown length count once: give --trip {self.guessed[0]}=N"
            )
        if self.open:
            texts.append(f"{self.open} tensors have open dimensions: the sizes in the file are taken")
        if self.without_result:
            texts.append(f"{self.without_result} operators without a result were left out")
        if self.folded:
            texts.append(
                f"{self.folded} weights are stored smaller than they are used: the sizes in use are taken"
            )
        return texts
