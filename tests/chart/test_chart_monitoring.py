"""The chart's alerts and Grafana dashboard: valid by Prometheus and by Grafana's schema, of metrics that there are."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from metric_names import SERVED, asked

CHART = Path(__file__).parents[2] / "charts/torchtally"
ALERTS = CHART / "alerts/torchtally.yaml"
DASHBOARD = CHART / "dashboards/torchtally.json"
VARIABLES = {"$namespace": "team", "$pod": "demo-.*", "$__rate_interval": "1m"}


def tool(name: str) -> str:
    """As `tools/install.py` installs it."""
    found = shutil.which(name, path=f"{os.environ.get('TOOLS_DIR', '')}{os.pathsep}{os.environ.get('PATH', '')}")
    if not found:
        pytest.skip(f"{name} is not there: `tools/install.py {name}` builds it")
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


@pytest.mark.parametrize(
    "command",
    [("check", "rules", "--lint-fatal", ALERTS), ("test", "rules", Path(__file__).with_name("alerts.yaml"))],
)
def test_alerts_fire_when_they_should(command: tuple[str, ...]) -> None:
    result = subprocess.run([tool("promtool"), *command], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_dashboard_is_valid_by_grafanas_schema() -> None:
    result = subprocess.run([tool("grafana-schema"), DASHBOARD], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ('"type": "timeseries"', '"type": "timeseries", "colour": "red"', "colour"),
        ('"w": 8', '"w": "wide"', "gridPos"),
        ('"displayMode": "list",', "", "displayMode"),
    ],
)
def test_grafanas_schema_refuses_what_grafana_would_not_show(
    tmp_path: Path, before: str, after: str, problem: str
) -> None:
    (changed := tmp_path / "dashboard.json").write_text(DASHBOARD.read_text().replace(before, after))
    result = subprocess.run([tool("grafana-schema"), changed], capture_output=True, text=True)
    assert result.returncode == 1
    assert problem in result.stdout + result.stderr


def test_prometheus_parses_each_query(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate(expressions()):
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"panel:{number}", "expr": expression})
    (file := tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run([tool("promtool"), "check", "rules", file], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_they_ask_for_metrics_that_there_are() -> None:
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    queries = (each["query"] for each in variables if each["type"] == "query")
    found = [asked(text) for text in (ALERTS.read_text(), *expressions(), *queries)]
    assert all(found)
    assert set().union(*found) <= SERVED


def test_its_panels_have_numbers_and_places_of_their_own() -> None:
    places = [
        (panel["gridPos"]["x"] + across, panel["gridPos"]["y"] + down)
        for panel in panels()
        for across in range(panel["gridPos"]["w"])
        for down in range(panel["gridPos"]["h"])
    ]
    assert len(places) == len({*places})
    assert all(across < 24 for across, _ in places)
    assert len({panel["id"] for panel in panels()}) == len(panels())
