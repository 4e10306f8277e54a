"""What libraries lose when they are killed in the middle of an epoch, and go on by their own means: a Markdown table.

python -m bench.measure.resumes

Row i of a parameter counts how often sample i is in the weights: an embedding, SGD, learning rate 1.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.peers.resumes import EPOCHS, WAYS, N


def measured(way: str) -> tuple[int, int]:
    """How many samples are in the weights too seldom and too often, after a run of two ranks that is killed once."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):  # the second one finds the checkpoint of the first
            command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            subprocess.run(
                [sys.executable, *command, "-m", "bench.peers.resumes", way, folder], stderr=subprocess.PIPE, text=True
            )
        times = json.loads((Path(folder) / "times.json").read_text())
    return sum(max(0, EPOCHS - each) for each in times), sum(max(0, each - EPOCHS) for each in times)


def table() -> Iterator[str]:
    """The lines of the table."""
    yield f"| resume of | samples lost, of {N} | samples doubled |"
    yield "| --- | ---: | ---: |"
    for way, title in WAYS.items():
        lost, doubled = measured(way)
        yield f"| {title} | {lost} | {doubled} |"


if __name__ == "__main__":
    for line in table():
        print(line, flush=True)
