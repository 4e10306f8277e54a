"""A GPT by Lightning's documentation: DDP, or FSDP2 as its ModelParallelStrategy has it."""

import os
from typing import Any

import lightning
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

from bench.peers import gpt
from bench.peers.common import Clock


class Decoder(lightning.LightningModule):
    def __init__(self, task: str, clock: Clock) -> None:
        super().__init__()
        self.task, self.clock, self.net = task, clock, gpt.model()

    def configure_model(self) -> None:
        if self.task == "gpt-fsdp2":
            gpt.sharded(self.net, self.device_mesh["data_parallel"])  # type: ignore[index]

    def training_step(self, tokens: Tensor, index: int) -> Tensor:
        return gpt.loss(self.net, tokens)

    def configure_optimizers(self) -> Any:
        optimizer = gpt.optimizer(self.net)
        schedule = {"scheduler": gpt.schedule(optimizer, self.clock.steps), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), gpt.CLIPPED)

    def on_train_batch_end(self, *_: Any) -> None:
        self.clock.step()


def main() -> None:
    task, dataset, clock = gpt.arguments()
    lightning.seed_everything(0)
    world = int(os.environ["WORLD_SIZE"])
    ddp = "ddp" if world > 1 else "auto"
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy=ddp if task == "gpt-ddp" else ModelParallelStrategy(world, 1),
        precision="bf16-mixed" if task == "gpt-ddp" else "32-true",
        devices=world,
        max_steps=clock.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Decoder(task, clock), DataLoader(dataset, batch_size=gpt.BATCH, shuffle=True))
    clock.report()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
