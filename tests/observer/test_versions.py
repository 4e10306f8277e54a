"""The observer in other Pythons, and with other versions of PyTorch: `make test-torch TORCH=2.0.1`."""

import os
import shutil
import subprocess
from pathlib import Path

import foreign_python
import pytest

import torchtally_observer
from torchtally.observed import judge

SOURCE = Path(torchtally_observer.__path__[0])
MODULES = sorted(f"torchtally_observer.{path.stem}" for path in SOURCE.glob("*.py") if path.stem != "__init__")
IMPORTS = f"""
import sys
for name in ["torchtally_observer.patches", *{MODULES}]: __import__(name)  # patches is the first in a program
print(sys.path.count({str(SOURCE)!r}), *sys.version_info[:2])
"""

BEGIN = """
import sys
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data.distributed import DistributedSampler

class Points(Dataset):
    def __len__(self): return 200
    def __getitem__(self, at): return torch.tensor([float(at)]), at % 3

class Rows(IterableDataset):
    def __iter__(self): return iter([torch.tensor([float(at)]) for at in range(50)])

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
print(torch.__version__)
"""
# Each has a line of its own, which is that of its loader.
EPOCHS = """
$MADE
loader = DataLoader(dataset, 10, sampler=sampler, num_workers=$WORKERS, persistent_workers=$WORKERS > 0)
for epoch in range(2):
    if sampler: sampler.set_epoch(epoch)
    for batch in loader:  # $MISTAKE
        model(batch if dataset.__class__ is Rows else batch[0]).sum().backward()
        optimizer.step()
"""
# By mistake: the dataset and the sampler, and what is said of them.
MISTAKES = {
    "none": ("Points()", "DistributedSampler(dataset)", "each sample handed out exactly once"),
    "no-sampler": ("Points()", "None", "each rank is handed all 200 samples in the same order"),
    "seed": ("Points()", "DistributedSampler(dataset, seed=rank)", "the samplers of ranks 0 and 1 have seeds 0 and 1"),
    "stream": ("Rows()", "None", "the ranks are handed the same rows"),
}


def found(version: str) -> str | None:
    """A Python of this version: on PATH, or one of pyenv's."""
    own = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    return str(own[-1]) if own else shutil.which(f"python{version}")


@pytest.mark.parametrize("minor", range(8, 15))
def test_any_python_can_import_it(minor: int) -> None:
    python = found(f"3.{minor}")
    if python is None:
        pytest.skip(f"no Python 3.{minor} on PATH or among pyenv's")
    env = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-W", "error", "-c", IMPORTS]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == (f"0 3 {minor}\n", "")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7"])
def test_an_older_python_is_left_alone(version: str) -> None:
    python = found(version)
    if python is None:
        pytest.skip(f"no Python {version} on PATH or among pyenv's")
    env = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    program = "import sys, json, decimal; print('torchtally_observer' in sys.modules)"
    ended = subprocess.run([python, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("False\n", "")


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """That of OBSERVED_PYTHON, which has another PyTorch, or one with this PyTorch and nothing of torchtally."""
    given = os.environ.get("OBSERVED_PYTHON")
    # Not resolved: the link is what makes it that of an environment.
    return str(Path(given).absolute() if given else foreign_python.made(tmp_path_factory.mktemp("python")))


def test_mistakes_are_named_with_workers_and_without(python: str, tmp_path: Path) -> None:
    program, cases = BEGIN, [(mistake, workers) for mistake in MISTAKES for workers in (0, 2)]
    for mistake, workers in cases:
        dataset, sampler, _ = MISTAKES[mistake]
        epochs = EPOCHS.replace("$MADE", f"dataset = {dataset}; sampler = {sampler}")
        program += epochs.replace("$MISTAKE", f"{mistake} {workers}").replace("$WORKERS", str(workers))
    (tmp_path / "train.py").write_text(program)
    env = {"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [python, "-W", "ignore", "train.py", str(rank), str(tmp_path / "store")],
            env=env,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # nothing where it has ended
    observation = judge.of("".join(err for _, err in outputs).splitlines())
    assert [rank.returncode for rank in ranks] == [0, 0] and observation, outputs
    said = {
        loader.loader.partition(" ")[0]: [(finding.sign == "fault", finding.text) for finding, _ in loader.all_findings]
        for loader in observation.loaders
    }
    for mistake, workers in cases:
        end = f"  # {mistake} {workers}"
        number = next(at for at, text in enumerate(program.splitlines(), 1) if text.endswith(end))
        found = said.pop(f"train.py:{number}")
        assert any(MISTAKES[mistake][2] in text for _, text in found), (mistake, found)
        assert any(fault for fault, _ in found) == (mistake != "none"), (mistake, found)
    assert not said
    assert outputs[0][0] == outputs[1][0] and outputs[0][0].startswith(os.environ.get("OBSERVED_TORCH", "2."))
