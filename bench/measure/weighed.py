"""What an account's optimizer(), weigh(), and loader add to a step: a loop with them beside the same loop by hand.

weighed TASK    measures the model and the batch of fashion-mnist or gpt, as a part of `make bench`

The two loops make their steps in turn, each with a model of its own: other programs on the machine disturb both.
"""

import sys
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.peers import gpt
from bench.sample import emit
from torchtally import Account
from torchtally.tasks.fashion_mnist import task as fashion_mnist
from torchtally.tasks.fashion_mnist.options import Options

MEASURE = "added to a step by an account"
GOALS = {"fashion-mnist": 3.0, "gpt": 1.0}  # %, at most
_WARM, _BLOCKS, _STEPS = 20, 10, 50


def _images() -> tuple[Callable[[], nn.Module], TensorDataset, int]:
    options = Options()
    n = options.batch_size * (_WARM + _BLOCKS * _STEPS)
    data = TensorDataset(torch.rand(n, 28, 28), torch.randint(10, (n,)))
    return lambda: fashion_mnist.model(options), data, options.batch_size


def _text() -> tuple[Callable[[], nn.Module], TensorDataset, int]:
    tokens = torch.randint(len(gpt.data().vocabulary), (gpt.BATCH * (_WARM + _BLOCKS * _STEPS), gpt.LENGTH + 1))
    return gpt.model, TensorDataset(tokens[:, :-1], tokens[:, 1:]), gpt.BATCH


_TASKS = {"fashion-mnist": _images, "gpt": _text}


def main() -> None:
    torch.set_num_threads(1)
    task = sys.argv[1]
    make, data, batch = _TASKS[task]()
    sampler: DistributedSampler[Any] = DistributedSampler(data, 1, 0)
    plain = _Loop(make(), DataLoader(data, batch, sampler=sampler), lambda loss: loss)
    with Account("bench", epochs=1) as account:
        ours = _Loop(make(), account.loader(data, batch_size=batch), account.weigh)
        account.optimizer(ours.optimizer)
        for each in (plain, ours):
            each.begin()
        for number in range(_WARM):
            (plain if number % 2 else ours).step()
            (ours if number % 2 else plain).step()
        for _ in range(_BLOCKS):
            took: dict[_Loop, list[float]] = {plain: [], ours: []}
            for number in range(_STEPS):
                for each in (plain, ours) if number % 2 else (ours, plain):
                    took[each].append(each.step())
            by_hand, with_account = median(took[plain]), median(took[ours])
            emit(MEASURE, 100 * (with_account / by_hand - 1), "%", "lower", task=task)
        assert ours.ends()


class _Loop:
    """A loop whose steps are made one by one."""

    def __init__(self, model: nn.Module, batches: Iterable[Any], weigh: Callable[[Tensor], Tensor]):
        self._model, self._batches, self._weigh = model, batches, weigh
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def begin(self) -> None:
        self._left = iter(self._batches)

    def step(self) -> float:
        """Seconds of CPU time."""
        began = time.process_time()
        inputs, labels = next(self._left)
        loss = cross_entropy(self._model(inputs).flatten(0, -2), labels.flatten())
        self._weigh(loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - began

    def ends(self) -> bool:
        return next(self._left, None) is None


if __name__ == "__main__":
    main()
