"""Attempts of a program, and the passes of one loader on all ranks. No rank knows of another: lines alone tell."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from torchtally.observed.line import Handed, Loader

_APART = 5.0  # seconds after which a process that begins is of the next attempt
Key = tuple[Loader, str, str]  # of a loader: what it is, the type of its sampler, and what its dataset holds


@dataclass
class Passes:
    """The passes of one loader: for each number, what each rank was handed."""

    loader: Loader
    numbers: dict[int, dict[int, Handed]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def ranks(self) -> list[int]:
        return sorted({rank for each in self.numbers.values() for rank in each})

    @property
    def lines(self) -> list[Handed]:
        return [line for number in sorted(self.numbers) for line in self.numbers[number].values()]

    @property
    def begins(self) -> float:
        return min(line.at for line in self.lines)


@dataclass
class Attempt:
    """One start of a program on all ranks."""

    lines: list[Handed]
    loaders: list[Passes]

    @property
    def ranks(self) -> list[int]:
        return sorted({line.rank for line in self.lines})

    @property
    def world(self) -> int:
        return max(line.process.world for line in self.lines)


def attempts(lines: Iterable[Handed]) -> list[Attempt]:
    """The attempts in order. A rank that begins again, with a loader that it has had before, begins the next one."""
    processes: dict[tuple[str, int, int], list[Handed]] = defaultdict(list)
    for each in lines:
        processes[each.process.key].append(each)
    found: list[list[list[Handed]]] = []
    for own in sorted(processes.values(), key=lambda own: own[0].process.began):
        if not found or _begins_again(own, found[-1]):
            found.append([])
        found[-1].append(own)
    return [_attempt([line for own in each for line in own]) for each in found]


def _begins_again(own: list[Handed], attempt: list[list[Handed]]) -> bool:
    rank, world = own[0].rank, own[0].process.world
    places = {(line.loader.place, line.loader.dataset) for line in own}
    alike = [each for each in attempt if places & {(line.loader.place, line.loader.dataset) for line in each}]
    if any(each[0].rank == rank and each[0].process.world == world > 1 for each in alike):
        return True
    last = max((line.at for each in alike for line in each), default=None)
    return last is not None and world > 1 and own[0].process.began / 1000 > last + _APART


def _attempt(lines: list[Handed]) -> Attempt:
    exact: dict[Key, Passes] = {}
    for line in sorted(lines, key=lambda line: (line.process.began, line.number)):
        key = line.loader, str(line.sampler.get("type")), line.base.attributes if line.base else ""
        passes = exact.setdefault(key, Passes(line.loader))
        number = line.number
        while line.rank in passes.numbers[number]:  # of another process of this rank
            number += 1
        passes.numbers[number][line.rank] = line
    groups = list(exact.values())
    for each in groups:
        each.numbers = {number: own for number, own in each.numbers.items() if own}
    for alike in (_one_place, _one_dataset):
        groups = _joined(groups, alike)
    return Attempt(lines, sorted(groups, key=lambda each: each.begins))


def _one_place(loader: Loader) -> object:
    return loader.place, loader.type, loader.dataset  # each rank has data of its own, of another length


def _one_dataset(loader: Loader) -> object:
    return loader.type, loader.dataset, loader.length, loader.batch  # rank 0 iterates in another line


def _joined(groups: list[Passes], alike: object) -> list[Passes]:
    """Join groups of different ranks that are alike and have as many passes."""
    found: list[Passes] = []
    for each in groups:
        for other in found:
            same = alike(other.loader) == alike(each.loader)  # type: ignore[operator]
            if same and not set(other.ranks) & set(each.ranks) and len(other.numbers) == len(each.numbers):
                for (_, into), (_, own) in zip(
                    sorted(other.numbers.items()), sorted(each.numbers.items()), strict=True
                ):
                    into.update(own)
                break
        else:
            found.append(each)
    return found
