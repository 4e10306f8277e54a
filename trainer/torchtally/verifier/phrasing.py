"""The wording of sentences: ranks, steps, samples, and a digest's numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from torchtally.proof.digest import NAMES, Digest
from torchtally.proof.line import Attempt, Rank
from torchtally.proof.local_order import UnknownSizes


def who(ranks: Iterable[Rank]) -> str:
    """`rank 2`, `ranks 0-2, 5`, `all ranks together`, or several of them."""
    given = set(ranks)
    alone = {rank for rank in given if rank != "all"}
    parts = [numbers("rank", alone)] if alone else []
    return " and ".join(parts + ["all ranks together"] * ("all" in given))


def numbers(noun: str, values: Iterable[int]) -> str:
    """`epoch 2`, `ranks 0-2, 5`."""
    spans: list[list[int]] = []
    for value in sorted(values):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    plural = len(spans) > 1 or spans[0][0] < spans[0][1]
    return f"{noun}{'s' * plural} " + ", ".join(f"{low}-{high}" if low < high else str(low) for low, high in spans)


def attempt_names(attempts: Sequence[Attempt]) -> list[str]:
    """`attempt 2`, with the time of its begin where another of them has the same number."""
    times = Counter(number for number, _ in attempts)
    return [f"attempt {number}{f' of {_time(began)}' if times[number] > 1 else ''}" for number, began in attempts]


def _time(began: int) -> str:
    if not began:
        return "an unknown time"
    return f"{datetime.fromtimestamp(began // 1000, UTC):%Y-%m-%d %H:%M:%S}.{began % 1000:03} UTC"


def counted(number: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def span(noun: str, first: int, last: int) -> str:
    """`step 3`, `steps 3-5`; of any length."""
    return f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"


def differing(one: Digest, other: Digest) -> str:
    """The names of the words that are not the same in both, as docs/reference/line.md has them."""
    return ", ".join(name for name, a, b in zip(NAMES, one.words, other.words, strict=True) if a != b)


def not_checked(unknown: UnknownSizes) -> str:
    """Why what follows from an order is not proved."""
    return (
        "its samples cannot be checked, because no log has the sizes of the shard files whose fingerprint is "
        f"{unknown}: pass them with --sizes"
    )
