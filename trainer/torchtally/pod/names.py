"""Names of pods for messages."""

import contextlib
import json
import os
from pathlib import Path


class Names:
    """The names of a job's pods, which are `known` once the pods have met."""

    def __init__(self) -> None:
        self.known: list[str] = []

    def one(self, rank: int) -> str:
        """Return the name of pod `rank`."""
        return self.known[rank] if self.known else f"the pod with RANK={rank}"

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
