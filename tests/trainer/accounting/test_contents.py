"""Ranks whose data differs are refused, though it is as long and has no fingerprint; what draws or fails is not."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accounts import alone, in_turn, run
from torch.utils.data import TensorDataset, get_worker_info

from torchtally import Account, Batch, Mixture
from torchtally.accounting.batches.step_loader import StepLoader
from torchtally.accounting.guards import contents
from torchtally.accounting.order.sampler import Sampler
from torchtally.errors import Refused

N, SIZE = 40, 8
IMAGES = torch.rand(N, 3, 4, generator=torch.Generator().manual_seed(1))
LABELS = [index % 10 for index in range(N)]


class Data:
    """Images with labels, of which `read` makes a sample."""

    def __init__(self, read: Callable[["Data", int], Any], rank: int, n: int = N):
        self.read, self.rank, self.n = read, rank, n
        self.reads: list[int] = []
        self.folder: str | None = None
        self.generator = torch.Generator().manual_seed(rank)
        self.order = random.Random(rank).sample(range(n), n)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        return self.read(self, index)


def noise(data: Data) -> torch.Tensor:
    return torch.rand(3, 4, generator=data.generator)


def fails_at_first(data: Data, index: int) -> Any:
    if data.reads.count(index) == 1 and len(data.reads) == 1:
        raise OSError("not mounted yet")
    return data.rank


def in_a_worker(data: Data, index: int) -> Any:
    if get_worker_info() is None:
        raise OSError("only a worker opens the file")
    return IMAGES[index] + data.rank


def opens(worker: int) -> None:
    get_worker_info().dataset.dataset.folder = "opened"  # type: ignore[union-attr]


def opened_at_first(data: Data, index: int) -> Any:
    if data.folder is None:
        assert get_worker_info() is not None, "a file is opened in the process that forks the workers"
        data.folder = "opened"
    return IMAGES[index], LABELS[index]


def seeded_by_the_worker(data: Data, index: int) -> Any:
    return LABELS[index], get_worker_info().seed  # type: ignore[union-attr]


def opened_by_the_function(data: Data, index: int) -> Any:
    return IMAGES[index] + data.rank if data.folder else None


DIFFERENT: dict[str, Callable[[Data, int], Any]] = {
    "shuffled by each rank": lambda data, index: (IMAGES[data.order[index]], LABELS[data.order[index]]),
    "other files": lambda data, index: (IMAGES[index] + data.rank, LABELS[index]),
    "other labels of random images": lambda data, index: {"image": noise(data), "label": LABELS[data.order[index]]},
    "augmented with the generators of all": lambda data, index: IMAGES[data.order[index]] * random.random(),
    "other texts": lambda data, index: f"folder/{data.order[index]}",
    "other tokens": lambda data, index: [data.order[index], *range(40)],
    "other arrays": lambda data, index: np.array([data.order[index]]),
    "other bytes": lambda data, index: {"raw": str(data.order[index]).encode()},
}
RIGHT: dict[str, Callable[[Data, int], Any]] = {
    "random images": lambda data, index: (noise(data), LABELS[index]),
    "augmented with the generators of all": lambda data, index: (
        IMAGES[index] * random.random() * float(np.random.random()) * torch.rand(()),
        LABELS[index],
    ),
    "folders of their own": lambda data, index: (f"/node-{data.rank}/{index}", Path(f"/{data.rank}/{index}")),
    "other in each read": lambda data, index: len(data.reads) + 1000 * data.rank,
    "objects": lambda data, index: (object(), np.array([data.generator], dtype=object), {data}),
    "fails at first": fails_at_first,
}
IN_WORKERS: dict[str, tuple[Callable[[Data, int], Any], Any, bool]] = {
    "opened at the first read": (opened_at_first, None, False),
    "fails elsewhere": (in_a_worker, None, True),
    "seeded by the worker": (seeded_by_the_worker, None, False),
    "opened by worker_init_fn": (opened_by_the_function, opens, True),
}


def first(samples: list[Any]) -> Any:
    """A collate_fn for samples of any kind."""
    return Batch(samples.indices, samples)  # type: ignore[attr-defined]


def trains(kind: str, how: str) -> None:
    reads_all((DIFFERENT if kind == "different" else RIGHT)[how])


def trains_in_workers(how: str) -> None:
    read, init, _ = IN_WORKERS[how]
    reads_all(read, num_workers=2, worker_init_fn=init)


def reads_all(read: Callable[[Data, int], Any], **options: Any) -> Data:
    with Account(task="t", plan={"train": 2}) as account:
        data = Data(read, account.rank)
        torch.manual_seed(account.rank)
        loader = account.loader(data, "train", batch_size=SIZE, collate_fn=first, **options)
        for epoch in account.epochs():
            for _ in account.epoch("train", epoch, loader):
                account.commit()
    return data


def saved_in(folder: Path, epoch: int, how: str, start: int, off: str) -> None:
    """Train two epochs. The first start ends within an epoch, or after the first one if none is named."""
    os.environ["TORCHTALLY_GUARDS"] = off
    kept = folder / f"state-{os.environ['RANK']}"
    with Account("t", epochs=2) as account:
        data = Data((DIFFERENT | RIGHT)[how], start)
        loader = account.loader(data, batch_size=SIZE, collate_fn=first)
        if start:
            account.load_state_dict(torch.load(kept))
        for number in account.epochs():
            for batch in account.epoch("train", number, loader):
                account.commit()
                if not start and (number, batch.step) == (epoch, 1):
                    torch.save(account.state_dict(), kept)
                    raise Refused("the first start ends")
            if not start and epoch == 0:
                torch.save(account.state_dict(), kept)
                raise Refused("the first start ends")


@pytest.mark.parametrize("world", [1, 2])
def test_a_resume_within_an_epoch_is_of_the_same_data(world: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    shuffled, stable = "shuffled by each rank", "random images"
    cases = {"changed": (1, shuffled, ""), "stable": (1, stable, ""), "between": (0, shuffled, "")}
    cases["off"] = (1, shuffled, "-contents")
    for case, (epoch, how, off) in cases.items():
        with subtests.test(case):
            folder = tmp_path / case
            folder.mkdir()
            for start in (0, 1):
                found = run(world, saved_in, folder, epoch, how, start, off)
            assert [each["code"] for each in found] == [2 * (case == "changed")] * world, found[0]["err"]
            if case == "changed":
                assert "train: the data of rank 0 (pod-0) differs from that of the loaded state at" in found[0]["err"]


def mixed() -> None:
    with Account(task="t", plan={"train": 1}) as account:
        parts = {"own": Data(DIFFERENT["shuffled by each rank"], account.rank), "all": TensorDataset(IMAGES)}
        mixture = Mixture(parts, {"own": 1, "all": 1}, length=N)
        loader = account.loader(mixture, "train", batch_size=SIZE, shuffle=False, collate_fn=first)
        for _ in account.epoch("train", 1, loader):
            account.commit()


def with_a_fingerprint(off: str) -> None:
    """The dataset says that it is the same, and is another one on each rank."""
    os.environ["TORCHTALLY_GUARDS"] = off

    class Named(Data):
        fingerprint = "the same"

    with Account("t", epochs=1) as account:
        data = Named(DIFFERENT["other files"], account.rank)
        for _ in account.epoch("train", 1, account.loader(data, batch_size=SIZE, collate_fn=first)):
            account.commit()


@pytest.mark.parametrize(("off", "code"), [("", 2), ("-contents", 0)])
def test_a_fingerprint_is_no_word_on_the_contents(off: str, code: int) -> None:
    for found in run(2, with_a_fingerprint, off):
        assert found["code"] == code, found["err"]
        assert not code or "train: the data of rank 1 (pod-1) differs from that of rank 0 (pod-0)" in found["err"]


class Files(Data):
    """Samples in files, each of which is fetched as a whole."""

    shard_sizes = (9, 16, 15)


def test_the_samples_that_are_compared_are_in_one_shard_file() -> None:
    data = Files(draws, 0)
    contents.read(made(data))
    assert len({int(each >= 9) + int(each >= 25) for each in data.reads}) == 1
    assert len({*data.reads}) == 8


CASES: dict[str, Any] = {
    **{f"different: {how}": (trains, "different", how) for how in DIFFERENT},
    **{f"right: {how}": (trains, "right", how) for how in RIGHT},
    **{f"in a worker: {how}": (trains_in_workers, how) for how in IN_WORKERS},
    "mixture": (mixed,),
}
LENGTH = "the ranks compared only its length\n"
CONTENTS = "the ranks compared only its length and the contents of 8 samples\n"
COMPARED = {
    **{f"right: {how}": CONTENTS for how in ("random images", "augmented with the generators of all")},
    "right: folders of their own": CONTENTS,
    "in a worker: opened at the first read": CONTENTS,
    **{f"right: {how}": LENGTH for how in ("other in each read", "objects", "fails at first")},
}


def test_ranks_with_different_data_are_refused_and_no_others(subtests: pytest.Subtests) -> None:
    refused = {how for how in CASES if how.startswith("different") or how == "mixture"}
    refused |= {f"in a worker: {how}" for how, (*_, differs) in IN_WORKERS.items() if differs}
    sentence = "train: the data of rank 1 (pod-1) differs from that of rank 0 (pod-0) at the indices "
    for how, found in zip(CASES, in_turn(2, CASES.values()), strict=True):
        with subtests.test(how):
            assert [each["code"] for each in found] == [2 * (how in refused)] * 2, found[0]["err"]
            assert all((sentence in each["err"]) == (how in refused) for each in found)
            assert found[0]["err"].endswith(COMPARED.get(how, ""))


def reads() -> list[int]:
    return reads_all(lambda data, index: LABELS[index]).reads


def test_few_samples_are_read_before_the_first_epoch_alone() -> None:
    one, other = (each["result"] for each in run(2, reads))
    assert len(one) == len(other) == 2 * N // 2 + 16
    assert one[:8] == one[8:16][::-1] == other[:8]
    assert len(alone(reads)["result"]) == 2 * N + 16


def made(data: Any, **options: Any) -> StepLoader:
    return StepLoader(data, Sampler(len(data), rank=0, world=2), **options)


def draws(data: Data, index: int) -> Any:
    return random.random(), np.random.random(), float(torch.rand(()))


@pytest.fixture
def generators() -> Iterator[None]:
    def states() -> list[Any]:
        kind, words, *rest = np.random.get_state()  # type: ignore[misc]
        return [random.getstate(), kind, list(words), rest, torch.get_rng_state().tolist()]

    before = states()
    yield
    assert states() == before


@pytest.mark.parametrize("workers", [0, 1])
def test_the_random_numbers_of_the_program_stay(workers: int, generators: None) -> None:
    assert len(contents.read(made(Data(draws, 0), num_workers=workers))) == 8


def test_what_fails_leaves_the_random_numbers_as_well(generators: None) -> None:
    assert contents.read(made(Data(fails_at_first, 0))) == []


@pytest.mark.parametrize("n", [1, 3])
def test_few_samples_are_all_compared(n: int) -> None:
    assert [index for index, _ in sorted(contents.read(made(Data(draws, 0, n))))] == [*range(n)]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_takes_long_is_not_waited_for(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_SECONDS", 1)
    seconds = 60 if workers else 0.3
    began = time.monotonic()
    assert contents.read(made(Data(lambda data, index: (time.sleep(seconds), index), 0), num_workers=workers)) == []
    assert time.monotonic() - began < 30


def all_ranks(*own: tuple[str, int]) -> list[dict[str, Any]]:
    facts = [{"phase": "train", "_contents": [alike, [[7, [found]]]]} for alike, found in own]
    return [{"pod": "a", "facts": each} for each in facts]


def test_only_ranks_under_the_same_conditions_are_compared() -> None:
    assert contents.differ(all_ranks(("AVX2", 1), ("AVX512", 2))) is None
    assert "the data of rank 2 (a) differs from that of rank 0 (a) at the indices 7: " in str(
        contents.differ(all_ranks(("AVX2", 1), ("AVX512", 2), ("AVX2", 3)))
    )


def test_what_is_stable_on_one_rank_alone_is_not_compared() -> None:
    assert contents.differ(all_ranks(("AVX2", 1), ("AVX2", 0))) is None
    assert contents.differ(all_ranks(("AVX2", 0), ("AVX2", 1))) is None
