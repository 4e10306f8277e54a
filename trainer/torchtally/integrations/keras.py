"""Keras' fit: its optimizer's steps are commits, and its files of weights hold the account's state."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from torch.utils import data

from torchtally.accounting.account import Account
from torchtally.accounting.loader import Loader
from torchtally.checkpoints import conditions
from torchtally.checkpoints.hashing import hash_of
from torchtally.distributed import own_group, process_group
from torchtally.errors import Refused

_KEY = "torchtally"  # in a file of weights


class Batches(data.DataLoader[Any]):
    """What `fit` takes as `x`, from `account.loader(...)`.

    It has the length of a whole epoch. Without one, `fit` would take that of the first, which a resume can begin in its
    middle.
    """

    def __init__(self, epochs: Loader):
        super().__init__(range(len(epochs)), batch_size=None)  # type: ignore[arg-type]  # fit() requires a DataLoader
        self.epochs = epochs

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.epochs)


class AccountCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the steps of `fit`, and keeps the account's state in all files of weights of the model.

    A batch whose step a `LossScaleOptimizer` leaves out counts as dropped by the program.

    Create it before weights are loaded. `fit` begins with the epoch in progress. It ends with exit code 2 if the ranks
    have different weights after the first step.

    Args:
        account: Its phase "train" is what `fit` trains on.
        model: The compiled and built model that `fit` trains.

    Raises:
        Refused: The model is not built, or the optimizer accumulates gradients.
    """

    def __init__(self, account: Account, model: keras.Model):
        super().__init__()
        self._account, self._loaded = account, False
        self._counted: tuple[int, float] | None = None  # what `_reached` was by then
        self._compared = False  # the weights of the ranks
        self._left: list[tuple[Any, int]] = []  # weights and their hashes after the last step, if it has ended an epoch
        account.before_end(self._say_replaced)
        object.__setattr__(model, "torchtally", _State(self))  # Keras itself adds no layer to a model that is built
        parts = [*model._flatten_layers(), model._compile_loss, model._compile_metrics]
        if not all(part is None or part.built for part in parts):
            raise Refused(
                "fit() would consume a batch to build the model: call model.test_on_batch(inputs, labels) with any "
                "samples after compile(), and then make the AccountCallback"
            )
        if steps := getattr(model.optimizer, "inner_optimizer", model.optimizer).gradient_accumulation_steps:
            raise Refused(
                f"gradient_accumulation_steps={steps} must be None: Keras saves the gradients of batches that are "
                "handed out again after a resume"
            )

    def on_train_begin(self, logs: Any = None) -> None:
        before, self._counted = self._counted, self._reached
        if self._counted[0] and not self._loaded and self._counted != before:  # those of an earlier fit() count
            raise Refused(
                f"the weights have {self._counted[0]} steps, and the account's state was not loaded with them: make "
                "the AccountCallback before load_weights() and before callbacks that load, or use that of the fit() "
                "before"
            )
        self.model._initial_epoch = self._account.completed("train")  # as keras' BackupAndRestore does

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch != (completed := self._account.completed("train")):
            raise Refused(
                f"fit() begins epoch {epoch}, counted from 0, and the account has completed {completed}: a callback "
                "that loads weights must come before the AccountCallback"
            )
        self._counted = self._reached

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.commit()
        if logs and "loss" in logs:
            self._account.log(loss=logs["loss"])

    @property
    def _reached(self) -> tuple[int, float]:
        """The steps of the optimizer, and its scale of the loss, which falls where it leaves one out."""
        optimizer = self.model.optimizer
        scale = getattr(optimizer, "dynamic_scale", getattr(optimizer, "initial_scale", 1))
        return int(optimizer.iterations), float(scale)

    def commit(self) -> None:
        """Count what is in the weights now, or is left out of them."""
        if self._counted is None or (reached := self._reached) == self._counted:
            return
        stepped, self._counted = reached[0] > self._counted[0], reached
        if not self._compared:  # before ranks call what others do not
            self._refuse_different_weights()
            self._compared = stepped
        completed = self._account.completed("train")
        if stepped:
            self._account.commit()
        else:
            self._account.skip("its gradients overflow")
        ended = self._account.completed("train") > completed
        self._left = [(each, hash_of(each.value)) for each in self.model.trainable_variables] if ended else []

    def _say_replaced(self) -> None:
        """Say that the weights are others, such as the average of the optimizer, or the best that a callback restores.

        Keras does not tell that it replaces them, and a callback can do so after this one.
        """
        if any(hash_of(each.value) != hashed for each, hashed in self._left):
            self._account.replaced("since the last step of fit()")

    def _refuse_different_weights(self) -> None:
        """Refuse ranks that average no gradients. Those of other machines can differ in the last bits."""
        weights: list[torch.Tensor] = [each.value.detach() for each in self.model.trainable_variables]
        device = weights[0].device if weights else torch.device("cpu")
        if self._account.rank == 0:
            process_group.warn_of_gloo(device)
        sums = {str(number): hash_of(each) for number, each in enumerate(weights)}  # names can differ between ranks
        sums["number of weights"] = len(weights)
        if found := conditions.different(sums, device, own_group.of_all()):
            raise Refused(
                f"ranks 0 and {found[0]} have different weights after the same step, as nothing averages their "
                "gradients: put the model in DistributedDataParallel, as examples/keras_fit.py does"
            )

    def save(self, store: Any) -> None:
        """Keep the state in a file of weights: also where a callback saves them before this one has committed."""
        self.commit()
        store[_KEY] = np.frombuffer(self._account.state_dict()[_KEY].encode(), np.uint8)

    def load(self, store: Any) -> None:
        """Continue with the state of a file of weights."""
        if self._counted is not None and self._account.completed("train") == self._account.plan["train"]:
            return  # the best weights, after the training
        if _KEY not in store:
            raise Refused("the file of weights has no state of the account: it was saved without an AccountCallback")
        self._account.load_state_dict({_KEY: np.array(store[_KEY]).tobytes().decode()})
        self._loaded = True


