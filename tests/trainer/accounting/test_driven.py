"""An account's loader hands out each epoch, whoever asks for it: a loop, or a library that knows how many batches."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from accounts import alone, in_turn, run
from squares import SIZE, N, Squares
from torch.utils.data.distributed import DistributedSampler

from torchtally import Account
from torchtally.accounting.loader import Loader
from torchtally.proof.contract import Contract

EPOCHS = 2
Drive = Callable[[Loader], Iterator[Any]]


def plain(loader: Loader) -> Iterator[Any]:
    """A loop, which asks for one more batch than there is."""
    yield from loader


def counting(loader: Loader) -> Iterator[Any]:
    """A library that knows how many there are, and asks twice for an iterator."""
    iter(loader)
    batches = iter(loader)
    for _ in range(len(loader)):
        yield next(batches)


def hasty(loader: Loader) -> Iterator[Any]:
    """One that stops a batch too early."""
    batches = iter(loader)
    for _ in range(len(loader) - 1):
        yield next(batches)


def consumes(drive: Drive, contract: Contract, trains: bool, epochs: int, options: dict[str, Any]) -> list[list[int]]:
    """The samples that this rank has seen in each epoch."""
    seen = []
    with Account("t", epochs=EPOCHS) as account:
        loader = account.loader(Squares(), batch_size=SIZE, contract=contract, trains=trains, **options)
        for _ in range(epochs):
            seen.append([])
            for batch in drive(loader):
                seen[-1] += batch["square"].sqrt().int().tolist()
                if trains:
                    account.commit()
    return seen


DRIVEN: list[tuple[Drive, Contract, bool, dict[str, Any]]] = [
    (plain, "padded", True, {}),
    (counting, "drop_last", True, {"num_workers": 2, "persistent_workers": True}),
    (counting, "padded", False, {}),
]


def test_every_rank_sees_as_many_as_with_distributed_sampler(subtests: pytest.Subtests) -> None:
    of_each = in_turn(3, ((consumes, *case[:3], EPOCHS, case[3]) for case in DRIVEN))
    for (drive, contract, *_), found in zip(DRIVEN, of_each, strict=True):
        with subtests.test(f"{drive.__name__} {contract}"):
            assert [each["code"] for each in found] == [0] * 3, found[0]["err"]
            for rank, each in enumerate(found):
                known = DistributedSampler(Squares(), 3, rank, drop_last=contract == "drop_last")
                assert [len(epoch) for epoch in each["result"]] == [len(known)] * EPOCHS
                assert each["result"][0] != each["result"][1]
            for epoch in range(EPOCHS):
                together = {index for each in found for index in each["result"][epoch]}
                assert len(together) == (N // 3 * 3 if contract == "drop_last" else N)


def test_a_library_that_leaves_an_epoch_early_has_lost_what_it_did_not_take() -> None:
    for each in run(2, consumes, hasty, "padded", True, EPOCHS, {}):
        assert each["code"] == 3
        assert "train epoch 1 is not proved: of 50 samples that the contract padded names" in each["err"]
        assert "2 were lost" in each["err"]
        assert each["err"].endswith(": the loop left the epoch in step 3 of 4\n")


def test_a_library_that_asks_for_an_epoch_more_is_refused() -> None:
    found = alone(consumes, plain, "exact", True, EPOCHS + 1, {})
    assert found["code"] == 2
    assert "train epoch 3 must be one of the plan's, 1 to 2" in found["err"]
