"""Each alert of the chart fires on a real Prometheus, for a real job with that problem. A minute is a second here."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import launched
import pytest
import ranks
import yaml

pytestmark = pytest.mark.nightly

RULES = Path(__file__).parents[3] / "charts/torchtally/alerts/torchtally.yaml"
SCRIPT = """
import sys, time
import torch, torch.distributed as dist
from torchtally import Account
from torchtally.errors import Unproven

ails, output = sys.argv[1:]
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Account(task=ails, plan={"train": 2}, anew=True) as account:
    account.checkpoints(output, {"model": model, "optimizer": optimizer}, every=1).resume()
    try:
        loader = account.loader(torch.ones(40_000, 1), "train", batch_size=1)
        for batch in account.epoch("train", 1, loader):
            if ails == "straggler" and dist.get_rank() == 1:
                time.sleep(0.05)
            if ails == "stands still" and batch.step == 100:
                time.sleep(1000)
            model(batch.data).sum().backward()
            time.sleep(0.01)
            dist.barrier()
            optimizer.step()
            if ails == "unproven" and batch.step == 10:
                break
            account.commit()
        [*account.epoch("train", 2, loader)]
    except Unproven:
        time.sleep(1000)
"""


@dataclass(frozen=True)
class Prometheus:
    """One that scrapes the pods of a job."""

    port: int

    def firing(self) -> dict[str, set[str]]:
        """The pods of each alert that fires."""
        alerts: dict[str, set[str]] = {}
        for each in self._asked('ALERTS{alertstate="firing"}'):
            alerts.setdefault(each["metric"]["alertname"], set()).add(each["metric"]["pod"])
        return alerts

    def steps(self) -> float:
        """Steps of all pods together."""
        return sum(float(each["value"][1]) for each in self._asked("torchtally_steps_total"))

    def _asked(self, expression: str) -> list[Any]:
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=10) as answer:
                found: list[Any] = json.load(answer)["data"]["result"]
        except urllib.error.URLError:
            return []
        return found


@pytest.fixture
def program() -> str:
    """As `tools/install.py prometheus` installs it."""
    found = shutil.which("prometheus", path=f"{os.environ.get('TOOLS_DIR', '')}{os.pathsep}{os.environ['PATH']}")
    if not found:
        pytest.skip("prometheus is not there: `tools/install.py prometheus` builds it")
    return found


@pytest.fixture
def prometheus(program: str, tmp_path: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    rules = RULES.read_text()
    for minutes, seconds in ((r"(\d+)m\b", r"\1s"), (r"\b1h\b", "60s"), (r"\+ 300\b", "+ 5")):
        rules, count = re.subn(minutes, seconds, rules)
        assert count
    (tmp_path / "rules.yaml").write_text(rules)
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": "demo", "pod": pod}} for pod, port in ports.items()
    ]
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "demo", "static_configs": targets}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = ranks.free_port()
    command = [program, f"--config.file={tmp_path / 'prometheus.yaml'}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    yield Prometheus(port)
    process.terminate()
    process.wait()


@pytest.fixture
def ports() -> dict[str, int]:
    return {pod: ranks.free_port() for pod in ("demo-master-0", "demo-worker-0")}


@pytest.mark.parametrize(
    ("ails", "alerts"),
    [
        ("nothing", {}),
        ("straggler", {"TorchtallyStraggler": {"demo-worker-0"}}),
        ("stands still", {"TorchtallyNoProgress": {"demo-master-0"}, "TorchtallyCheckpointTooOld": {"demo-master-0"}}),
        ("unproven", {"TorchtallyProofFailed": {"demo-master-0"}}),
    ],
)
def test_an_alert_fires_for_what_ails_a_job(
    prometheus: Prometheus, ports: dict[str, int], tmp_path: Path, ails: str, alerts: dict[str, set[str]]
) -> None:
    (script := tmp_path / "ails.py").write_text(SCRIPT)
    with launched.job(launched.environment(TORCHTALLY_OUTPUT=str(tmp_path / "output")), tmp_path, 2) as job:
        for rank, port in enumerate(ports.values()):
            command = ["run", str(script), ails, str(tmp_path / "checkpoints")]
            job.start(rank, command, TORCHTALLY_METRICS_PORT=str(port))
        if alerts:
            launched.until(f"{alerts} fire", lambda: prometheus.firing().items() >= alerts.items())
        else:
            launched.until("some steps are seen", lambda: prometheus.steps() > 1000)
        assert set(prometheus.firing()) == set(alerts)