class _State(keras.layers.Layer):  # type: ignore[misc]
    """A layer without weights: Keras saves and loads what it has."""

    def __init__(self, callback: AccountCallback):
        super().__init__()
        self._save, self._load = callback.save, callback.load
        self.built = True

    def save_own_variables(self, store: Any) -> None:
        self._save(store)

    def load_own_variables(self, store: Any) -> None:
        self._load(store)


class BackupAndRestore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]
    """Keras' own for several ranks: rank 0 writes, and all ranks read what it has written.

    It also saves when a rank has received a signal to stop, and then ends this start.

    Args:
        account: Knows the rank.
        arguments: Those of Keras. The folder is rank 0's. `double_checkpoint=True` keeps a file that is not cut off by
            a kill.
    """

    def __init__(self, account: Account, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._account, self._leads = account, account.rank == 0

    def on_train_begin(self, logs: Any = None) -> None:
        if self._leads:
            _restore(super(), logs)  # replaces a backup that is cut off by the one before
        folder = Path(self.backup_dir)
        found = self._account.resume_from(folder if any(folder.glob("*.weights.h5")) else None)
        if found and not self._leads:
            copy = keras.callbacks.BackupAndRestore(found)
            copy.set_model(self.model)
            _restore(copy, logs)
        # Keras' own number is of the last epoch that ended in that start, so not of a backup in an epoch's last batch.
        self.model._initial_epoch = self._account.completed("train")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._account.asked_to_stop():
            self._save_model()
            self._account.stop_as_asked()

    def _save_model(self) -> None:
        if self._leads:
            super()._save_model()

    def on_train_end(self, logs: Any = None) -> None:
        if self._leads:
            super().on_train_end(logs)


def _restore(backup: Any, logs: Any) -> None:
    """Load a backup. A kill cuts off the file of the epoch's number, too. By then the weights are read."""
    with contextlib.suppress(json.JSONDecodeError):
        backup.on_train_begin(logs)
