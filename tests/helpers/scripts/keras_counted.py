"""Keras' fit with an account: goes on from the last backup, in the middle of an epoch.

keras_counted.py FOLDER [save_freq] [what is left out or otherwise]
"""

import os
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
import torch.distributed as dist
from counted import EPOCHS, OVERFLOWS, SIZE, WORKERS, Death, N, own, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from witness import Noisy

from torchtally import Account
from torchtally.integrations.keras import AccountCallback, BackupAndRestore, Batches


class Labelled(Noisy):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), 0.0


class Parallel(keras.Model):
    """Its output for a sample has the gradient -1 in the sample's row of the counting parameter."""

    def __init__(self) -> None:
        super().__init__()
        keras.utils.set_random_seed(0)
        indices, inputs = keras.Input((), dtype="int64"), keras.Input((4,))
        counts = keras.layers.Embedding(N, 1, embeddings_initializer="zeros")
        hidden = keras.layers.Dense(8, "tanh")
        learned = keras.layers.Dropout(0.3)(keras.layers.Dense(1)(hidden(inputs)))
        self.network = keras.Model((indices, inputs), 1e-4 * learned**2 - counts(indices))
        self.counts, self.hidden = counts, hidden
        network = self.network
        self.parallel = (
            (lambda *given, **_: network(*given)) if how == "apart" else DistributedDataParallel(network).__call__
        )

    def call(self, given: Any, training: bool = False) -> Any:
        return self.parallel(given, training=True) if training else self.network(given)


class Dies(keras.callbacks.Callback):
    death = Death()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.death.comes()


def added(labels: Any, outputs: Any) -> Any:
    infinite = how == "overflows" and Dies.death.batches in OVERFLOWS
    return outputs.sum() * dist.get_world_size() * (float("inf") if infinite else 1)


folder = own(sys.argv[1])
every = int(sys.argv[2]) if len(sys.argv) > 2 else 3
how = sys.argv[3] if len(sys.argv) > 3 else ""
dist.is_initialized() or dist.init_process_group("gloo")
with Account(task="counted", plan={"train": EPOCHS}) as account:
    data = Labelled(N)
    model = Parallel()
    accumulate = 4 if how.startswith("accumulates") else None
    optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=accumulate, use_ema=how.startswith("averages"))
    if how in ("overflows", "accumulates, scaled"):
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, added)
    (indices, inputs), label = data[0]
    if how != "unbuilt":
        model.test_on_batch((torch.tensor([indices]), inputs[None]), torch.tensor([label]))
    batches = Batches(account.loader(data, "train", batch_size=SIZE, num_workers=WORKERS))
    options = {"save_freq": every, "double_checkpoint": True, "delete_checkpoint": how != "best"}
    backup = BackupAndRestore(account, folder / "backup", **options)
    if how == "rank 0 repairs" and dist.get_rank():
        keras.src.utils.file_utils.copy = None
    if how == "loaded before":
        model.optimizer.build(model.trainable_variables)
        model.load_weights(folder / "backup/latest.weights.h5") if (folder / "backup").exists() else None
    callbacks = [Dies()] if how == "no callback" else [backup, AccountCallback(account, model), Dies()]
    if how == "averages, and swaps":
        callbacks.append(keras.callbacks.SwapEMAWeights())
    if how == "restores":  # the weights of the first epoch
        callbacks.append(keras.callbacks.EarlyStopping("loss", mode="max", patience=EPOCHS, restore_best_weights=True))
    if how == "rank 0 repairs":  # in the other order, which is as good
        callbacks = [callbacks[1], backup]
    if how == "loaded before":
        callbacks = callbacks[1:] if (folder / "backup").exists() else callbacks
    if how == "twice":
        model.fit(batches, epochs=1, shuffle=False, verbose=0, callbacks=callbacks)
    model.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
    if how == "best":  # the weights of a step before the last
        model.load_weights(folder / "backup/latest.weights.h5")
    found = nn.Module()
    found.counts, found.model = nn.Embedding(N, 1), model.hidden
    found.counts.weight.data = model.counts.embeddings.value.detach().clone()
    report(found, sys.argv[1])
dist.destroy_process_group()
