"""Names of pods for messages."""

import contextlib
import json
import os
from pathlib import Path


class Names:
    """The names of a job's pods: guessed from the address of pod 0 until the pods have met, and `known` afterwards."""

    def __init__(self, address: str) -> None:
        self._host = address.partition(".")[0]
        self.known: list[str] = []

    def one(self, rank: int) -> str:
        """Return the name of pod `rank`."""
        if self.known:
            return self.known[rank]
        # As the controllers of a PyTorchJob and of a TrainJob name a pod's host.
        if (job := self._host.removesuffix("-master-0")) != self._host:
            return self._host if rank == 0 else f"{job}-worker-{rank - 1}"
        if (job := self._host.removesuffix("-node-0-0")) != self._host:
            return f"{job}-node-0-{rank}"
        return f"the pod with RANK={rank}"

    def several(self, ranks: list[int]) -> str:
        """Return the names of the first 8 pods of `ranks`, and the number of the others."""
        named = ", ".join(self.one(rank) for rank in ranks[:8])
        return named + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")

    def publish(self) -> None:
        """Write the known names to a file for the messages of the ranks: the environment does not hold thousands."""
        path = Path(os.environ["TORCHTALLY_STACKS"]) / "pods"
        with contextlib.suppress(OSError):  # of a full disk
            path.write_text(json.dumps(self.known))
            os.environ["TORCHTALLY_PODS"] = str(path)
