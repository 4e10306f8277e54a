"""Where data comes from, in order, and that nothing but the right contents is ever used."""

import functools
import gzip
import hashlib
import http.server
import shutil
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from torchtally.datasets import idx, sources
from torchtally.errors import Refused

NOWHERE = sources.Mirror("http://127.0.0.1:9/")  # the discard port: nothing answers
NO_PACKAGE = sources.Debian("no-such-package-at-all", folder="usr/share/none")


@dataclass
class Mirror:
    """A real web server on loopback, and how often each file was asked for."""

    url: str
    folder: Path
    asked: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    folder = tmp_path / "mirror"
    folder.mkdir()
    found = Mirror("", folder)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:  # the base class's name
            found.asked[self.path.lstrip("/")] += 1
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found.url = f"http://127.0.0.1:{server.server_port}/"
        yield found
        server.shutdown()


def contents(values: list[int]) -> bytes:
    """One-dimensional IDX."""
    return bytes([0, 0, 8, 1]) + len(values).to_bytes(4, "big") + bytes(values)


@pytest.fixture
def dataset(mirror: Mirror) -> idx.Dataset:
    files = []
    for number in range(4):
        plain = contents([number] * (number + 1))
        packed = gzip.compress(plain)
        (mirror.folder / f"file-{number}.gz").write_bytes(packed)
        files.append(
            sources.File(
                f"file-{number}",
                hashlib.sha256(plain).hexdigest(),
                f"md5:{hashlib.md5(packed, usedforsecurity=False).hexdigest()}",
            )
        )
    return idx.Dataset("tiny", tuple(files), (sources.Mirror(mirror.url), NO_PACKAGE))


DAMAGED = gzip.compress(bytes(range(256)))[:12] + b"\xff" * 300  # a broken stream, not a short one
EXPECTED = [[0], [1, 1], [2, 2, 2], [3, 3, 3, 3]]


def loaded(dataset: idx.Dataset, folder: Path | None, cache: Path) -> list[list[int]]:
    return [tensor.tolist() for tensor in idx.load(dataset, folder, cache)]


