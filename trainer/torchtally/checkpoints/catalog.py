"""The checkpoints in a folder: the newest whole ones are kept, those that are not whole are skipped and deleted."""

import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from torchtally.checkpoints.collective import on_all, on_rank_0
from torchtally.checkpoints.manifest import MANIFEST, Manifest, Torn, parse
from torchtally.checkpoints.manifest import of as manifest_of
from torchtally.checkpoints.storage import Storage
from torchtally.errors import Refused, Volume
from torchtally.log import log

_NAME = re.compile(r"(\d{8,})-epoch-\d+-position-\d+-[0-9a-f]{8}", re.ASCII)
_TOKEN = re.compile(r"\.shared-[0-9a-f]{8}|\.\.shared-[0-9a-f]{8}\.[a-z0-9_]{8}")  # and its half, as of `atomic_file`

_HALF = "it was not written to its end"  # the manifest comes last


class Catalog:
    """The checkpoints in `storage`, named by their numbers in the order of their making.

    `group` is used by the main thread alone. Names that are drawn in two starts of a run never meet.

    Attributes:
        damaged: What is wrong with each that `newest()` has skipped, apart from those that a killed start left half
            written.
    """

    def __init__(self, storage: Storage, group: Callable[[], dist.ProcessGroup], pod: str):
        self.storage, self._group, self._pod = storage, group, pod
        self._start = on_rank_0(group(), lambda: secrets.token_hex(4))
        self._number = 0
        self.damaged: list[str] = []
        self._skipped: set[str] = set()

    def check_shared(self) -> None:
        """Check that all ranks see what rank 0 writes. Raises Refused if one does not, or if rank 0 may not write."""
        token = f".shared-{self._start}"

        def write() -> str | None:
            try:
                if self.storage.local:  # there, no other start uses the folder now
                    for name in filter(_TOKEN.fullmatch, self.storage.names()):
                        self.storage.remove(name)
                self.storage.write(token, b"")
            except (PermissionError, FileNotFoundError) as error:  # such as a bucket that does not exist
                raise Refused(f"checkpoints: the folder {self.storage} cannot be written: {error}") from None
            except OSError as error:  # it may become writable, and what is in it can be read
                return str(error)
            return None

        if failed := on_rank_0(self._group(), write):
            if dist.get_rank() == 0:
                log.warning(f"no checkpoint can be written to {self.storage} now: {failed}")
            return
        seen = on_all(self._group(), lambda: None if token in self.names() else self._pod)
        if dist.get_rank() == 0:
            self._remove(token)
        for rank, pod in enumerate(seen):
            if pod is not None:
                raise Refused(
                    f"checkpoints: the folder {self.storage} must be one that all pods share: rank {rank} ({pod}) does "
                    "not see what rank 0 has written there"
                )

    def newest(self) -> tuple[str, Manifest] | None:
        """Return name and manifest of the newest whole checkpoint, and warn of newer ones that are skipped.

        A call of all ranks. Raises on every rank: Refused for a checkpoint in a newer format, or if the folder may not
        be read; Volume if it cannot be read.
        """
        names = sorted(filter(is_name, on_rank_0(self._group(), self.names)), key=_number, reverse=True)
        self._number = max(map(_number, names), default=0)
        for name in names:
            contents, wrong = on_rank_0(self._group(), partial(self._contents, name))
            if contents:
                manifest = manifest_of(contents)
                wrong = next(filter(None, on_all(self._group(), partial(self._wrong, name, manifest))), "")
                if not wrong:
                    return name, manifest
            self._skipped.add(name)
            sentence = f"checkpoint {self.storage.url(name)}: {wrong}"
            if wrong != _HALF:
                self.damaged.append(sentence)
            if dist.get_rank() == 0:
                log.warning(f"skipped {sentence}")
        return None

    def next_name(self, epoch: int, position: int) -> str:
        """The name of the next checkpoint, the same on all ranks."""
        self._number += 1
        return f"{self._number:08d}-epoch-{epoch}-position-{position}-{self._start}"

    def clear(self, name: str, keep: int) -> None:
        """Delete what is not whole up to `name`, and of the whole ones all but the newest `keep`.

        Only rank 0 calls it. What cannot be deleted is tried again with the next checkpoint.
        """
        try:
            names = sorted((each for each in self.storage.names() if is_name(each)), key=_number, reverse=True)
            names = [each for each in names if _number(each) <= _number(name)]
            whole = [each for each in names if each not in self._skipped and MANIFEST in self.storage.sizes(each)]
        except OSError:
            return
        for each in names:
            if each not in whole[:keep]:
                self._remove(each)

    def names(self) -> list[str]:
        """Everything in the folder. Raises Refused and Volume."""
        try:
            return self.storage.names()
        except PermissionError as error:
            raise Refused(f"the checkpoints in {self.storage} cannot be read: {error}") from None
        except OSError as error:  # a volume may recover
            raise Volume(f"the checkpoints in {self.storage} cannot be read: {error}") from None

    def _contents(self, name: str) -> tuple[dict[str, Any] | None, str]:
        """Those of the manifest, or what is wrong with it."""
        try:
            return parse(self.storage.read(f"{name}/{MANIFEST}"), self.storage.url(name)).contents(), ""
        except FileNotFoundError:
            return None, _HALF
        except NotADirectoryError:
            return None, "it is not a folder"
        except IsADirectoryError:
            return None, f"its {MANIFEST} is not a file"
        except Torn as torn:
            return None, str(torn)
        except OSError as error:
            raise Volume(f"the checkpoint {self.storage.url(name)} cannot be read: {error}") from None

    def _wrong(self, name: str, manifest: Manifest) -> str:
        """What is wrong with this rank's part of the files."""
        try:
            sizes = self.storage.sizes(name)
            for file, expected in sorted(manifest.files.items())[dist.get_rank() :: dist.get_world_size()]:
                if file not in sizes:
                    return f"its file {file} is missing"
                if sizes[file] != expected.bytes:
                    return f"its file {file} has {sizes[file]} bytes and not {expected.bytes}"
                if self.storage.sha256(f"{name}/{file}") != expected.sha256:
                    return f"its file {file} is damaged"
        except FileNotFoundError:  # one that is still terminating may delete it
            return "it was deleted"
        except OSError as error:
            raise Volume(f"the checkpoint {self.storage.url(name)} cannot be read: {error}") from None
        return ""

    def _remove(self, name: str) -> None:
        try:
            self.storage.remove(name)
        except OSError as error:
            log.warning(f"{self.storage.url(name)} could not be deleted: {error}")


def is_name(name: str) -> bool:
    """Whether it is the name of a checkpoint."""
    return _NAME.fullmatch(name) is not None


def _number(name: str) -> int:
    return int(name.partition("-")[0])
