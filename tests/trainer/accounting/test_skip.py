"""A batch that the loop leaves out of the weights, and says so, counts as dropped. Resumes: test_random_programs.py."""

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import assert_ends, in_turn, run, verified
from witness import Noisy, Witness

from torchtally import Account, Batch, compat
from torchtally.accounting.ledger.drops import Drops
from torchtally.proof.digest import Digest

N, SIZE = 30, 4


def trains(drive: Callable[..., None]) -> list[int]:
    """How often each sample is in the weights."""
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        drive(account, account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)), training)
    return training.times


def step(account: Account, training: Witness, batch: Batch) -> None:
    training.backward(*batch.data)
    training.step()
    account.commit()


def some(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    """The first one, one in the middle, and the last."""
    for batch in batches:
        if batch.step in (1, 3, batch.steps):
            account.skip("loss is not finite")
        else:
            step(account, training, batch)


def within_an_accumulation(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        if batch.step == 2:
            account.skip("loss is not finite", batch)
        else:
            training.backward(*batch.data)
        if batch.step % 3 == 0 or batch.step == batch.steps:
            training.step()
            account.commit()


def the_overflow_of_an_accumulation(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    """The gradients of both batches are cleared."""
    held = []
    for batch in batches:
        held.append(batch)
        training.backward(*batch.data)
        if batch.step == 2:
            training.zero_grad()
            for each in held:
                account.skip("gradients overflow", each)
        elif batch.step == 4:
            training.step()
            account.commit()


def the_overflow_of_a_loop_that_fetches_ahead(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    first, second, third = (next(batches) for _ in range(3))
    for batch in (first, second):
        training.backward(*batch.data)
    training.zero_grad()
    account.skip("gradients overflow", first)
    account.skip("gradients overflow", second)
    for batch in chain([third], batches):
        training.backward(*batch.data)
        training.step()
        account.commit(batch)


def all_of_them(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for _ in batches:
        account.skip("loss is not finite")


def the_overflow_of_a_scaler(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        training.backward(*batch.data)
        if batch.step == 1:
            training.zero_grad()
            account.skip("gradients overflow")
            continue
        training.step()
        account.commit()


def the_overflow_of_a_fused_optimizer(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    optimizer = torch.optim.SGD(training.counts.parameters(), lr=1.0, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for batch in batches:
        loss = -training.counts(batch.data[0]).sum()
        scaler.scale(loss * (float("inf") if batch.step == 2 else 1.0)).backward()
        dist.all_reduce(training.counts.weight.grad)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() < scale:
            account.skip("gradients overflow")
        else:
            account.commit()


LEFT_OUT: list[tuple[Any, int]] = [
    (some, 3),
    (within_an_accumulation, 1),
    (the_overflow_of_an_accumulation, 2),
    (the_overflow_of_a_loop_that_fetches_ahead, 2),
    (all_of_them, 4),
    (the_overflow_of_a_scaler, 1),
    (the_overflow_of_a_fused_optimizer, 1),
]


def test_the_samples_of_a_skipped_batch_are_dropped_and_no_other_is_lost(subtests: pytest.Subtests) -> None:
    of_each = in_turn(2, ((trains, drive) for drive, _ in LEFT_OUT))
    for (drive, left_out), found in zip(LEFT_OUT, of_each, strict=True):
        with subtests.test(drive.__name__):
            assert [each["code"] for each in found] == [0, 0], found[0]["err"]
            times, verdict = found[0]["result"], verified(found)
            assert verdict.holds, verdict.problems
            assert verdict.last
            last = verdict.last.phases["train"]
            assert sum(times) == last.consumed and max(times) <= 1
            assert last.consumed + last.dropped == N
            assert last.dropped == (N if left_out == 4 else 8 * left_out - 2 * (drive is some))
            assert all("the program drops sample" in each["err"] for each in found)


def twice(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        account.skip("loss is not finite", batch)
        account.skip("loss is not finite", batch)


def others_on_each_rank(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    held = [next(batches), next(batches)]
    account.skip("loss is not finite", held[account.rank])


def the_reason_is_no_line(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for _ in batches:
        account.skip("two\nlines")


def what_a_dataloader_yields(account: Account, batches: Iterator[Batch], training: Witness) -> None:
    for batch in batches:
        account.skip("loss is not finite", batch.data)


REFUSED: list[tuple[Any, str]] = [
    (twice, "skip() must have a batch that is handed out, and neither committed nor skipped"),
    (others_on_each_rank, "steps to skip"),
    (what_a_dataloader_yields, "skip() takes a Batch, as account.epoch(phase, None, loader) yields it, not a"),
    (the_reason_is_no_line, "reason"),
]


def test_a_skip_of_another_batch_is_refused_on_all_ranks(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 2, [((trains, drive), 2, said) for drive, said in REFUSED])


def state_after_a_skip() -> str:
    """Rank 1 is late: it tells what it drops when rank 0 has made its state, if rank 0 does so before."""
    store, post = compat.default_store(), Drops.post
    if dist.get_rank() == 1:

        def late(drops: Drops, step: int, dropped: Digest) -> None:
            with contextlib.suppress(dist.DistStoreError):
                store.wait(["rank 0 has its state"], timedelta(seconds=2))
            post(drops, step, dropped)

        Drops.post = late  # type: ignore[method-assign]
    training = Witness(N)
    with Account(task="t", plan={"train": 1}) as account:
        for batch in account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=SIZE)):
            if batch.step > 1:
                step(account, training, batch)
                continue
            account.skip("loss is not finite")
            state = json.dumps(account.state_dict())
            store.set(f"rank {account.rank} has its state", "")
    return state


def test_a_state_after_a_skip_has_what_every_rank_has_dropped() -> None:
    one, other = run(2, state_after_a_skip)
    assert (one["code"], other["code"]) == (0, 0), one["err"] + other["err"]
    assert one["result"] == other["result"]


def skips_that_of_the_epoch_before() -> None:
    """Both have the same samples, as the order is that of the dataset."""
    model = Witness(N)
    with Account(task="t", plan={"train": 2}) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE, shuffle=False)
        first = None
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                first = first or batch
                if epoch == 2 and batch.step == 1:
                    account.skip("loss is not finite", first)
                else:
                    step(account, model, batch)


def test_a_batch_of_an_epoch_before_is_not_skipped_in_this_one() -> None:
    [found] = run(1, skips_that_of_the_epoch_before)
    assert found["code"] == 2
    assert "skip() must have a batch that is handed out" in found["err"]
