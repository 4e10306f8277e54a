"""A loop of one's own: what it takes from any DataLoader is counted when it was used, and proved."""

import itertools
import os
import re
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from accounts import alone, as_rank, run, tallies
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from torchtally import loader, loop, shards
from torchtally.account import Account
from torchtally.contract import CONTRACTS, Contract
from torchtally.loader import Batch, Sampler
from torchtally.tally import Phase, Run

ROOT = Path(__file__).parents[2]
N, SIZE = 49, 8  # over 2 and 3 ranks the last step has one sample, and the others none


class Squares(Dataset[dict[str, Any]]):
    fingerprint = "squares"

    def __init__(self, n: int = N):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index), 1.0]), "square": index**2}


class SquareStream(IterableDataset[tuple[int, int]]):
    def __iter__(self) -> Iterator[tuple[int, int]]:
        return self.select(iter(range(N)))

    def __len__(self) -> int:
        return N

    def select(self, indices: Iterator[int]) -> Iterator[tuple[int, int]]:
        return ((index, index**2) for index in indices)


class Lines(SquareStream):
    """Read from its beginning to its end, as the recipe has it."""

    def select(self, indices: Iterator[int]) -> Iterator[tuple[int, int]]:
        wanted = next(indices, None)
        for index in range(N):
            if index == wanted:
                yield index, index**2
                wanted = next(indices, None)


class NoStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class Pairs(Squares):
    def __getitem__(self, index: int) -> Any:
        return index, index**2


def expected(rank: int, world: int, phase: str, epoch: int, contract: Contract, order: shards.Order) -> Any:
    """The indices of each step as the trainer's own loop takes them."""
    place = Run(run="", attempt=0, pod="", task="", plan={}, rank=rank, world=world, seed=7, data="")
    what = Phase(name=phase, epoch=epoch, n=N, batch=SIZE * world, contract=contract, order=order)
    return [step.tolist() for step in loop.batches(place, what)]


def epochs(dataset: Any, contracts: list[Contract], options: dict[str, Any]) -> dict[Any, Any]:
    taken = {}
    with Account(task="t", plan=dict.fromkeys(contracts, 2), seed=7) as account:
        for contract in contracts:
            source = account.loader(contract, dataset, batch_size=SIZE, contract=contract, **options)
            for epoch in (1, 2):
                steps = list(account.epoch(contract, epoch, source))
                assert isinstance(dataset, IterableDataset) or len(steps) == len(source)
                for batch in steps:
                    squares = batch.data["square"] if isinstance(batch.data, dict) else batch.data
                    assert squares.tolist() == (batch.indices**2).tolist()
                taken[contract, epoch] = [(batch.indices.tolist(), batch.rows) for batch in steps]
    return taken


KEPT = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}


@pytest.mark.parametrize("dataset", [Squares(), SquareStream()], ids=["map", "stream"])
@pytest.mark.parametrize(
    ("world", "contracts", "options"),
    [(world, CONTRACTS, {}) for world in (1, 2, 3)]
    + [(world, ["exact"], KEPT) for world in (1, 2, 3)]
    + [(2, ["exact"], {"num_workers": 3})],
    ids=str,
)
def test_every_rank_takes_the_steps_of_the_trainers_own_loop(
    world: int, contracts: list[Contract], options: dict[str, Any], dataset: Any
) -> None:
    found = run(world, epochs, dataset, contracts, options)
    assert [each["code"] for each in found] == [0] * world, found[0]["err"]
    for contract, epoch in itertools.product(contracts, (1, 2)):
        steps = [each["result"][contract, epoch] for each in found]
        for rank, own in enumerate(steps):
            assert [indices for indices, _ in own] == expected(rank, world, contract, epoch, contract, "feistel-1")
        for together in zip(*steps, strict=True):
            assert {rows for _, rows in together} == {sum(len(indices) for indices, _ in together)}
    lines = [line for each in found for line in each["lines"]]
    assert len(lines) == 2 * len(contracts) * (world + 1)
    assert all(line["lost"] == line["doubled"] == 0 for line in lines)
    assert {line["run"] for line in lines} == {"drawn by 0"}


