"""Runs a script as it is, kills its last rank in a step, and takes note of the samples that are in its weights.

python -m bench.peers.watched SCRIPT ARGUMENT…      under torchrun or `torchtally run`

WATCHED_NOTES       folder of the notes: `rank-R.jsonl`, a line for each step of the optimizer; `killed`, once one is
WATCHED_DIES_IN     number of the step in which the last rank dies by signal 9, before its weights change
WATCHED_WAITS_FOR   name of a file in the folder after --output without which it does not die yet: of a whole checkpoint

A line holds the hashes of this rank's weights before and after the step, the optimizer's state included, and the hash
of each sample in it: of its rows in the tensors that the model is called with. The samples in some weights are those of
the chain of steps that leads there, whatever checkpoint each start has loaded: bench/measure/lineage.py follows it.
"""

import hashlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

_PATIENCE = 0.5  # seconds in each step that a checkpoint is waited for


class Watch:
    """Watches the model and the optimizer of this process, which has one of each."""

    def __init__(self, notes: Path, dies_in: int, waits_for: str, output: Path) -> None:
        self._dies_in, self._waits_for, self._output = dies_in, waits_for, output
        self._last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        notes.mkdir(parents=True, exist_ok=True)
        self._killed = notes / "killed"
        self._notes = (notes / f"rank-{os.environ['RANK']}.jsonl").open("a", buffering=1)
        self._steps, self._depth = 0, 0
        self._samples: list[str] = []  # since the last step
        self._before = ""

    def begin(self) -> None:
        register_optimizer_step_pre_hook(self._step_begins)
        register_optimizer_step_post_hook(self._step_ended)
        call = nn.Module.__call__

        def watched(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            outermost = not self._depth and module.training and torch.is_grad_enabled()
            if outermost and next(module.parameters(), None) is not None:
                self._samples += hashes((arguments, named))
            self._depth += 1
            try:
                return call(module, *arguments, **named)
            finally:
                self._depth -= 1

        nn.Module.__call__ = watched  # type: ignore[method-assign]

    def _step_begins(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._last and self._dies_in and self._steps + 1 >= self._dies_in and self._saved():
            self._killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._before = weights(optimizer)

    def _step_ended(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        step = {"before": self._before, "after": weights(optimizer), "samples": self._samples}
        if self._samples or step["before"] != step["after"]:  # not one that torch's checkpoints make for its state
            self._steps += 1
            self._notes.write(json.dumps(step) + "\n")
        self._samples = []

    def _saved(self) -> bool:
        ends = time.monotonic() + _PATIENCE
        while self._waits_for and not any(self._output.rglob(self._waits_for)):
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True


def weights(optimizer: torch.optim.Optimizer) -> str:
    """The hash of this rank's parameters and of its optimizer's state, which a step without an effect changes, too."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = [value for each in parameters for _, value in sorted(optimizer.state.get(each, {}).items())]
    tensors = [each for each in (*parameters, *state) if isinstance(each, Tensor)]
    return digest(each.to_local() if isinstance(each, DTensor) else each for each in tensors)


def hashes(given: Any) -> list[str]:
    """The hash of each row of the tensors that a model is called with."""
    tensors = [each for each in tree_leaves(given) if isinstance(each, Tensor) and each.dim()]
    rows = len(tensors[0])
    return [digest(each[row] for each in tensors if len(each) == rows) for row in range(rows)]


def digest(tensors: Iterable[Tensor]) -> str:
    parts = (each.detach().flatten().view(torch.uint8).numpy().tobytes() for each in tensors)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


if __name__ == "__main__":
    script, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent.absolute()))
    dies_in, waits_for = int(os.environ.get("WATCHED_DIES_IN", "0")), os.environ.get("WATCHED_WAITS_FOR", "")
    output = Path(sys.argv[sys.argv.index("--output") + 1])
    Watch(Path(os.environ["WATCHED_NOTES"]), dies_in, waits_for, output).begin()
    runpy.run_path(script, run_name="__main__")
