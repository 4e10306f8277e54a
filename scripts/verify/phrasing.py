"""The wording of sentences: ranks, steps, samples, a digest's numbers, and the verdict."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtally.proof.digest import NAMES, Digest
from torchtally.proof.line import Rank

if TYPE_CHECKING:
    from .verdict import Verdict


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


def span(noun: str, first: int, last: int) -> str:
    """`step 3`, `steps 3-5`; of any length."""
    return f"{noun} {first}" if first == last else f"{noun}s {first}-{last}"


def differing(one: Digest, other: Digest) -> str:
    """The names of the words that are not the same in both, as docs/reference/line.md has them."""
    return ", ".join(name for name, a, b in zip(NAMES, one.words, other.words, strict=True) if a != b)


def summary(verdict: "Verdict") -> str:
    """Return the final sentence on a proof that holds."""
    last = verdict.last
    plan = last.plan if last else verdict.lines[-1].plan
    world = last.worlds[-1][2] if last else verdict.lines[-1].world
    facts = [f"run {verdict.run}", f"{world} rank{'s' * (world != 1)}"]
    facts += [f"{phase} {count} epoch{'s' * (count != 1)}" for phase, count in plan.items()]
    if last and last.model:
        facts.append(f"model {last.model}")
    return f"the proof holds: {', '.join(facts)}" + (_discarded(last.discarded) if last else "")


def _discarded(count: int) -> str:
    if not count:
        return ""
    what, were, do = ("sample", "was", "does") if count == 1 else ("samples", "were", "do")
    return f"; {count} {what} consumed by steps that no checkpoint kept {were} discarded and {do} not count"