def test_what_workers_need_can_be_handed_to_new_processes() -> None:
    """As the start methods spawn and forkserver do it; an epoch that is set later reaches them."""
    for dataset in (Squares(), SquareStream()):
        sampler = Sampler(N, batch_size=SIZE, rank=0, world=1)
        source = loader.loader(dataset, sampler)
        twin = ForkingPickler.loads(ForkingPickler.dumps(source.dataset))
        if isinstance(dataset, IterableDataset):
            sampler.set_epoch(5)
            assert [indices.tolist() for indices, _ in twin] == list(sampler.steps())
        else:
            assert twin[[3, 1]][0].tolist() == [3, 1]


def in_order(options: dict[str, Any]) -> list[list[int]]:
    with Account(task="t", plan={"test": 2}) as account:
        source = account.loader("test", Lines(), batch_size=SIZE, shuffle=False, **options)
        return [batch.indices.tolist() for epoch in (1, 2) for batch in account.epoch("test", epoch, source)]


@pytest.mark.parametrize("options", [{}, {"num_workers": 3}])
def test_a_file_that_is_read_from_its_beginning_to_its_end(options: dict[str, Any]) -> None:
    for rank, each in enumerate(run(2, in_order, options)):
        assert each["result"] == expected(rank, 2, "test", 1, "exact", "sequential") * 2


# An empty batch is like the others, but for its rows.

Point = namedtuple("Point", "x y")


def detection(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def packed(samples: list[Any]) -> dict[str, Any]:
    lengths = torch.tensor([len(sample) for sample in samples])
    return {"tokens": torch.cat(samples), "ends": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])}


@pytest.mark.parametrize(
    ("sample", "collate", "empty"),
    [
        (torch.zeros(3, 2), default_collate, torch.empty(0, 3, 2)),
        (7, default_collate, torch.empty(0, dtype=torch.int64)),
        ((torch.zeros(5), 1.0), default_collate, [torch.empty(0, 5), torch.empty(0, dtype=torch.float64)]),
        ({"a": {"b": [torch.zeros(1)]}, "c": "text"}, default_collate, {"a": {"b": [torch.empty(0, 1)]}, "c": []}),
        (Point(torch.zeros(2), 3), default_collate, Point(torch.empty(0, 2), torch.empty(0, dtype=torch.int64))),
        ((torch.zeros(3, 8, 8), {"boxes": torch.zeros(2, 4)}), detection, ((), ())),
        (torch.zeros(2, 2), list, []),
        (torch.arange(4), packed, {"tokens": torch.empty(0, dtype=torch.int64), "ends": torch.tensor([0])}),
        (np.zeros(2), lambda samples: np.stack(samples), np.empty((0, 2))),
        (1, lambda samples: {"x": torch.tensor(samples), "k": torch.tensor(3)}, {"x": [], "k": torch.tensor(3)}),
    ],
)
def test_the_batch_of_a_rank_that_has_nothing_left(sample: Any, collate: Any, empty: Any) -> None:
    sampler = Sampler(3, batch_size=1, rank=1, world=2)
    assert sampler.idle
    first, last = loader.loader([sample] * 3, sampler, collate)
    for indices, _ in (first, last):
        assert indices.dtype == torch.int64
    assert (len(first[0]), len(last[0])) == (1, 0)
    same(last[1], empty)


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


def test_the_last_step_of_a_stream_is_made_by_a_worker_that_has_seen_a_sample() -> None:
    sampler = Sampler(3, batch_size=1, shuffle=False, rank=1, world=2)
    taken = list(loader.loader(SquareStream(), sampler, num_workers=2))
    assert [(indices.tolist(), data.tolist()) for indices, data in taken] == [([1], [1]), ([], [])]


class Opaque:
    def __init__(self, samples: list[Any]):
        self.samples = samples


def opaque() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        source = account.loader("train", Squares(5), batch_size=2, collate_fn=Opaque)
        for _ in account.epoch("train", 1, source):
            pass


def test_a_batch_that_cannot_be_emptied_is_never_used_for_an_empty_one() -> None:
    found = ranks.run(2, as_rank, opaque)
    assert found[1]["code"] == 2
    assert "step 2 of 2: this rank has no sample left, and the collate_fn's Opaque cannot be cut" in found[1]["err"]


