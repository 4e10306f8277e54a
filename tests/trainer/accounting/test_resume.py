"""A loop that is killed goes on at the very sample where its weights stand, at any number of ranks, and is proved."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest
from accounts import alone, assert_ends, in_turn, run, verified
from witness import Noisy, Witness

from torchtally import Account, Locality
from torchtally.proof.contract import Contract
from torchtally.proof.shard_sizes import ShardSizes

N, EPOCHS = 101, 3
PLAN = {"train": EPOCHS, "test": EPOCHS}
Saved = dict[str, Any]


def trains(
    saved: Saved | None,
    until: int | None,
    workers: int = 0,
    accumulate: int = 1,
    contract: Contract = "exact",
    size: int = 4,
    order: Locality | None = None,
    plan: Mapping[str, int] = PLAN,
    dataset: Any = None,
) -> Saved:
    """Train from `saved` on, and "die" after `until` commits: the rest of the accumulation is handed out by then."""
    dataset = dataset or Sharded(N)
    training = Witness(len(dataset))
    account = Account(task="t", plan=dict(plan), seed=5, order=order).__enter__()
    loader = account.loader(dataset, "train", batch_size=size, contract=contract, num_workers=workers)
    tests = account.loader(Noisy(7), "test", batch_size=4, shuffle=False, trains=False) if "test" in plan else None
    if saved:
        account.load_state_dict(saved["account"])
        training.load(saved["training"])
    commits = 0
    for epoch in account.epochs():
        for batch in account.epoch("train", epoch, loader):
            if commits == until and batch.step % accumulate == 0:
                return {"account": account.state_dict(), "training": training.save()}
            training.backward(*batch.data)
            if batch.step % accumulate == 0 or batch.step == batch.steps:
                training.step()
                account.commit()
                commits += 1
        for _ in account.epoch("test", epoch, tests) if tests else ():
            pass
    found = {"account": account.state_dict(), "training": training.save()}
    account.__exit__(None, None, None)
    return {**found, "times": training.times, "sha256": training.sha256}


class Sharded(Noisy):
    """Its samples are in shard files."""

    shard_sizes: Sequence[int] = (20, 0, 31, 7, 25, 18)


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, list[dict[str, Any]]]:
    return {accumulate: run(2, trains, None, None, 0, accumulate) for accumulate in (1, 3)}


@pytest.mark.parametrize(
    ("before", "after", "until", "workers", "accumulate"),
    [
        pytest.param(2, 2, 0, (0, 2), 1, marks=pytest.mark.nightly),
        pytest.param(2, 2, 5, (0, 2), 1, marks=pytest.mark.nightly),
        pytest.param(2, 2, 20, (2, 0), 1, marks=pytest.mark.nightly),
        (2, 2, 7, (0, 0), 3),
        pytest.param(2, 3, 5, (0, 0), 1, marks=pytest.mark.nightly),
        (3, 2, 11, (1, 0), 1),
        pytest.param(1, 3, 30, (0, 0), 1, marks=pytest.mark.nightly),
    ],
)
def test_a_killed_loop_goes_on_where_its_weights_stand(
    before: int,
    after: int,
    until: int,
    workers: tuple[int, int],
    accumulate: int,
    undisturbed: dict[int, list[dict[str, Any]]],
) -> None:
    killed = run(before, trains, None, until, workers[0], accumulate)
    assert len({json.dumps(each["result"]["account"]) for each in killed}) == 1  # the same on every rank
    resumed = run(after, trains, killed[0]["result"], None, workers[1], accumulate)
    for each in resumed:
        assert each["code"] == 0, each["err"]
        assert each["result"]["times"] == [EPOCHS] * N
    if before == after and bool(workers[0]) == bool(workers[1]):
        assert resumed[0]["result"]["sha256"] == undisturbed[accumulate][0]["result"]["sha256"]
    verdict = verified(killed, resumed)
    assert verdict.holds, verdict.problems
    assert (verdict.attempt, verdict.last is not None) == (1, True)


def grows(saved: Saved | None, epochs: int, until: int | None) -> Saved:
    return trains(saved, until, plan={"train": epochs})


@pytest.mark.parametrize(
    ("until", "world"),
    [
        pytest.param(None, 2, marks=pytest.mark.nightly),
        pytest.param(None, 3, marks=pytest.mark.nightly),
        (5, 2),
        pytest.param(20, 3, marks=pytest.mark.nightly),
    ],
)
def test_a_plan_that_has_grown_is_proved_as_a_whole(until: int | None, world: int) -> None:
    first = run(2, grows, None, 2, until)
    grown = run(world, grows, first[0]["result"], 4, None)
    for each in grown:
        assert each["code"] == 0, each["err"]
        assert each["result"]["times"] == [4] * N
    assert "the plan has grown from {'train': 2} to {'train': 4}" in grown[0]["err"]
    verdict = verified(first, grown)
    assert verdict.holds, verdict.problems
    assert verdict.last is not None and verdict.last.plan == {"train": 4}
    died = run(world, grows, first[0]["result"], 4, 15)  # after another epoch
    assert not verified(first, died).holds
    for each in run(2, grows, grown[0]["result"], 3, None):
        assert each["code"] == 2
        assert "its plan is {'train': 4}, and now it is {'train': 3}" in each["err"]


def grows_at_once() -> dict[str, Any]:
    return grows(grows(None, 2, None), 4, None)


def test_a_plan_can_grow_in_the_process_that_has_completed_the_run() -> None:
    found = run(1, grows_at_once)
    assert found[0]["code"] == 0, found[0]["err"]
    assert found[0]["result"]["times"] == [4] * N
    verdict = verified(found)
    assert verdict.holds, verdict.problems


@pytest.mark.parametrize("contract", ["exact", pytest.param("padded", marks=pytest.mark.nightly)])
def test_an_order_with_locality_goes_on_at_other_numbers_of_ranks(contract: Contract) -> None:
    order = Locality(window=2, lanes=2)
    killed = run(2, trains, None, 5, 1, 1, contract, 4, order)
    again = run(3, trains, killed[0]["result"], 3, 0, 1, contract, 4, order)
    resumed = run(1, trains, again[0]["result"], None, 0, 1, contract, 4, order)
    assert resumed[0]["code"] == 0, resumed[0]["err"]
    assert contract == "padded" or resumed[0]["result"]["times"] == [EPOCHS] * N
    assert {EPOCHS, *resumed[0]["result"]["times"]} <= {EPOCHS, EPOCHS + 1, EPOCHS + 2}
    verdict = verified(killed, again, resumed)
    assert verdict.holds, verdict.problems
    assert {str(line.order).split()[0] for line in verdict.lines} == {"locality-1", "sequential"}
    state = json.loads(killed[0]["result"]["account"]["torchtally"])["phases"]["train"]
    assert state["order"] == "locality-1 window=2 lanes=2 sizes=" + ShardSizes.of(Sharded.shard_sizes).fingerprint
    assert state["sizes"] == [[1, size] for size in Sharded.shard_sizes]


def accumulates(saved: Saved | None, size: int) -> Any:
    """Step after every third batch, counted from the epoch's beginning as libraries do. "Die" after the first step."""
    training = Witness(N)
    account = Account(task="t", plan={"train": 1}).__enter__()
    loader = account.loader(Noisy(N), "train", batch_size=size)
    if saved:
        account.load_state_dict(saved["account"])
        training.load(saved["training"])
    made = account.skipped("train")
    for batch in account.epoch("train", 1, loader):
        made += 1
        training.backward(*batch.data)
        if made % 3 == 0 or batch.step == batch.steps:
            training.step()
            account.commit()
            if not saved:
                return {"account": account.state_dict(), "training": training.save()}
    account.__exit__(None, None, None)
    return training.times


