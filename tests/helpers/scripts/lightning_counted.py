"""Lightning with an account: goes on from the last checkpoint, in the middle of an epoch.

lightning_counted.py FOLDER [trainer's options as JSON] [what is left out or otherwise]
"""

import json
import os
import signal
import sys
from contextlib import nullcontext, suppress
from typing import Any

import lightning
import torch
import torch.distributed as dist
from counted import DATA, EPOCHS, SIZE, WORKERS, Death, Model, drops, own, report, scaler
from lightning.pytorch.callbacks import (
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.plugins import MixedPrecision
from torch.utils.data import DataLoader

from torchtally import Account, Steps
from torchtally.integrations.lightning import AccountCallback


class Module(lightning.LightningModule):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.model, self.death, self.how = Model(how == "overflows"), Death(), how
        self.automatic_optimization = how != "manual"
        if how == "batch norm":
            self.norm = torch.nn.BatchNorm1d(1)

    def training_step(self, batch: Any, index: int) -> torch.Tensor | None:
        self.death.comes()
        if self.how == "no loss" and index == 2:
            return None
        if self.how == "raises" and index == RAISES_IN and not self.trainer.ckpt_path:
            raise RuntimeError("raised")
        if self.how == "drained" and index == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        loss: torch.Tensor = self.model(*batch)
        if self.how == "manual":
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        if self.how == "validation raises" and (self.current_epoch, index) == (EPOCHS - 1, len(tests) - 1):
            raise RuntimeError("raised")

    def test_step(self, batch: Any, index: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.model.optimizer()


class NeverAverages(WeightAveraging):
    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return False


class Saves(lightning.Callback):
    """Saves in the middle of an accumulation, or between a step and the end of its batch, as any callback can."""

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Module, outputs: Any, batch: Any, at: int) -> None:
        if at == 5:
            trainer.save_checkpoint(FOLDER / "last.ckpt")
            if os.environ["DIES_IN"] != "0":
                dist.barrier()
                os.kill(os.getpid(), signal.SIGKILL)


FOLDER = own(sys.argv[1])
options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
how = sys.argv[3] if len(sys.argv) > 3 else ""
RAISES_IN = int(sys.argv[4]) if how == "raises" else None
dist.is_initialized() or dist.init_process_group("gloo")
steps = Steps(options.get("max_steps", -1), options.get("accumulate_grad_batches", 1))
trained = {"steps": steps, "steps of a batch": Steps(33)}.get(how, EPOCHS)
validates = how.startswith("validat")
planned = {"train": trained} | ({"test": EPOCHS} if validates else {})
with Account(task="counted", plan=planned) as ACCOUNT:
    collate = drops if how == "drops" else None
    loader = ACCOUNT.loader(DATA, "train", batch_size=SIZE, num_workers=WORKERS, collate_fn=collate)
    tests = None
    if validates:
        tests = ACCOUNT.loader(DATA, "test", batch_size=20, shuffle=False, trains=False)
    every: dict[str, Any] = {"every_n_epochs": 1} if how == "epochs" else {"every_n_train_steps": 3}
    if how == "tests":
        every |= {"monitor": "step", "mode": "min"}  # the first one is the best
    callbacks = [ModelCheckpoint(FOLDER, save_last=True, save_weights_only=how == "weights only", **every)]
    callbacks += [AccountCallback(ACCOUNT)] * (how != "no callback")
    callbacks = [Saves(), *callbacks] if how == "saves" else callbacks
    callbacks += [StochasticWeightAveraging(1.0, 2)] * (how in ("swa", "batch norm"))
    callbacks += [OnExceptionCheckpoint(FOLDER, "last")] * (how == "raises")
    callbacks += [WeightAveraging()] * (how == "averages") + [NeverAverages()] * (how == "never averages")
    local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    parallel: dict[str, Any] = {"strategy": "ddp", "devices": local, "num_nodes": world // local}
    module = Module(how)
    if how == "prunes":
        pruned = [(module.model.counts, "weight")]
        callbacks.append(ModelPruning("l1_unstructured", pruned, amount=0.2, use_lottery_ticket_hypothesis=False))
    trainer = lightning.Trainer(
        accelerator="cpu",
        **({} if how == "apart" else parallel),
        plugins=[MixedPrecision("16-mixed", "cpu", scaler())] * (how == "overflows"),
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        reload_dataloaders_every_n_epochs=how == "saves",
        **{"max_epochs": EPOCHS, "num_sanity_val_steps": 0} | options,
    )
    given = loader
    if how == "saves":  # where each epoch has batches of its own, too
        given, Module.train_dataloader = None, lambda _: loader
    with suppress(RuntimeError) if validates else nullcontext():
        last = ACCOUNT.resume_from(FOLDER / "last.ckpt")
        trainer.fit(module, given, tests, ckpt_path=None if how == "not loaded" else last)
    if how == "tests":
        trainer.test(module, DataLoader(DATA, 20), ckpt_path="best")
    report(module.model, sys.argv[1])
dist.destroy_process_group()