def gradients(world_batch: int) -> Any:
    """The weights after two epochs of DDP on batches weighted by their rows."""
    model = nn.Linear(2, 1, dtype=torch.float64)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-5, momentum=0.9)
    with Account(task="t", plan={"train": 2}, seed=3) as account:
        source = account.loader("train", Squares(), batch_size=world_batch // account.world)
        for epoch in (1, 2):
            for batch in account.epoch("train", epoch, source):
                output = parallel(batch.data["x"].double()).squeeze(1)
                loss = mse_loss(output, batch.data["square"].double(), reduction="sum") * account.world / batch.rows
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
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
        source = account.loader("train", Squares(), batch_size=4, **KEPT)
        test = account.loader("test", Squares(5), batch_size=4, shuffle=False)
        for _ in account.epoch("test", 1, test):
            pass
        if how == "generator kept":
            kept = account.epoch("train", 1, source)
            next(kept), next(kept), next(kept)
        else:
            for step, _ in enumerate(account.epoch("train", 1, source), start=1):
                if step == 3:
                    break
        if how == "goes on":
            for _ in account.epoch("train", 2, source):
                pass


@pytest.mark.parametrize("how", ["ends", "goes on", "generator kept"])
def test_a_loop_that_breaks_has_lost_the_rest_and_the_proof_says_so(how: str) -> None:
    """Two batches were used; the third is in hand, and those that the workers have fetched count for nothing."""
    for rank, each in enumerate(run(2, leaves, how)):
        assert each["code"] == 3
        assert "train epoch 1 is not proved: of 49 samples" in each["err"]
        assert "33 were lost and 0 doubled" in each["err"]
        assert each["err"].endswith(": the loop left it in step 3 of 7\n")
        train = {line["rank"]: line for line in each["lines"] if line["phase"] == "train"}
        assert (train[rank]["consumed"], train[rank]["lost"]) == (8, train[rank]["expected"] - 8)
        assert {line["epoch"] for line in train.values()} == {1}


def evaluates_in_between() -> None:
    with Account(task="t", plan={"train": 1, "test": 2}) as account:
        source = account.loader("train", Squares(), batch_size=4)
        test = account.loader("test", Squares(5), batch_size=4)
        for step, _ in enumerate(account.epoch("train", 1, source)):
            if step in (2, 4):
                assert len(list(account.epoch("test", step // 2, test))) == 1


def test_another_phase_may_begin_before_one_has_ended() -> None:
    for each in run(2, evaluates_in_between):
        assert each["code"] == 0, each["err"]
        assert not any(line["lost"] or line["doubled"] for line in each["lines"])


def raises() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        for _ in account.epoch("train", 1, account.loader("train", Squares(), batch_size=4, num_workers=1)):
            raise ZeroDivisionError("the user's own")


def test_an_error_of_the_loop_stays_what_it_is_and_proves_nothing() -> None:
    found = ranks.run(1, as_rank, raises)
    assert isinstance(found[0], ZeroDivisionError)


def makes(epochs: list[int], planned: int) -> None:
    with Account(task="t", plan={"train": planned}) as account:
        source = account.loader("train", Squares(), batch_size=4)
        for epoch in epochs:
            for _ in account.epoch("train", epoch, source):
                pass


@pytest.mark.parametrize(
    ("epochs", "planned", "code", "sentence"),
    [
        ([1], 2, 3, "the plan has 2 epochs of train, and 1 were made"),
        ([], 1, 3, "the plan has 1 epochs of train, and 0 were made"),
        ([1, 2], 1, 2, "train epoch 2 must be one of the plan's, 1 to 1"),
        ([0], 1, 2, "train epoch 0 must be one of the plan's, 1 to 1"),
        ([1, 1], 2, 2, "train epoch 1 has been made already"),
    ],
)
def test_the_plan_is_kept(epochs: list[int], planned: int, code: int, sentence: str) -> None:
    found = alone(makes, epochs, planned)
    assert found["code"] == code
    assert sentence in found["err"]


# A collate_fn may do what it likes, but not with the count.


def drops(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample["square"] != 16])


def repeats(samples: list[Any]) -> Any:
    return default_collate([*samples, *[sample for sample in samples if sample["square"] == 16]])


def drops_and_says_so(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(torch.tensor([index for index, _ in pairs if index != 4]), torch.zeros(100))


def repeats_and_says_so(pairs: list[tuple[int, int]]) -> Batch:
    return Batch(torch.tensor([index for index, _ in pairs for _ in range(1 + (index == 4))]), torch.zeros(100))


def collates(dataset: Any, collate: Any, workers: int) -> None:
    with Account(task="t", plan={"train": 1}) as account:
        source = account.loader("train", dataset, batch_size=7, collate_fn=collate, num_workers=workers)
        for _ in account.epoch("train", 1, source):
            pass


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("collate", "rows"), [(drops, 6), (repeats, 8)])
def test_a_collate_fn_that_drops_or_repeats_a_sample_is_found(collate: Any, rows: int, workers: int) -> None:
    found = alone(collates, Squares(), collate, workers)
    assert found["code"] == 3
    assert "of 7 is not proved: of the 7 samples" in found["err"]
    assert f"made a batch with parts of {rows} rows" in found["err"]
    assert "4" in re.split("[ ,]+", found["err"].partition("7 samples ")[2])
    assert "Traceback" not in found["err"]


@pytest.mark.parametrize(("collate", "name"), [(drops_and_says_so, "lost"), (repeats_and_says_so, "doubled")])
def test_a_collate_fn_that_says_what_it_did_has_it_named(collate: Any, name: str) -> None:
    found = alone(collates, Pairs(), collate, 2)
    assert found["code"] == 3
    everything = found["lines"][-1]
    assert (everything[name], everything[f"{name}_indices"]) == (1, [4])
    assert everything["lost"] + everything["doubled"] == 1


@pytest.mark.parametrize("collate", [list, detection])
def test_batches_without_a_row_a_sample_count_as_well(collate: Any) -> None:
    assert alone(collates, Pairs(), collate, 0)["code"] == 0


# What a loader's workers do to the random numbers.


class Noise(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.rand(1).item()


def noise(workers: int) -> tuple[bool, list[Any]]:
    torch.manual_seed(1)
    before, taken = torch.get_rng_state(), []
    with Account(task="t", plan={"train": 2}, seed=5) as account:
        source = account.loader("train", Noise() if workers else Squares(), batch_size=4, num_workers=workers)
        for epoch in (1, 2):
            steps = [batch.data for batch in account.epoch("train", epoch, source)]
            taken.append(steps[0].tolist() if workers else None)
    return bool((torch.get_rng_state() == before).all()), taken


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_draws_nothing_from_the_trainings_random_numbers(workers: int) -> None:
    found, again = [[each["result"] for each in run(2, noise, workers)] for _ in range(2)]
    assert found == again
    assert all(untouched for untouched, _ in found)
    if workers:  # their own are others in each epoch and on each rank
        drawn = [str(batch) for _, epochs in found for batch in epochs]
        assert len(set(drawn)) == 4


# DataLoaders that are not ours.


def own_loader(contract: Contract, dataset: Any, size: int, options: dict[str, Any]) -> list[list[int]]:
    with Account(task="t", plan={"train": 1}, seed=7) as account:
        sampler = account.sampler("train", len(dataset), batch_size=SIZE, contract=contract)
        source = DataLoader(dataset, batch_size=size, sampler=sampler, **options)
        return [batch.indices.tolist() for batch in account.epoch("train", 1, source)]


@pytest.mark.parametrize("contract", ["padded", "drop_last"])
def test_any_other_dataloader_counts_if_the_index_comes_with_the_sample(contract: Contract) -> None:
    for rank, each in enumerate(run(3, own_loader, contract, Pairs(), SIZE, {"num_workers": 1})):
        assert each["code"] == 0, each["err"]
        assert each["result"] == expected(rank, 3, "train", 1, contract, "feistel-1")


@pytest.mark.parametrize(
    ("dataset", "size", "options", "code", "sentence"),
    [
        (Pairs(), 4, {}, 2, "the loader has more batches than that"),
        (Pairs(), 16, {}, 3, "the loader has ended after 4 of 7 steps"),
        (Squares(), SIZE, {}, 2, "must be pairs of indices and data"),
        (Pairs(), SIZE, {"num_workers": 1, "in_order": False}, 2, "in_order=False mixes up the steps"),
        (Pairs(0), SIZE, {}, 2, "train has no sample: 0 for 1 ranks"),
    ],
)
def test_a_loader_that_cannot_be_counted_is_refused(
    dataset: Any, size: int, options: dict[str, Any], code: int, sentence: str
) -> None:
    found = alone(own_loader, "exact", dataset, size, options)
    assert found["code"] == code
    assert sentence in found["err"]


def test_a_loader_that_would_leave_ddp_waiting_is_refused_on_every_rank() -> None:
    for each in run(2, own_loader, "exact", Pairs(), SIZE, {}):
        assert each["code"] == 2
        assert "rank 1 (pod-1): train leaves this rank without a sample in the last step" in each["err"]


def differs(facts: list[dict[str, Any]]) -> None:
    mine = facts[dist.get_rank()]
    dataset = Squares(mine.get("n", N))
    dataset.fingerprint = mine.get("fingerprint", "squares")
    with Account(task="t", plan={"train": 1}, seed=mine.get("seed", 0)) as account:
        source = account.loader("train", dataset, batch_size=mine.get("batch", 4), shuffle=mine.get("shuffle", True))
        for _ in account.epoch("train", mine.get("epoch", 1), source):
            raise AssertionError("no step before all agree")


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        ({"seed": 1}, {"seed": 2}, "has seed 2 and rank 0 (pod-0) has 1"),
        ({"n": 10}, {"n": 11}, "has number of samples of train 11 and rank 0 (pod-0) has 10"),
        ({"fingerprint": "a"}, {"fingerprint": "b"}, "has data of train b and rank 0 (pod-0) has a"),
        ({"batch": 2}, {"batch": 3}, "has batch size of train 3 and rank 0 (pod-0) has 2"),
        ({"shuffle": True}, {"shuffle": False}, "has order of train sequential and rank 0 (pod-0) has feistel-1"),
    ],
)
def test_ranks_that_hold_different_things_end_before_the_first_step(ours: Any, theirs: Any, sentence: str) -> None:
    for each in run(2, differs, [ours, theirs]):
        assert each["code"] == 2
        assert sentence in each["err"]


def wrong(arguments: dict[str, Any]) -> None:
    given = {"seed": 0, "phase": "train", "dataset": Squares(), "batch_size": 4, **arguments}
    with Account(task="t", plan={"train": 1}, seed=given.pop("seed")) as account:
        account.loader(given.pop("phase"), given.pop("dataset"), **given)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seed": -1}, "rank 0 (pod-0): seed=-1 must be a whole number from 0"),
        ({"phase": "trian"}, "the phase 'trian' must be one of the plan's: train"),
        ({"batch_size": 0}, "train: batch_size=0 must be a whole number from 1"),
        ({"contract": "most"}, "train: contract='most' must be one of exact, padded, drop_last"),
        ({"dataset": NoStream()}, "train: a NoStream needs __len__ and select(indices)"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    found = alone(wrong, arguments)
    assert (found["code"], found["err"]) == (2, f"torchtally: {sentence}\n")


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


def test_a_long_order_is_cut_into_the_same_steps() -> None:
    sampler = Sampler(200_001, batch_size=100, rank=1, world=2)
    whole = shards.indices(200_001, 1, 2, "exact", "feistel-1", 0, 0).tolist()
    steps = list(sampler.steps())
    assert list(itertools.chain(*steps)) == whole
    assert [len(step) for step in steps] == [100] * 1000 + [0]


# The example, as a reader starts it.


def start(world: int, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    environment = {**kept, "PET_NPROC_PER_NODE": str(world), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("world", [1, 3])
def test_the_example_proves_its_shards(world: int) -> None:
    ended = start(world, "examples/own_loop.py")
    assert ended.returncode == 0, ended.stderr
    found, (last,) = tallies(ended.stdout)
    assert (last["model"], last["discarded"], last["worlds"]) == (None, 0, [[1, 0, world]])
    assert len(found) == 6 * (world + 1)
    assert {line["world"] for line in found} == {world}
    assert all(line["lost"] == line["doubled"] == 0 for line in found)
    assert ended.stdout.count("✓ every sample exactly once") == 6
    correct = int(ended.stdout.partition("epoch 3: ")[2].split()[0])
    assert correct > 0.9 * 499


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("break", 3, "train epoch 1 is not proved: of 1921 samples"),
        ("1 / 0", 1, "failed with exit code 1: ZeroDivisionError: division by zero"),
    ],
)
def test_how_a_loop_ends_is_the_pods_exit_code_and_last_word(body: str, code: int, sentence: str) -> None:
    """The example, broken at the end of a step."""
    example = (ROOT / "examples/own_loop.py").read_text()
    assert example.count("        optimizer.step()\n") == 1
    ended = start(2, "-c", example.replace("        optimizer.step()\n", f"        optimizer.step()\n        {body}\n"))
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr
    assert not tallies(ended.stdout)[1]
    assert ("Traceback" in ended.stderr) == (code == 1)
