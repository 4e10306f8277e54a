"""Where the time of an account's loader goes without workers: CPU time of each part of a step, in microseconds.

python -m bench.measure.parts    prints a table, beside an untallied DataLoader and a small training step
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat, starmap
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, default_collate
from torch.utils.data.distributed import DistributedSampler

from bench import machine
from bench.markdown import markdown
from bench.measure.loading import AtOnce, OneByOne, same
from torchtally import each_row
from torchtally.accounting import randomness
from torchtally.accounting.epoch_in_progress import EpochInProgress
from torchtally.accounting.loader import Loader
from torchtally.accounting.sampler import Sampler
from torchtally.accounting.tally import Phase, Run, Tally

_STEPS = 1024  # of an epoch: as many as enter the digest at once, or more
_PASSES = 7
CASES: dict[tuple[str, int], tuple[type[OneByOne], Any]] = {
    ("one by one", 32): (OneByOne, None),
    ("at once", 256): (AtOnce, same),
}


def main() -> None:
    torch.set_num_threads(1)
    print("\n".join(table()))


def parts(batch: int, kind: type[OneByOne], collate: Any) -> dict[str, float]:
    """The microseconds of a step that each part takes."""
    n = _STEPS * batch
    dataset = kind(n)
    sampler = Sampler(n, batch_size=batch, rank=0, world=1)
    sampler.set_epoch(1)
    plain = DataLoader(dataset, batch, sampler=DistributedSampler(dataset, num_replicas=1, rank=0), collate_fn=collate)
    loader = Loader(dataset, sampler, collate and each_row(collate))
    make = collate or default_collate
    indices, batches = list(sampler.steps()), list(loader)

    def fetched(chosen: list[int]) -> Any:
        return make(dataset.__getitems__(chosen) if isinstance(dataset, AtOnce) else [dataset[i] for i in chosen])

    def handed_out() -> Iterator[Any]:
        return map(_in_progress(sampler).hand_out, batches)

    def counted() -> Iterator[None]:
        current = _in_progress(sampler)
        for each in batches:
            current.hand_out(each)
        return map(current.count, range(1, _STEPS + 1))

    seeding = _least(lambda: starmap(randomness.reseed, repeat((1 << 60,), _STEPS)))
    return {
        "the untallied DataLoader": _least(lambda: iter(plain)),
        "the account's loader": _least(lambda: iter(loader)),
        "of these, the order and its lists of indices": _least(lambda: iter(loader.sampler)),
        "of these, fetch and collate": _least(lambda: map(fetched, indices)),
        "of these, seeding for what the dataset draws": seeding,
        "seeding for what the loop draws": seeding,
        "comparison with the order, which is computed again": _least(handed_out),
        "count and digest": _least(counted),
        "a step of a perceptron, for comparison": _training_step(batch),
    }


def _in_progress(sampler: Sampler) -> EpochInProgress:
    run = Run(run="r", attempt=1, pod="p", task="t", plan={"train": 1}, rank=0, world=1, seed=0, data="d")
    phase = Phase(name="train", epoch=1, n=sampler.n, batch=sampler.batch, contract="exact", order=sampler.order)
    return EpochInProgress(Tally(run, phase), sampler.schedule, trains=False)


def _training_step(batch: int) -> float:
    """Forward, backward, and SGD of a perceptron with 64 hidden units, for images of the size of MNIST's."""
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 784), torch.randint(10, (batch,))

    def steps() -> Iterator[None]:
        for _ in range(_STEPS):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            yield optimizer.step()

    return _least(steps)


def _least(make: Callable[[], Iterable[Any]]) -> float:
    """The least that a step takes of several passes over what `make` returns, in microseconds."""
    took = []
    for _ in range(_PASSES):
        each = make()
        began = time.process_time()
        deque(each, maxlen=0)
        took.append(time.process_time() - began)
    return min(took) / _STEPS * 1e6


def table() -> Iterator[str]:
    columns = {case: parts(case[1], *how) for case, how in CASES.items()}
    names = next(iter(columns.values()))
    rows = [[name, *(f"{column[name]:.3g}" for column in columns.values())] for name in names]
    yield from markdown(["part", *(f"{fetched}, {batch}" for fetched, batch in columns)], rows, left=(0,))
    yield ""
    yield f"The least of n = {_PASSES} passes over {_STEPS} steps. {machine.sentence('torch', 'numpy')}"


if __name__ == "__main__":
    main()
