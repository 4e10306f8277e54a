"""Random access to samples in shard files: each is that of the library whose files they are, in any process."""

import contextlib
import functools
import json
import multiprocessing
import pickle
import random
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accounts import alone
from shardfiles import BLOCK, WRITERS, number, of_kind, samples, write_mds, write_parquet, write_tars, write_tokens
from torch.utils.data import ConcatDataset, DataLoader

from torchtally import Account
from torchtally.errors import Ending, Refused
from torchtally.streams.files import Copies
from torchtally.streams.parquet import ParquetFiles
from torchtally.streams.tokens import TokenFiles
from torchtally.streams.webdataset import TarFiles, make_index

N = 101
KINDS = [*WRITERS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, which no test changes."""
    root = tmp_path_factory.mktemp("data")
    for kind, write in WRITERS.items():
        write(root / kind, N)
    return root


def by_the_library(kind: str, folder: Path) -> list[Any]:
    """All samples in order, as the library that the files belong to reads them."""
    if kind == "mds":
        from streaming import LocalDataset

        local = LocalDataset(str(folder))
        return [local[index] for index in range(len(local))]
    if kind == "parquet":
        from pyarrow import dataset

        rows: list[Any] = dataset.dataset(folder).to_table().to_pylist()
        return rows
    if kind == "tars":
        import webdataset

        shards = sorted(map(str, folder.glob("*.tar")))
        stream = webdataset.WebDataset(shards, shardshuffle=False).decode()  # type: ignore[attr-defined]
        return [{name: value for name, value in sample.items() if name != "__local_path__"} for sample in stream]
    files = [np.fromfile(file, "uint16") for file in sorted(folder.glob("*.bin"))]
    return [file[start : start + BLOCK + 1].tolist() for file in files for start in range(0, len(file) - BLOCK, BLOCK)]


def plain(kind: str, sample: Any) -> Any:
    return sample.tolist() if kind == "tokens" else sample


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_that_of_the_library(kind: str, data: Path) -> None:
    expected = by_the_library(kind, data / kind)
    dataset = of_kind(kind, str(data / kind))
    assert len(dataset) == sum(dataset.shard_sizes) == len(expected) == N
    assert [plain(kind, dataset[index]) for index in range(N)] == expected
    sent = pickle.loads(pickle.dumps(dataset))  # as to a worker that is spawned
    assert [plain(kind, sample) for sample in sent] == expected
    for bad in (-1, N):
        with pytest.raises(IndexError):
            dataset[bad]
    if kind != "tokens":
        assert [number(kind, sample) for sample in expected] == [*range(N)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_opens_each_shard_once_and_few_stay_open(kind: str, data: Path, monkeypatch: Any) -> None:
    dataset = of_kind(kind, str(data / kind), open_shards=2)
    expected, opened, open_shard = by_the_library(kind, data / kind), Counter[int](), dataset._open
    monkeypatch.setattr(dataset, "_open", lambda shard: (opened.update([shard]), open_shard(shard))[1])
    shard_of = np.repeat(np.arange(len(dataset.shard_sizes)), dataset.shard_sizes)
    indices = [*random.Random(1).sample(range(N), 60), 7, 7]
    assert [plain(kind, each) for each in dataset.__getitems__(indices)] == [expected[index] for index in indices]
    assert opened == Counter(set(shard_of[indices].tolist()))
    assert len(dataset._opened) == 2
    # In the order of the files, each is opened once, however small the batches are.
    opened.clear()
    dataset._opened.clear()
    for start in range(0, N, 5):
        dataset.__getitems__([*range(start, min(N, start + 5))])
    assert opened == Counter(set(shard_of.tolist()))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_workers_open_files_of_their_own(method: str, data: Path) -> None:
    """The parent has shards open, whose files a fork would share."""
    datasets = [of_kind(kind, str(data / kind)) for kind in KINDS]
    expected = [plain(kind, sample) for kind, dataset in zip(KINDS, datasets, strict=True) for sample in dataset]
    order = random.Random(2).sample(range(len(expected)), len(expected))
    loader = DataLoader(
        ConcatDataset(datasets),
        batch_size=25,
        sampler=order,
        num_workers=2 if method == "fork" else 1,
        collate_fn=list,
        multiprocessing_context=method,
    )
    found = [each if isinstance(each, dict) else each.tolist() for batch in loader for each in batch]
    assert found == [expected[index] for index in order]


def test_columns_are_chosen_and_any_file_system_is_read(tmp_path: Path) -> None:
    write_parquet(tmp_path, N)
    dataset = ParquetFiles(f"file://{tmp_path}/*.parquet", columns=["text"])
    assert dataset[50] == {"text": samples(50, 51)[0]["text"]}
    with pytest.raises(Refused, match="has no column 'image': choose columns from number, text"):
        ParquetFiles([f"{tmp_path}/part-000.parquet"], columns=["image"])


def test_braces_name_shards_and_handlers_decode_them(data: Path) -> None:
    shards = f"{data}/tars/shard-{{000..002}}.tar"
    raw, own = TarFiles(shards, decode=None), TarFiles(shards, decode=[lambda key, value: (key, value)])
    assert len(raw) == len(own) == 21
    assert (raw[9]["number.cls"], own[9]["number.cls"]) == (b"9", (".number.cls", b"9"))


def test_a_tar_file_may_end_with_what_is_no_sample(data: Path, tmp_path: Path) -> None:
    shard = shutil.copy(data / "tars/shard-000.tar", tmp_path)
    tar(Path(shard), {"README": b"of these samples", "__meta__/about.txt": b"none"}, "a")
    with tarfile.open(shard, "a") as members:
        members.add(data, "folder", recursive=False)
    make_index(shard)
    assert [*TarFiles(shard)] == by_the_library("tars", tmp_path)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_each_token_but_the_first_of_a_file_is_predicted_once(dtype: str, tmp_path: Path) -> None:
    write_tokens(tmp_path, 30, rows=(20, 10), dtype=dtype)
    dataset = TokenFiles(f"{tmp_path}/*.bin", block=BLOCK, dtype=dtype)
    assert [token for row in dataset for token in row[1:].tolist()] == [*range(1, 101), *range(102, 152)]


# What is not allowed or not whole, or has changed, ends with a sentence.


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("mds", {"cache_limit": "all"}, "cache_limit='all' must be a number of bytes, or a text such as '100gb'"),
        ("parquet", {"columns": []}, "columns=[] must name at least one column"),
        ("tars", {"decode": "pil"}, "decode='pil' must be a list of the arguments of WebDataset's decode, such as"),
        ("tokens", {"block": "4"}, "block='4' must be a whole number from 1"),
        ("tokens", {"cache_limit": "100gb"}, "cache_limit='100gb' must be a number of bytes"),
        ("tokens", {"open_shards": None}, "open_shards=None must be a whole number from 1"),
    ],
)
def test_bad_input_is_one_sentence(kind: str, options: Any, sentence: str, data: Path) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)):
        of_kind(kind, str(data / kind), **options)


def cut(file: Path, size: int = -10) -> None:
    file.write_bytes(file.read_bytes()[:size])


def tar(file: Path, contents: dict[str, bytes], mode: Any = "w") -> None:
    with tarfile.open(file, mode) as members:
        for name, value in contents.items():
            source = file.parent / "member"
            source.write_bytes(value)
            members.add(source, name)


def overwrite(file: Path, at: int, value: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(at)
        opened.write(value)


def replace_in(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def repeat_a_line(path: Path) -> None:
    """Name the second sample in place of the third."""
    replace_in(path, lambda lines: [*lines[:3], lines[2], *lines[4:]])


def take_over_a_file(path: Path) -> None:
    """Name the first file of the third sample in the second one, too."""

    def change(lines: list[str]) -> list[str]:
        more = " ".join(lines[3].split()[:4])
        return [*lines[:2], f"{lines[2].rstrip()} {more}\n", *lines[3:]]

    replace_in(path, change)


def list_again(path: Path) -> None:
    """The second shard is listed once more, by another path."""
    index = json.loads(path.read_text())
    again = json.loads(json.dumps(index["shards"][1]))
    again["raw_data"]["basename"] = "./" + again["raw_data"]["basename"]
    path.write_text(json.dumps(index | {"shards": [*index["shards"], again]}))


def repeat_a_row_group(path: Path) -> None:
    """As a tool that puts footers together can leave it."""
    from pyarrow import parquet

    known = parquet.read_metadata(path)
    metadata = parquet.read_metadata(path)
    metadata.append_row_groups(known)
    with path.open("rb") as opened:
        body = opened.read()[: -8 - known.serialized_size]
    footer = path.parent / "footer"
    metadata.write_metadata_file(footer)
    path.write_bytes(body + footer.read_bytes()[4:])


def behind_the_end(lines: list[str]) -> list[str]:
    return [*lines[:-1], re.sub(r"\d+(?= \d+ \S+$)", "99999", lines[-1])]


MDS, PARQUET, INDEX, SHARD = "shard.00002.mds", "part-001.parquet", "shard-002.idx", "shard-002.tar"
AFTER_ITS_HEADER = r"shard-002.idx: \S+ of 2 bytes at byte \d+ must begin after its header"
# The kind of files, the one that is damaged, how, and what is said.
FAULTS: list[tuple[str, str, Callable[[Path], Any], str]] = [
    ("mds", "index.json", Path.unlink, "index.json does not exist"),
    ("mds", "index.json", list_again, r"shard.00001.mds is listed twice"),
    ("mds", "index.json", cut, "cannot be read: JSONDecodeError: Index file at"),
    ("mds", "index.json", lambda p: p.write_text('{"version": 2}'), "cannot be read: KeyError"),
    ("mds", MDS, Path.unlink, "shard.00002.mds does not exist"),
    ("mds", MDS, cut, r"shard.00002.mds has \d+ bytes, and \d+ are expected"),
    ("mds", MDS, lambda p: overwrite(p, 0, b"\x05\0\0\0"), "shard.00002.mds has 5 samples, and its index says 12"),
    ("parquet", PARQUET, repeat_a_row_group, r"part-001.parquet is not valid: two of its row groups begin at byte \d+"),
    ("parquet", PARQUET, cut, "it ends with .*, and must end with b'PAR1'"),
    ("parquet", PARQUET, lambda p: p.write_bytes(p.read_bytes()[-99:]), "it has 99 bytes, and its footer alone"),
    ("tars", INDEX, Path.unlink, "shard-002.idx does not exist: `python -m torchtally.streams.webdataset"),
    ("tars", INDEX, lambda p: p.write_text("{}"), "shard-002.idx begins with '{}', and must begin with 'v1.2'"),
    ("tars", INDEX, lambda p: cut(p, 200), "shard-002.idx (has the line|begins with 'v1.2 7' and has 2)"),
    ("tars", INDEX, repeat_a_line, AFTER_ITS_HEADER),
    ("tars", INDEX, take_over_a_file, AFTER_ITS_HEADER),
    ("tars", INDEX, lambda p: replace_in(p, behind_the_end), r"it names \d+ bytes, and the shard has \d+"),
    ("tars", INDEX, lambda p: shutil.copy(p.with_name("shard-003.idx"), p), r"it has \S+ of \d+ bytes, .*the shard"),
    ("tars", SHARD, lambda p: cut(p, 2048), r"shard-002.idx does not fit .*it names \d+ bytes, and the shard has 2048"),
    ("tars", SHARD, lambda p: tar(p, {"9999.txt": b"more"}, "a"), r"it ends at byte \d+, and the shard continues"),
    ("tars", SHARD, lambda p: p.with_name("z.tar").hardlink_to(p), "z.tar is listed twice, also as "),
    ("tokens", "2.bin", lambda p: p.with_name("latest.bin").symlink_to(p), "latest.bin is listed twice, also as "),
    ("tokens", "2.bin", lambda p: cut(p, 11), "2.bin has 11 bytes, which are not whole tokens of uint16"),
    ("tokens", "", lambda p: [each.unlink() for each in p.iterdir()], "there is no file '.*bin'"),
]


@pytest.mark.parametrize(("kind", "file", "damage", "sentence"), FAULTS)
def test_files_that_do_not_fit_are_refused(
    kind: str, file: str, damage: Callable[[Path], Any], sentence: str, tmp_path: Path
) -> None:
    WRITERS[kind](tmp_path / "data", N)
    damage(tmp_path / "data" / file)
    with pytest.raises(Refused, match=sentence):
        of_kind(kind, str(tmp_path / "data")).__getitems__([*range(N)])


@pytest.mark.parametrize("other", ["{}/parquet/", "{}/tars/../parquet/", "file://{}/parquet/", "memory://data/"])
def test_a_file_that_is_listed_twice_is_refused(other: str, data: Path) -> None:
    other = other.format(data) + "part-000.parquet"
    path = other if other.startswith("memory") else f"{data}/parquet/part-000.parquet"
    with pytest.raises(Refused, match=r"part-000\.parquet is listed twice") as refused:
        ParquetFiles([path, f"{data}/parquet/part-001.parquet", other])
    assert ("also as" in str(refused.value)) == (path != other)


def test_files_without_samples_may_be_one_file(tmp_path: Path) -> None:
    """As a cache has them that keeps each content once: there is nothing to be trained twice."""
    from pyarrow import parquet, table

    write_tokens(tmp_path / "tokens", N)
    write_parquet(tmp_path / "parquet", N)
    (tmp_path / "blob.bin").touch()
    parquet.write_table(table({"x": []}), tmp_path / "blob.parquet")
    for place, blob in (("tokens", "blob.bin"), ("parquet", "blob.parquet")):
        whole = len(of_kind(place, str(tmp_path / place)))
        for name in ("a", "b"):
            (tmp_path / place / f"{name}{Path(blob).suffix}").symlink_to(tmp_path / blob)
        assert len(of_kind(place, str(tmp_path / place))) == whole


def changes(kind: str, where: str) -> None:
    """A shard changes after the dataset was made, and a worker of the loader finds it."""
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(of_kind(kind, where), "train", batch_size=4, num_workers=1)
        for file in Path(where).glob("*002*") if kind != "tokens" else [Path(where) / "2.bin"]:
            if file.suffix != ".idx":
                if kind == "parquet":
                    write_parquet(Path(where), N - 1)
                else:
                    cut(file)
        for _ in account.epoch("train", 1, loader):
            account.commit()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("mds", r"shard.00002.mds has \d+ bytes, and \d+ are expected"),
        ("parquet", r"has changed: the hash of its footer was \w+, and now it is \w+"),
        ("tars", r"shard-002.tar has \d+ bytes, and \d+ are expected"),
        ("tokens", r"2.bin has 366 bytes, and 376 are expected"),
    ],
)
def test_a_shard_that_changes_in_a_run_ends_it_with_a_sentence(kind: str, sentence: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "data", N)
    found = alone(changes, kind, str(tmp_path / "data"))
    assert found["code"] == 2, found["err"]
    assert "Traceback" not in found["err"]
    [said] = [line for line in found["err"].splitlines() if "expected" in line or "changed" in line]
    assert re.search(sentence, said)


def state_of(kind: str, where: str) -> Any:
    with Account(task="t", plan={"train": 1}) as account:
        loader = account.loader(of_kind(kind, where), "train", batch_size=4)
        for batch in account.epoch("train", 1, loader):
            account.commit()
            if batch.step == 3:
                account.stop("enough")
        return account.state_dict()


def goes_on(kind: str, where: str, state: Any) -> None:
    with Account(task="t", plan={"train": 1}) as account:
        account.loader(of_kind(kind, where), "train", batch_size=4)
        account.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_grew_or_changed_between_two_starts_is_refused(kind: str, tmp_path: Path) -> None:
    write = WRITERS[kind]
    write(tmp_path / "data", N)
    state = alone(state_of, kind, str(tmp_path / "data"))["result"]
    assert alone(goes_on, kind, str(tmp_path / "data"), state)["code"] == 0
    grown, other = tmp_path / "grown", tmp_path / "other"
    if kind == "tokens":
        write_tokens(grown, 105, rows=(20, 0, 37, 48))
        write_tokens(other, N, rows=(20, 1, 36, 44))
    else:
        write(grown, N + 4)
        if kind == "mds":
            write_mds(other, N, compression="zstd")
        elif kind == "parquet":
            write_parquet(other, N, per_file=50)
        else:
            write_tars(other, N)
            shard = other / "shard-014.tar"
            with tarfile.open(shard, "a") as members:
                members.add(__file__, f"folder/{N - 1:04}.py")
            make_index(shard)
    refused = alone(goes_on, kind, str(grown), state)
    assert refused["code"] == 2
    assert f"train: its number of samples was {N} in this run, and now it is {N + 4}" in refused["err"]
    if kind == "tars":
        return
    refused = alone(goes_on, kind, str(other), state)
    assert refused["code"] == 2, refused["err"]
    assert "train: its data was " in refused["err"] and "sha256:" in refused["err"]


@pytest.mark.parametrize(
    ("kind", "first", "opened"),
    [
        ("parquet", "part-000.parquet", ParquetFiles),
        ("tars", "shard-000.tar", TarFiles),
        ("tokens", "0.bin", functools.partial(TokenFiles, block=BLOCK)),
    ],
)
def test_files_of_one_name_are_told_apart_by_their_folders(
    kind: str, first: str, opened: Any, data: Path, tmp_path: Path
) -> None:
    """Files that are as large, listed in another order, number their samples otherwise."""
    for folder in ("here/a", "here/b", "there/a", "there/b"):
        shutil.copytree(data / kind, tmp_path / folder)
    one, other = f"{tmp_path}/here/a/{first}", f"{tmp_path}/here/b/{first}"
    known = opened([one, other]).fingerprint
    assert known != opened([other, one]).fingerprint
    assert known == opened([one.replace("here", "there"), other.replace("here", "there")]).fingerprint
    assert opened([one]).fingerprint == opened([other]).fingerprint == opened(Path(one)).fingerprint


def streamed(kind: str, where: str) -> None:
    with Account(task="t", plan={"train": 1}) as account:
        if kind == "datasets":
            import datasets

            stream = datasets.load_dataset("parquet", data_files=f"{where}/*.parquet", streaming=True, split="train")
        elif kind == "streaming":
            import streaming

            stream = streaming.StreamingDataset(local=where, batch_size=4)
        else:
            import webdataset

            stream = webdataset.WebDataset(f"{where}/shard-000.tar", shardshuffle=False)
        account.loader(stream, "train", batch_size=4)


@pytest.mark.parametrize(
    ("library", "kind", "advice"),
    [
        ("datasets", "parquet", "load it without streaming=True, or read its files by torchtally.streams.parquet.Parq"),
        ("streaming", "mds", "read it by torchtally.streams.mds.MDS"),
        ("webdataset", "tars", "read it by torchtally.streams.webdataset.TarFiles"),
    ],
)
def test_a_librarys_own_stream_is_refused_and_told_what_to_do(library: str, kind: str, advice: str, data: Path) -> None:
    found = alone(streamed, library, str(data / kind))
    assert (found["code"], advice in found["err"]) == (2, True), found["err"]


# Copies of shards that are elsewhere. mosaicml-streaming takes a folder for a remote place, too.


def reads(where: str, local: str, seed: int, limit: int | None) -> int:
    """Read all samples in an order; returns the most bytes that the copies had."""
    dataset = of_kind("mds", where, local=local, cache_limit=limit, open_shards=2)
    most = 0
    for index in random.Random(seed).sample(range(N), N):
        assert dataset[index] == samples(index, index + 1)[0]
        sizes = []
        for file in Path(local).glob("*.mds"):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it
                sizes.append(file.stat().st_size)
        most = max(most, sum(sizes))
    return most


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_processes_share_copies_that_stay_below_a_limit(compression: str | None, tmp_path: Path) -> None:
    write_mds(tmp_path / "data", N, compression=compression)
    shard = max(each["raw_data"]["bytes"] for each in index_of(tmp_path / "data"))
    limit = 3 * shard
    arguments = [(str(tmp_path / "data"), str(tmp_path / "copies"), seed, limit) for seed in (1, 2, 3)]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        most = pool.starmap(reads, arguments)
    assert max(most) <= limit + 2 * shard  # what the two others fetch meanwhile
    assert not [*(tmp_path / "copies").glob("*.zstd")]


def index_of(folder: Path) -> list[Any]:
    shards: list[Any] = json.loads((folder / "index.json").read_text())["shards"]
    return shards


def test_a_part_of_a_copy_is_fetched_again_and_a_shard_above_the_limit_is_refused(tmp_path: Path) -> None:
    write_mds(tmp_path / "data", N)
    where, local = str(tmp_path / "data"), str(tmp_path / "copies")
    assert reads(where, local, 1, None) > 0
    cut(tmp_path / "copies/shard.00002.mds")
    assert reads(where, local, 2, None) > 0
    with pytest.raises(Refused, match=r"cache_limit=100 must be at least the size of a shard: \S+ has \d+ bytes"):
        of_kind("mds", where, local=str(tmp_path / "others"), cache_limit=100)[0]


def test_a_copy_that_others_keep_removing_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(Ending, match="cache_limit is too small"):
        Copies(tmp_path, ["a"], None).open("a", 3, lambda: None)
    assert [each.name for each in tmp_path.iterdir()] == ["a.lock"]
