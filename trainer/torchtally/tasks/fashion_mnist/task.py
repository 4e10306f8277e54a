"""Fashion-MNIST with a multilayer perceptron: images of ten kinds of clothing, 28 x 28 grey pixels each."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from torchtally.datasets import idx
from torchtally.options import Training
from torchtally.tasks.fashion_mnist.options import Options
from torchtally.training.task import Samples, Task


def load(folder: Path | None, cache: Path) -> tuple[Samples, Samples]:
    """Training and test samples: pixels (n, 28, 28) as uint8, which `inputs` scales batch by batch."""
    train_images, train_labels, test_images, test_labels = idx.load(idx.FASHION_MNIST, folder, cache)
    return Samples(train_images, train_labels.long()), Samples(test_images, test_labels.long())


def model(options: Training) -> nn.Module:
    """Logits (batch, 10) of a perceptron with two hidden layers and ReLU."""
    assert isinstance(options, Options)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, options.hidden),
        nn.ReLU(),
        nn.Linear(options.hidden, 10),
    )


def inputs(pixels: Tensor) -> Tensor:
    """Pixels (batch, 28, 28) as floats in [0, 1]."""
    return pixels.float().div_(255)


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=options.lr, fused=True)


TASK = Task(load=load, fingerprint=idx.FASHION_MNIST.fingerprint, model=model, inputs=inputs, optimizer=optimizer)
