"""Lightning: its Trainer counts the batches, and its checkpoints hold the account's state."""

import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils._pytree import tree_leaves

from torchtally.accounting.account import Account
from torchtally.accounting.loader import Loader
from torchtally.errors import SIGNALLED, Refused


class AccountCallback(Callback):
    """Weighs the losses of `Trainer.fit`, and keeps the account's state in the checkpoints.

    The `train_dataloader` is `account.loader(...)`.
    """

    def __init__(self, account: Account):
        self._account, self._loaded = account, False
        self._stepped = 0  # the Trainer's global_step by then

    def on_load_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._account.load_state_dict(checkpoint)
            self._loaded = True

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.sanity_checking and any(_epochs(trainer.val_dataloaders)):
            raise Refused("Lightning's sanity check would begin an epoch of validation: pass num_sanity_val_steps=0")

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        batches = self._batches(trainer)
        self._refuse(trainer, module, batches)
        _go_on(trainer, batches)
        self._stepped = trainer.global_step
        for optimizer in trainer.optimizers:
            self._account.optimizer(optimizer)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        self._batches(trainer)  # reload_dataloaders_every_n_epochs makes others

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Save and stop if a rank has received a signal: here, what follows the last step, as a validation, is over."""
        callbacks: Iterable[Any] = trainer.checkpoint_callbacks
        savers = (each for each in callbacks if isinstance(each, ModelCheckpoint) and not each.save_weights_only)
        if (saver := next(savers, None)) and self._account.asked_to_stop():
            path = f"{saver.dirpath}/{saver.CHECKPOINT_NAME_LAST}{saver.FILE_EXTENSION}"
            saver.last_model_path = path  # which the next start replaces
            trainer.save_checkpoint(path)
            self._account.stop_as_asked()

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: torch.Tensor) -> None:
        self._account.weigh(loss)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if isinstance(outputs, Mapping) and isinstance(loss := outputs.get("loss"), torch.Tensor):
            self._account.log(loss=loss.detach() * trainer.accumulate_grad_batches)  # Lightning has divided it
        self._after_step(trainer, module)

    def on_save_checkpoint(self, trainer: Trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._after_step(trainer, module)  # it may be saved between a step and the end of its batch
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)  # the account's state once more
        checkpoint.update(self._account.state_dict())

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        for each in _epochs(trainer.val_dataloaders):
            each.end()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Say what Lightning has put in the place of the weights, once all callbacks have had their last hook."""
        if not trainer.global_step or self._account.last_line is not None:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            callbacks: Iterable[Callback] = trainer.callbacks  # type: ignore[attr-defined]
            for each in filter(_replaces, callbacks):
                self._account.replaced(f"those of {type(each).__name__}")
        elif trainer.ckpt_path:
            self._account.replaced(f"those of a checkpoint that the Trainer has loaded to {TrainerFn(stage).value}")

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        for each in _epochs([trainer.val_dataloaders, trainer.test_dataloaders, trainer.predict_dataloaders]):
            each.leave()
        if isinstance(exception, SIGTERMException):  # without a code it would end the program as if without an error
            exception.code = SIGNALLED + signal.SIGTERM

    def _after_step(self, trainer: Trainer, module: LightningModule) -> None:
        if module.automatic_optimization and trainer.global_step > self._stepped:
            self._stepped = trainer.global_step
            self._account.after_step()

    def _batches(self, trainer: Trainer) -> Loader:
        batches = trainer.train_dataloader
        if not isinstance(batches, Loader) or batches.account is not self._account:
            raise Refused(
                "the train_dataloader must be account.loader(...) of the callback's account, unchanged, not "
                f"{'that of another account' if isinstance(batches, Loader) else f'a {type(batches).__name__}'}"
            )
        return batches

    def _refuse(self, trainer: Trainer, module: LightningModule, batches: Loader) -> None:
        """Refuse before the first step what cannot fulfil the plan."""
        planned = self._account.plan[batches.phase]
        steps = batches.optimizer_steps(trainer.accumulate_grad_batches)
        if trainer.ckpt_path and not self._loaded:
            raise Refused(
                f"ckpt_path {trainer.ckpt_path} has no state of the account: it was saved without the AccountCallback; "
                "pass a checkpoint that was saved with it, or load the weights alone and leave out ckpt_path"
            )
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


def _replaces(callback: Callback) -> bool:
    """Whether a callback has the weights replaced by what it has made of them, in any start.

    One that averages, and never has, leaves the weights of the beginning.
    """
    if isinstance(callback, WeightAveraging):
        return callback._average_model is not None and bool(callback._average_model.n_averaged)
    if isinstance(callback, StochasticWeightAveraging):
        return bool(callback.n_averaged or callback._init_n_averaged)
    return isinstance(callback, ModelPruning)


def _epochs(dataloaders: Any) -> Iterator[Loader]:
    return (each for each in tree_leaves(dataloaders) if isinstance(each, Loader))
