"""Keras' fit() under DDP with a proof: the network of the task keras-mnist.

torchtally run -- python examples/keras_fit.py       on this machine, or as the command of a PyTorchJob
"""

import argparse
import os
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"  # before Keras is imported

import keras
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from torchtally import Account, evaluate
from torchtally.datasets import idx
from torchtally.distributed import running_stats
from torchtally.environment import Places
from torchtally.integrations.keras import AccountCallback, BackupAndRestore, Batches
from torchtally.tasks.keras_mnist import task as keras_mnist
from torchtally.training.task import Samples

EPOCHS = 2


class Digits(Dataset[tuple[Tensor, Tensor]]):
    fingerprint = idx.MNIST.fingerprint  # equal text for equal data

    def __init__(self, samples: Samples, most: int):
        self.pixels, self.labels = samples.inputs[:most], samples.labels[:most]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return keras_mnist.inputs(self.pixels[index]), self.labels[index]


class Parallel(keras.Model):
    """The model that fit() trains: `network`, in DDP for training."""

    def __init__(self, network: keras.Model):
        super().__init__()
        self.network = network
        self.parallel = DistributedDataParallel(network).__call__  # a method: Keras adds modules as layers

    def call(self, images: Tensor, training: bool = False) -> Tensor:
        return self.parallel(images, training=True) if training else self.network(images, training=False)


class Test(keras.callbacks.Callback):
    """Exact evaluation over all ranks after each epoch; that of fit() covers this rank's samples only."""

    def __init__(self, account: Account, loader: DataLoader[Any], n: int):
        super().__init__()
        self.account, self.loader, self.n = account, loader, n

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        network = self.model.network
        running_stats.average(running_stats.of(network))  # DDP does not synchronize those of BatchNormalization
        found = evaluate(network, self.account.epoch("test", epoch + 1, self.loader), self.n)
        if self.account.rank == 0:
            print(f"epoch {epoch + 1}: {found.totals['correct']:.0f} of {found.count} correct", flush=True)


def main(most: int) -> None:
    dist.init_process_group("gloo")  # with GPUs: "cpu:gloo,cuda:nccl", after torch.cuda.set_device(LOCAL_RANK)
    places = Places.from_env(os.environ)
    train, test = (Digits(samples, most) for samples in keras_mnist.load(places.data, places.cache))
    network = keras_mnist.network(seed=0)
    model = Parallel(network)
    with Account(task="keras-fit", plan={"train": EPOCHS, "test": EPOCHS}, seed=0) as account:
        torch.manual_seed(account.rank)  # each rank draws its own dropout
        # drop_last: DDP's mean over ranks needs batches of equal size, and BatchNormalization needs non-empty ones.
        train_loader = account.loader(train, "train", batch_size=64, contract="drop_last")
        test_loader = account.loader(test, "test", batch_size=1000, shuffle=False, trains=False)
        falling = keras.optimizers.schedules.PolynomialDecay(6e-3, EPOCHS * len(train_loader), end_learning_rate=0)
        model.compile(keras.optimizers.Adam(falling), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.test_on_batch(train[0][0][None], train[0][1][None])  # builds it; fit() would consume a batch
        backup = BackupAndRestore(account, places.output / "backup", save_freq=50, double_checkpoint=True)
        model.fit(
            Batches(train_loader),
            epochs=EPOCHS,
            shuffle=False,  # the order is the account's
            verbose=0,
            callbacks=[AccountCallback(account, model), backup, Test(account, test_loader, len(test))],
        )
        if account.rank == 0:
            places.output.mkdir(parents=True, exist_ok=True)
            network.save(places.output / "model.keras")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=60000, help="maximum number of samples in each phase")
    main(parser.parse_args().samples)
