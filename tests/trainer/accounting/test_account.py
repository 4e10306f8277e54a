"""A loop of one's own: what it takes is counted when it was used, and proved; what cannot be counted is refused."""

from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, as_rank, assert_ends, in_turn, run
from squares import KEPT, SIZE, N, NoStream, Pairs, Selecting, Squares, expected
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from torchtally.accounting.account import Account
from torchtally.accounting.batches.collate import Batch
from torchtally.accounting.order.locality import Locality
from torchtally.proof.contract import Contract


def gradients(world_batch: int) -> Any:
    """The weights after two epochs of DDP on batches weighted by their rows."""
    model = nn.Linear(2, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-5, momentum=0.9)
    with Account(task="t", plan={"train": 2}, seed=3) as account:
        source = account.loader(Squares(), "train", batch_size=world_batch // account.world)
        for epoch in (1, 2):
            for batch in account.epoch("train", epoch, source):
                output = parallel(batch.data["x"].double()).squeeze(1)
                loss = mse_loss(output, batch.data["square"].double(), reduction="sum") * account.world / batch.rows
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                account.commit()
    return [value.tolist() for value in model.state_dict().values()]


def test_the_gradients_are_those_of_one_process() -> None:
    """49 samples, 24 a step: one for the last, which two of three ranks make with nothing."""
    (weight, bias), *others = [run(world, gradients, 24)[-1]["result"] for world in (1, 2, 3)]
    assert weight != [[0.0, 0.0]]
    for other in others:
        np.testing.assert_allclose(other[0], weight, rtol=1e-12)
        np.testing.assert_allclose(other[1], bias, rtol=1e-12)


# A loop that does not take everything.


def leaves(how: str) -> None:
    with Account(task="t", plan={"train": 2, "test": 1}) as account:
        source = account.loader(Squares(), "train", batch_size=4, **KEPT)
        test = account.loader(Squares(5), "test", batch_size=4, shuffle=False, trains=False)
        for _ in account.epoch("test", 1, test):
            pass
        if how == "generator kept":
            kept = account.epoch("train", 1, source)
            for _ in range(2):
                next(kept)
                account.commit()
            next(kept)
        else:
            for step, _ in enumerate(account.epoch("train", 1, source), start=1):
                if step == 3:
                    break
                account.commit()
        if how == "goes on":
            for _ in account.epoch("train", 2, source):
                pass


@pytest.mark.parametrize("how", ["ends", "goes on", "generator kept"])
def test_a_loop_that_breaks_has_lost_the_rest_and_the_proof_says_so(how: str) -> None:
    """Two batches were used; the third is in hand, and those that the workers have fetched count for nothing."""
    for rank, each in enumerate(run(2, leaves, how)):
        assert each["code"] == 3
        assert "train epoch 1 is not proved: of 49 samples" in each["err"]
        assert "33 were lost and 0 duplicated" in each["err"]
        assert each["err"].endswith(": the loop left the epoch in step 3 of 7\n")
        train = {line["rank"]: line for line in each["lines"] if line["phase"] == "train"}
        assert (train[rank]["consumed"], train[rank]["lost"]) == (8, train[rank]["expected"] - 8)
        assert {line["epoch"] for line in train.values()} == {1}


def evaluates_in_between() -> None:
    with Account(task="t", plan={"train": 1, "test": 2}) as account:
        source = account.loader(Squares(), "train", batch_size=4)
        test = account.loader(Squares(5), "test", batch_size=4, trains=False)
        for step, _ in enumerate(account.epoch("train", 1, source)):
            account.commit()
            if step in (2, 4):
                assert len(list(account.epoch("test", step // 2, test))) == 1


def test_another_phase_may_begin_before_one_has_ended() -> None:
    for each in run(2, evaluates_in_between):
        assert each["code"] == 0, each["err"]
        assert not any(line["lost"] or line["duplicated"] for line in each["lines"])


def raises() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        for _ in account.epoch("train", 1, account.loader(Squares(), "train", batch_size=4, num_workers=1)):
            raise ZeroDivisionError("the user's own")


def test_an_error_of_the_loop_stays_what_it_is_and_proves_nothing() -> None:
    found = ranks.run(1, as_rank, raises)
    assert isinstance(found[0], ZeroDivisionError)


def reloads(size: int, state: dict[str, str], phase: str = "train") -> tuple[list[int], dict[str, str]]:
    """The lengths of what a library gets within each step, and the state before the last one."""
    lengths: list[int] = []
    with Account(task="t", plan={"train": 1}) as account:
        if state:
            account.load_state_dict(state)
        source = account.loader(Squares(), "train", batch_size=size)
        for batch in account.epoch("train", 1, source):
            lengths.append(len(account.batches(phase, source)))
            account.commit()
            if batch.step < batch.steps:
                state = account.state_dict()
    return lengths, state


def test_the_batches_for_a_library_have_the_length_of_a_whole_epoch() -> None:
    lengths, state = alone(reloads, 4, {})["result"]
    assert set(lengths) == {-(-N // 4)}
    lengths, _ = alone(reloads, 2, state)["result"]
    assert set(lengths) == {-(-N // 2)}


def completes_twice() -> None:
    _, state = reloads(4, {})
    reloads(4, state)


def misuses(how: str) -> None:
    if how == "no with":
        Account(task="t", plan={"train": 1}).loader(Squares(), "train", batch_size=4)
    plans: dict[str, Any] = {"plan": "train", "no phase": {}}
    with Account(task="t", plan=plans.get(how, {"train": 1})) as account:
        if how == "state":
            account.load_state_dict(None)  # type: ignore[arg-type]
        if how == "objects":
            account.checkpoints("/tmp", nn.Linear(1, 1))  # type: ignore[arg-type]
        if how == "file":
            account.checkpoints(__file__, {"model": nn.Linear(1, 1)})


NEEDS = (
    "rank 0 (pod-0): an Account needs epochs=10, or the epochs of each phase, "
    'plan={"train": 10, "test": 10}, and not plan='
)


def makes(epochs: list[int], planned: int) -> None:
    with Account(task="t", plan={"train": planned}) as account:
        source = account.loader(Squares(), "train", batch_size=4)
        for epoch in epochs:
            for _ in account.epoch("train", epoch, source):
                account.commit()


# A collate_fn may do what it likes, but not with the count.


def drops_and_says_so(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(torch.tensor([index for index, _ in pairs if index != 4]), torch.zeros(100))


def repeats_and_says_so(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(torch.tensor([index for index, _ in pairs for _ in range(1 + (index == 4))]), torch.zeros(100))


def collates(dataset: Any, collate: Any, workers: int) -> None:
    with Account(task="t", plan={"train": 1}) as account:
        source = account.loader(dataset, "train", batch_size=7, collate_fn=collate, num_workers=workers)
        for _ in account.epoch("train", 1, source):
            account.commit()


# DataLoaders that are not ours.


def own_loader(contract: Contract, dataset: Any, size: int, options: dict[str, Any]) -> list[list[int]]:
    with Account(task="t", plan={"train": 1}, seed=7) as account:
        sampler = account.sampler("train", len(dataset), batch_size=SIZE, contract=contract)
        source = DataLoader(dataset, batch_size=size, sampler=sampler, **options)
        seen = []
        for batch in account.epoch("train", 1, source):
            seen.append(batch.indices.tolist())
            account.commit()
        return seen


@pytest.mark.parametrize("contract", ["padded", "drop_last"])
def test_any_other_dataloader_counts_if_the_index_comes_with_the_sample(contract: Contract) -> None:
    for rank, each in enumerate(run(3, own_loader, contract, Pairs(), SIZE, {"num_workers": 1})):
        assert each["code"] == 0, each["err"]
        assert each["result"] == expected(rank, 3, 1, contract, "feistel-1")


def stateful(loads: bool) -> list[int]:
    """torchdata's loader, which may have a state of its own."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    with Account(task="t", plan={"train": 1}) as account:
        sampler = account.sampler("train", N, batch_size=SIZE)
        loader = StatefulDataLoader(Pairs(), batch_size=SIZE, sampler=sampler)
        if loads:
            loader.load_state_dict(loader.state_dict())
        taken = []
        for batch in account.epoch("train", 1, loader):
            taken += batch.indices.tolist()
            account.commit()
    return taken


def test_a_loader_that_would_skip_by_a_state_of_its_own_is_refused() -> None:
    pytest.importorskip("torchdata")
    assert sorted(alone(stateful, False)["result"]) == list(range(N))
    ended = alone(stateful, True)
    assert (ended["code"], "the state of the StatefulDataLoader was loaded" in ended["err"]) == (2, True), ended["err"]


def differs(facts: list[dict[str, Any]]) -> None:
    mine = facts[dist.get_rank()]
    dataset = Squares(mine.get("n", N))
    dataset.fingerprint = mine.get("fingerprint", "squares")
    dataset.shard_sizes = mine.get("sizes")
    order = Locality(window=2) if "sizes" in mine else None
    with Account(task="t", plan={"train": 1}, seed=mine.get("seed", 0), order=order) as account:
        source = account.loader(dataset, "train", batch_size=mine.get("batch", 4), shuffle=mine.get("shuffle", True))
        for _ in account.epoch("train", mine.get("epoch", 1), source):
            raise AssertionError("no step before all agree")


OTHERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"seed": 1}, {"seed": 2}, "has seed 2 and rank 0 (pod-0) has 1"),
    ({"n": 10}, {"n": 11}, "has number of samples of train 11 and rank 0 (pod-0) has 10"),
    ({"fingerprint": "a"}, {"fingerprint": "b"}, "has data of train b and rank 0 (pod-0) has a"),
    ({"batch": 2}, {"batch": 3}, "has batch size of train 3 and rank 0 (pod-0) has 2"),
    ({"shuffle": True}, {"shuffle": False}, "has order of train sequential and rank 0 (pod-0) has feistel-1"),
    (
        {"sizes": [40, 9]},
        {"sizes": [9, 40]},
        "has order of train locality-1 window=2 lanes=1 sizes=sha256:"
        "82d985c3d457cb61 and rank 0 (pod-0) has locality-1 window=2 lanes=1 sizes=sha256:",
    ),
]


def test_ranks_that_hold_different_things_end_before_the_first_step(subtests: pytest.Subtests) -> None:
    waits = "rank 1 (pod-1): train leaves this rank without a sample in the last step"  # DDP would
    cases: list[Any] = [((differs, [ours, theirs]), 2, sentence) for ours, theirs, sentence in OTHERS]
    assert_ends(subtests, 2, [*cases, ((own_loader, "exact", Pairs(), SIZE, {}), 2, waits)])


def wrong(arguments: dict[str, Any]) -> None:
    given = {"seed": 0, "phase": "train", "dataset": Squares(), "batch_size": 4, **arguments}
    with Account(task="t", plan={"train": 1}, seed=given.pop("seed")) as account:
        account.loader(given.pop("dataset"), given.pop("phase"), **given)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, 'rank 0 (pod-0): "seed" is -1, allowed is an integer from 0 to 18446744073709551615'),
    (
        {"seed": {1}},
        'rank 0 (pod-0): "seed" is "{1}", allowed is an integer from 0 to 18446744073709551615',
    ),
    ({"order": "x"}, "order='x' must be a Locality, or None for an order over all samples"),
    ({"phase": "trian"}, "the phase 'trian' must be one of the plan's: train"),
    ({"batch_size": 0}, "train: batch_size=0 must be a whole number from 1"),
    ({"batch_size": 7.0}, "train: batch_size=7.0 must be a whole number from 1"),
    ({"batch_size": 2.5}, "train: batch_size=2.5 must be a whole number from 1"),
    ({"sampler": 1}, "sampler=1 must yield indices"),
    ({"batch_sampler": [[1]]}, "batch_size=4 must be left out, as batch_sampler makes the batches"),
    ({"num_worker": 2}, "train: account.loader() takes no argument num_worker, and neither does a DataLoader"),
    ({"collate_fn": 3}, "train: collate_fn=3 must be a function"),
    (
        {"num_workers": -1},
        "train: the DataLoader refuses its arguments: num_workers option should be non-negative; use "
        "num_workers=0 to disable multiprocessing.",
    ),
    ({"contract": "most"}, "train: contract='most' must be one of exact, padded, drop_last"),
    (
        {"dataset": {"train": [1], "test": [2]}},
        "train: a dict with the keys train, test has no samples by their numbers: pass one of its datasets",
    ),
    ({"dataset": NoStream()}, "train: a NoStream must be a map-style dataset, with __len__ and __getitem__"),
    ({"dataset": Selecting()}, "train: a Selecting must be a map-style dataset, with __len__ and __getitem__"),
    (
        {"order": Locality(window=2)},
        "train: Locality(window=2, lanes=1) needs the dataset's attribute shard_sizes, or Locality(sizes=…, …)",
    ),
    (
        {"order": Locality(window=2, sizes=[40, 8])},
        "train: the sizes of the shard files add up to 48, and the dataset has 49 samples: give each file's "
        "number of samples",
    ),
    (
        {"order": Locality(window=2, sizes=[50, -1])},
        "train: the sizes of the shard files must be 1 to 16777216 whole numbers from 0, one for each shard file",
    ),
    (
        {"order": Locality(window=0, sizes=[49])},
        "train: Locality: window=0 must be a whole number from 1 to 1000000",
    ),
    (
        {"order": Locality(window=1, lanes=2.0, sizes=[49])},
        "train: Locality: lanes=2.0 must be a whole number from 1 to 1000000",
    ),
    (
        {"order": Locality(window=1, sizes=[49]), "shuffle": False},
        "train: order=Locality(window=1, lanes=1) needs shuffle=True",
    ),
]
NEEDS = (
    "rank 0 (pod-0): an Account needs epochs=10, or the epochs of each phase, "
    'plan={"train": 10, "test": 10}, and not plan='
)
MISUSES = [
    ("no with", "an Account must be used in a `with` statement: with Account(…) as …"),
    ("plan", f"{NEEDS}'train'"),
    ("no phase", f"{NEEDS}{{}}"),
    ("state", "the state of an account must be what state_dict() returned, not a NoneType"),
    ("objects", "checkpoints: objects must be a dictionary, such as {'model': model}, not a Linear"),
    ("file", f"checkpoints: {__file__} is a file, and must be a folder"),
]


def test_a_mistake_in_a_call_is_a_sentence_and_nothing_else(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [((wrong, arguments), sentence) for arguments, sentence in WRONG]
    cases += [((misuses, how), sentence) for how, sentence in MISUSES]
    for (case, sentence), [found] in zip(cases, in_turn(1, (case for case, _ in cases)), strict=True):
        with subtests.test(str(case[1])):
            assert (found["code"], found["err"]) == (2, f"torchtally: {sentence}\n")


NOT_COUNTED: list[tuple[Any, int, str]] = [
    ((makes, [2], 2), 2, "train epoch 2 must be the next one, 1"),
    ((makes, [1], 2), 3, "the plan has 2 epochs of train, and 1 were made"),
    ((makes, [], 1), 3, "the plan has 1 epoch of train, and 0 were made"),
    ((makes, [1, 2], 1), 2, "train epoch 2 must be one of the plan's, 1 to 1"),
    ((makes, [0], 1), 2, "train epoch 0 must be one of the plan's, 1 to 1"),
    ((makes, [1, 1], 2), 2, "train epoch 1 was made before"),
    ((own_loader, "exact", Pairs(), 4, {}), 3, "the loader's batch_size must be the sampler's, 8"),
    ((own_loader, "exact", Pairs(), 16, {}), 3, "the loader's batch_size must be the sampler's, 8"),
    ((own_loader, "exact", Squares(), SIZE, {}), 2, "must be pairs of indices and data"),
    (
        (own_loader, "exact", Pairs(), SIZE, {"num_workers": 1, "in_order": False}),
        2,
        "has in_order=False, which mixes up the steps: it must be True",
    ),
    ((own_loader, "exact", Pairs(0), SIZE, {}), 2, "train has no sample: 0 for 1 rank"),
    ((reloads, 4, {}, "trian"), 2, "the phase 'trian' must be one of the plan's: train"),
    ((completes_twice,), 2, "which this process has completed: give another account"),
    ((collates, Pairs(), drops_and_says_so, 2), 3, "is not proved: the batch lacks sample 4"),
    ((collates, Pairs(), repeats_and_says_so, 2), 3, "is not proved: the batch has sample 4 too many"),
]


def test_a_loop_that_cannot_be_counted_is_refused(subtests: pytest.Subtests) -> None:
    assert_ends(subtests, 1, NOT_COUNTED)


def reads_as_any_loader() -> list[Any]:
    data = Squares(N)
    with Account("alone", epochs=2) as account:
        loader = account.loader(data, batch_size=4, shuffle=False, trains=False)
        facts = [len(loader), loader.batch_size, loader.num_workers, loader.dataset is data, [*loader.sampler]]
        taken = [batch for _ in account.epochs() for batch in loader]
    return [*facts, taken]


def test_a_loop_with_one_dataset_names_no_phase() -> None:
    steps = -(-N // 4)
    length, size, workers, same, order, taken = alone(reads_as_any_loader)["result"]
    assert (length, size, workers, same, order) == (steps, 4, 0, True, list(range(N)))
    assert len(taken) == 2 * steps
    assert not any(isinstance(batch, Batch) for batch in taken)


def two_accounts() -> None:
    with Account("first", epochs=0):
        pass
    with Account("second", epochs=0, seed=dist.get_rank()):
        pass


def test_a_second_account_does_not_read_what_was_agreed_on_for_the_first() -> None:
    for each in run(2, two_accounts):
        assert each["code"] == 2
        assert "rank 1 (pod-1) has seed 1 and rank 0 (pod-0) has 0" in each["err"]
