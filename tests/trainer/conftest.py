"""What the trainer's tests share."""

from pathlib import Path

import pytest
from task_data import fetched


@pytest.fixture(scope="session")
def fashion_mnist() -> Path:
    return fetched("fashion-mnist")


@pytest.fixture(scope="session")
def mnist() -> Path:
    return fetched("mnist")
