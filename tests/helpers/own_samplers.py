"""Samplers as people write them, for tests of an account's loader."""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class LengthBuckets(Sampler[list[int]]):
    """Batches of samples with similar lengths, in a new order each epoch, by the global generators."""

    def __init__(self, lengths: list[int], size: int):
        self.lengths, self.size = lengths, size

    def __iter__(self) -> Iterator[list[int]]:
        noisy = [length + random.random() for length in self.lengths]
        by_length = sorted(range(len(noisy)), key=lambda index: noisy[index])
        batches = [by_length[at : at + self.size] for at in range(0, len(by_length), self.size)]
        yield from (batches[number] for number in torch.randperm(len(batches)).tolist())

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.size)


class ByTokens(Sampler[list[int]]):
    """Batches of up to so many tokens, each of another size; every rank has those of its own part of the data."""

    def __init__(self, lengths: list[int], tokens: int, by_rank: bool = False):
        self.lengths, self.tokens, self.epoch = lengths, tokens, 0
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if by_rank else (0, 1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.epoch)
        batch: list[int] = []
        for index in torch.randperm(len(self.lengths), generator=generator)[self.rank :: self.world].tolist():
            if sum(self.lengths[each] for each in (*batch, index)) > self.tokens and batch:
                yield batch
                batch = []
            batch.append(index)
        yield batch


class RepeatedAugmentation(Sampler[int]):
    """Each sample three times, on neighboring ranks, as torchvision's RASampler."""

    def __init__(self, n: int):
        self.n, self.rank, self.world, self.epoch = n, dist.get_rank(), dist.get_world_size(), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        indices = torch.randperm(self.n, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        thrice = [each for each in indices for _ in range(3)]
        total = -(-len(thrice) // self.world) * self.world
        yield from (thrice + thrice[: total - len(thrice)])[self.rank : total : self.world]


class Groups(Sampler[int]):
    """Groups of samples, each repeated, as TRL's RepeatSampler: its generator goes on from epoch to epoch."""

    def __init__(self, n: int, group: int, repeats: int):
        self.n, self.group, self.repeats = n, group, repeats
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.n, generator=self.generator).tolist()
        whole = [order[at : at + self.group] for at in range(0, self.n - self.group + 1, self.group)]
        for group in whole:
            for index in group:
                yield from [index] * self.repeats


class SeededByRank(Sampler[int]):
    """A mistake: each rank shuffles all samples with a seed of its own, and takes its part of them."""

    def __init__(self, n: int):
        self.n = n

    def __iter__(self) -> Iterator[int]:
        rank, world = dist.get_rank(), dist.get_world_size()
        yield from torch.randperm(self.n, generator=torch.Generator().manual_seed(rank))[rank::world].tolist()


class Restless(Sampler[int]):
    """A mistake: nothing but the operating system's randomness determines the order."""

    def __init__(self, n: int):
        self.n = n

    def __iter__(self) -> Iterator[int]:
        # The same on all ranks, as they share out one draw.
        drawn: list[Any] = [random.SystemRandom().sample(range(self.n), self.n)]
        dist.broadcast_object_list(drawn)
        yield from drawn[0]


class OnOneRank(Sampler[int]):
    """It fails on rank 1."""

    def __iter__(self) -> Iterator[int]:
        if dist.get_rank() == 1:
            raise RuntimeError("no space")
        yield 0
