"""Lightning: its Trainer counts the batches, and its checkpoints hold the account's state."""

import signal
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils._pytree import tree_leaves

from torchtally.accounting.account import Account
from torchtally.accounting.loader import Loader
from torchtally.errors import SIGNALLED, Refused, Unproven


class AccountCallback(Callback):
    """Commits after each optimizer step of `Trainer.fit`, and keeps the account's state in the checkpoints.

    The `train_dataloader` is `account.loader(...)`. With manual optimization, `training_step` calls `account.commit()`
    itself, after its optimizers have stepped.
    """

    def __init__(self, account: Account):
        self._account = account
        self._loaded = False
        self._committed: int | None = None  # the Trainer's global_step by then
        self._stepped = False  # the optimizer itself, since then

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._account.load_state_dict(checkpoint)
            self._loaded = True

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.sanity_checking and any(_epochs(trainer.val_dataloaders)):
            raise Refused("Lightning's sanity check would begin an epoch of validation: pass num_sanity_val_steps=0")

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        batches = self._batches(trainer, module)
        self._refuse(trainer, module, batches)
        _go_on(trainer, batches)
        self._committed = trainer.global_step
        for optimizer in trainer.optimizers:
            if isinstance(optimizer, torch.optim.Optimizer):
                optimizer.register_step_post_hook(self._step)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._batches(trainer, module)  # reload_dataloaders_every_n_epochs makes others

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if module.automatic_optimization and not outputs:
            raise Unproven("a batch is not in the weights: training_step() returned no loss for it")
        if isinstance(outputs, Mapping) and isinstance(loss := outputs.get("loss"), torch.Tensor):
            self._account.log(loss=loss.detach() * trainer.accumulate_grad_batches)  # Lightning has divided it
        self._commit(trainer, module)

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._commit(trainer, module)  # it may be saved between a step and the end of its batch
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)  # the account's state once more
        checkpoint.update(self._account.state_dict())

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        for each in _epochs(trainer.val_dataloaders):
            each.end()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        for each in _epochs([trainer.val_dataloaders, trainer.test_dataloaders, trainer.predict_dataloaders]):
            each.leave()
        if isinstance(exception, SIGTERMException):  # without a code it would end the program as if without an error
            exception.code = SIGNALLED + signal.SIGTERM

    def _batches(self, trainer: Trainer, module: LightningModule) -> Loader:
        batches = trainer.train_dataloader
        if not isinstance(batches, Loader) or batches.account is not self._account:
            raise Refused("the train_dataloader must be account.loader(...) of the callback's account, unchanged")
        batches.before_state = partial(self._commit, trainer, module)
        return batches

    def _step(self, *_: Any) -> None:
        self._stepped = True

    def _commit(self, trainer: Trainer, module: LightningModule) -> None:
        if self._committed is None or not module.automatic_optimization or trainer.global_step <= self._committed:
            return
        if not self._stepped and isinstance(trainer.optimizers[0], torch.optim.Optimizer):
            raise Unproven(
                "batches are not in the weights: Lightning counted a step that the optimizer has not made; its "
                "optimizer_step(), or a scaler of gradients, left it out"
            )
        self._committed, self._stepped = trainer.global_step, False
        self._account.commit()

    def _refuse(self, trainer: Trainer, module: LightningModule, batches: Loader) -> None:
        """Refuse before the first step what cannot fulfil the plan."""
        planned = self._account.plan[batches.phase]
        steps = batches.optimizer_steps(trainer.accumulate_grad_batches)
        if trainer.ckpt_path and not self._loaded:
            raise Refused(f"{trainer.ckpt_path} has no state of the account: it was saved without the AccountCallback")
        if trainer.scaler is not None:
            raise Refused("precision='16-mixed' leaves out steps whose gradients overflow: use 'bf16-mixed' or '32'")
        averages = any(isinstance(each, StochasticWeightAveraging) for each in trainer.callbacks)  # type: ignore[attr-defined]
        if averages and StochasticWeightAveraging.pl_module_contains_batch_norm(module):
            raise Refused(
                "StochasticWeightAveraging adds an epoch that trains nothing, for the statistics of BatchNorm: use "
                "lightning.pytorch.callbacks.WeightAveraging, which averages them in the plan's epochs"
            )
        if trainer.world_size != dist.get_world_size():
            raise Refused(
                f"the Trainer averages gradients over {trainer.world_size} of {dist.get_world_size()} ranks: pass "
                'strategy="ddp", the ranks of a pod as devices, and the number of pods as num_nodes'
            )
        if trainer.num_training_batches != len(batches):
            raise Refused(
                f"the Trainer would take {trainer.num_training_batches} of the {len(batches)} batches of an epoch: "
                "limit_train_batches, overfit_batches and fast_dev_run must be their defaults"
            )
        hint = batches.plan_of_steps(trainer.max_steps, trainer.accumulate_grad_batches)
        if (trainer.max_epochs, trainer.max_steps) not in ((planned, -1), (planned, steps), (-1, steps)):
            raise Refused(
                f"max_epochs={trainer.max_epochs} and max_steps={trainer.max_steps} do not make the plan of "
                f"{batches.phase}: pass max_epochs={planned}, or max_steps={steps}{hint}"
            )


def _go_on(trainer: Trainer, batches: Loader) -> None:
    """Set Lightning's counters to the batches that this start skips, or at the end of an epoch to all of them.

    Batches that no step has used are handed out again, and another number of ranks has other batches.
    """
    loop = trainer.fit_loop.epoch_loop
    total: Any = loop.batch_progress.total  # their annotated type lacks two of the counters
    current: Any = loop.batch_progress.current
    earlier = total.ready - current.ready  # in epochs before this one
    ended = loop.batch_progress.is_last_batch and current.processed == current.ready  # and not by an exception
    place = batches.skipped or (len(batches) if ended else 0)
    loop.batch_progress.is_last_batch = ended and place == len(batches)
    for counters, at in ((total, earlier + place), (current, place)):
        counters.ready = counters.started = counters.processed = at
        counters.completed = at - loop.restarted_on_train_batch_end  # Lightning is about to add that one


def _epochs(dataloaders: Any) -> Iterator[Loader]:
    return (each for each in tree_leaves(dataloaders) if isinstance(each, Loader))
