"""What a check has found."""

from dataclasses import dataclass
from enum import StrEnum

_PAGE = "https://github.com/torchtally/torchtally/blob/main/docs/reference/check.md"


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"  # some trainings fail
    BAD = "bad"  # all do


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, in a word, and what it is like."""

    check: str
    level: Level
    text: str

    @property
    def link(self) -> str:
        """The section of the reference that is about it."""
        return f"{_PAGE}#check-{self.check}"


def good(check: str, text: str) -> Finding:
    return Finding(check, Level.GOOD, text)


def warning(check: str, text: str) -> Finding:
    return Finding(check, Level.WARNING, text)


def bad(check: str, text: str) -> Finding:
    return Finding(check, Level.BAD, text)