def test_other_batches_may_cut_an_accumulation_when_a_loop_goes_on() -> None:
    """4 batches of 3 samples are made, so that the first step takes 2."""
    resumed = alone(accumulates, alone(accumulates, None, 4)["result"], 3)
    assert resumed["code"] == 0, resumed["err"]
    assert resumed["result"] == [1] * N


# A state that cannot be loaded.


def resharded(first: Locality, other: Locality, sizes: Sequence[int], before: bool) -> None:
    """Load the state of a run with an order, in an account with another order or other sizes of shard files."""
    account = Account(task="t", plan={"train": 2}, order=first).__enter__()
    next(account.epoch("train", 1, account.loader(Sharded(N), "train", batch_size=4)))
    account.commit()
    data = Sharded(N)
    data.shard_sizes = sizes
    with Account(task="t", plan={"train": 2}, order=other) as again:
        if before:
            again.load_state_dict(account.state_dict())
        again.loader(data, "train", batch_size=4)
        again.load_state_dict(account.state_dict())


RESHARDED: list[tuple[Locality, Sequence[int]]] = [
    (Locality(window=2), (20, 31, 0, 7, 25, 18)),
    (Locality(window=3), Sharded.shard_sizes),
    (Locality(window=2, lanes=2), Sharded.shard_sizes),
]


def test_an_order_that_has_changed_since_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = []
    for (other, sizes), before in product(RESHARDED, (False, True)):
        was, now = (
            f"locality-1 window={each.window} lanes={each.lanes} sizes={ShardSizes.of(files).fingerprint}"
            for each, files in ((Locality(window=2), Sharded.shard_sizes), (other, sizes))
        )
        case = (resharded, Locality(window=2), other, sizes, before)
        cases.append((case, 2, f"train: its order was {was} in this run, and now it is {now}"))
    assert_ends(subtests, 1, cases)


