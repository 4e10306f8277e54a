"""A GPT by Lightning's documentation: DDP, or FSDP2 as its ModelParallelStrategy has it."""

import os
from typing import Any

import lightning
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn

from bench.peers import common, gpt
from bench.peers.common import Clock
from bench.peers.with_lightning import fit


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
    options: dict[str, Any] = {"precision": "bf16-mixed"}
    if task == "gpt-fsdp2":
        options = {"precision": "32-true", "strategy": ModelParallelStrategy(int(os.environ["WORLD_SIZE"]), 1)}
    fit(Decoder(task, clock), common.shuffled(dataset, gpt.BATCH), clock, **options)


if __name__ == "__main__":
    main()
