"""Tally lines counted out one sample at a time, sharing nothing with the verifier but the permutation itself."""

import base64
import functools
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtally.proof.permutation import permute

Line = dict[str, Any]
Consume = Callable[[str, int, int, list[int]], list[int]]  # phase, epoch, rank, shard -> what was really consumed
World = tuple[int, int, int]  # from this epoch and position on there were so many ranks
Ends = dict[str, tuple[int, int]]  # of a phase, the epoch and position before which it has ended

RUN = "3f9c2a7b10de"
BEGAN = 1_767_323_045_000
P = 2**61 - 1
MODEL = "sha256:" + "0123456789abcdef" * 4


def words(samples: list[int], positions: dict[int, int], run: str) -> list[int]:
    """The digest's twenty numbers, of samples whose positions in the order are given."""
    each = [_of_one(sample + 1, positions[sample] + 1, base(run)) for sample in samples]
    return [sum(word) % P for word in zip([0] * 20, *each, strict=True)]


@functools.lru_cache(maxsize=1 << 14)
def _of_one(index: int, x: int, g: int) -> list[int]:
    return [*(pow(x, k, P) for k in range(16)), pow(g, x, P), *(pow(index, k, P) for k in (1, 2, 3))]


@functools.cache
def base(text: str) -> int:
    return 2 + int(hashlib.sha256(text.encode()).hexdigest(), 16) % (P - 2)


def encoded(words: list[int]) -> str:
    digits = "".join(f"{word:016x}" for word in words)
    return base64.urlsafe_b64encode(bytes.fromhex(digits)).decode().rstrip("=")


def decoded(digest: str) -> list[int]:
    digits = base64.urlsafe_b64decode(digest + "==").hex()
    return [int(digits[at : at + 16], 16) for at in range(0, len(digits), 16)]


def order(n: int, seed: int, epoch: int) -> list[int]:
    """The epoch's order, and a check that it is one: every sample there, none twice."""
    permuted = permute(np.arange(n, dtype=np.int64), n, seed, epoch).tolist()
    assert sorted(permuted) == list(range(n))
    return list(permuted)


