"""A TalliedSampler does what DistributedSampler does, and proves it; whoever drives the loop."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accounts import alone, run
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from torchtally.accounting.account import Account
from torchtally.accounting.collate import each_row
from torchtally.accounting.loader import Loader
from torchtally.accounting.locality import Locality
from torchtally.accounting.tallied_sampler import TalliedSampler

N, SIZE, EPOCHS = 49, 8, 2
DATA = [(torch.tensor([float(index)]), index) for index in range(N)]


def tripled(samples: list[tuple[torch.Tensor, int]]) -> torch.Tensor:
    return torch.tensor([3 * index for _, index in samples])


def plain(epochs: Loader) -> Iterator[Any]:
    """A loop, which asks for one more batch than there is."""
    yield from epochs


def counting(epochs: Loader) -> Iterator[Any]:
    """A library that knows how many there are, and asks twice for an iterator."""
    iter(epochs)
    batches = iter(epochs)
    for _ in range(len(epochs)):
        yield next(batches)


def hasty(epochs: Loader) -> Iterator[Any]:
    """One that stops a batch too early."""
    batches = iter(epochs)
    for _ in range(len(epochs) - 1):
        yield next(batches)


def trains(drive: Callable[[Loader], Iterator[Any]], drop_last: bool, options: dict[str, Any]) -> list[list[int]]:
    """The samples that this rank has seen in each epoch."""
    sampler = TalliedSampler(DATA, epochs=EPOCHS, drop_last=drop_last)
    loader = DataLoader(DATA, batch_size=SIZE, sampler=sampler, collate_fn=each_row(tripled), **options)
    seen = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        batches = []
        for batch in drive(sampler.tally(loader)):
            batches.append(batch)
            sampler.commit()
        assert all(len(batch) <= SIZE for batch in batches)
        seen.append([number // 3 for batch in batches for number in batch.tolist()])
    sampler.done()
    return seen


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(
    ("drive", "options"), [(plain, {}), (counting, {"num_workers": 2, "persistent_workers": True})]
)
def test_every_rank_sees_as_many_as_with_distributed_sampler(
    drive: Callable[[Loader], Iterator[Any]], options: dict[str, Any], drop_last: bool
) -> None:
    found = run(3, trains, drive, drop_last, options)
    for rank, each in enumerate(found):
        known = DistributedSampler(DATA, 3, rank, drop_last=drop_last)
        assert [len(epoch) for epoch in each["result"]] == [len(known)] * EPOCHS
        assert each["result"][0] != each["result"][1]
        (line,) = [line for line in each["lines"] if (line["rank"], line["epoch"]) == (rank, 2)]
        assert (line["contract"], line["expected"], line["consumed"], line["lost"], line["doubled"]) == (
            "drop_last" if drop_last else "padded",
            len(known),
            len(known),
            0,
            0,
        )
    for epoch in range(EPOCHS):
        together = [index for each in found for index in each["result"][epoch]]
        assert len(set(together)) == (48 if drop_last else 49)


def trains_locally(order: Locality) -> list[int]:
    sampler = TalliedSampler(DATA, epochs=1, order=order)
    loader = DataLoader(DATA, batch_size=SIZE, sampler=sampler, collate_fn=each_row(tripled))
    sampler.set_epoch(0)
    seen = []
    for batch in sampler.tally(loader):
        seen += [number // 3 for number in batch.tolist()]
        sampler.commit()
    sampler.done()
    return seen


def test_an_order_with_locality_is_that_of_the_sampler() -> None:
    """One window over 49 samples, 20 and 29 of them in a file: either file first."""
    found = run(2, trains_locally, Locality(window=1, sizes=[20, 29]))
    assert [each["code"] for each in found] == [0, 0], found
    order = [sample for turn in zip(*(each["result"] for each in found), strict=True) for sample in turn][:N]
    assert {*order[:20]} == {*range(20)} or {*order[:29]} == {*range(20, 49)}
    line = next(line for line in found[0]["lines"] if line["rank"] == "all")
    assert line["sizes"] == [[1, 20], [1, 29]]


def test_an_order_without_sizes_is_refused_in_a_sentence() -> None:
    found = alone(trains_locally, Locality(window=1))
    assert found["code"] == 2
    assert "Locality(window=1, lanes=1) needs the dataset's attribute shard_sizes" in found["err"]


def test_a_library_that_leaves_an_epoch_early_has_lost_what_it_did_not_take() -> None:
    for each in run(2, trains, hasty, False, {}):
        assert each["code"] == 3
        assert "train epoch 1 is not proved: of 50 samples that the contract padded names" in each["err"]
        assert "2 were lost" in each["err"]
        assert each["err"].endswith(": the loop left the epoch in step 3 of 4\n")


def makes(sampler: TalliedSampler, loader: DataLoader[Any], epoch: int) -> None:
    sampler.set_epoch(epoch)
    for _ in sampler.tally(loader):
        sampler.commit()


def misused(how: str) -> None:
    sampler = TalliedSampler(DATA, epochs=2)
    loader = DataLoader(DATA, batch_size=SIZE, sampler=sampler)
    match how:
        case "another sampler":
            sampler.tally(DataLoader(DATA, batch_size=SIZE))
        case "another dataset":
            sampler.tally(DataLoader(Subset(DATA, range(20)), batch_size=SIZE, sampler=sampler))
        case "drop_last":
            sampler.tally(DataLoader(DATA, batch_size=SIZE, sampler=sampler, drop_last=True))
        case "no batches":
            sampler.tally(DataLoader(DATA, batch_size=None, sampler=sampler))
        case "another loader":
            sampler.tally(loader)
            sampler.tally(DataLoader(DATA, batch_size=SIZE, sampler=sampler))
        case "an epoch more":
            for epoch in range(3):
                makes(sampler, loader, epoch)
        case "an epoch less":
            makes(sampler, loader, 0)
        case "no set_epoch":
            list(sampler.tally(loader))
        case "set_epoch of a restart":
            makes(sampler, loader, 1)
        case "set_epoch twice the same":
            makes(sampler, loader, 0)
            makes(sampler, loader, 0)
        case "no commit":
            sampler.set_epoch(0)
            list(sampler.tally(loader))
        case "some skipped":
            sampler.set_epoch(0)
            for step, _ in enumerate(sampler.tally(loader)):
                if step >= 2:
                    sampler.commit()
        case "a commit too many":
            makes(sampler, loader, 0)
            sampler.commit()
        case "no tally":
            list(loader)
    sampler.done()


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("another dataset", 2, f"dataset has 20 samples, and that of its TalliedSampler {len(DATA)}"),
        ("another sampler", 2, "the DataLoader's sampler must be the TalliedSampler, not a SequentialSampler"),
        ("drop_last", 2, "the DataLoader must have a batch_size and drop_last=False"),
        ("no batches", 2, "the DataLoader must have a batch_size and drop_last=False"),
        ("another loader", 2, "tally() must receive the same DataLoader in every epoch"),
        ("an epoch more", 2, "train epoch 3 must be one of the plan's, 1 to 2"),
        ("an epoch less", 3, "the plan has 2 epochs of train, and 1 were made"),
        ("no set_epoch", 2, "set_epoch() was not called, and the next epoch is 0, counted from 0"),
        ("set_epoch of a restart", 2, "set_epoch() has received 1, and the next epoch is 0, counted from 0"),
        ("set_epoch twice the same", 2, "set_epoch() has received 0, and the next epoch is 1, counted from 0"),
        ("no commit", 3, "49 were lost and 0 doubled (ranks whose shard was wrong: 0): 0 of the 7 batches"),
        ("some skipped", 2, "commit() covers 1 batches, and the first of this epoch covered 3"),
        ("a commit too many", 2, "commit() has no batch to count"),
        ("no tally", 3, "the plan has 2 epochs of train, and 0 were made"),
    ],
)
def test_what_cannot_be_proved_ends_with_a_sentence(how: str, code: int, sentence: str) -> None:
    found = alone(misused, how)
    assert found["code"] == code
    assert sentence in found["err"]


def two_accounts() -> None:
    with Account(task="first", plan={"train": 0}):
        pass
    with Account(task="second", plan={"train": 0}, seed=dist.get_rank()):
        pass


def test_a_second_account_does_not_read_what_was_agreed_on_for_the_first() -> None:
    for each in run(2, two_accounts):
        assert each["code"] == 2
        assert "rank 1 (pod-1) has seed 1 and rank 0 (pod-0) has 0" in each["err"]


NO_TEST = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
RANK = {
    **NO_TEST,
    **dict.fromkeys(("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT"), "0"),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"),
}
FORGETS = """
import os, sys
import torch.distributed as dist
from torch.utils.data import DataLoader
from torchtally import TalliedSampler

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sampler = TalliedSampler([0.0] * 4, epochs=1)
loader = DataLoader([0.0] * 4, batch_size=2, sampler=sampler)
sampler.set_epoch(0)
for batch in sampler.tally(loader):
    sampler.commit()
{}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 3),
        ("sys.exit()", 3),
        ("sampler.done()", 0),
        ("sys.exit(143)", 143),
        ("sampler.commit()", 2),
        pytest.param(
            "1 / 0", 1, marks=[pytest.mark.cold, pytest.mark.nightly]
        ),  # Python itself keeps what ends a program
    ],
)
def test_a_program_that_forgets_done_does_not_end_with_0(end: str, code: int) -> None:
    """One that says by its exit code that it has failed, or that it wants a restart, is left alone."""
    ended = subprocess.run([sys.executable, "-c", FORGETS.format(end)], env=RANK, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    forgotten = "torchtally: the program ended before it called done() of its TalliedSampler, so run "
    assert (forgotten in ended.stderr) == (code == 3)


MAIN = """
import os, sys
import torch.distributed as dist
from torchtally import TalliedSampler

def main(code):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    TalliedSampler([0.0] * 4, epochs=1)
    return code

{}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(main(143))", 143),
        ("sys.exit(main(0))", 3),
        ("sys.ps1 = '>>> '; main(0)", 0),
        ("import pytest; os.environ['PYTEST_CURRENT_TEST'] = 'test_it'; main(0)", 0),
    ],
)
def test_a_main_function_that_forgets_done_has_the_code_that_it_returns(end: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", MAIN.format(end)], env=RANK, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr


@pytest.mark.parametrize(("end", "code"), [("sys.exit(main(143))", 143), ("raise SystemExit(main(0))", 3)])
def test_a_rank_that_forgets_done_has_the_code_that_it_passes_to_sys_exit(end: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(MAIN.format(end))
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, tmp_path / "train.py"],
        env={**NO_TEST, "PET_NPROC_PER_NODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended.stderr


A_SCRIPTS_END = """
import sys
from pathlib import Path
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import torchtally.accounting.tallied_sampler

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
DistributedDataParallel(nn.Linear(2, 2))
def gloos():
    return sum(path.read_text().startswith("pt_gloo") for path in Path("/proc/self/task").glob("*/comm"))
print(gloos())
dist.destroy_process_group()
print(gloos())
"""


@pytest.mark.cold
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="threads' names are read from /proc")
def test_no_thread_of_a_destroyed_group_lives_on_to_abort_pythons_end() -> None:
    ended = subprocess.run([sys.executable, "-c", A_SCRIPTS_END], capture_output=True, text=True)
    before, after = map(int, ended.stdout.split())
    assert (before > 0, after) == (True, 0), ended.stderr
