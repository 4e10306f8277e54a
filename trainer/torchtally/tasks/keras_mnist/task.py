"""MNIST with a Keras model: images of handwritten digits, 28 x 28 grey pixels each.

`network` is the Keras model, for `fit` and for a file that Keras loads. `model` wraps it for the training loop.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.datasets import idx
from torchtally.errors import Refused, require
from torchtally.options import Training
from torchtally.tasks.mnist_cnn import task as mnist_cnn
from torchtally.training.task import Samples, Task

FILE = "model.keras"
# With Keras' default of 0.99 the initial statistics fade in about 500 steps, all that a training on four ranks has.
_MOMENTUM = 0.9


def backend() -> Any:
    """Keras with the torch backend. Raises Refused if Keras is not installed or another backend is set."""
    if (configured := os.environ.setdefault("KERAS_BACKEND", "torch")) != "torch":
        raise Refused(f"KERAS_BACKEND={configured} must be torch or unset")
    require("keras", "this task needs", "keras")
    import keras

    return keras


def load(folder: Path | None, cache: Path) -> tuple[Samples, Samples]:
    """Training and test samples: pixels (n, 28, 28) as uint8."""
    backend()  # raises Refused before the handshake
    return mnist_cnn.load(folder, cache)


def network(seed: int) -> Any:
    """Three convolutions with BatchNormalization, two dense layers: pixels (batch, 28, 28, 1) to logits (batch, 10)."""
    keras = backend()
    layers = keras.layers
    keras.utils.clear_session(free_memory=False)  # so that each model's weights have the same names
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
    """A Keras model that behaves as a torch module: in the mode set by `train()`, on the device of its inputs.

    Keras ignores both: a model is in inference mode unless it is called with training=True, and it moves tensors to the
    first GPU.
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
    """Pixels (batch, 28, 28) as floats (batch, 28, 28, 1), which the model scales to [0, 1]."""
    return pixels.float().unsqueeze(-1)


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.Adam([each for each in parameters if each.requires_grad], lr=options.lr, fused=True)


def rate(done: float) -> float:
    """A linear decay to 0: at its end the running statistics, which lag behind the weights, match them."""
    return 1 - done


def files(model: nn.Module) -> dict[str, bytes]:
    """The model in Keras' file format."""
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
