"""The last line of a run: it proves alone what the final weights have seen, and names them.

For each phase it holds the digests of all ranks together, one an epoch, folded into one. What that should be follows
from the line's own facts, so nothing else is needed: no line of an epoch, and no log of an earlier pod.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from torchtally.proof import digest, shards
from torchtally.proof.contract import Contract
from torchtally.proof.digest import Digest
from torchtally.proof.shards import Order, Progression

World = tuple[int, int, int]  # epoch, position, ranks: from there on the training went on with so many of them
RESUMED = "train"  # the only phase that is ever taken up in its middle


def line(
    lines: Sequence[Mapping[str, Any]], worlds: Sequence[World], model: str | None, discarded: int
) -> dict[str, Any]:
    """The last line of a run, from the lines of all ranks together: those of all phases and epochs, at least one.

    `worlds` begins with (1, 0, ranks) and ascends. `model`: "sha256:" and the hash of the final weights, if known.
    `discarded`: samples known to have been consumed by steps that no checkpoint kept.
    """
    common = lines[-1]
    plan = common["plan"]
    phases = {}
    for phase in plan:
        if own := [each for each in lines if each["phase"] == phase]:
            digests = ((each["epoch"], digest.parse(each["digest"])) for each in own)
            phases[phase] = {
                **{name: own[0][name] for name in ("n", "contract", "order", "data")},
                "consumed": sum(each["consumed"] for each in own),
                "digest": str(digest.fold(digests, common["run"])),
            }
    return {
        **{name: common[name] for name in ("v", "run", "attempt", "pod", "task")},
        "phase": "all",
        "plan": plan,
        "seed": common["seed"],
        # Who started after the last epoch has trained nothing.
        "worlds": [list(world) for world in worlds if world[0] <= max(plan.values())],
        "phases": phases,
        "model": model,
        "discarded": discarded,
    }


def expected(
    run: str,
    phase: str,
    epochs: int,
    *,
    n: int,
    contract: Contract,
    order: Order,
    seed: int,
    worlds: Sequence[World],
) -> tuple[int, Digest]:
    """How many samples all epochs of a phase consume under its contract, and their digests folded.

    O(len(worlds)), but for epochs in which samples of a shuffled order are repeated or left out: each has its own.
    """
    h = digest.base_of_epochs(run)
    consumed, together = 0, Digest()
    for alike, start, world in _legs(phase, epochs, worlds):
        consumed += len(alike) * (start + shards.total(n, world, contract, start))
        parts = shards.whole(n, world, contract, start)
        facts = (order, seed, parts, digest.base(run))
        if order == "sequential" or parts == [Progression(0, 1, n)]:
            times = digest.geometric(Progression(alike[0] - 1, 1, len(alike)), h)
            together += digest.contract(n, alike[0], *facts) * times
        else:
            together += digest.fold(((epoch, digest.contract(n, epoch, *facts)) for epoch in alike), run)
    return consumed, together


def dealt(phase: str, epoch: int, worlds: Sequence[World]) -> tuple[int, int]:
    """The position from which an epoch was dealt for the last time, and over how many ranks."""
    since, position, ranks = worlds[bisect_right(worlds, epoch, key=lambda world: world[0]) - 1]
    return (position if (phase, epoch) == (RESUMED, since) else 0), ranks


def _legs(phase: str, epochs: int, worlds: Sequence[World]) -> Iterator[tuple[range, int, int]]:
    """Epochs that follow each other and were dealt alike."""
    since = {world[0] for world in worlds}
    cuts = sorted(epoch for epoch in {1} | since | {epoch + 1 for epoch in since} if epoch <= epochs)
    for first, end in pairwise([*cuts, epochs + 1]):
        yield range(first, end), *dealt(phase, first, worlds)
