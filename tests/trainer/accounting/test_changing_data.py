"""A dataset that changes while its loader lives gets no ✓: its indices name other samples than before."""

import io
from typing import Any

import pytest
from accounts import in_turn
from witness import Noisy, Witness

from torchtally import Account, Locality
from torchtally.verifier.log import Log
from torchtally.verifier.verdict import judge

N, SIZE = 24, 4


class Growing(Noisy):
    """Samples in files, of which a sample is read by its number through all files."""

    def __init__(self) -> None:
        super().__init__(N)
        self.shard_sizes = [10, 8, 6]


def change(data: Growing, how: str) -> None:
    match how:
        case "grows":
            data.n += 3
        case "shrinks":
            data.n -= 3
        case "sizes":
            data.shard_sizes[1:] = [6, 8]
        case "files":
            data.shard_sizes = [10, 14]
        case "fingerprint":
            data.fingerprint = "other"


def trains(how: str, when: str, ranks: tuple[int, ...], order: Locality | None, workers: int) -> None:
    """The data changes on some ranks, after the first step of the last epoch or before it."""
    counting, data = Witness(N + 3), Growing()
    with Account(task="t", plan={"train": 2}, order=order) as account:
        options = {"num_workers": workers, "persistent_workers": bool(workers)}
        loader = account.loader(data, "train", batch_size=SIZE, **options)
        for epoch in account.epochs():
            for batch in account.epoch("train", epoch, loader):
                counting.backward(*batch.data)
                counting.step()
                account.commit()
                if when == "within" and account.rank in ranks and (epoch, batch.step) == (2, 1):
                    change(data, how)
            if when == "between" and account.rank in ranks and epoch == 1:
                change(data, how)


LENGTH = "the dataset had 24 samples when its loader was made, it has 27 now"
SIZES = "train: the dataset's shard_sizes[1] was 8 when its loader was made, it is 6 now"
TEXT = "train: the dataset's fingerprint was noisy when its loader was made, it is other now"
FILES = "train: the dataset had 3 shard_sizes when its loader was made, it has 2 now"
CASES: list[tuple[Any, str]] = [
    # The worker has the dataset as it was.
    (("grows", "within", (1,), None, 1), f"train: {LENGTH}"),
    (("grows", "between", (1,), None, 0), f"train: {LENGTH}"),
    # Batches come from the dataset as it is now.
    (("shrinks", "within", (0, 1), None, 0), LENGTH.replace("27", "21")),
    (("sizes", "within", (1,), None, 0), SIZES),
    (("sizes", "between", (0,), Locality(window=2), 0), SIZES),
    (("files", "between", (1,), None, 0), FILES),
    (("fingerprint", "within", (1,), None, 0), TEXT),
]


def test_data_that_changes_is_refused_on_every_rank(subtests: pytest.Subtests) -> None:
    for (case, sentence), found in zip(CASES, in_turn(2, ((trains, *case) for case, _ in CASES)), strict=True):
        with subtests.test(str(case)):
            log = Log()
            for rank, each in enumerate(found):
                assert each["code"] == 2, each["err"]
                assert sentence in each["err"]
                assert "Traceback" not in each["err"]
                log.read(f"rank-{rank}.log", io.StringIO(each["out"]))
                if case[0] == "shrinks":  # in its next batch
                    assert {line["epoch"] for line in each["lines"]} <= {1}
            assert not any(verdict.holds for verdict in judge(log))
