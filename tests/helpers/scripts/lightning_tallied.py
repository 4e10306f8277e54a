"""A Lightning script with an account, which takes its place in the job from torchrun's environment."""

import os

import lightning
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

from torchtally import Account
from torchtally.accounting.loader import Loader
from torchtally.integrations.lightning import AccountCallback


def points() -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 8, generator=random)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Classifier(lightning.LightningModule):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account, self.model, self.seen = account, nn.Linear(8, 2), 0

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        inputs, labels = batch
        self.seen += len(labels)
        return cross_entropy(self.model(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self) -> Loader:
        return self.account.loader(points(), "train", batch_size=10)


def train(account: Account) -> None:
    model = Classifier(account)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=local,
        num_nodes=int(os.environ["WORLD_SIZE"]) // local,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[AccountCallback(account)],
    )
    trainer.fit(model)
    print(f"rank {trainer.global_rank} of {trainer.world_size}: {model.seen} samples", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with Account(task="lightning", plan={"train": 2}) as account:
        train(account)
    dist.destroy_process_group()  # PyTorch asks for it, or may abort at the end; the library does it for NCCL alone
