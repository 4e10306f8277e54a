"""What the trainer's tests share."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import objectstore
import pytest
from task_data import unpacked


@pytest.fixture(scope="session")
def fashion_mnist() -> Path:
    return unpacked("fashion-mnist")


@pytest.fixture(scope="session")
def mnist() -> Path:
    return unpacked("mnist")


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[objectstore.Store]:
    with objectstore.server(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(store_server: objectstore.Store) -> objectstore.Store:
    """An empty bucket in an object store."""
    store = replace(store_server, bucket=f"bucket-{uuid4()}")
    store.client().create_bucket(Bucket=store.bucket)
    return store


@pytest.fixture
def environment(fashion_mnist: Path, tmp_path: Path) -> dict[str, str]:
    """A container's: nothing of a job in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NVIDIA_VISIBLE_DEVICES"):
        kept.pop(name, None)
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "TORCHTALLY_DATA": str(fashion_mnist),
        "TORCHTALLY_OUTPUT": str(tmp_path / "output"),
    }
