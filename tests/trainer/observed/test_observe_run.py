"""`torchtally run` observes what the loaders of a script hand out, and leaves the script as it is."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_scripts import started

import torchtally_observer

SCRIPT = """
import os, signal, sys
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler

def train(*place):
    if place:
        rank, store = place
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    loader = DataLoader(range(64), batch_size=8, sampler=DistributedSampler(range(64)))
    for epoch in range(2):
        samples = sum(len(batch) for batch in loader)
        print(f"rank {dist.get_rank()} epoch {epoch}: {samples} samples\\n", end="", flush=True)
    dist.barrier()

if __name__ == "__main__":
    match sys.argv[1:]:
        case [("fork" | "spawn") as method, store]:
            mp.start_processes(train, (store,), 2, start_method=method)
        case [end]:
            train()
            exec(end)
"""
LINES = ["rank 0 epoch 0: 32 samples", "rank 0 epoch 1: 32 samples"]
LINES += ["rank 1 epoch 0: 32 samples", "rank 1 epoch 1: 32 samples"]
TOLD = "observed: 2 ranks, 2 passes, no fault in how samples are handed out"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def observed(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """By rank and pass, the lines on stderr. None of them is on stdout."""
    assert "TORCHTALLY-OBSERVED" not in ended.stdout
    lines = [line for line in ended.stderr.splitlines() if line.startswith("TORCHTALLY-OBSERVED ")]
    found = [json.loads(line.partition(" ")[2]) for line in lines]
    return sorted(found, key=lambda line: (line["rank"], line["pass"]))


def check(ended: subprocess.CompletedProcess[str]) -> None:
    assert sorted(ended.stdout.splitlines()) == LINES, ended.stderr
    places = [(line["rank"], line["world"], line["pass"], line["samples"]) for line in observed(ended)]
    assert places == [(0, 2, 0, 32), (0, 2, 1, 32), (1, 2, 0, 32), (1, 2, 1, 32)]
    assert ended.stderr.count(TOLD) == 1 and TOLD in ended.stderr.splitlines()[-1]


ENDS = {"pass": 0, "1 / 0": 1, "os.kill(os.getpid(), signal.SIGKILL)": 137}


@pytest.mark.parametrize(("end", "code"), ENDS.items(), ids=["well", "raises", "killed"])
def test_a_script_is_observed_and_ends_as_it_does(script: Path, end: str, code: int) -> None:
    ended = started(script, end)
    check(ended)
    assert ended.returncode == code


def test_a_script_that_is_not_to_be_observed_is_not(script: Path) -> None:
    never = started(script, "pass", TORCHTALLY_OBSERVE="never")
    assert not observed(never) and "observed: " not in never.stderr and '"observed"' not in never.stderr
    assert (never.returncode, sorted(never.stdout.splitlines())) == (0, LINES)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.nightly)])
def test_children_of_a_script_are_observed(script: Path, method: str, tmp_path: Path) -> None:
    ended = started(script, method, str(tmp_path / "store"), world=1)
    assert ended.returncode == 0, ended.stderr
    check(ended)


def test_a_task_is_not_observed_in_the_image_either(fashion_mnist: Path, tmp_path: Path) -> None:
    task = ["fashion-mnist", "--epochs", "1", "--hidden", "8", "--batch-size", "1000"]
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", *task, "--data", str(fashion_mnist), "--output", str(tmp_path)],
        env={**os.environ, "TORCHTALLY_OBSERVE": "auto", "PET_NPROC_PER_NODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert not observed(ended) and "observed: " not in ended.stderr


@pytest.mark.parametrize("task", [False, True])
def test_a_mode_that_does_not_exist_is_refused(script: Path, task: bool) -> None:
    command = ["fashion-mnist"] if task else [str(script), "pass"]
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", *command],
        env={"TORCHTALLY_OBSERVE": "always"},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "TORCHTALLY_OBSERVE='always' must be auto or never" in ended.stderr


def test_a_start_of_python_imports_next_to_nothing() -> None:
    """The .pth file does so in each Python of the environment."""
    program = "import sys; print(*(name for name in sys.modules if name.startswith(('torch', 'json', 'atexit'))))"
    for mode, expected in (("auto", "torchtally_observer torchtally_observer.start"), ("never", ""), ("", "")):
        ended = subprocess.run(
            [sys.executable, "-c", program], env={"TORCHTALLY_OBSERVE": mode}, capture_output=True, text=True
        )
        assert (ended.stdout.strip(), ended.stderr) == (expected, "")


def test_the_observer_imports_the_standard_library_alone() -> None:
    (folder,) = torchtally_observer.__path__
    known = {*sys.stdlib_module_names, "torchtally_observer", "sitecustomize"}  # the last is one that is hidden
    for path in Path(folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 8))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.partition(".")[0] in known, path
