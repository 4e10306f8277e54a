"""The image does not grow unseen, and what a new trainer makes nodes pull stays small."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pods import IMAGE

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "tools/image_size.py"


@pytest.fixture(scope="module")
def report(image: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPORT), "--check", "--json", IMAGE], capture_output=True, text=True, timeout=300
    )


def test_it_is_within_its_limits(report: subprocess.CompletedProcess[str]) -> None:
    assert report.returncode == 0, report.stderr


def test_layers_go_from_what_changes_least_to_the_trainer(report: subprocess.CompletedProcess[str]) -> None:
    found = json.loads(report.stdout)
    *_, trainer = layers = found["layers"]
    assert trainer["compressed"] < 2_000_000 < max(layer["compressed"] for layer in layers)
    assert found["compressed"] == sum(layer["compressed"] for layer in layers) < found["unpacked"]
    assert next(iter(found["packages"])) == "torch"


def test_growth_is_told_by_name() -> None:
    found = runpy.run_path(str(REPORT))
    sizes = {"torch": 5_000_000, "numpy": 3_000_000, "tqdm": 500_000}
    layers = [found["Layer"](9_000_000, 4_000_000, ""), found["Layer"](2_000_000, 1_000_000, "")]
    report = found["Report"](image="i", target="cpu", layers=layers, packages=sizes)
    assert report.grown({"unpacked": 11, "compressed": 5, "packages except torch": 3.5, "trainer's layer": 2}) == []
    assert report.grown({"unpacked": 10.9, "compressed": 4, "packages except torch": 3.4, "trainer's layer": 1}) == [
        "i: unpacked is 11.0 MB, but the limit in size-limits.json is 10.9 MB",
        "i: compressed is 5.0 MB, but the limit in size-limits.json is 4 MB",
        "i: packages except torch is 3.5 MB, but the limit in size-limits.json is 3.4 MB",
        "i: trainer's layer is 2.0 MB, but the limit in size-limits.json is 1 MB",
    ]


def test_an_image_that_is_not_there_is_one_sentence(image: dict[str, Any]) -> None:
    command = [sys.executable, str(REPORT), "torchtally:no-such-image"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("report: ") and result.stderr.count("\n") == 1
