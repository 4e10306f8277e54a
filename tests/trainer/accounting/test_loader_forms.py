"""The forms in which programs know samplers and loaders: they are taken, or one sentence says what to write."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import accounts
import pytest
import torch
import torch.distributed as dist
from squares import Squares
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from torchtally import Account

N, SIZE = 20, 5
Make = Callable[[Account], Iterable[Any]]


class Pairs(Dataset[Any]):
    """Items with their indices, as a DataLoader of the program's own must have them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor([float(index)])


class Numbers(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


def loop(number: int) -> None:
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    with Account("forms", epochs=1) as account:
        account.optimizer(optimizer)
        for batch in FORMS[number](account):
            optimizer.zero_grad()
            account.weigh(mse_loss(model(batch), batch)).backward()
            optimizer.step()


def sampler(account: Account) -> Any:
    return account.sampler("train", N, batch_size=SIZE)


def prepared(loader: Any) -> Any:
    from accelerate import Accelerator

    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}  # it wants them of a group that exists
    return Accelerator(cpu=True).prepare(loader)


def distributed() -> DistributedSampler[Any]:
    return DistributedSampler(Numbers(N), num_replicas=dist.get_world_size(), rank=dist.get_rank())


TAKEN: list[Make] = [
    lambda a: a.batches("train", DataLoader(Pairs(), batch_sampler=BatchSampler(sampler(a), SIZE, False))),
    lambda a: prepared(a.loader(Numbers(N), batch_size=SIZE)),
    lambda a: a.loader(Numbers(N), sampler=distributed(), batch_size=SIZE),
    lambda a: a.loader(Numbers(N), batch_sampler=BatchSampler(distributed(), SIZE, False)),
]
REFUSED: list[tuple[Make, str]] = [
    (
        lambda a: a.batches("train", prepared(DataLoader(Pairs(), SIZE, sampler=sampler(a)))),
        "train: Accelerate's prepare() has divided the batches of this rank over the ranks once more",
    ),
    (lambda a: a.loader(prepared(DataLoader(Numbers(N), SIZE)), batch_size=SIZE), "a DataLoaderShard is no dataset"),
    (
        lambda a: a.loader(Numbers(N), batch_sampler=BatchSampler(sampler(a), SIZE, False)),
        "batch_sampler must be of your own, and has what account.sampler() returned",
    ),
    (lambda a: a.sampler(Numbers(N), num_replicas=2, rank=0), "account.sampler() does not take num_replicas=2: it"),
    (lambda a: a.sampler(Numbers(N)), "account.sampler() does not take a Numbers as phase: it takes a phase and its"),
    (lambda a: a.sampler("train", Numbers(N), batch_size=1), "account.sampler() does not take a Numbers as n: it"),
    (lambda a: a.sampler("train", batch_size=1), "account.sampler() does not take n=None: it takes a phase and its"),
    (lambda a: DataLoader(Numbers(N), SIZE, sampler=sampler(a)), "iterate over what account.loader() or account."),
]


FORMS = [*TAKEN, *(make for make, _ in REFUSED)]  # by number, as ranks receive them


def test_forms_that_are_taken_or_refused_in_one_sentence(subtests: pytest.Subtests) -> None:
    ends = [*((0, "") for _ in TAKEN), *((2, sentence) for _, sentence in REFUSED)]
    accounts.assert_ends(subtests, 2, [((loop, number), *end) for number, end in enumerate(ends)])
