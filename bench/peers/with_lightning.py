"""The first example of Lightning's documentation, without logger, checkpoints and progress bar for speed."""

import os
from typing import Any

import lightning
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from bench.peers import common


class Classifier(lightning.LightningModule):
    def __init__(self, task: str, clock: common.Clock) -> None:
        super().__init__()
        self.task, self.model, self.clock = task, common.model(task), clock

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        return cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return common.optimizer(self.task, self.parameters())

    def on_train_batch_end(self, *_: Any) -> None:
        self.clock.step()


def main() -> None:
    task, dataset, clock = common.arguments()
    lightning.seed_everything(0)
    loader = common.shuffled(dataset, workers=common.workers(task))
    fit(Classifier(task, clock), loader, clock, precision="bf16-mixed" if common.bfloat16(task) else "32-true")


def fit(model: lightning.LightningModule, loader: DataLoader[Any], clock: common.Clock, **options: Any) -> None:
    """Train until the last step of the clock, which `model` counts, and report."""
    world = int(os.environ["WORLD_SIZE"])
    ddp = {"strategy": "ddp" if world > 1 else "auto"}
    trainer = lightning.Trainer(
        accelerator="gpu" if common.on_gpu() else "cpu",
        devices=world,
        max_steps=clock.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **ddp | options,
    )
    trainer.fit(model, loader)
    clock.report()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
