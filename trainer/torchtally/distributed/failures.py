"""What has ended the part of a rank, in the store of the job: ranks that wait for that one find it there."""

import contextlib
import json

from torch.distributed import DistError
from torch.distributed.distributed_c10d import Store

from torchtally.errors import Ending, Lost, Refused, Unproven
from torchtally.pod import failure

_KEY = "failed"
_KEPT: dict[str, type[Ending]] = {each.__name__: each for each in (Refused, Unproven)}  # of the same kind on all ranks


class Failures:
    """The failures of the ranks that share a `store`, of which the first one stands."""

    def __init__(self, store: Store) -> None:
        self._store: Store | None = store

    def close(self) -> None:
        """Let go of the store, whose threads are to end with the program's groups: see `own_group.unkept`."""
        self._store = None

    def post(self, error: BaseException) -> None:
        """Tell the other ranks of an error of this one."""
        if not self._store:
            return
        with contextlib.suppress(DistError):  # the store is gone, and with it the rank that has it
            text = json.dumps([type(error).__name__, failure.sentence_of(error)])
            self._store.compare_set(_KEY, "", text)

    def first(self) -> Ending | None:
        """Return the first failure: as it was raised if no retry cures it, and else as the loss of that rank."""
        try:
            if not self._store or not self._store.check([_KEY]):
                return None
            kind, sentence = json.loads(self._store.get(_KEY))
        except DistError:
            return None
        return _KEPT.get(kind, Lost)(sentence)
