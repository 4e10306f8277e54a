"""A script with a checkpoint of its own, and a proof. Killed with signal 9, it resumes at the sample of its weights.

torchtally run -- python examples/stateful_loader.py       on this machine, or as the command of a PyTorchJob

without/stateful_loader.py is the same script with torchdata's StatefulDataLoader in place of the account's loader.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # imported after the group it would keep the group, whose threads can abort at exit
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from torchtally import Account

EPOCHS = 4


def rings(n: int) -> tuple[Tensor, Tensor]:
    """Points (n, 2) and labels (n): 0 in the inner disc, 1 in the ring around it."""
    labels = torch.randint(2, (n,))
    radius, angle = torch.rand(n) + labels, torch.rand(n) * 2 * torch.pi
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/stateful-loader"), help="folder of the checkpoint")
    saved = parser.parse_args().output / "saved.pt"
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(*rings(2000))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with Account("rings", epochs=EPOCHS, anew=not saved.exists()) as account:
        account.optimizer(optimizer)
        loader = account.loader(dataset, batch_size=25, num_workers=1)
        step = 0
        if saved.exists():
            checkpoint = torch.load(saved)
            step = checkpoint["step"]
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            account.load_state_dict(checkpoint["account"])
        for epoch in account.epochs():
            for points, labels in loader:
                loss = cross_entropy(model(points), labels)
                optimizer.zero_grad()
                account.weigh(loss).backward()
                optimizer.step()
                step += 1
                if step % 15 == 0:
                    checkpoint = {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "account": account.state_dict(),
                    }
                    if dist.get_rank() == 0:
                        saved.parent.mkdir(parents=True, exist_ok=True)
                        torch.save(checkpoint, saved.with_suffix(".part"))
                        saved.with_suffix(".part").rename(saved)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {step} steps so far", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
