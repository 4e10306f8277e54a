"""Lightning's Trainer under DDP with a proof. Killed with signal 9, it resumes at the sample where its weights stand.

torchtally run -- python examples/lightning_fit.py       on this machine, or as the command of a PyTorchJob

without/lightning_fit.py is the same script without torchtally.
"""

import argparse
import os
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from torchtally import Account
from torchtally.integrations.lightning import AccountCallback

EPOCHS = 4


def spirals(n: int) -> TensorDataset:
    """Points in the plane (n, 2), and on which of two spirals each of them is (n)."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (n,), generator=random)
    radius = torch.rand(n, generator=random)
    angle = 2 * torch.pi * radius + torch.pi * labels
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(n, 2, generator=random), labels)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        points, labels = batch
        loss = cross_entropy(self.model(points), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"]
        self.print(f"epoch {self.current_epoch + 1}: loss {loss:.3f}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/lightning"), help="folder of the checkpoints")
    output = parser.parse_args().output
    lightning.seed_everything(0)
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    with Account("lightning-fit", epochs=EPOCHS) as account:
        loader = account.loader(spirals(2000), batch_size=25, num_workers=1)
        ranks = int(os.environ["LOCAL_WORLD_SIZE"])  # of this pod
        trainer = lightning.Trainer(
            accelerator="cpu",
            # Gradients are summed in one order from the first step on, so a resumed training has the same weights.
            strategy="ddp_find_unused_parameters_true",
            devices=ranks,
            num_nodes=int(os.environ["WORLD_SIZE"]) // ranks,
            max_epochs=EPOCHS,
            logger=False,
            enable_progress_bar=False,
            callbacks=[
                ModelCheckpoint(output, every_n_train_steps=15, save_last=True),
                AccountCallback(account),
            ],
        )
        trainer.fit(Classifier(), loader, ckpt_path=account.resume_from(output / "last.ckpt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
