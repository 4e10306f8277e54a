"""What a loop of one's own takes from a loader: in steps and in an order that are those of the trainer's own loop."""

import contextlib
import itertools
import multiprocessing
import random
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accounts import in_turn, run
from squares import KEPT, SIZE, N, Squares, expected
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from torchtally.accounting.account import Account
from torchtally.accounting.batches.collate import Batch, each_row
from torchtally.accounting.batches.step_loader import StepLoader
from torchtally.accounting.order.sampler import Sampler
from torchtally.proof.contract import CONTRACTS, Contract


def epochs(contracts: list[Contract], options: dict[str, Any]) -> dict[Any, Any]:
    taken = {}
    with Account(task="t", plan=dict.fromkeys(contracts, 2), seed=7) as account:
        for contract in contracts:
            source = account.loader(Squares(), contract, batch_size=SIZE, contract=contract, **options)
            for epoch in (1, 2):
                steps = list(account.epoch(contract, epoch, source))
                account.commit()
                assert len(steps) == len(source)
                for batch in steps:
                    assert batch.data["square"].tolist() == (batch.indices**2).tolist()
                taken[contract, epoch] = [(batch.indices.tolist(), batch.rows) for batch in steps]
    return taken


WORKERS: list[tuple[Any, dict[str, Any]]] = [(CONTRACTS, {}), (["exact"], KEPT), (["exact"], {"num_workers": 3})]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_takes_its_part_of_each_step(world: int, subtests: pytest.Subtests) -> None:
    of_each = in_turn(world, ((epochs, *case) for case in WORKERS))
    for (contracts, options), found in zip(WORKERS, of_each, strict=True):
        with subtests.test(f"{contracts} {options}"):
            assert [each["code"] for each in found] == [0] * world, found[0]["err"]
            for contract, epoch in itertools.product(contracts, (1, 2)):
                steps = [each["result"][contract, epoch] for each in found]
                for rank, own in enumerate(steps):
                    assert [indices for indices, _ in own] == expected(rank, world, epoch, contract, "feistel-1")
                for together in zip(*steps, strict=True):
                    assert {rows for _, rows in together} == {sum(len(indices) for indices, _ in together)}
            lines = [line for each in found for line in each["lines"]]
            assert len(lines) == 2 * len(contracts) * (world + 1)
            assert all(line["lost"] == line["duplicated"] == 0 for line in lines)
            assert len({line["run"] for line in lines}) == 1


def test_what_workers_need_can_be_handed_to_new_processes() -> None:
    """As the start methods spawn and forkserver do it."""
    source = StepLoader(Squares(), Sampler(N, batch_size=SIZE, rank=0, world=1))
    number, data = ForkingPickler.loads(ForkingPickler.dumps(source.dataset))[7, 0, [3, 1], False]
    assert (number, data["square"].tolist()) == (7, [9, 1])


def evaluates() -> dict[int, tuple[float, list[int]]]:
    """By its number of samples: the mean over an evaluation as many have it, and the sizes of its batches."""
    found = {}
    for n in (N, 2 * SIZE + 1, 3):
        values = TensorDataset(torch.arange(float(n)))
        with Account(task="t", plan={"test": 1}) as account:
            loader, total, sizes = account.loader(values, batch_size=SIZE, trains=False), torch.zeros(2), []
            for (batch,) in loader:
                total += torch.tensor([batch.mean() * len(batch), len(batch)])
                sizes.append(len(batch))
        dist.all_reduce(total)
        found[n] = float(total[0] / total[1]), sizes
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_the_loss_of_an_evaluation_is_a_number_on_all_ranks(world: int) -> None:
    for rank, each in enumerate(run(world, evaluates)):
        for n, (mean, sizes) in each["result"].items():
            assert mean == pytest.approx((n - 1) / 2)
            assert sum(sizes) == len(range(rank, n, world))
            assert max(sizes) <= SIZE
            assert min(sizes) >= 1


def evaluates_one_by_one() -> list[int]:
    with Account(task="t", plan={"test": 1}) as account:
        return [len(batch) for (batch,) in account.loader(TensorDataset(torch.arange(3)), batch_size=1, trains=False)]


def test_an_evaluation_by_single_samples_has_an_empty_batch_at_its_end() -> None:
    assert [each["result"] for each in run(2, evaluates_one_by_one)] == [[1, 1], [1, 0]]


# An empty batch is like the others, but for its rows.

Point = namedtuple("Point", "x y")


def packed(samples: Any) -> Batch:
    lengths = torch.tensor([len(sample) for sample in samples])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Batch(samples.indices, {"tokens": torch.cat([*samples]), "ends": ends})  # type: ignore[arg-type]


def detection(samples: Any) -> Batch:
    """As detection has it: nothing is stacked."""
    return Batch(samples.indices, tuple(zip(*samples, strict=True)))  # type: ignore[arg-type]


