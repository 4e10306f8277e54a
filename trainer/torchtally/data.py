"""Named datasets as tensors: from a folder, a mirror or Debian's package, and only if their checksums fit.

A file's identity is the SHA-256 of its unpacked contents, so that the same data packed by another hand still counts.
"""

import gzip
import hashlib
import logging
import shutil
import subprocess
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import torch
from filelock import FileLock

from torchtally.errors import Refused

pooch.get_logger().setLevel(logging.WARNING)  # what is fetched is said here, once


@dataclass(frozen=True)
class File:
    """One file in the IDX format of the MNIST family."""

    name: str
    contents: str  # SHA-256, unpacked
    archive: str  # checksum of `name`.gz as the mirrors serve it, in pooch's notation


@dataclass(frozen=True)
class Dataset:
    """Four files and where they may come from."""

    name: str
    files: tuple[File, ...]
    mirrors: tuple[str, ...]
    debian: str  # package
    debian_folder: str

    @property
    def fingerprint(self) -> str:
        """Names the data in a tally: a hash of the contents of all files."""
        together = hashlib.sha256("".join(file.contents for file in self.files).encode())
        return f"sha256:{together.hexdigest()[:16]}"


# The archives' MD5 and the mirror are torchvision's (torchvision/datasets/mnist.py).
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
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    debian="dataset-fashion-mnist",
    debian_folder="usr/share/datasets/fashion-mnist",
)


class Unusable(Exception):
    """A file is missing or its contents are not what they should be."""


def load(dataset: Dataset, folder: Path | None, cache: Path) -> list[torch.Tensor]:
    """The dataset's files as uint8 tensors, in the order in which `dataset` lists them.

    A given `folder` is the only source. Without one, files come from the cache, which is filled first where it has to
    be; of the processes that share a cache one downloads and the others wait. Raises Refused where no source will do.
    """
    if folder is not None:
        try:
            return _read_all(dataset, folder)
        except Unusable as problem:
            raise Refused(
                f"the data folder {folder} (--data) must hold {dataset.name}'s four files, packed or not: {problem}"
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
    tried = []
    # The first look is for the processes that waited: another one has filled the cache by now.
    for source in (_nothing, _from_mirrors, _from_debian):
        try:
            source(dataset, home)
            return _read_all(dataset, home)
        except Unusable as problem:
            if source is not _nothing:
                tried.append(str(problem))
    raise Refused(
        f"{dataset.name} could not be had from {'; nor from '.join(tried)}. "
        f"Give a folder that holds {', '.join(file.name + '.gz' for file in dataset.files)} by --data"
    )


def _nothing(dataset: Dataset, home: Path) -> None:
    pass


def _from_mirrors(dataset: Dataset, home: Path) -> None:
    for file in dataset.files:
        problems = []
        for mirror in dataset.mirrors:
            url = f"{mirror}{file.name}.gz"
            print(f"torchtally: fetching {url}", file=sys.stderr, flush=True)
            bar = sys.stderr.isatty()
            try:
                # pooch downloads beside the place, compares and renames.
                pooch.retrieve(
                    url,
                    known_hash=file.archive,
                    path=home,
                    fname=f"{file.name}.gz",
                    downloader=pooch.HTTPDownloader(progressbar=bar, timeout=20),
                )
                break
            except (OSError, ValueError) as error:  # no way there, or another file than expected
                problems.append(f"{url} ({_short(error)})")
        else:
            raise Unusable("; nor from ".join(problems))


def _from_debian(dataset: Dataset, home: Path) -> None:
    where = f"Debian's package {dataset.debian}"
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Unusable(f"{where} (no apt-get on this machine)")
    print(f"torchtally: fetching {where}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=home) as temporary:
        work = Path(temporary)
        for part in ("lists/partial", "cache/archives/partial", "unpacked"):
            (work / part).mkdir(parents=True)
        # Lists and cache of its own, so that neither root nor an earlier update is needed.
        apt = ["apt-get", "-q", "-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::Cache={work}/cache"]
        apt += ["-o", "APT::Sandbox::User=root", "-o", "Acquire::http::Timeout=20"]
        try:
            for command in (
                [*apt, "update"],
                [*apt, "download", dataset.debian],
                ["sh", "-c", 'exec dpkg-deb -x "$1"_*.deb unpacked', "sh", dataset.debian],
            ):
                subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, timeout=900)
        except subprocess.CalledProcessError as error:
            raise Unusable(f"{where} ({_short(error.stderr)})") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unusable(f"{where} ({_short(error)})") from None
        for file in dataset.files:
            found = work / "unpacked" / dataset.debian_folder / f"{file.name}.gz"
            if found.exists():
                found.replace(home / found.name)


def _read_all(dataset: Dataset, folder: Path) -> list[torch.Tensor]:
    return [_read(file, folder) for file in dataset.files]


def _read(file: File, folder: Path) -> torch.Tensor:
    packed, plain = folder / f"{file.name}.gz", folder / file.name
    try:
        contents = gzip.decompress(packed.read_bytes()) if packed.exists() else plain.read_bytes()
    except FileNotFoundError:
        raise Unusable(f"{packed} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unusable(f"{packed if packed.exists() else plain} cannot be read ({_short(error)})") from None
    if (found := hashlib.sha256(contents).hexdigest()) != file.contents:
        path = packed if packed.exists() else plain
        raise Unusable(f"{path} has contents of SHA-256 {found[:12]}…, expected {file.contents[:12]}…")
    # IDX: two zero bytes, the type (8: unsigned byte), the number of dimensions, each as a big-endian int32, then data.
    dimensions = contents[3]
    shape = np.frombuffer(contents, dtype=">i4", count=dimensions, offset=4)
    values = np.frombuffer(contents, dtype=np.uint8, offset=4 + 4 * dimensions)
    return torch.from_numpy(values.reshape(shape).copy())


def _short(error: object) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__
