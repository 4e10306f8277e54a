"""Writes checkpoints in the background, so that the loop waits only while its state is copied to memory of the CPU.

A thread of each rank writes the copy, in a process group of its own: collective calls of two threads in one group would
mix up.
"""

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import save

from torchtally import events
from torchtally.checkpoints import conditions
from torchtally.checkpoints.catalog import Catalog
from torchtally.checkpoints.collective import new_group, on_all, on_rank_0
from torchtally.checkpoints.manifest import MANIFEST, File, Manifest
from torchtally.checkpoints.storage import Storage
from torchtally.errors import Refused
from torchtally.log import log

# Of collective calls of the writing threads, in which another rank may be writing to a slow store. A rank that is lost
# closes its connections.
_SLOWEST_WRITE = timedelta(days=1)


class Writer:
    """Writes one checkpoint at a time. Making one is a collective call.

    Args:
        storage: Where to.
        catalog: Names the checkpoints, and removes those that are not kept.
        keep: Number of checkpoints that are kept.
        device: Where the models are.

    Attributes:
        failed: Whether the last checkpoint could not be written.
        saved_at: When the last one was written, or else when this was made: seconds since 1970.
        saved: On rank 0, URL and SHA-256 of the manifest of the last checkpoint, if it could be written.
    """

    def __init__(self, storage: Storage, catalog: Catalog, keep: int, device: torch.device):
        self._storage, self._catalog, self._keep, self._device = storage, catalog, keep, device
        self._group = new_group(_SLOWEST_WRITE)
        cuda = torch.cuda.is_available()
        self._stager = DefaultStager(StagingOptions(cuda, False, False, cuda))  # pinned memory, copied without blocking
        self._thread = ThreadPoolExecutor(1, "torchtally-checkpoints")
        self._writing: Future[events.Saved | events.SaveFailed | Refused] | None = None
        self._began = 0.0
        self.failed, self.saved_at = False, time.time()
        self.saved: tuple[str, str] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written. Raises what has ended the thread: a peer is lost."""
        if self._writing and self._writing.done() and self._writing.exception():
            self._writing.result()  # others may still wait for that peer
        return self._writing is not None and not self._writing.done()

    def begin(self, state: Any, compared: Sequence[tuple[str, str]], manifest: Manifest, source: events.Source) -> None:
        """Copy the state, and let the thread write the copy.

        Args:
            state: The state of the objects.
            compared: What in it must be equal on all ranks, by object and name.
            manifest: The manifest, without files.
            source: This process, as its events name it.
        """
        self._began, self._source = time.monotonic(), source
        name = self._catalog.next_name(manifest.epoch, manifest.position)
        self._writing = self._thread.submit(self._write, name, self._stager.stage(state), compared, manifest)

    def finish(self) -> None:
        """Wait for the thread, and report its result. Raises Refused if the ranks have different weights."""
        if self._writing is None:
            return
        if not dist.is_initialized():
            raise Refused(
                "checkpoints: the last one was being written when the program called destroy_process_group(): call it "
                "after the end of the account's `with` statement"
            )
        event = self._writing.result()
        self._writing = None
        if isinstance(event, Refused):
            raise event
        failed, self.failed = self.failed, isinstance(event, events.SaveFailed)
        self.saved_at = self.saved_at if self.failed else time.time()
        if dist.get_rank() == 0:
            events.emit(event, self._source)
            if isinstance(event, events.SaveFailed):
                log.warning(f"no checkpoint could be written to {self._storage}, the training continues: {event.cause}")
            elif failed:
                log.info(f"checkpoints can be written again: {event.path}")

    def close(self, wait: bool) -> None:
        """End, and `wait` for a checkpoint that is being written."""
        if wait:
            self.finish()
        self._thread.shutdown(wait)

    def _write(
        self, name: str, state: Any, compared: Sequence[tuple[str, str]], manifest: Manifest
    ) -> events.Saved | events.SaveFailed | Refused:
        """Write a checkpoint, in the thread. Every rank learns whether it is whole."""
        values = {f"{model}.{key}": state[model][key] for model, key in compared}
        if wrong := conditions.unequal(values, self._device, self._group()):
            return Refused(wrong)
        writer, files = self._storage.writer(name)
        cause = self.saved = None
        try:
            save(state, storage_writer=writer, process_group=self._group())
            written = on_all(self._group(), lambda: {name: asdict(file) for name, file in files.written.items()})
            manifest.files.update((name, File(**file)) for each in written for name, file in each.items())
            on_rank_0(self._group(), lambda: self._write_manifest(name, manifest))
        except CheckpointException as error:
            cause = cause_of(error)
        except OSError as error:
            cause = str(error)
        if dist.get_rank() == 0:
            self._catalog.clear(name, self._keep)
        if cause:
            return events.SaveFailed(epoch=manifest.epoch, position=manifest.position, cause=cause)
        return events.Saved(
            path=self._storage.url(name),
            epoch=manifest.epoch,
            position=manifest.position,
            seconds=round(time.monotonic() - self._began, 3),
        )

    def _write_manifest(self, name: str, manifest: Manifest) -> None:
        path, contents = f"{name}/{MANIFEST}", manifest.printed()
        self._storage.write(path, contents)
        self.saved = self._storage.url(path), hashlib.sha256(contents).hexdigest()


def cause_of(error: CheckpointException) -> str:
    """Why a checkpoint could not be written or read, on the first of the ranks that failed."""
    rank, (cause, _) = min(error.failures.items())
    return f"rank {rank}: {cause}" if isinstance(cause, OSError) else f"rank {rank}: {type(cause).__name__}: {cause}"
