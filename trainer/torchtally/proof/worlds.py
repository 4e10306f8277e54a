"""Over how many ranks a run shared out its samples: `worlds`, and the stretches of epochs that follow from them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated

from msgspec import Meta

from torchtally.proof.rules import MANY

# Epoch, position, ranks: from there on the training continued with so many ranks.
World = tuple[Annotated[int, Meta(ge=1)], Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=1, le=MANY)]]
RESUMED = "train"  # the only phase that resumes in its middle, among those without `worlds` of their own


def misfit(worlds: tuple[World, ...], epochs: int, n: int) -> Iterator[str]:
    """What is allowed, where worlds are not those of so many epochs of n samples."""
    places = [(epoch, position) for epoch, position, _ in worlds]
    fit = all(epoch <= epochs and position <= n for epoch, position in places)
    if not fit or places[:1] != [(1, 0)] or places != sorted({*places}):
        yield (
            f"a list of [epoch, position, ranks], the first at epoch 1 and position 0, each later than the one before "
            f"it, up to epoch {epochs} and position {n}, with 1 to {MANY} ranks"
        )


def otherwise(
    phase: str, epochs: int, worlds: tuple[World, ...], together: Sequence[World]
) -> tuple[World, ...] | None:
    """The worlds of a phase that was shared out otherwise than by those of the run."""
    return None if [*legs(epochs, worlds, True)] == [*legs(epochs, together, phase == RESUMED)] else worlds


def place_of(epoch: int, worlds: Sequence[World], resumes: bool) -> tuple[int, int]:
    """The position from which an epoch was shared out for the last time, and over how many ranks."""
    since, position, ranks = worlds[bisect_right(worlds, epoch, key=lambda world: world[0]) - 1]
    return (position if resumes and epoch == since else 0), ranks


def legs(epochs: int, worlds: Sequence[World], resumes: bool) -> Iterator[tuple[range, int, int]]:
    """Successive epochs that were shared out alike: from which position, and over how many ranks."""
    since = {world[0] for world in worlds}
    cuts = sorted(epoch for epoch in {1} | since | {epoch + 1 for epoch in since} if epoch <= epochs)
    for first, end in pairwise([*cuts, epochs + 1]):
        yield range(first, end), *place_of(first, worlds, resumes)
