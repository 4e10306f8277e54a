"""Hugging Face's Trainer: its losses are weighed, and its checkpoints hold the account's state."""

import math
from collections.abc import Iterator
from typing import Any

from torch.utils import data
from transformers import (
    DataCollatorWithFlattening,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import RemoveColumnsCollator

from torchtally.accounting.account import Account
from torchtally.accounting.batches.collate import Batch, EachRow, Samples, each_row
from torchtally.accounting.batches.step_loader import LOADING_OPTIONS
from torchtally.accounting.loader import Loader
from torchtally.errors import Refused

_KEY = "torchtally"  # in trainer_state.json


class AccountMixin:
    """Accounts for the samples of a Trainer: `class MyTrainer(AccountMixin, Trainer)`.

    The Trainer's own loader is used with the account's order. Its contract is `padded`, as the library pads data that
    the ranks do not divide evenly.

    Args:
        account: Its plan has the phase "train" with as many epochs as `num_train_epochs`.
        arguments: Those of the Trainer.
    """

    def __init__(self, *arguments: Any, account: Account, **named: Any):
        super().__init__(*arguments, **named)
        self._account = account
        self._batches: _Batches | None = None
        self._trained: tuple[Any, ...] = ()  # the batch in progress: the Trainer has fetched those of a step
        assert isinstance(self, Trainer)
        self.add_callback(_Keeps(account))
        backward = self.accelerator.backward
        self.accelerator.backward = lambda loss, **named: backward(account.weigh(loss, *self._trained), **named)

    def training_step(self, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
        self._trained = (inputs,)
        return super().training_step(model, inputs, *arguments, **named)  # type: ignore[misc]

    def get_train_dataloader(self) -> Any:
        if self._batches is None:
            trainer: Any = self
            order = trainer.args.train_sampling_strategy
            if order not in ("random", "sequential"):
                raise Refused("the account orders the samples: train_sampling_strategy must be random or sequential")
            own = super().get_train_dataloader()  # type: ignore[misc]
            loader = self._account.loader(
                own.dataset,
                "train",
                batch_size=trainer.args.train_batch_size,
                shuffle=order == "random",
                contract="padded",
                drop_last=trainer.args.dataloader_drop_last,
                **{name: getattr(own, name) for name in LOADING_OPTIONS} | {"collate_fn": _declared(own.collate_fn)},
            )
            self._batches = _Batches(loader)
        return self._batches


class _Batches(data.DataLoader[Any]):
    """The account's batches, with a `dataset` that the library can skip through.

    In the epoch in progress of a checkpoint, the Trainer reads on from the beginning of `dataset` and drops what it has
    trained. It gets nothing in place of that.
    """

    def __init__(self, epochs: Loader):
        super().__init__(_Skipped(epochs), batch_size=None, collate_fn=_as_it_is)
        self.epochs = epochs

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)


class _Skipped(data.IterableDataset[Any]):
    def __init__(self, epochs: Loader):
        self.epochs = epochs

    def __iter__(self) -> Iterator[Any]:
        yield from [None] * self.epochs.skipped
        yield from self.epochs


def _declared(collate: Any) -> Any:
    """The Trainer's defaults make one row of each sample, and flattening one of all; another has to tell."""
    own = collate
    while type(own) is RemoveColumnsCollator:  # which hides the samples' indices
        own = own.data_collator
    if type(own) is DataCollatorWithFlattening:
        return _Flattened(collate)
    default = own is default_data_collator or type(own) is DataCollatorWithPadding
    return each_row(collate) if default or isinstance(own, EachRow) else own


class _Flattened:
    """Makes one row of all samples, one after another."""

    def __init__(self, collate: Any):
        self._collate = collate

    def __call__(self, samples: Samples) -> Batch:
        return Batch(samples.indices, self._collate(samples))  # type: ignore[arg-type]  # a list may name them


def _as_it_is(batch: Any) -> Any:
    return batch


class _Keeps(TrainerCallback):
    def __init__(self, account: Account):
        self._account, self._stops = account, False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        batches: Any = others["train_dataloader"]
        if not isinstance(batches, _Batches):
            raise Refused("get_train_dataloader() must return what AccountMixin returns: list it first of the bases")
        self._refuse(args, state, batches.epochs)
        self._account.optimizer(others["optimizer"])
        if not state.global_step:
            return
        kept: Any = state.stateful_callbacks  # a dictionary, whatever its type says
        if _KEY not in kept:
            raise Refused("the checkpoint has no state of the account: it was saved without AccountMixin")
        self._account.load_state_dict({_KEY: kept[_KEY]})
        epochs, skipped = divmod(state.global_step, math.ceil(len(batches) / args.gradient_accumulation_steps))
        position = (self._account.completed("train"), batches.epochs.skipped)
        if (epochs, skipped * args.gradient_accumulation_steps) != position:
            raise Refused(
                f"the Trainer would resume after epoch {epochs}, step {skipped}, and the account after "
                f"epoch {position[0]}, batch {position[1]}: the number of ranks, the batch size, and "
                "gradient_accumulation_steps must be those of the checkpoint"
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._account.reseed()  # after a resume, the Trainer sets the generators once it has a batch

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.save_strategy != "no" and state.global_step < state.max_steps and self._account.asked_to_stop():
            control.should_save = self._stops = True
        self._keep(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._stops:
            self._account.stop_as_asked()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._keep(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint:
            self._account.replaced("the best checkpoint of the Trainer")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if "loss" in others["logs"]:
            self._account.log(loss=others["logs"]["loss"])

    def _keep(self, state: TrainerState) -> None:
        """Let the checkpoint that may be saved now have the account's state in its own file, which is written last."""
        self._account.after_step()
        kept: Any = state.stateful_callbacks
        kept[_KEY] = self._account.position_dict()[_KEY]

    def _refuse(self, args: TrainingArguments, state: TrainerState, epochs: Loader) -> None:
        """Refuse before the first step what cannot fulfil the plan."""
        if args.auto_find_batch_size:
            raise Refused(
                "auto_find_batch_size must be False: when memory runs out, the Trainer begins anew with the weights it "
                "has, so their samples count twice; set per_device_train_batch_size"
            )
        steps = epochs.optimizer_steps(args.gradient_accumulation_steps)
        if state.max_steps != steps:
            raise Refused(
                f"the Trainer makes {state.max_steps} steps, which is not the plan of train: pass "
                f"num_train_epochs={self._account.plan['train']}, or max_steps={steps}"
                f"{epochs.plan_of_steps(args.max_steps, args.gradient_accumulation_steps)}"
            )
        if args.ignore_data_skip:
            raise Refused("ignore_data_skip must be False: the account needs no time to skip")
