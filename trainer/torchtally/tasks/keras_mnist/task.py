"""MNIST with a Keras model, which on the torch backend is a module like others: handwritten digits, 28 x 28 pixels.

`network` is Keras' own, for `fit` and for a file that Keras loads; `model` is what the loop trains.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.datasets import idx
from torchtally.errors import Refused
from torchtally.options import Training
from torchtally.tasks.mnist_cnn import task as mnist_cnn
from torchtally.training.task import Samples, Task

FILE = "model.keras"
# Keras' own 0.99 forgets what it began with in some 500 steps; four ranks make as many in the whole training.
_MOMENTUM = 0.9


def backend() -> Any:
    """Keras on torch. Raises Refused where it is not installed, and where another backend is asked for."""
    if (asked := os.environ.setdefault("KERAS_BACKEND", "torch")) != "torch":
        raise Refused(f"KERAS_BACKEND={asked} must be torch, or not be set")
    try:
        import keras
    except ModuleNotFoundError as error:
        if error.name != "keras":
            raise
        raise Refused(
            "this task needs the extra `keras`: pip install 'torchtally[keras]', or an image with EXTRAS=keras"
        ) from None
    return keras


def load(folder: Path | None, cache: Path) -> tuple[Samples, Samples]:
    """Training and test samples: pixels as uint8."""
    backend()  # what is missing is said before anything is trained
    return mnist_cnn.load(folder, cache)


def network(seed: int) -> Any:
    """Three convolutions with BatchNormalization, two dense layers: pixels (batch, 28, 28, 1) to logits (batch, 10)."""
    keras = backend()
    layers = keras.layers
    keras.utils.clear_session(free_memory=False)  # so that weights have the same names, however many models are made
    keras.utils.set_random_seed(seed % (1 << 32))
    outputs = pixels = keras.Input((28, 28, 1))
    outputs = layers.Rescaling(1 / 255)(outputs)
    for convolution in (
        layers.Conv2D(12, 3, padding="same", use_bias=False),
        layers.Conv2D(24, 6, strides=2, use_bias=False),
        layers.Conv2D(32, 6, strides=2, padding="same"),
    ):
        outputs = layers.ReLU()(layers.BatchNormalization(momentum=_MOMENTUM, scale=False)(convolution(outputs)))
    outputs = layers.GlobalAveragePooling2D()(outputs)
    outputs = layers.Dropout(0.5)(layers.Dense(256, activation="relu")(outputs))
    return keras.Model(pixels, layers.Dense(10)(outputs))


class AsModule(nn.Module):
    """A Keras model as torch has its modules: in the mode that was set, on the device of its inputs.

    By itself it would be told neither: it is in inference unless it is called with training=True, whatever `train()`
    says, and it moves all to the first GPU there is.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        with backend().device(str(inputs.device)):
            logits: Tensor = self.network(inputs, training=self.training)
        return logits


def model(options: Training) -> nn.Module:
    with backend().device("cpu"):
        return AsModule(network(options.seed))


def inputs(pixels: Tensor) -> Tensor:
    """Pixels (batch, 28, 28) as floats (batch, 28, 28, 1), which the model itself brings to [0, 1]."""
    return pixels.float().unsqueeze(-1)


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for each in parameters if each.requires_grad], lr=options.lr, fused=True)


def rate(done: float) -> float:
    """Falling to 0, so that the moving statistics, which follow the weights, have come up with them at the end."""
    return 1 - done


def files(model: nn.Module) -> dict[str, bytes]:
    """The model as Keras saves and loads it."""
    network: Any = model.network
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        network.save(path)
        return {FILE: path.read_bytes()}


TASK = Task(
    load=load,
    fingerprint=idx.MNIST.fingerprint,
    model=model,
    inputs=inputs,
    optimizer=optimizer,
    rate=rate,
    files=files,
)
