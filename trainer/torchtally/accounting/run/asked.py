"""Whether a start has been asked to stop by a signal, for a program that saves its checkpoints itself."""

import torch.distributed as dist

from torchtally import events, exchange
from torchtally.checkpoints import stopping
from torchtally.checkpoints.stopping import Stopping


class Asked:
    """The ranks of one start are asked between steps, from the first call on.

    Attributes:
        number: The number of the signal that some rank has received, once all ranks know.
        saved: Whether the program has taken a state on this rank since then.
    """

    def __init__(self, everyone: dist.ProcessGroup) -> None:
        self._everyone = everyone
        self._stopping: Stopping | None = None
        self.number, self.saved = 0, False

    def ask(self) -> bool:
        """Whether to save and stop now. A call of all ranks after the same step."""
        self._stopping = self._stopping or Stopping()
        self._stopping.stepped()
        if not self.number and self._stopping.due:
            [self.number] = self._stopping.exchange(self._everyone)
            self.saved = False
        return self.number > 0

    def end(self, source: events.Source, reached: tuple[int, int, int]) -> None:
        """End this start once all ranks have come so far: rank 0 may be writing. Raises Stopped on all of them."""
        saved = any(exchange.all_gather(self.saved, self._everyone))
        stopping.stop(self.number, saved, source, reached)

    def close(self) -> None:
        """Handle signals as before."""
        if self._stopping:
            self._stopping.close()
