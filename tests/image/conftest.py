"""Containers of the image, which end with their test, and the data that they train on."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pods import IMAGE, Pod, Start
from task_data import fetched
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

# Every test removes its containers itself; the reaper would be one more image to pull.
testcontainers_config.ryuk_disabled = True


@pytest.fixture(scope="session")
def image() -> dict[str, Any]:
    """The image's configuration."""
    result = subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"no image {IMAGE}: `make image` builds it, TORCHTALLY_IMAGE names another")
    configuration: dict[str, Any] = json.loads(result.stdout)[0]["Config"]
    return configuration


@pytest.fixture
def network(image: dict[str, Any]) -> Iterator[Network]:
    with Network() as network:
        yield network


@pytest.fixture
def start(request: pytest.FixtureRequest, image: dict[str, Any]) -> Iterator[Start]:
    if "network" in request.fixturenames:
        request.getfixturevalue("network")  # which then outlives the containers
    with ExitStack() as stack:

        def start(*command: str, tmpfs: tuple[str, ...] = (), **keywords: Any) -> Pod:
            container = DockerContainer(IMAGE, **keywords).with_command(list(command))
            for folder in tmpfs:
                container.with_tmpfs_mount(folder)
            return Pod(stack.enter_context(container))

        yield start


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder with Fashion-MNIST's files, which are fetched if they have to be."""
    return fetched("fashion-mnist")
