"""A training by Accelerate or Lightning alone that counts its samples, and goes on from its checkpoint.

python -m bench.peers.resumes WAY --output FOLDER      under torchrun
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

N, EPOCHS, SIZE, STEPS = 512, 2, 8, 32  # samples, epochs, samples of a rank in a step, steps of 2 ranks
LAST, SAVED = EPOCHS - 1, 19  # the checkpoint: epoch from 0, and steps in it
WAYS = {
    "accelerate": "Accelerate, `skip_first_batches`",
    "accelerate-seedable": "Accelerate, `skip_first_batches`, `use_seedable_sampler=True`",
    "accelerate-stateful": "Accelerate, `use_stateful_dataloader=True`",
    "lightning": 'Lightning, `ckpt_path="last"`',
    "lightning-stateful": 'Lightning, `ckpt_path="last"`, torchdata\'s StatefulDataLoader',
}


class Numbers(Dataset[int]):
    """Samples that are their indices."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


class Counts(nn.Module):
    """Row i grows by 1 with each step that sample i is in."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(N, 1)
        nn.init.zeros_(self.rows.weight)

    def forward(self, indices: Tensor) -> Tensor:
        loss: Tensor = -self.rows(indices).sum() * dist.get_world_size()
        return loss

    def save(self, folder: Path) -> None:
        times = [round(float(each)) for each in self.rows.weight.detach().flatten()]
        (folder / "times.json").write_text(json.dumps(times))


def by_accelerate(folder: Path, *, seedable: bool, stateful: bool) -> None:
    """As its guide to checkpoints shows."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(0)
    configuration = DataLoaderConfiguration(use_seedable_sampler=seedable, use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    model = Counts()
    loader: Any = DataLoader(Numbers(), batch_size=SIZE, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), loader)
    done = SAVED if (folder / "saved").exists() else 0
    if done:
        accelerator.load_state(str(folder / "saved"))
    for epoch in range(LAST if done else 0, EPOCHS):
        loader.set_epoch(epoch)
        skipped = done if epoch == LAST and not stateful else 0
        for step, indices in enumerate(accelerator.skip_first_batches(loader, skipped) if skipped else loader, skipped):
            accelerator.backward(model(indices))
            optimizer.step()
            optimizer.zero_grad()
            if (epoch, step + 1, done) == (LAST, SAVED, 0):
                accelerator.save_state(str(folder / "saved"))
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save(folder)
    accelerator.end_training()


def by_lightning(folder: Path, *, stateful: bool) -> None:
    """As its guide to checkpoints shows."""
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.counts = Counts()

        def training_step(self, indices: Tensor, index: int) -> Tensor:
            loss: Tensor = self.counts(indices)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=EPOCHS,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=LAST * STEPS + SAVED, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    loader = (StatefulDataLoader if stateful else DataLoader)(Numbers(), batch_size=SIZE, shuffle=True)
    trainer.fit(module, loader, ckpt_path="last")
    if trainer.is_global_zero:
        module.counts.save(folder)


if __name__ == "__main__":
    way, _, place = sys.argv[1:]
    if way.startswith("accelerate"):
        by_accelerate(Path(place), seedable=way.endswith("seedable"), stateful=way.endswith("stateful"))
    else:
        by_lightning(Path(place), stateful=way.endswith("stateful"))
