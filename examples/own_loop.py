"""Your own training loop with a proof: plain PyTorch, DDP, your own dataset and DataLoader.

torchtally run -- python examples/own_loop.py       on this machine, or as the command of a PyTorchJob
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from torchtally import Account

EPOCHS = 3


class Rings(Dataset[tuple[Tensor, int]]):
    """Points in the plane with labels: 0 in the inner disc, 1 in the ring around it."""

    def __init__(self, n: int, seed: int):
        self.fingerprint = f"rings-{n}-{seed}"  # equal text for equal data
        random = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (n,), generator=random)
        radius = torch.rand(n, generator=random) + self.labels
        angle = torch.rand(n, generator=random) * 2 * torch.pi
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index], int(self.labels[index])


def train(account: Account, loader: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for points, labels in loader:
        loss = cross_entropy(model(points), labels)
        account.weigh(loss).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.inference_mode()
def test(loader: Iterable[Any], model: nn.Module) -> int:
    model.eval()
    correct = torch.zeros((), dtype=torch.int64)
    for points, labels in loader:
        correct += (model(points).argmax(dim=1) == labels).sum()
    dist.all_reduce(correct)  # sums of counts are exact if ranks have different numbers of samples
    return int(correct)


def main() -> None:
    dist.init_process_group("gloo")  # with GPUs: "cpu:gloo,cuda:nccl", and model and batches go to cuda:LOCAL_RANK
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.02)
    rings, unseen = Rings(1921, seed=1), Rings(499, seed=2)
    with Account(task="rings", plan={"train": EPOCHS, "test": EPOCHS}, seed=0) as account:
        account.optimizer(optimizer)
        train_loader = account.loader(rings, "train", batch_size=32, num_workers=2, persistent_workers=True)
        test_loader = account.loader(unseen, "test", batch_size=100, shuffle=False, trains=False)
        for epoch in account.epochs():
            train(account, train_loader, parallel, optimizer)
            correct = test(test_loader, model)  # without DDP: numbers of batches differ
            if account.rank == 0:
                print(f"epoch {epoch}: {correct} of {len(unseen)} correct", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
