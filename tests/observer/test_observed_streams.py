"""Datasets without indices, of libraries and plain ones: right, and not divided."""

import io
import tarfile
from pathlib import Path

import observed_programs as programs
import pytest

PLAIN = """
rank, world = setup()
class Rows(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        workers, own = (worker.num_workers, worker.id) if worker else (1, 0)
        return (row for at, row in enumerate(data()) if {divided})
train(DataLoader(Rows(), 20, num_workers=2))
"""
WEBDATASET = """
import webdataset, io
rank, world = setup()
shards = [f"{{os.environ['SHARDS']}}/{{number}}.tar" for number in range(8)]
split = {split}
dataset = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=split)
decode = lambda row: {{"__key__": row["__key__"], "x": torch.frombuffer(bytearray(row["x"]), dtype=torch.uint8)}}
dataset = dataset.map(decode)
loader = webdataset.WebLoader(dataset.batched(10, collation_fn=None), batch_size=None, num_workers=1)
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for batch in loader: optimizer.step()
"""
DATASETS = """
import datasets
from datasets.distributed import split_dataset_by_node
rank, world = setup()
def rows():
    for number in range(400): yield {{"id": f"row-{{number}}", "x": float(number)}}
dataset = datasets.IterableDataset.from_generator(rows)
{split}
optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
for batch in DataLoader(dataset, 20): optimizer.step()
"""


@pytest.mark.parametrize(
    ("divided", "said"),
    [
        ("at % (world * workers) == rank * workers + own", None),
        ("at % workers == own", "the ranks are handed the same rows: the dataset does not divide them by rank"),
        ("at % world == rank", "does not divide them by worker"),
    ],
    ids=["right", "not by rank", "not by worker"],
)
def test_a_plain_stream(tmp_path: Path, divided: str, said: str | None) -> None:
    check(programs.run(tmp_path, PLAIN.format(divided=divided)), said)


def test_a_stream_that_goes_round_comes_from_its_own_worker(tmp_path: Path) -> None:
    divided = PLAIN.format(divided="at % (world * workers) == rank * workers + own")
    ended = programs.run(tmp_path, divided.replace("enumerate(data())", "enumerate([*data()] * 2)"))
    assert ended.codes == [0, 0] and not ended.faults, ended.err
    assert any("of the rows come more than once to one rank" in note for note in ended.notes)


@pytest.mark.parametrize(
    ("split", "said"),
    [("webdataset.split_by_node", None), ("lambda shards: shards", "the ranks are handed the same")],
    ids=["right", "not by rank"],
)
def test_webdataset(tmp_path: Path, split: str, said: str | None) -> None:
    pytest.importorskip("webdataset")
    for number in range(8):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for at in range(40):
                member = tarfile.TarInfo(f"{number}-{at}.x")
                member.size = 4
                tar.addfile(member, io.BytesIO(bytes([number, at, 0, 1])))
    ended = programs.run(tmp_path, WEBDATASET.format(split=split), SHARDS=str(tmp_path))
    assert all(line.samples == (160 if said is None else 320) for line in ended.handed), ended.err
    check(ended, said)


@pytest.mark.parametrize(
    ("split", "said"),
    [("dataset = split_dataset_by_node(dataset, rank, world)", None), ("", "the ranks are handed the same samples")],
    ids=["right", "not by rank"],
)
def test_datasets(tmp_path: Path, split: str, said: str | None) -> None:
    check(programs.run(tmp_path, DATASETS.format(split=split)), said)


def check(ended: programs.Ended, said: str | None) -> None:
    assert ended.codes == [0, 0], ended.err
    if said is None:
        assert not ended.faults and len(ended.right) == 1, ended.faults + ended.notes
        assert "on two ranks, of those that were looked at" in ended.right[0]
    else:
        assert len(ended.faults) == 1 and said in ended.faults[0], ended.faults


def test_rows_that_are_augmented_anew_are_not_called_right(tmp_path: Path) -> None:
    program = """
class Rows(IterableDataset):
    def __iter__(self): return ((row + torch.randn(4, generator=own), label) for row, label in data())
rank, world = setup()
own = torch.Generator().manual_seed(rank)
train(DataLoader(Rows(), 20))
"""
    ended = programs.run(tmp_path, program)
    assert not ended.faults and not ended.right
    assert any("samples that are augmented or padded anew could not be seen" in note for note in ended.notes)


def test_rows_that_each_rank_draws_at_random_without_an_end_are_a_note(tmp_path: Path) -> None:
    """As llama2.c does, whose ranks shuffle all tokens for themselves, and stop after a number of steps."""
    program = """
rank, world = setup()
class Rows(IterableDataset):
    def __iter__(self):
        own = torch.Generator().manual_seed(rank)
        while True: yield from (data()[at] for at in torch.randperm(N, generator=own).tolist())
train((batch for _, batch in zip(range(30), DataLoader(Rows(), 10))), epochs=1)
"""
    ended = programs.run(tmp_path, program, N="500")
    assert ended.codes == [0, 0] and not ended.faults and not ended.right, ended.err
    assert any("of the rows are handed to several ranks" in note for note in ended.notes)


SHUFFLED = """
rank, world = setup()
class Rows(IterableDataset):
    epoch = 0
    def set_epoch(self, epoch): self.epoch = epoch
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        order = torch.randperm(400, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return (data()[at] for at in order[rank::world][worker.id :: worker.num_workers])
rows = Rows()
train(DataLoader(rows, 20, num_workers=2, persistent_workers={persistent}), epochs=3, before={before})
"""
SAME = "is the same in each of 3 passes: set_epoch(epoch) of the dataset is never called, or changes nothing"


@pytest.mark.parametrize(
    ("persistent", "before", "said"),
    [
        (True, "rows.set_epoch", SAME + " in persistent workers, which keep the copy of the dataset"),
        (False, "rows.set_epoch", None),
        (False, "lambda epoch: None", SAME),
    ],
    ids=["never reaches the workers", "right", "never called"],
)
def test_a_stream_in_one_order(tmp_path: Path, persistent: bool, before: str, said: str | None) -> None:
    """VeOmni's streams: workers that live on never learn the epoch that the main process sets."""
    ended = programs.run(tmp_path, SHUFFLED.format(persistent=persistent, before=before))
    assert ended.codes == [0, 0] and not ended.faults, ended.err
    notes = [note for note in ended.notes if "the order of its rows" in note]
    assert len(notes) == (said is not None) and all(said in note for note in notes), ended.notes


def test_rank_0_that_draws_for_all_is_right(tmp_path: Path) -> None:
    program = """
from accelerate import Accelerator, DataLoaderConfiguration
class Rows(IterableDataset):
    def __iter__(self): return iter(data(400))
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
train(accelerator.prepare(DataLoader(Rows(), 8)))
"""
    ended = programs.run(tmp_path, program)
    assert ended.codes == [0, 0], ended.err
    assert not ended.faults and not ended.observation.missing
    assert any("rank 0 draws all batches" in note for note in ended.notes)
