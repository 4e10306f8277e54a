"""MNIST with a convolutional network and dropout: images of handwritten digits, 28 x 28 grey pixels each."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from torchtally.datasets import idx
from torchtally.options import Training
from torchtally.training.task import Samples, Task

_MEAN, _DEVIATION = 0.1307, 0.3081  # of the training pixels
_MOMENTUM = 0.5


def load(folder: Path | None, cache: Path) -> tuple[Samples, Samples]:
    """Training and test samples: pixels (n, 28, 28) as uint8, which `inputs` normalizes batch by batch."""
    train_images, train_labels, test_images, test_labels = idx.load(idx.MNIST, folder, cache)
    return Samples(train_images, train_labels.long()), Samples(test_images, test_labels.long())


def model(options: Training) -> nn.Module:
    """Log-probabilities (batch, 10), which cross-entropy leaves unchanged; two convolutions and two linear layers."""
    network = nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
        nn.LogSoftmax(dim=1),
    )
    # Faster on CPUs, above all for pooling; not measured on GPUs.
    return network.to(memory_format=torch.channels_last)


def inputs(pixels: Tensor) -> Tensor:
    """Pixels (batch, 28, 28) as floats (batch, 1, 28, 28) of mean 0 and deviation 1."""
    return pixels.float().div_(255).sub_(_MEAN).div_(_DEVIATION).unsqueeze(1)


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=options.lr, momentum=_MOMENTUM, fused=True)


TASK = Task(load=load, fingerprint=idx.MNIST.fingerprint, model=model, inputs=inputs, optimizer=optimizer)
