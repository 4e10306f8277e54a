"""The chart's alerts, by Prometheus' own unit tests, ask for metrics that there are."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from metric_names import SERVED, asked

ALERTS = Path(__file__).parents[2] / "charts/torchtally/alerts/torchtally.yaml"
TESTS = Path(__file__).with_name("alerts.yaml")


@pytest.fixture
def promtool() -> str:
    """As `scripts/tools.py promtool` installs it."""
    tools = os.environ.get("TOOLS_DIR", "")
    found = shutil.which("promtool", path=f"{tools}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        pytest.skip("promtool is not there: `scripts/tools.py promtool` builds it")
    return found


@pytest.mark.parametrize("command", [("check", "rules", "--lint-fatal", ALERTS), ("test", "rules", TESTS)])
def test_alerts_fire_when_they_should(promtool: str, command: tuple[str, ...]) -> None:
    result = subprocess.run([promtool, *command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_alerts_ask_for_metrics_that_there_are() -> None:
    found = asked(ALERTS.read_text())
    assert found
    assert found <= SERVED
