"""Accelerate: `accumulate` learns which batch of an account is the last, as from a loader that Accelerate has prepared.

`accelerator.register_for_checkpointing(account)` keeps the account's state in the checkpoints.
"""

from collections.abc import Iterable, Iterator

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin

from torchtally.accounting.collate import Batch
from torchtally.errors import Refused


class _Place(DataLoaderStateMixin):  # type: ignore[misc]  # it has no types
    """Where a loop is in its loader."""

    def __init__(self, accelerator: Accelerator):
        self.gradient_state = accelerator.gradient_state


def marked(accelerator: Accelerator, batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of `account.epoch(...)`, so that `accelerator.accumulate` steps in the last one of an epoch.

    Raises:
        Refused: Accelerate would leave out steps.
    """
    if accelerator.scaler is not None:
        raise Refused("mixed_precision='fp16' leaves out steps whose gradients overflow: use 'bf16' or 'no'")
    place = _Place(accelerator)
    place.begin()
    try:
        for batch in batches:
            place.end_of_dataloader = batch.step == batch.steps
            yield batch
    finally:
        place.end()