def mixed(x: int) -> int:
    """An output of SplitMix."""
    z = (x + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@dataclass(frozen=True)
class Local:
    """The order locality-1 of shard files with these sizes."""

    sizes: tuple[int, ...]
    window: int = 2
    lanes: int = 1

    @property
    def fingerprint(self) -> str:
        return "sha256:" + hashlib.sha256(b"".join(size.to_bytes(8, "big") for size in self.sizes)).hexdigest()[:16]

    def __str__(self) -> str:
        return f"locality-1 window={self.window} lanes={self.lanes} sizes={self.fingerprint}"

    @property
    def runs(self) -> list[list[int]]:
        return [[len([*same]), size] for size, same in itertools.groupby(self.sizes)]

    def order(self, seed: int, epoch: int) -> list[int]:
        """Queue up the files, cut the queue into lanes, shuffle their windows, and take from the lanes in turn."""
        samples = iter(range(sum(self.sizes)))
        files = [[*itertools.islice(samples, size)] for size in self.sizes]
        queue = [
            (sample, place // self.window)
            for place, file in enumerate(order(len(files), seed, epoch))
            for sample in files[file]
        ]
        lanes = []
        numbers = itertools.count()
        for lane in range(self.lanes):
            length = len(range(lane, sum(self.sizes), self.lanes))
            own, queue = queue[:length], queue[length:]
            shuffled: list[int] = []
            for _, window in itertools.groupby(own, lambda each: each[1]):
                block = [sample for sample, _ in window]
                shuffled += [block[at] for at in order(len(block), mixed((mixed(seed) + next(numbers)) % 2**64), epoch)]
            lanes.append(shuffled)
        return [sample for turn in itertools.zip_longest(*lanes) for sample in turn if sample is not None]


def deal(samples: list[int], world: int, contract: str, start: int = 0) -> list[list[int]]:
    """Hand out the samples from `start` on one by one, as cards to players."""
    hands: list[list[int]] = [[] for _ in range(world)]
    for rank, sample in zip(itertools.cycle(range(world)), samples[start:], strict=False):
        hands[rank].append(sample)
    longest = max(map(len, hands))
    if contract == "padded":
        again = itertools.cycle(samples)
        for hand in hands:
            if len(hand) < longest:
                hand.append(next(again))
    if contract == "drop_last":
        shortest = min(map(len, hands))
        hands = [hand[:shortest] for hand in hands]
    return hands


def faithful(phase: str, epoch: int, rank: int, shard: list[int]) -> list[int]:
    return shard


def run(
    n: int = 60,
    world: int = 4,
    contract: str = "exact",
    seed: int = 0,
    plan: dict[str, int] | None = None,
    consume: Consume = faithful,
    ranks_per_pod: int = 1,
    start: int = 0,
    batch: int = 20,
    worlds: list[World] | None = None,
    resumed: dict[tuple[str, int], tuple[int, int]] | None = None,
    ends: Ends | None = None,
    local: Local | None = None,
    drops: Consume | None = None,
    **common: Any,
) -> list[Line]:
    """The lines of a whole run, in the order in which they would be printed; `start` is that of the first epoch.

    `drops` returns the samples of a shard that the program leaves out on purpose.

    With `local`, the training has that order, of as many samples as its files have.

    Each of `worlds` after the first is another attempt, which has done the rest of its epoch again. So is each of
    `resumed`: a phase and epoch, and from which position on how many ranks have done it.
    """
    plan = {"train": 2, "test": 2} if plan is None else plan
    n = sum(local.sizes) if local else n
    name = common.get("run", RUN)
    lines = []
    begins = {1: start}
    attempt = 0
    for epoch in range(1, max(plan.values()) + 1):
        for number, (since, position, ranks) in enumerate(worlds or []):
            if since <= epoch:
                attempt, world, begins[since] = number, ranks, position
        for phase, epochs in plan.items():
            final, cut = (ends or {}).get(phase, (epochs, None))
            if epoch > final or (epoch == final and cut == 0):
                continue
            end = cut if epoch == final else None
            shuffled = phase == "train"
            begin = begins.get(epoch, 0) if shuffled else 0
            if (phase, epoch) in (resumed or {}):
                attempt, (begin, world) = attempt + 1, resumed[phase, epoch]
            used = contract if shuffled else "exact"
            size = n if shuffled else max(1, n // 6)
            samples = list(range(size))
            if shuffled:
                samples = local.order(seed, epoch) if local else order(size, seed, epoch)
            positions = {sample: position for position, sample in enumerate(samples)}
            before = samples[:begin]
            dealt = deal(samples, world, used, begin) if end is None else deal(samples[:end], world, "exact", begin)
            hands = [consume(phase, epoch, rank, shard) for rank, shard in enumerate(dealt)]
            left_out = [drops(phase, epoch, rank, shard) if drops else [] for rank, shard in enumerate(dealt)]
            if drops:
                hands = [
                    [*(Counter(hand) - Counter(out)).elements()] for hand, out in zip(hands, left_out, strict=True)
                ]
            rows: list[tuple[int | str, list[int], list[int], list[int]]] = list(
                zip(range(world), dealt, hands, left_out, strict=True)
            )
            rows.append(("all", sum(dealt, before), sum(hands, before), [sample for out in left_out for sample in out]))
            for rank, shard, taken, out in rows:
                pod = rank // ranks_per_pod if isinstance(rank, int) else 0
                lines.append(
                    {
                        "v": 2,
                        "run": RUN,
                        "attempt": attempt,
                        "began": BEGAN + 1000 * attempt,
                        "pod": f"demo-worker-{pod - 1}" if pod else "demo-master-0",
                        "task": "fashion-mnist",
                        "phase": phase,
                        "epoch": epoch,
                        "plan": plan,
                        "rank": rank,
                        "world": world,
                        "n": size,
                        "start": begin,
                        "batch": batch,
                        **({} if end is None else {"end": end}),
                        "seed": seed,
                        "contract": used,
                        "order": str(local or "feistel-1") if shuffled else "sequential",
                        **({"sizes": local.runs} if local and shuffled and rank == "all" else {}),
                        "data": "sha256:0123456789abcdef",
                        **counts(shard, taken, out, positions, name),
                    }
                    | common
                )
    return lines


def shared_out(lines: list[Line], phase: str) -> list[World]:
    """Where each epoch of a phase begins, and from where on it was shared out at last; at the start by some ranks."""
    worlds = {(1, 0): 1}
    for line in lines:
        if (line["phase"], line["rank"]) == (phase, "all"):
            worlds |= {(line["epoch"], position): line["world"] for position in (0, line["start"])}
    return [(*place, ranks) for place, ranks in worlds.items()]


def last(
    lines: list[Line],
    worlds: list[World] | None = None,
    own: tuple[str, ...] = (),
    ends: Ends | None = None,
    **values: Any,
) -> Line:
    """The last line of a run that has these lines. The phases in `own` state how they themselves were shared out."""
    every = [line for line in lines if line["rank"] == "all"]
    common = every[-1]
    h = base(common["run"] + " epochs")
    phases: dict[str, Line] = {}
    for line in every:
        names = [name for name in ("n", "contract", "order", "data", "sizes") if name in line]
        phase = phases.setdefault(line["phase"], {**{name: line[name] for name in names}, "consumed": 0, "words": [0]})
        phase["consumed"] += line["consumed"]
        more = [word * h ** line["epoch"] for word in decoded(line["digest"])]
        phase["words"] = [(a + b) % P for a, b in itertools.zip_longest(phase["words"], more, fillvalue=0)]
        numbers = phase.setdefault("dropped_in", [])
        numbers.append(line.get("dropped", 0))
        if "dropped" in line:
            phase["dropped"] = sum(numbers)
            left_out = [word * h ** line["epoch"] for word in decoded(line["dropped_digest"])]
            known = phase.get("of_dropped", [])
            phase["of_dropped"] = [(a + b) % P for a, b in itertools.zip_longest(known, left_out, fillvalue=0)]
    for phase in phases.values():
        phase["digest"] = encoded(phase.pop("words"))
        numbers = phase.pop("dropped_in")
        if "dropped" in phase:
            phase["dropped_digest"] = encoded(phase.pop("of_dropped"))
            if len(numbers) > 1:
                phase["dropped_in"] = [[len([*alike]), number] for number, alike in itertools.groupby(numbers)]
    for name in own:
        phases[name]["worlds"] = [list(world) for world in shared_out(lines, name)]
    for name in phases.keys() & (ends or {}).keys():
        phases[name]["end"] = list((ends or {})[name])
    return {
        "v": 2,
        **{name: common[name] for name in ("run", "attempt", "began", "pod", "task")},
        "phase": "all",
        **{name: common[name] for name in ("plan", "seed")},
        "worlds": [list(world) for world in worlds or [(1, 0, lines[0]["world"])]],
        "phases": phases,
        "model": MODEL,
        "discarded": 0,
    } | values


def counts(shard: list[int], taken: list[int], dropped: list[int], positions: dict[int, int], run: str) -> Line:
    lost = sorted((Counter(shard) - Counter(taken) - Counter(dropped)).elements())
    duplicated = sorted((Counter(taken) - Counter(shard)).elements())
    values: Line = {
        "expected": len(shard),
        "consumed": len(taken),
        "digest": encoded(words([sample for sample in taken if sample in positions], positions, run)),
        "lost": len(lost),
        "duplicated": len(duplicated),
    }
    if dropped:
        values |= {"dropped": len(dropped), "dropped_digest": encoded(words(dropped, positions, run))}
    if lost or duplicated:
        values |= {"lost_indices": sorted(set(lost))[:8], "duplicated_indices": sorted(set(duplicated))[:8]}
    return values


def text(lines: list[Line], prefix: str = "") -> str:
    return "".join(f"{prefix}TORCHTALLY {json.dumps(line, separators=(',', ':'))}\n" for line in lines)
