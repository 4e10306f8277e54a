"""Jobs of one, two, and three pods, in the environment of the test's file."""

from collections.abc import Iterator
from pathlib import Path

import launched
import pytest


@pytest.fixture
def alone(environment: dict[str, str], tmp_path: Path) -> Iterator[launched.Job]:
    with launched.job(environment, tmp_path, 1) as job:
        yield job


@pytest.fixture
def two(environment: dict[str, str], tmp_path: Path) -> Iterator[launched.Job]:
    with launched.job(environment, tmp_path, 2) as job:
        yield job


@pytest.fixture
def three(environment: dict[str, str], tmp_path: Path) -> Iterator[launched.Job]:
    with launched.job(environment, tmp_path, 3) as job:
        yield job
