"""Accelerate: `accumulate` learns which batch of an account is the last, as from a loader that Accelerate has prepared.

`accelerator.register_for_checkpointing(account)` keeps the account's state in the checkpoints.
"""

from collections.abc import Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin

from torchtally.accounting.loader import Loader
from torchtally.errors import Refused


class _Place(DataLoaderStateMixin):  # type: ignore[misc]  # it has no types
    """Where a loop is in its loader."""

    def __init__(self, accelerator: Accelerator):
        self.gradient_state = accelerator.gradient_state


def marked(accelerator: Accelerator, loader: Loader) -> Iterator[Any]:
    """Yield the batches of an account's loader, so that `accelerator.accumulate` steps in the last one of an epoch.

    Raises:
        Refused: It is another loader.
    """
    if not isinstance(loader, Loader):
        raise Refused("marked() must receive what account.loader returned: do not skip batches of it")
    place = _Place(accelerator)
    place.begin()
    try:
        for batch in loader:
            place.end_of_dataloader = loader.all_taken
            yield batch
    finally:
        place.end()
