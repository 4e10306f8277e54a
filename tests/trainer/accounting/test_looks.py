"""A look at the first batches of an epoch takes nothing, and a loader can leave out a step that is not full."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from accounts import in_turn, run, tallies, verified
from loops import SIZE, N, Numbers, Times
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from torchtally import Account

EPOCHS = 3
Step = Callable[[torch.Tensor], None]
Loop = Callable[[Account, Any, Any, Step], None]


def looks_first(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    """As the tutorials do, to print the size of a batch, and to keep a few samples for pictures."""
    shown = list(islice(unseen, 2)).pop()
    for _ in account.epochs():
        assert len(next(iter(loader))) == SIZE
        for batch in loader:
            step(batch)
        assert sorted(index for batch in unseen for index in batch.tolist())[:1] >= [0]
    assert len(shown) == SIZE


def goes_on_with_the_first_iterator(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    for _ in account.epochs():
        first = iter(loader)
        next(first)
        for batch in loader:
            step(batch)
            step(next(first))


def leaves_a_trained_batch(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    for _ in account.epochs():
        step(next(iter(loader)))
        for batch in loader:
            step(batch)


def fetches_beyond_the_plan(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    """Fetches the next batch before each step, also before the last one, and makes a pass of its own at the end."""

    def endless() -> Any:
        while True:
            yield from loader

    batches = endless()
    batch = next(batches)
    for _ in range(EPOCHS * len(iter(loader))):
        after = next(batches)
        step(batch)
        batch = after
    for _ in range(EPOCHS):
        assert sum(map(len, unseen))
    assert sum(map(len, loader))


def trains_beyond_the_plan(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    for _ in range(EPOCHS + 1):
        for batch in loader:
            step(batch)


def passes_without_a_loss(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    assert sum(map(len, loader))
    for batch in loader:
        step(batch)


def trains(loop: Loop, **options: Any) -> list[int]:
    model = Times()
    driven = DistributedDataParallel(model)
    optimizer = SGD(model.parameters(), lr=torch.distributed.get_world_size())
    with Account("t", plan={"train": EPOCHS, "test": EPOCHS}) as account:
        account.optimizer(optimizer)
        loader = account.loader(Numbers(), "train", batch_size=SIZE, **options)
        unseen = account.loader(Numbers(), "test", batch_size=SIZE, trains=False, shuffle=False)

        def step(batch: torch.Tensor) -> None:
            optimizer.zero_grad()
            account.weigh(driven(batch), batch).backward()
            optimizer.step()

        loop(account, loader, unseen, step)
    return model.times


LOOPS: list[tuple[Loop, int, str]] = [
    (looks_first, 0, ""),
    (fetches_beyond_the_plan, 0, ""),
    (goes_on_with_the_first_iterator, 2, "the loop has begun it again, and continues with its first iterator"),
    (leaves_a_trained_batch, 3, "the loop left the epoch in step 1 of 3"),
    (trains_beyond_the_plan, 2, "train epoch 4 must be one of the plan's, 1 to 3"),
    (passes_without_a_loss, 3, "train epoch 1 is not proved"),
]


def test_a_look_at_a_batch_takes_nothing_and_what_is_more_is_told(subtests: pytest.Subtests) -> None:
    for (loop, code, said), found in zip(LOOPS, in_turn(2, ((trains, loop) for loop, *_ in LOOPS)), strict=True):
        with subtests.test(loop.__name__):
            for each in found:
                assert each["code"] == code and said in each["err"], each["err"]
                assert code or each["result"] == [EPOCHS] * N
            assert verified(found).holds == (code == 0)


def plain(account: Account, loader: Any, unseen: Any, step: Step) -> None:
    for _ in account.epochs():
        sizes = []
        for batch in loader:
            step(batch)
            sizes.append(len(batch))
        assert sizes == [SIZE] * len(loader)
        assert sum(map(len, unseen))


@pytest.mark.parametrize("world", [2, 3])
def test_a_step_that_is_not_full_is_dropped_in_each_epoch(world: int) -> None:
    found = run(world, dropping)
    assert [each["code"] for each in found] == [0] * world, found[0]["err"]
    rest = N % (world * SIZE)
    assert sum(found[0]["result"]) == EPOCHS * (N - rest)
    [last] = tallies(found[0]["out"])[1]
    assert last["phases"]["train"]["dropped"] == EPOCHS * rest and "dropped" not in last["phases"]["test"]
    assert verified(found).holds


def dropping() -> list[int]:
    return trains(plain, drop_last=True)


def test_a_dataset_that_fills_no_step_is_refused() -> None:
    for each in run(6, dropping):
        assert each["code"] == 2
        assert (
            "train has no step that all ranks can fill: 22 for 6 ranks, contract exact, and drop_last=True"
            in each["err"]
        )
