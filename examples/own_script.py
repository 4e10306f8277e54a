"""Classification of points in the plane under DDP: a script for torchrun, with a DataLoader and a sampler."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after the group it would keep the group, whose threads can abort at exit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from torchtally import Account

EPOCHS = 3


def rings(n: int) -> tuple[Tensor, Tensor]:
    """Points (n, 2) and labels (n): 0 in the inner disc, 1 in the ring around it."""
    labels = torch.randint(2, (n,))
    radius, angle = torch.rand(n) + labels, torch.rand(n) * 2 * torch.pi
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels


def main() -> None:
    dist.init_process_group("gloo")  # with GPUs: "cpu:gloo,cuda:nccl", and model and batches go to cuda:LOCAL_RANK
    torch.manual_seed(0)
    dataset = TensorDataset(*rings(2000))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Account("rings", epochs=EPOCHS) as account:
        account.optimizer(optimizer)
        loader = account.loader(dataset, batch_size=25, num_workers=2)
        for epoch in account.epochs():
            for points, labels in loader:
                loss = cross_entropy(model(points), labels)
                optimizer.zero_grad()
                account.weigh(loss).backward()
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
