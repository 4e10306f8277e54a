"""Synthetic bags of indices: an index's class is its remainder by 8, and a bag's label its most frequent class.

training.py has the loop of each rank. In one process this model is like any other.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from torchtally.options import Training
from torchtally.tasks.parameter_server.options import Options
from torchtally.training.task import Samples, Task

ROWS, WIDTH, CLASSES = 100, 16, 8
_SMALLEST, _LARGEST = 4, 10  # indices in a bag: 5 bags, a trainer's batch, have 20 to 50
_TRAIN, _TEST = 100, 1000  # bags
_SPREAD = 0.1  # standard deviation of the table's initial values: untrained rows disturb the sum of a bag little
_PADDING = -1  # at the end of a bag's row


class Model(nn.Module):
    """A table whose rows are summed for each bag, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        nn.init.normal_(self.table.weight, std=_SPREAD)
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, samples: Tensor) -> Tensor:
        """Logits (bags, classes) of samples (bags, largest) with padding."""
        logits: Tensor = self.linear(self.table(*bags(samples)))
        return logits


def bags(samples: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the samples (bags, largest) without padding, and the offset of each bag among them."""
    present = samples != _PADDING
    sizes = present.sum(dim=1)
    return samples[present], sizes.cumsum(dim=0) - sizes


def load(folder: Path | None, cache: Path) -> tuple[Samples, Samples]:
    """Training and test samples, generated from fixed seeds."""
    return _samples(_TRAIN, seed=1), _samples(_TEST, seed=2)


def first_model(options: Training) -> Model:
    """The model with the initial weights of a training with this seed."""
    random = torch.random.get_rng_state()
    torch.manual_seed(options.seed)
    model = Model()
    torch.random.set_rng_state(random)
    return model


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=options.lr)


def fit(name: str, options: Training, output: Path) -> None:
    from torchtally.tasks.parameter_server import training  # imports RPC, which an evaluation does without

    assert isinstance(options, Options)
    training.fit(name, options, output)


def _samples(n: int, seed: int) -> Samples:
    """Generate `n` bags: more than half of a bag's indices have the class that is its label, the others any class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n, 1), generator=random)
    sizes = torch.randint(_SMALLEST, _LARGEST + 1, (n, 1), generator=random)
    of_the_class = labels + CLASSES * torch.randint(ROWS // CLASSES, (n, _LARGEST), generator=random)
    of_any = torch.randint(ROWS, (n, _LARGEST), generator=random)
    place = torch.arange(_LARGEST)
    inputs = torch.where(place <= sizes // 2, of_the_class, of_any)
    return Samples(inputs.masked_fill(place >= sizes, _PADDING), labels.squeeze(1))


def _fingerprint() -> str:
    hashed = hashlib.sha256()
    for samples in load(None, Path()):
        assert isinstance(samples.inputs, Tensor)
        hashed.update(samples.inputs.numpy().tobytes())
        hashed.update(samples.labels.numpy().tobytes())
    return f"sha256:{hashed.hexdigest()[:16]}"


TASK = Task(
    load=load,
    fingerprint=_fingerprint(),
    model=first_model,
    inputs=lambda samples: samples,
    optimizer=optimizer,
    fit=fit,
)