def test_a_mirror_fills_the_cache_once(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    assert loaded(dataset, None, tmp_path / "cache") == EXPECTED
    assert loaded(dataset, None, tmp_path / "cache") == EXPECTED
    assert set(mirror.asked.values()) == {1}


def test_of_several_processes_one_downloads(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as pool:
        futures = [pool.submit(loaded, dataset, None, tmp_path / "cache") for _ in range(8)]
        assert all(future.result(timeout=300) == EXPECTED for future in futures)
    assert set(mirror.asked.values()) == {1}


def test_a_given_folder_is_the_only_source(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    assert loaded(dataset, mirror.folder, tmp_path / "cache") == EXPECTED
    assert not (tmp_path / "cache").exists()
    (mirror.folder / "file-2.gz").unlink()
    with pytest.raises(Refused, match=r"mirror \(--data\) must hold tiny's four files.*file-2.gz does not exist"):
        loaded(dataset, mirror.folder, tmp_path / "cache")
    assert not mirror.asked


def test_a_given_folder_may_hold_the_files_unpacked(dataset: idx.Dataset, tmp_path: Path) -> None:
    for number, values in enumerate(EXPECTED):
        (tmp_path / f"file-{number}").write_bytes(contents(values))
    assert loaded(dataset, tmp_path, tmp_path / "cache") == EXPECTED


def test_other_contents_are_refused_with_both_checksums(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    other = contents([9, 9])
    (mirror.folder / "file-1.gz").write_bytes(gzip.compress(other))
    with pytest.raises(Refused) as refused:
        loaded(dataset, mirror.folder, tmp_path / "cache")
    assert hashlib.sha256(other).hexdigest()[:12] in str(refused.value)
    assert dataset.files[1].contents[:12] in str(refused.value)


@pytest.mark.parametrize(
    "left_by_a_crash",
    [b"", b"\x1f\x8b\x08", gzip.compress(contents([7])), DAMAGED],
    ids=["empty", "a header", "other contents", "damaged"],
)
def test_a_half_downloaded_file_is_fetched_again(
    dataset: idx.Dataset, mirror: Mirror, tmp_path: Path, left_by_a_crash: bytes
) -> None:
    home = tmp_path / "cache" / "tiny"
    home.mkdir(parents=True)
    (home / "file-0.gz").write_bytes(left_by_a_crash)
    assert loaded(dataset, None, tmp_path / "cache") == EXPECTED


def test_a_mirror_that_serves_something_else_is_not_used(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    for file in mirror.folder.iterdir():
        file.write_bytes(b"<html>Sign in to the hotel's network</html>")
    with pytest.raises(Refused, match=r"file-0\.gz"):
        loaded(replace(dataset, sources=dataset.sources[:1]), None, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "tiny").glob("file-*"))


def test_no_source_names_all_that_were_tried_and_the_way_out(dataset: idx.Dataset, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        loaded(replace(dataset, sources=(NOWHERE, NO_PACKAGE)), None, tmp_path / "cache")
    sentence = str(refused.value)
    assert "\n" not in sentence
    for part in (NOWHERE.url, "the Debian package no-such-package-at-all", "--data", "file-3.gz"):
        assert part in sentence


def test_a_cache_that_cannot_be_written_is_named(dataset: idx.Dataset, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(Refused, match=r"cache/tiny \(TORCHTALLY_CACHE\) cannot be used"):
        loaded(dataset, None, tmp_path / "cache")


DIGITS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
TESTED = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.parametrize(
    ("dataset", "folder", "counts"),
    [
        (idx.FASHION_MNIST, "fashion_mnist", ([6000] * 10, [1000] * 10)),
        (idx.MNIST, "mnist", (DIGITS, TESTED)),
    ],
)
def test_each_dataset_is_the_real_one(
    dataset: idx.Dataset, folder: str, counts: tuple[list[int], list[int]], request: pytest.FixtureRequest
) -> None:
    train, train_labels, test, test_labels = idx.load(dataset, request.getfixturevalue(folder), Path("/nowhere"))
    assert (tuple(train.shape), tuple(test.shape)) == ((60000, 28, 28), (10000, 28, 28))
    assert train.dtype == torch.uint8
    assert (torch.bincount(train_labels).tolist(), torch.bincount(test_labels).tolist()) == counts


def test_npms_package_serves_as_well(dataset: idx.Dataset, mirror: Mirror, tmp_path: Path) -> None:
    where = mirror.folder / "tiny-data/-/tiny-data-1.0.0.tgz"
    where.parent.mkdir(parents=True)
    with tarfile.open(where, "w:gz") as package:
        for number, values in enumerate(EXPECTED):
            (tmp_path / "plain").write_bytes(contents(values))
            package.add(tmp_path / "plain", f"package/data/file-{number}")
    checksum = f"sha256:{hashlib.sha256(where.read_bytes()).hexdigest()}"
    npm = sources.Npm("tiny-data", "1.0.0", checksum, registry=mirror.url.rstrip("/"))
    assert loaded(replace(dataset, sources=(NOWHERE, npm)), None, tmp_path / "cache") == EXPECTED
    assert len(list((tmp_path / "cache/tiny").glob("[!.]*"))) == 4
    with pytest.raises(Refused, match=r"tiny-data-1\.0\.0\.tgz \(.*hash"):
        loaded(replace(dataset, sources=(replace(npm, archive="sha256:" + "0" * 64),)), None, tmp_path / "other")


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("apt-get"), reason="no apt-get on this machine")
@pytest.mark.timeout(3000)  # three commands, of which each may take the minutes that sources.py gives it
def test_debians_package_has_the_same_contents(tmp_path: Path) -> None:
    try:
        only_debian = replace(idx.FASHION_MNIST, sources=idx.FASHION_MNIST.sources[1:])
        assert len(idx.load(only_debian, None, tmp_path)[0]) == 60000
    except Refused as refused:
        pytest.skip(f"Debian's packages cannot be reached: {refused}")
    assert {path.name for path in (tmp_path / "fashion-mnist").iterdir()} == {
        ".lock",
        *(f"{file.name}.gz" for file in idx.FASHION_MNIST.files),
    }
