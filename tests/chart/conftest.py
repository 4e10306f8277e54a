"""The chart as Helm 4 and Helm 3 render it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]

Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["helm", pytest.param("helm3", marks=pytest.mark.nightly)])
def helm(request: pytest.FixtureRequest) -> Helm:
    """Runs helm, and Helm 3 where it is there as helm3, in the repository's root.

    What the chart renders with Helm 3 is validated in one test, and all of the others run nightly.
    """
    program: str = request.param
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on PATH")
    # Helm 3, built by Go, takes Kubernetes to be 1.20 where nothing else is said.
    known = ["--kube-version=1.34"] if program == "helm3" else []
    environment = {**os.environ, "GOGC": "400"}  # more memory, and a fifth less of CPU time

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        options = known if args[0] in ("lint", "template") else []
        return subprocess.run(
            [program, args[0], *options, *args[1:]],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def render(helm: Helm) -> Callable[..., list[dict[str, Any]]]:
    """The documents of `helm template`."""

    def documents(*args: str, name: str = "demo", chart: str | Path = "charts/torchtally") -> list[dict[str, Any]]:
        result = helm("template", name, str(chart), *args)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return documents
