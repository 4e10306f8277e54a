"""What the verifier says of given lines."""

import io
from typing import Any

import bruteforce
from bruteforce import Line

from torchtally.verifier.log import Log
from torchtally.verifier.verdict import Verdict, judge

NO_END = "incomplete: the run's last line is missing, which says how it has ended, so nothing is proved"


def read(text: str) -> Log:
    log = Log()
    log.read("demo.log", io.StringIO(text, newline=""))
    return log


def verdict(lines: list[Line], **options: Any) -> Verdict:
    [found] = verdicts(lines, **options)
    return found


def verdicts(lines: list[Line], **options: Any) -> list[Verdict]:
    return judge(read(bruteforce.text(lines)), **options)


def sentences(lines: list[Line], **options: Any) -> list[str]:
    return [str(problem) for problem in verdict(lines, **options).problems]


def line(lines: list[Line], rank: int | str, phase: str = "train", epoch: int = 1) -> Line:
    return next(each for each in lines if (each["rank"], each["phase"], each["epoch"]) == (rank, phase, epoch))


def with_word(digest: str, word: int, more: int) -> str:
    """The digest with more in one of its words."""
    words = bruteforce.decoded(digest)
    words[word] = (words[word] + more) % bruteforce.P
    return bruteforce.encoded(words)


def changed(rank: int | str, **values: Any) -> list[str]:
    """The sentences on a run that holds but for these values in one line of its first epoch."""
    lines = bruteforce.run()
    line(lines, rank).update(values)
    return sentences(lines)


# What breaks a field's rule. A field that has another rule names its own values.

NO_TEXTS: list[Any] = ["", " ", 7, None, "a\x1b[31mb"]


def no_integers(low: int, high: int) -> list[Any]:
    """Values that are no whole number from `low` to `high`."""
    return [low - 1, high + 1, True, float(low), float("nan"), str(low), None]


def no_lists(*allowed: tuple[int, int]) -> list[Any]:
    """Values that are no list of whole numbers within these bounds."""
    good: list[Any] = [low for low, _ in allowed]
    found: list[Any] = [good[:-1], [*good, 0], 7, None, str(good)]
    for at, bounds in enumerate(allowed):
        found += [[*good[:at], wrong, *good[at + 1 :]] for wrong in no_integers(*bounds)]
    return found
