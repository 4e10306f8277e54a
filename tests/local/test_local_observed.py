"""What the loaders of a pod's own program handed out is told at the job's end."""

import json
import subprocess
import sys
from pathlib import Path

import foreign_python
from localjobs import container, pytorchjob, run_script, write

SCRIPT = """
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
dataset = TensorDataset(torch.arange(200.0)[:, None])
loader = DataLoader(dataset, batch_size=10, sampler=DistributedSampler(dataset, seed=dist.get_rank()))
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for (points,) in loader:
    model(points).sum().backward()
    optimizer.step()
print("trained")
"""
LOST = "51 of 200 samples go to no rank"  # by an independent count


def test_a_seed_for_each_rank_is_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    document = pytorchjob("", "", policy="Never")
    for kind in ("Master", "Worker"):  # without a shell, they start as forks
        container(document, kind)["command"] = [sys.executable, str(tmp_path / "train.py")]
    log = tmp_path / "job.log"
    ended = run_script(write(tmp_path, document), "--log", str(log), "--json")
    assert ended.returncode == 0, ended.stderr
    *lines, outcome = ended.stdout.splitlines()
    assert sorted(lines) == ["[demo-master-0] trained", "[demo-worker-0] trained"]
    said = ended.stderr.partition("PyTorchJob demo is successfully completed.\n")[2]
    assert LOST in said and "the samplers of ranks 0 and 1 have seeds 0 and 1" in said
    assert "✗ observed: 2 ranks, 1 pass, 1 fault" in said
    observation = json.loads(outcome)["observation"]
    assert observation["outcome"] == "faulty" and LOST in observation["faults"][0]

    observed = [line.partition("] ")[2] for line in log.read_text().splitlines() if "OBSERVED" in line]
    assert len(observed) == 2 and all(line.startswith("TORCHTALLY-OBSERVED {") for line in observed)
    # Without a log, stdout has them, for verify_shards.py behind a pipe. A job that fails is told of as well.
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in observed))
    ended = run_script(write(tmp_path, pytorchjob(f"cat {tmp_path}/lines; exit 1", policy="Never")))
    assert (ended.returncode, ended.stdout.splitlines()) == (1, [f"[demo-master-0] {line}" for line in observed])
    assert LOST in ended.stderr


def test_pods_are_observed_by_default_as_in_the_image(tmp_path: Path) -> None:
    document = pytorchjob("echo observe: $TORCHTALLY_OBSERVE")
    assert "observe: auto" in run_script(write(tmp_path, document)).stdout
    assert "observe: never" in run_script(write(tmp_path, document), TORCHTALLY_OBSERVE="never").stdout
    container(document)["env"] = [{"name": "TORCHTALLY_OBSERVE", "value": "never"}]
    assert "observe: never" in run_script(write(tmp_path, document)).stdout


def test_a_line_behind_a_progress_bar_is_hidden_from_there_on(tmp_path: Path) -> None:
    printed = "0%|   | 0/9\\r 50%|#  | 4/9TORCHTALLY-OBSERVED {}\\nTORCHTALLY-OBSERVED {}\\na line\\nTORCHTALLY {}\\n"
    log = tmp_path / "log"
    ended = run_script(write(tmp_path, pytorchjob(f"printf %b '{printed}'")), "--log", str(log))
    assert ended.stdout.splitlines() == ["[demo-master-0]  50%|#  | 4/9", "[demo-master-0] a line"]
    assert log.read_text().count("OBSERVED {}") == 2
    assert "✗ incomplete: 1 rank" in ended.stderr


def test_a_python_that_has_nothing_of_torchtally_is_observed_on_demand(tmp_path: Path) -> None:
    python = foreign_python.made(tmp_path / "venv")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = f"exec {python} {tmp_path}/train.py"
    manifest = write(tmp_path, pytorchjob(command, command, policy="Never"))
    assert subprocess.run([python, "-E", "-c", "import torchtally_observer"], capture_output=True).returncode == 1
    ended = run_script(manifest, "--observe", "--json")
    assert ended.returncode == 0, ended.stderr
    assert LOST in ended.stderr and "not applied" not in ended.stderr and "volume" not in ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["observation"]["outcome"] == "faulty"


def test_a_manifest_that_cannot_be_observed_is_refused(tmp_path: Path) -> None:
    document = pytorchjob("true")
    container(document)["env"] = [{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    ended = run_script(write(tmp_path, document), "--observe")
    assert ended.returncode == 2 and "PYTHONPATH of container pytorch comes from another object" in ended.stderr
