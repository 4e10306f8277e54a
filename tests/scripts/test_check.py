"""What `torchtally check` says of this machine and of scripts. tests/e2e/test_check.py has the cluster's part."""

import json
import re
import socket
from pathlib import Path

import pytest

from torchtally.checks import cluster, script
from torchtally.checks.finding import Finding, Level
from torchtally.commands import check

ROOT = Path(__file__).parents[2]
LOOP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.arange(400.0).reshape(-1, 1))
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
for number, (batch,) in enumerate(DataLoader(data, 4, {})):
    assert number < 2, "a third step is made"
    model(batch).sum().backward()
    optimizer.step()
"""


def of_script(tmp_path: Path, text: str) -> list[Finding]:
    (tmp_path / "train.py").write_text(text)
    return list(script.findings([str(tmp_path / "train.py")], 240))


def test_a_script_is_observed_up_to_its_second_step(tmp_path: Path) -> None:
    ended, samples = of_script(tmp_path, LOOP.format("sampler=DistributedSampler(data)"))
    assert (ended.level, samples.level) == (Level.GOOD, Level.GOOD), (ended, samples)
    ended, samples = of_script(tmp_path, LOOP.format("shuffle=False"))
    assert (ended.level, samples.level) == (Level.GOOD, Level.BAD)
    assert "all ranks are handed the same 8 samples in the same order" in samples.text


def test_a_shuffle_for_each_rank_is_told_before_its_ranks_overlap(tmp_path: Path) -> None:
    own = "shuffle=True, generator=torch.Generator().manual_seed(dist.get_rank())"
    ended, samples = of_script(tmp_path, LOOP.format(own))
    assert (ended.level, samples.level) == (Level.GOOD, Level.WARNING)
    assert "no sampler divides the samples, so a whole pass hands out all 400 to each rank" in samples.text


def test_a_script_that_fails_or_makes_no_step(tmp_path: Path) -> None:
    [failed] = of_script(tmp_path, "raise ValueError('bad data')")
    assert failed.level is Level.BAD and "ValueError: bad data" in failed.text
    ended, samples = of_script(tmp_path, "print('done')")
    assert (ended.level, samples.level) == (Level.WARNING, Level.WARNING)
    [none] = script.findings([str(tmp_path / "none.py")], 1)
    assert none.level is Level.BAD and "there is no file" in none.text


def test_a_host_name_without_an_address_is_bad(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise socket.gaierror("unknown")

    assert check.main(["--json"]) == 0
    assert {json.loads(line)["check"] for line in capsys.readouterr().out.splitlines()} >= {"package", "network"}
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert check.main([]) == 1
    said = capsys.readouterr().out
    assert "✗ network: the host name" in said and "check.md#check-network" in said


def test_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--context", "nowhere"]) == 1
    assert "✗ cluster: cannot use the context nowhere" in capsys.readouterr().out


def test_a_quota_that_is_used_up_is_bad() -> None:
    hard = {"pods": "10", "requests.cpu": "4"}
    assert cluster.quota("team", []).level is Level.GOOD
    assert cluster.quota("team", [(hard, {"pods": "9", "requests.cpu": "3500m"})]).level is Level.GOOD
    full = cluster.quota("team", [(hard, {"pods": "9", "requests.cpu": "4000m"})])
    assert full.level is Level.BAD and "requests.cpu 4000m of 4" in full.text and "pods" not in full.text


def test_each_check_has_its_section_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (ROOT / "trainer/torchtally/checks").glob("*.py"))
    text += (ROOT / "trainer/torchtally/commands/check.py").read_text()
    checks = set(re.findall(r'(?:good|bad|warning)\)?\(\s*"([a-z-]+)"', text)) | {"rights"}
    sections = re.findall(r"^## Check: (.+)$", (ROOT / "docs/reference/check.md").read_text(), re.MULTILINE)
    assert checks == set(sections)