def loads(change: dict[str, Any], how: str = "") -> None:
    """Load a state with changes, in an account of seed 5 over 101 samples."""
    account = Account(task="t", plan={"train": 2}, seed=5).__enter__()
    next(account.epoch("train", 1, account.loader(Noisy(N), "train", batch_size=4)))
    account.commit()
    state = json.loads(account.state_dict()["torchtally"])
    text = json.dumps(state | change)
    with Account(task="t", plan={"train": 2}, seed=5) as other:
        match how:
            case "cut off":
                other.load_state_dict({"torchtally": text[:100]})
            case "other key":
                other.load_state_dict({"model": text})
            case "not a text":
                other.load_state_dict({"torchtally": state})
            case "too late":
                loader = other.loader(Noisy(N), "train", batch_size=4)
                next(other.epoch("train", 1, loader))
                other.load_state_dict({"torchtally": text})
            case "the dataset grew":
                other.load_state_dict({"torchtally": text})
                other.loader(Noisy(N + 1), "train", batch_size=4)
            case "the dataset grew before":
                other.loader(Noisy(N + 1), "train", batch_size=4)
                other.load_state_dict({"torchtally": text})
            case _:
                other.load_state_dict({"torchtally": text})


UNFIT: list[tuple[dict[str, Any], str, str]] = [
    ({"seed": 6}, "", "the state is of another run: its seed is 6, and now it is 5"),
    ({"task": "u"}, "", "the state is of another run: its task is u, and now it is t"),
    ({"plan": {"train": 3}}, "", "its plan is {'train': 3}, and now it is {'train': 2}"),
    ({"v": 4}, "", "its version is 4, and this release reads 1"),
    ({"attempt": -1}, "", "no state has this: Expected `int` >= 0 - at `$.attempt`"),
    ({"phases": {"train": {}}}, "", "no state has this: Object missing required field `n` - at `$.phases"),
    ({}, "cut off", "it is cut off or damaged"),
    ({}, "other key", "must have the entry 'torchtally', and it has model"),
    ({}, "not a text", "it must be a text, not a dict"),
    ({}, "too late", "load_state_dict() must be called before the first epoch of this start"),
    ({}, "the dataset grew", "train: its number of samples was 101 in this run, and now it is 102"),
    ({}, "the dataset grew before", "train: its number of samples was 101 in this run, and now it is 102"),
]


def test_a_state_that_does_not_fit_is_refused(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 1, [((loads, change, how), 2, said) for change, how, said in UNFIT])


# Odd moments.


def goes_on(saved: Saved, how: str) -> list[int]:
    training = Witness(N)
    with Account(task="t", plan={"train": EPOCHS, "test": EPOCHS}, seed=5) as account:
        beginning = account.state_dict()
        loader = account.loader(Noisy(N), "train", batch_size=4)
        account.loader(Noisy(7), "test", batch_size=4, shuffle=False, trains=False)
        account.load_state_dict(saved["account"])
        training.load(saved["training"])
        if how == "loads twice":
            account.load_state_dict(beginning)
        if how == "stops at once":
            account.stop("deadline")
        for batch in account.epoch("train", 1, loader):
            training.backward(*batch.data)
            training.step()
            account.commit()
            account.stop("deadline")
    return training.times


GO_ON = [
    ("stops at once", 2, "train epoch 1 is in progress: call stop() after its loop has continued"),
    ("loads twice", 2, "load_state_dict() was called before in this start: an account takes one state"),
    ("stops later", 0, ""),
]


def test_what_a_state_holds_is_not_forgotten(subtests: pytest.Subtests) -> None:
    killed = alone(trains, None, 3)
    of_each = in_turn(1, ((goes_on, killed["result"], how) for how, *_ in GO_ON))
    for (how, code, said), [found] in zip(GO_ON, of_each, strict=True):
        with subtests.test(how):
            assert found["code"] == code, found["err"]
            assert said in found["err"]
    assert sum(found["result"]) == 16
    verdict = verified([killed], [found])
    assert verdict.holds, verdict.problems


def few(saved: Saved | None, until: int | None, dataset: Any, size: int, contract: Contract) -> Saved:
    return trains(saved, until, contract=contract, size=size, plan={"train": 1}, dataset=dataset)


def test_more_ranks_than_samples_that_drop_last_leaves() -> None:
    """24 of 30 samples are consumed by 2 ranks: 8 ranks leave out the other 6, as they do not divide by 8."""
    killed = run(2, few, None, 6, Noisy(30), 2, "drop_last")
    resumed = run(8, few, killed[0]["result"], None, Noisy(30), 2, "drop_last")
    assert {each["code"] for each in resumed} == {0}, resumed
    assert sum(resumed[0]["result"]["times"]) == 24
    verdict = verified(killed, resumed)
    assert verdict.holds, verdict.problems
