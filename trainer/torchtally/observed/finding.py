"""What is found in a pass, or in several."""

from dataclasses import dataclass
from enum import StrEnum


class Sign(StrEnum):
    FAULT = "fault"  # samples that are lost, duplicated, or tested and trained on
    NOTE = "note"  # what may be meant
    RIGHT = "right"


@dataclass(frozen=True)
class Finding:
    """A sentence. Findings of one loader with the same `about` say the same of several passes."""

    sign: Sign
    about: str
    text: str


def fault(about: str, text: str) -> Finding:
    return Finding(Sign.FAULT, about, text)


def note(about: str, text: str) -> Finding:
    return Finding(Sign.NOTE, about, text)


def right(text: str) -> Finding:
    return Finding(Sign.RIGHT, text, text)


def numbers(values: "list[int] | tuple[int, ...]") -> str:
    """Some numbers in words: `0 to 3`, `0 and 2`, or `0, 2, and 5`."""
    found = sorted(values)
    if len(found) > 2 and found == list(range(found[0], found[-1] + 1)):
        return f"{found[0]} to {found[-1]}"
    return listed([str(each) for each in found])


def listed(texts: list[str]) -> str:
    """Some texts as a list in a sentence."""
    if len(texts) > 8:
        texts = [*texts[:8], f"{len(texts) - 8} more"]
    if len(texts) < 3:
        return " and ".join(texts)
    return f"{', '.join(texts[:-1])}, and {texts[-1]}"


def ranks(values: "list[int] | tuple[int, ...]") -> str:
    """Some ranks in words."""
    return f"rank{'s' * (len(values) > 1)} {numbers(values)}"
