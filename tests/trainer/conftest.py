"""What the trainer's tests share."""

import os
from pathlib import Path

import pytest

from torchtally import data
from torchtally.job import Places


@pytest.fixture(scope="session")
def fashion_mnist() -> Path:
    """The folder with Fashion-MNIST's files, fetched if it has to be."""
    places = Places.from_env(os.environ)
    data.load(data.FASHION_MNIST, places.data, places.cache)
    return places.data or places.cache / data.FASHION_MNIST.name