def listed(samples: Any) -> Batch:
    return Batch(samples.indices, list(samples))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "collate", "empty"),
    [
        (torch.zeros(3, 2), default_collate, torch.empty(0, 3, 2)),
        (7, default_collate, torch.empty(0, dtype=torch.int64)),
        ((torch.zeros(5), 1.0), default_collate, [torch.empty(0, 5), torch.empty(0, dtype=torch.float64)]),
        ({"a": {"b": [torch.zeros(1)]}, "c": "text"}, default_collate, {"a": {"b": [torch.empty(0, 1)]}, "c": []}),
        (Point(torch.zeros(2), 3), default_collate, Point(torch.empty(0, 2), torch.empty(0, dtype=torch.int64))),
        ((torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)}), detection, ((), ())),
        (torch.zeros(2, 2), listed, []),
        (torch.arange(4), packed, {"tokens": torch.empty(0, dtype=torch.int64), "ends": torch.tensor([0])}),
        (np.zeros(2), each_row(np.stack), np.empty((0, 2))),
        (1, each_row(lambda each: {"x": torch.tensor(each), "k": torch.tensor(3)}), {"x": [], "k": torch.tensor(3)}),
    ],
)
def test_the_batch_of_a_rank_that_has_nothing_left(sample: Any, collate: Any, empty: Any) -> None:
    sampler = Sampler(3, batch_size=1, rank=1, world=2)
    assert sampler.idle
    first, last = StepLoader([sample] * 3, sampler, collate)
    for batch in (first, last):
        assert batch.batch.indices.dtype == torch.int64
    assert (len(first.indices), len(last.indices)) == (1, 0)
    same(last.data, empty)


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor | np.ndarray):
        assert type(found) is type(wanted)
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            same(found[key], wanted[key])
    else:
        assert len(found) == len(wanted)
        assert type(found) is type(wanted) or isinstance(found, torch.Tensor)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)


class Opaque:
    def __init__(self, samples: list[Any]):
        self.samples = samples


def named_opaque(samples: Any) -> Batch:
    return Batch(samples.indices, Opaque(samples))  # type: ignore[arg-type]


def opaque() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        source = account.loader(Squares(5), "train", batch_size=2, collate_fn=named_opaque)
        for _ in account.epoch("train", 1, source):
            account.commit()


def test_a_batch_that_cannot_be_emptied_is_never_used_for_an_empty_one() -> None:
    found = run(2, opaque)
    assert found[1]["code"] == 2
    assert "this rank has no sample left in the last step" in found[1]["err"]
    assert "the Opaque of the collate_fn named_opaque cannot be cut" in found[1]["err"]


# Random numbers follow from the seed and the step, whichever process draws them.


class Noise(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(1).item()


def noise(workers: int) -> tuple[list[Any], list[Any]]:
    """What the dataset draws, and what the loop draws, in two epochs."""
    by_dataset, by_loop = [], []
    with Account(task="t", plan={"train": 2}, seed=5) as account:
        source = account.loader(Noise(), "train", batch_size=4, num_workers=workers, trains=False)
        for epoch in (1, 2):
            for batch in account.epoch("train", epoch, source):
                by_dataset.append(batch.data.tolist())
                by_loop.append([torch.rand(1).item(), random.random(), np.random.random()])
                torch.rand(batch.step)  # as a loop that draws more in some steps
    return by_dataset, by_loop


def test_random_numbers_do_not_depend_on_the_number_of_workers() -> None:
    found = [
        [each["result"] for each in of_ranks] for of_ranks in in_turn(2, ((noise, workers) for workers in (0, 1, 3)))
    ]
    assert found[1] == found[2]
    assert [by_dataset for by_dataset, _ in found[0]] == [by_dataset for by_dataset, _ in found[1]]
    for by_rank in found:  # without workers, the loop draws on from where its dataset has
        drawn = [number for rank in by_rank for batches in rank for numbers in batches for number in numbers]
        assert len(set(drawn)) == len(drawn)  # others in each epoch, step and on each rank


# The order alone.


@pytest.mark.parametrize("world", [1, 2, 3, 60])
def test_the_sampler_takes_distributed_samplers_place_and_repeats_nothing(world: int) -> None:
    ours = [Sampler(N, seed=4, rank=rank, world=world) for rank in range(world)]
    epochs = []
    for epoch in (0, 1):
        for sampler in ours:
            sampler.set_epoch(epoch)
        epochs.append([list(sampler) for sampler in ours])
        assert sorted(itertools.chain(*epochs[-1])) == list(range(N))
        assert [len(sampler) for sampler in ours] == [len(indices) for indices in epochs[-1]]
    assert epochs[0] != epochs[1]
    torchs = DistributedSampler(Squares(), world, 0, shuffle=False)  # type: ignore[arg-type]
    padded = Sampler(N, shuffle=False, contract="padded", rank=0, world=world)
    source = DataLoader(Squares(), sampler=padded, batch_size=None)
    assert [int(each["square"]) for each in source] == [index**2 for index in torchs]


def trains_three_times() -> list[tuple[int, int]]:
    """Worker processes in each account, and after it, while the program keeps the loader and its iterator."""
    found = []
    for _ in range(3):
        with Account("t", plan={"train": 2, "test": 1}) as account:
            loader = account.loader(Squares(N), "train", batch_size=SIZE, **KEPT)
            unseen = account.loader(Squares(N), "test", batch_size=SIZE, trains=False, **KEPT)
            for _ in account.epochs():
                batches = iter(loader)
                for _ in range(len(loader)):
                    next(batches)
                    account.commit()
            for _ in unseen:
                pass
            within = len(multiprocessing.active_children())
        found.append((within, len(multiprocessing.active_children())))
    return found


def fails_in_its_second_epoch() -> int:
    """Worker processes after an account whose loop has failed."""
    with contextlib.suppress(ZeroDivisionError), Account("t", plan={"train": 2}) as account:
        loader = account.loader(Squares(N), "train", batch_size=SIZE, **KEPT)
        for epoch in account.epochs():
            for _ in loader:
                account.commit()
                1 // (2 - epoch)
    return len(multiprocessing.active_children())


def test_workers_end_with_the_account(subtests: pytest.Subtests) -> None:
    [[kept], [failed]] = in_turn(1, [(trains_three_times,), (fails_in_its_second_epoch,)])
    with subtests.test("three accounts in turn"):
        assert kept["result"] == [(2 * KEPT["num_workers"], 0)] * 3
    with subtests.test("a loop that fails"):
        assert failed["result"] == 0
