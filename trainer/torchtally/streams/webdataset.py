"""Tar files of WebDataset, by an index of byte offsets beside each.

The index is the one that NVIDIA DALI reads and its `wds2idx` writes. Without DALI, this makes it:

    python -m torchtally.streams.webdataset shard-*.tar
"""

import mmap
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from webdataset import filters
from webdataset.shardlists import expand_urls
from webdataset.tariterators import base_plus_ext

from torchtally.atomic_file import replace
from torchtally.errors import Refused
from torchtally.file_systems import Missing
from torchtally.log import log
from torchtally.streams.files import Files, Opener, basename, check_distinct, expanded, of_each, part, without_place
from torchtally.streams.shards import Shards

_VERSION = "v1.2"
_BLOCK = 512  # bytes of a header, and what the contents of a file are filled up to
_META = re.compile(r"__[^/]*__($|/)")  # names that WebDataset leaves out
_MAKE = "make the index with `python -m torchtally.streams.webdataset SHARD.tar`"
_FIRST_LINE = 64  # bytes that it has at most

Component = tuple[str, int, int, str]  # extension, offset, size in bytes, name


class TarFiles(Shards):
    """Samples of WebDataset's tar files, as WebDataset makes and decodes them. Each tar file is a shard.

    Beside `shard-0.tar` there must be its index `shard-0.idx`: `python -m torchtally.streams.webdataset shard-0.tar`.

    Args:
        urls: Paths or URLs of any file system of fsspec: a list, or one text with braces such as `{000..099}`, or `*`.
        decode: Arguments of WebDataset's `decode`, such as `["pil"]`; without any, its default handlers decode. `None`
            leaves the samples as bytes.
        open_shards: Number of shards that a process keeps open.
        local: Folder for copies of shards that are not on this machine (default: a temporary one).
        cache_limit: Bytes of the copies (default: no limit).

    Example:
        >>> from webdataset import ShardWriter
        >>> with ShardWriter(f"{folder}/shard-%03d.tar", maxcount=30, verbose=0) as sink:
        ...     for x in range(100):
        ...         sink.write({"__key__": f"{x:03}", "cls": x})
        >>> for shard in expanded(f"{folder}/*.tar"):
        ...     index = make_index(shard)
        >>> TarFiles(f"{folder}/shard-{{000..003}}.tar")[95]["cls"]
        95

    Raises:
        Refused: An argument is not valid, or an index is missing or does not fit its shard.
        Volume: A shard cannot be read, and another attempt can succeed.
    """

    def __init__(
        self,
        urls: Files,
        *,
        decode: Sequence[str | Callable[[str, bytes], Any]] | None = (),
        open_shards: int = 32,
        local: str | os.PathLike[str] | None = None,
        cache_limit: int | None = None,
    ):
        self._urls = expanded(urls if not isinstance(urls, str) or "*" in urls else expand_urls(urls))
        check_distinct(self._urls)
        try:
            self._decode = None if decode is None else filters.decode(*decode)
            _ = self._decode and [*self._decode(iter([]))]  # which looks at the arguments
        except (TypeError, ValueError) as error:
            known = "a list of the arguments of WebDataset's decode, such as ['pil']"
            raise Refused(f"decode={decode!r} must be {known}: {error}") from None
        sizes = of_each(_samples_in, self._urls)
        self._files = Opener(self._urls, local, cache_limit)
        described = [[name, size] for name, size in zip(without_place(self._urls), self._files.sizes, strict=True)]
        super().__init__("webdataset", sizes, described, open_shards)

    def _open(self, shard: int) -> tuple[str, mmap.mmap, list[str]]:
        url = self._urls[shard]
        index = _index_of(url)
        first, *lines = part(index, 0).decode().splitlines()
        expected = f"{_VERSION} {self.shard_sizes[shard]}"
        if first != expected or len(lines) != self.shard_sizes[shard]:
            raise Refused(
                f"{index} begins with {first!r} and has {len(lines)} samples, and {expected!r} is expected: make it "
                f"again with `python -m torchtally.streams.webdataset {basename(url)}`"
            )
        end = _end_of(lines, index)
        with self._files.open(shard) as file:
            opened = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            after = _after_left_out(file, end)
        if end > len(opened):
            raise Refused(
                f"{index} does not fit {url}: it names {end} bytes, and the shard has {len(opened)}: copy both, or "
                f"{_MAKE}"
            )
        if any(opened[after : after + _BLOCK]):
            raise Refused(
                f"{index} does not fit {url}: it ends at byte {end}, and the shard continues at byte {after}: {_MAKE}"
            )
        return url, opened, lines

    def _read(self, opened: tuple[str, mmap.mmap, list[str]], rows: list[int]) -> list[dict[str, Any]]:
        url, data, lines = opened
        raw = [_sample(url, data, _components(lines[row], _index_of(url))) for row in rows]
        return raw if self._decode is None else [*self._decode(iter(raw))]

    def only(self, extension: str) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the contents of each sample's file with this extension; no others are read.

        Raises Refused and Volume.
        """
        for shard in range(len(self.shard_sizes)):
            url, data, lines = self._at(shard)
            for line in lines:
                components = _components(line, _index_of(url))
                found = [each for each in components if each[0].lower() == extension]
                if not found:
                    raise Refused(f"{url} has no file {extension} of the sample {base_plus_ext(components[0][3])[0]}")
                yield f"{url}: {found[0][3]}", _sample(url, data, found)[extension]


def make_index(shard: str | os.PathLike[str]) -> Path:
    """Write the index of a tar file on this machine beside it, and return its path. Raises Refused."""
    path = Path(shard)
    samples: list[list[Component]] = []
    last = None
    try:
        with tarfile.open(path, "r:") as members:
            for member in members:
                if _is_left_out(member):
                    continue
                key, extension = base_plus_ext(member.name)
                if any(each.isspace() for each in member.name):
                    raise Refused(f"{path}: {member.name!r} has a space, which an index cannot name")
                if key != last:
                    samples.append([])
                last = key
                samples[-1].append((extension, member.offset_data, member.size, member.name))
    except (OSError, tarfile.TarError) as error:
        raise Refused(f"{path} cannot be indexed: {error}") from None
    lines = [f"{_VERSION} {len(samples)}", *(" ".join(f"{e} {o} {s} {n}" for e, o, s, n in each) for each in samples)]
    index = Path(_index_of(str(path)))
    replace(index, "".join(f"{line}\n" for line in lines).encode())
    return index


def _index_of(url: str) -> str:
    return f"{url.removesuffix('.tar')}.idx"


def _samples_in(url: str) -> int:
    """Return the number of samples, which the first line of the index says."""
    index = _index_of(url)
    try:
        first = part(index, 0, _FIRST_LINE).decode().partition("\n")[0]
    except Missing as missing:
        raise Refused(f"{missing}: `python -m torchtally.streams.webdataset {basename(url)}` makes it") from None
    version, _, number = first.partition(" ")
    if version != _VERSION or not number.isdecimal():
        raise Refused(
            f"{index} begins with {first!r}, and must begin with {_VERSION!r} and the number of samples: make it again "
            f"with `python -m torchtally.streams.webdataset {basename(url)}`"
        )
    return int(number)


def _end_of(lines: Sequence[str], index: str) -> int:
    """Return the byte at which the last file of an index ends.

    Raises Refused if a file begins before the end of another: it would be in two samples, or in one twice.
    """
    end = 0
    for line in lines:
        for _, offset, size, name in sorted(_components(line, index), key=lambda each: each[1]):
            if offset - _BLOCK < end or size < 0:
                raise Refused(
                    f"{index}: {name} of {size} bytes at byte {offset} must begin after its header of {_BLOCK} bytes "
                    f"and the file before it, which ends at byte {end}: {_MAKE}"
                )
            end = offset + -(-size // _BLOCK) * _BLOCK
    return end


def _after_left_out(file: BinaryIO, start: int) -> int:
    """Return the byte at which members of a tar file end that an index leaves out, from `start` on."""
    file.seek(start)
    try:
        with tarfile.open(fileobj=file, mode="r:") as members:
            first = next((member.offset for member in members if not _is_left_out(member)), None)
            return members.offset if first is None else first
    except tarfile.TarError:
        return start


def _is_left_out(member: tarfile.TarInfo) -> bool:
    """Whether WebDataset leaves out a member, such as a folder or a README."""
    return not member.isreg() or base_plus_ext(member.name)[0] is None or bool(_META.match(member.name))


def _components(line: str, index: str) -> list[Component]:
    """Return the files of a sample, as a line of the index has them. Raises Refused."""
    words = line.split()
    try:
        found = [(words[at], int(words[at + 1]), int(words[at + 2]), words[at + 3]) for at in range(0, len(words), 4)]
    except (IndexError, ValueError):
        found = []
    if not found:
        raise Refused(f"{index} has the line {line!r}, and not extension, offset, size, and name")
    return found


def _sample(url: str, data: mmap.mmap, components: list[Component]) -> dict[str, Any]:
    key, _ = base_plus_ext(components[0][3])
    sample: dict[str, Any] = {"__key__": key, "__url__": url}
    for extension, offset, size, name in components:
        unfit = (
            f"{_index_of(url)} does not fit {url}: at byte {offset} it has {name} of {size} bytes, and the shard has "
        )
        try:
            header = tarfile.TarInfo.frombuf(data[offset - _BLOCK : offset], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            raise Refused(f"{unfit}no file; {_MAKE}") from None
        if header.size != size or not _is_named(header.name, name):
            raise Refused(f"{unfit}{header.name} of {header.size}; {_MAKE}")
        if extension.lower() in sample:
            raise Refused(
                f"{url} has two files {extension} of the sample {key}: extensions must differ by more than case"
            )
        sample[extension.lower()] = data[offset : offset + size]
    return sample


def _is_named(short: str, name: str) -> bool:
    """Whether a header can be that of `name`. If it is long or not ASCII, an extended header before it has it whole."""
    return name.startswith(short) or name.encode("ascii", "replace").decode().startswith(short)


if __name__ == "__main__":
    for each in sys.argv[1:] or sys.exit("python -m torchtally.streams.webdataset SHARD.tar ..."):
        try:
            print(make_index(each))
        except Refused as problem:
            log.error(problem)
            sys.exit(problem.code)
