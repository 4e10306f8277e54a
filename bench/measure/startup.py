"""Durations of the commands with which a start-up is compared."""

import subprocess
import sys
import time
from pathlib import Path

from bench.sample import emit

_BARE = """
import torch
torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=1e-3, fused=True)
"""


def main() -> None:
    own = str(Path(sys.executable).with_name("torchtally"))
    for what, command in {
        "import torch": [sys.executable, "-c", "import torch"],
        "import torch, make an optimizer": [sys.executable, "-c", _BARE],
        "torchtally --help": [own, "--help"],
        "torchtally run fashion-mnist --help": [own, "run", "fashion-mnist", "--help"],
    }.items():
        began = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        emit("start", time.perf_counter() - began, "s", "lower", what=what)


if __name__ == "__main__":
    main()
