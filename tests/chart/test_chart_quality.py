"""Lint, unit tests, documentation and examples are as good as the chart."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]

ROOT = Path(__file__).parents[2]
CHART = "charts/torchtally"
KIND = ("-f", f"{CHART}/ci/kind-values.yaml")


@pytest.mark.parametrize("values", [(), KIND], ids=["defaults", "kind"])
def test_lint(helm: Helm, values: tuple[str, ...]) -> None:
    result = helm("lint", "--strict", CHART, *values)
    assert result.returncode == 0, result.stdout + result.stderr


def test_unit_tests(helm: Helm) -> None:
    if "unittest" not in helm("plugin", "list").stdout:
        pytest.skip("the helm-unittest plugin is not installed")
    result = helm("unittest", "--strict", CHART)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("example", "values"), [("fashion-mnist", KIND), ("fashion-mnist-gpu", ())])
def test_examples_are_what_the_chart_renders(render: Render, example: str, values: tuple[str, ...]) -> None:
    text = (ROOT / "examples" / f"{example}.yaml").read_text()
    documents = [document for document in yaml.safe_load_all(text) if document]
    assert documents == render("--skip-tests", *values), "run `make examples`"


def test_readme_is_what_helm_docs_writes() -> None:
    if shutil.which("helm-docs") is None:
        pytest.skip("helm-docs is not on PATH")
    command = ["helm-docs", "--dry-run", "--log-level=error", "--sort-values-order=file", "--chart-search-root", CHART]
    written = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert (ROOT / CHART / "README.md").read_text().strip() == written.strip(), "run `make docs`"


def leaves(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in schema["properties"].items():
        if "properties" in value:
            yield from leaves(value, f"{prefix}{name}.")
        elif name != "global":
            yield prefix + name, value


def test_every_value_is_described_once() -> None:
    values = dict(leaves(json.loads((ROOT / CHART / "values.schema.json").read_text())))
    assert [name for name, value in values.items() if not value.get("description")] == []
    readme = (ROOT / CHART / "README.md").read_text().splitlines()
    [_, *rows] = [line.split(" | ") for line in readme if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in rows] == list(values)
    assert [row[0] for row in rows if not row[-1].strip(" |")] == []
