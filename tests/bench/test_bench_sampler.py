"""What is measured of a sampler begins when it is asked, and is its own."""

import sys
from collections.abc import Iterator
from importlib import metadata

import numpy as np
import pytest
import torch

from bench.measure import sampler

N = 1002


def needs(tool: str) -> None:
    """Skip where it is not installed: it comes with the bench's packages alone."""
    if package := {"torchdata": "torchdata", "streaming": "mosaicml-streaming"}.get(tool):
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")


@pytest.fixture(autouse=True)
def streaming_is_left_as_it_was() -> Iterator[None]:
    yield
    if not hasattr(sys.modules.get("streaming"), "__file__"):  # a stand-in
        for name in [each for each in sys.modules if each.partition(".")[0] == "streaming"]:
            del sys.modules[name]


@pytest.mark.parametrize("tool", sampler.TOOLS)
def test_every_index_of_the_shard_is_counted_and_the_first_by_itself(tool: str) -> None:
    needs(tool)
    made = list(sampler.TOOLS[tool](N))
    assert made[0] == 1
    # Rank 0 of 4: ours has the samples 0, 4, ...; a DistributedSampler pads. All but a last one that is not whole.
    assert sum(made) in (N // 4, -(-N // 4))


@pytest.mark.parametrize("tool", ["torch", "torchdata", "streaming"])
def test_nothing_is_shuffled_before_the_clock_runs(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(tool)

    def shuffle(*arguments: object, **options: object) -> None:
        raise RuntimeError("shuffled")

    monkeypatch.setattr(torch, "randperm", shuffle)
    monkeypatch.setattr(np.random, "default_rng", shuffle)
    made = sampler.TOOLS[tool](N)
    with pytest.raises(RuntimeError, match="shuffled"):
        next(made)
