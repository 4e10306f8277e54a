"""A reason why a proof does not hold."""

from dataclasses import dataclass

Block = tuple[str, int]  # phase, epoch


@dataclass(frozen=True)
class Problem:
    text: str
    where: str = ""
    blocks: frozenset[Block] = frozenset()  # whose `all` row it marks
    missing: bool = False  # evidence is missing, and nothing contradicts

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text
