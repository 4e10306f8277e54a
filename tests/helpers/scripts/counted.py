"""What the scripts of test_integrations.py train: row i of `counts` tells how often sample i is in the weights."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from torch.utils.data import default_collate
from witness import Noisy

from torchtally import Account, Batch

N, EPOCHS, SIZE = 101, 3, 4  # samples, epochs, samples of a rank in a step
DATA = Noisy(N)
WORKERS = int(os.environ.get("WORKERS", "0"))  # of the loader
OVERFLOWS = (3, 9, 26, 78)  # batches, of which an epoch has 26 on one rank, and 9 on each of three


class Added(torch.autograd.Function):
    """The sum of rows. Each has the gradient 1 on this rank, however the sum is scaled, unless that is by 0."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        context.shape = rows.shape
        return rows.sum()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        one = torch.where(gradient == 0, gradient, gradient / gradient.abs())  # not a number if it is infinite
        return (one * dist.get_world_size()).expand(context.shape)  # DDP divides it


class Model(nn.Module):
    """Its loss is a mean, of which the counts take no share: each sample counts as a whole."""

    def __init__(self, overflows: bool = False) -> None:
        super().__init__()
        self._passes, self._overflows = 0, OVERFLOWS if overflows else ()
        torch.manual_seed(0)
        self.counts = nn.Embedding(N, 1)
        nn.init.zeros_(self.counts.weight)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, indices: Tensor, inputs: Tensor) -> Tensor:
        self._passes += 1
        loss: Tensor = self.model(inputs).square().mean() - Added.apply(self.counts(indices))
        return loss * float("inf") if self._passes in self._overflows else loss

    def optimizer(self) -> torch.optim.Optimizer:
        groups = [
            {"params": self.counts.parameters(), "lr": 1.0, "momentum": 0},
            {"params": self.model.parameters()},
        ]
        return torch.optim.SGD(groups, lr=1e-4, momentum=0.9)


def drops(samples: list[tuple[int, Tensor]]) -> Batch:
    """Drops every tenth sample."""
    dropped = {index: "every tenth" for index, _ in samples if index % 10 == 3}
    kept = [sample for sample in samples if sample[0] not in dropped]
    data = default_collate(kept) if kept else [torch.empty(0, dtype=torch.int64), torch.empty(0, 4)]
    return Batch([index for index, _ in kept], data, dropped=dropped)  # type: ignore[arg-type]  # a list may name them


def scaler() -> torch.amp.GradScaler:
    """One whose scale stays about 1, so that the counts are whole."""
    return torch.amp.GradScaler("cpu", init_scale=1.0, backoff_factor=0.9999)


def own(folder: str) -> Path:
    """The folder of this rank's checkpoints: one of its own, as on a volume of its own, if the variable says so."""
    return Path(folder, f"rank-{os.environ['RANK']}" if os.environ.get("OWN_FOLDERS") else "")


class Death:
    """Sends the last rank a signal in the batch with the number DIES_IN: 9, or that which DIES_BY tells."""

    def __init__(self) -> None:
        self.batches, self._last = 0, int(os.environ.get("DIES_IN", "0"))
        self._by = int(os.environ.get("DIES_BY", signal.SIGKILL))

    def comes(self) -> None:
        self.batches += 1
        if self.batches == self._last and dist.get_rank() == dist.get_world_size() - 1:
            os.kill(os.getpid(), self._by)


def load(account: Account, counts: nn.Module, folder: Path) -> None:
    """Go on from what `save` has written, if it has."""
    if (saved := folder / "saved.pt").exists():
        checkpoint = torch.load(saved)
        counts.load_state_dict(checkpoint["counts"])
        account.load_state_dict(checkpoint["account"])


def save(account: Account, counts: nn.Module, folder: Path) -> None:
    state = {"counts": counts.state_dict(), "account": account.state_dict()}
    if dist.get_rank() == 0:
        torch.save(state, folder / "saved.part")
        (folder / "saved.part").replace(folder / "saved.pt")
    dist.barrier()


def report(model: Model, folder: str) -> None:
    """Write how often each sample is in the weights, and the hash of the other weights, bit for bit."""
    weights = b"".join(each.detach().numpy().tobytes() for each in model.model.parameters())
    times = [round(float(each)) for each in model.counts.weight.detach().flatten()]
    Path(folder, f"found-{dist.get_rank()}.json").write_text(
        json.dumps({"times": times, "sha256": hashlib.sha256(weights).hexdigest()})
    )
