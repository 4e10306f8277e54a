"""A plan in steps or tokens, and a run that its program stops: what is proved is the prefix of the order."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from accounts import assert_ends, in_turn, tallied, verified
from hypothesis import given
from hypothesis import strategies as st
from witness import Noisy, Witness

from torchtally import Account, Every, Locality, Steps, Tokens
from torchtally.accounting.order.plan import extent
from torchtally.accounting.order.schedule import Schedule
from torchtally.proof.contract import CONTRACTS
from torchtally.proof.shards import Shard

N, SIZE = 30, 2


@given(
    steps=st.integers(1, 200),
    n=st.integers(1, 50),
    each=st.integers(1, 9),
    world=st.integers(1, 5),
    contract=st.sampled_from(CONTRACTS),
    accumulate=st.integers(1, 5),
)
def test_a_plan_in_steps_makes_that_many(
    steps: int, n: int, each: int, world: int, contract: Any, accumulate: int
) -> None:
    whole = Shard(n=n, rank=0, world=world, contract=contract)
    batch = each * world
    if not whole.total:
        return
    epochs, end = extent(Steps(steps, accumulate), Schedule(whole, batch))
    last = Shard(n=n, rank=0, world=world, contract=contract, end=end)
    per_epoch, in_last = (-(-shard.steps(batch) // accumulate) for shard in (whole, last))
    assert (epochs - 1) * per_epoch + in_last == steps
    assert end is None or 0 < end < n
    every = [Shard(n=n, rank=rank, world=world, contract=contract, end=end) for rank in range(world)]
    if end:
        assert sorted(position for shard in every for position in shard.positions().tolist()) == list(range(end))


@given(
    tokens=st.integers(1, 500),
    each=st.integers(1, 9),
    n=st.integers(1, 50),
    world=st.integers(1, 9),
    contract=st.sampled_from(CONTRACTS),
)
def test_a_plan_in_tokens_reaches_them(tokens: int, each: int, n: int, world: int, contract: Any) -> None:
    whole = Shard(n=n, rank=0, world=world, contract=contract)
    if not whole.total:
        return
    epochs, end = extent(Tokens(tokens, each), Schedule(whole, world))
    assert end is None or 0 < end < n
    samples = (epochs - 1) * whole.total + (end or whole.total)
    spare = 1 if end else 1 + max(0, whole.total - n)  # an end is not among the samples that are repeated
    assert (samples - spare) * each < tokens <= samples * each


def trains(plan: Any, stop: int | None = None) -> list[int]:
    training, commits = Witness(N), 0
    with Account(task="t", plan={"train": plan, "test": 2}, seed=1) as account:
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        tests = account.loader(Noisy(5), "test", batch_size=SIZE, trains=False)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader) if epoch <= account.plan["train"] else ():
                training.backward(*batch.data)
                training.step()
                account.commit()
                commits += 1
                if commits == stop:
                    account.stop("patience")
            if account.completed("test") < 2:
                for _ in account.epoch("test", account.completed("test") + 1, tests):
                    pass
    return training.times


ENDS: list[tuple[Any, int | None, int, Any]] = [
    (Steps(20), None, 2 * 30 + 16, [3, 16]),
    (Steps(16), None, 60, None),
    (Steps(3), None, 12, [1, 12]),
    (Tokens(170, each=4), None, 43, [2, 13]),
    (5, 3, 12, [1, 12]),
    (5, 8, 30, [2, 0]),
    (5, 11, 42, [2, 12]),
]


def test_a_plan_that_is_fulfilled_or_stopped_is_proved_to_its_end(subtests: pytest.Subtests) -> None:
    """Two ranks: 8 steps an epoch, the last one of 2 samples."""
    of_each = in_turn(2, ((trains, plan, stop) for plan, stop, *_ in ENDS))
    for (plan, stop, total, end), found in zip(ENDS, of_each, strict=True):
        with subtests.test(f"{plan} {stop}"):
            for each in found:
                assert each["code"] == 0, each["err"]
                assert sum(each["result"]) == total
                assert max(each["result"]) - min(each["result"]) <= 1
            last = tallied(found[0]["out"])[-1]
            assert last["phases"]["train"].get("end") == end
            assert last.get("stopped") == ("patience" if stop else f"train: {plan}" if end else None)
            verdict = verified(found)
            assert verdict.holds, verdict.problems


def numbered(number: Any) -> list[Any]:
    """The samples, and the state in the last epoch, of a run that has this type of numbers."""
    seen, states = list[list[int]](), list[Any]()
    plan = {"train": number(2), "own": Steps(number(4), number(2)), "drawn": number(1)}
    with Account("t", plan=plan, seed=number(1)) as account:
        loaders = {"train": account.loader(Noisy(N), "train", batch_size=number(SIZE))}
        order = Locality(window=number(8), lanes=number(2), sizes=[N])
        loaders["own"] = account.loader(Noisy(N), "own", global_batch_size=number(SIZE), order=order)
        loaders["drawn"] = account.loader(Noisy(N), "drawn", batch_size=number(SIZE), sampler=range(N))
        for phase, epochs in account.plan.items():
            for epoch in range(1, epochs + 1):
                for batch in account.epoch(phase, epoch, loaders[phase]):
                    seen.append(batch.indices.tolist())
                    account.commit()
                    states = [account.state_dict()]
    return [seen, states]


def test_numbers_have_any_integer_type(subtests: pytest.Subtests) -> None:
    """As a program computes them, or reads them from a table."""
    types = (int, np.int64, torch.tensor)
    of_each = in_turn(1, [(numbered, number) for number in types])
    [expected], *others = of_each
    assert expected["code"] == 0, expected["err"]
    for number, [found] in zip(types[1:], others, strict=True):
        with subtests.test(str(number)):
            assert found["code"] == 0, found["err"]
            assert found["result"][0] == expected["result"][0]
            assert [line["consumed"] for line in found["lines"]] == [line["consumed"] for line in expected["lines"]]
            json.dumps(found["result"][1])


def misused(how: str) -> None:
    plans = {"no loader": Steps(5), "beyond": Steps(2, accumulate=2), "zero": Steps(0), "half": 1.5, "negative": -1}
    plan = {**plans, "first": Every(3)}.get(how, 2)
    with Account(task="t", plan={"train": plan}) as account:
        if how == "no loader":
            list(account.epochs())
        loader = account.loader(Noisy(N), "train", batch_size=SIZE)
        for _ in account.epoch("train", 2 if how == "beyond" else 1, loader):
            account.commit()
            if how == "no reason":
                account.stop("")


MISUSES = [
    (
        "no loader",
        2,
        "the plan of train is Steps(count=5, accumulate=1): its loader or sampler must be made before it is used",
    ),
    ("zero", 2, "the plan of train is Steps(count=0, accumulate=1): it must have whole numbers from 1"),
    ("half", 2, "the plan of train is 1.5: it must have whole numbers from 0"),
    ("first", 2, "the plan of train is Every(epochs=3): it must come after the phase whose epochs it counts"),
    ("negative", 2, "the plan of train is -1: it must have whole numbers from 0"),
    (
        "beyond",
        2,
        "train epoch 2 must be one of the plan's, 1 to 1; a loop that accumulates over the end of an epoch plans "
        "batches, Steps(4)",
    ),
    ("no reason", 2, '"reason" is "", allowed is printable text'),
    ("", 3, "the plan has 2 epochs of train, and 1 were made"),
]


def test_a_plan_that_cannot_be_is_refused(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 1, [((misused, how), code, said) for how, code, said in MISUSES])
