"""Nothing that a script does breaks the observer, and the observer breaks no script."""

import os
import subprocess
import sys
from pathlib import Path

import observed_programs as programs
import pytest

from torchtally_observer import line as observed_line

ROOT = Path(programs.__file__).parents[2]
ALONE = "import torch\nfrom torchtally_observer import start\nstart.start()\nfrom torch.utils.data import *\n"


def alone(folder: Path, program: str, **variables: str) -> programs.Ended:
    """Run a program as one process."""
    path = folder / "train.py"
    path.write_text(ALONE + program)
    env = {**os.environ, "TORCHTALLY_OBSERVE": "auto", **variables}
    for name in ("RANK", "WORLD_SIZE", "TORCHTALLY_OBSERVED"):
        env.pop(name, None)
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, env=env, cwd=folder, timeout=300
    )
    return programs.Ended([ended.returncode], ended.stdout, ended.stderr)


ODD = """
import threading
import numpy

class Odd(Dataset):
    def __init__(self, length=40): self.length = length
    def __len__(self):
        if self.length is None: raise RuntimeError("no length")
        return self.length
    def __getitem__(self, index): return torch.zeros(3), {"label": 1, "name": "a"}

class Order:
    __slots__ = ("indices",)
    def __init__(self, indices): self.indices = indices
    def __iter__(self): return iter(self.indices)
    def __len__(self): return len(self.indices)

def passes(**options):
    counts.append(sum(1 for _ in DataLoader(**options)))

counts = []
passes(dataset=Odd(None), batch_size=4, sampler=Order(range(40)))
passes(dataset=Odd(), batch_size=4, sampler=Order([("fold", index) for index in range(40)]))
passes(dataset=Odd(), batch_size=4, sampler=Order(numpy.arange(40)))
passes(dataset=Odd(), batch_size=4, sampler=Order(list(torch.arange(40))))
passes(dataset=Odd(), batch_size=4, sampler=Order(range(-40, 0)))
passes(dataset=Odd(), batch_size=None)
passes(dataset=Odd(), batch_size=4, num_workers=2, in_order=False)
passes(dataset=Odd(), batch_size=4, collate_fn=lambda rows: [object() for _ in rows])
passes(dataset=Odd(0), batch_size=4)
threads = [threading.Thread(target=passes, kwargs={"dataset": Odd(), "batch_size": 4}) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
with torch.inference_mode():
    passes(dataset=Odd(), batch_size=4)
passes(dataset=[[1, 2.0, "a"]] * 40, batch_size=4, collate_fn=list)
print(counts)
"""


def test_odd_loaders_are_observed_and_work_as_without(tmp_path: Path) -> None:
    observed, plain = alone(tmp_path, ODD), alone(tmp_path, ODD, TORCHTALLY_OBSERVE="never")
    assert observed.codes == plain.codes == [0], observed.err
    assert observed.out == plain.out and "TORCHTALLY" not in plain.err
    lines = observed.lines
    assert not lines.unread and not lines.rest and len(lines.handed) == 14  # of three threads, too
    assert [line.samples for line in lines.handed.values() if line.loader.length == 40] == [40] * 12


@pytest.mark.parametrize("options", ["", "num_workers=2", "num_workers=2, in_order=False"])
def test_a_batch_that_cannot_be_read_shifts_no_other(options: str, tmp_path: Path) -> None:
    program = f"""
class Broken(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        if index == 9: raise OSError("not an image")
        return torch.tensor([float(index)])
batches = iter(DataLoader(Broken(), 4, {options}))
while True:
    try:
        next(batches)
    except OSError:
        continue
    except StopIteration:
        break
for _ in DataLoader(range(40), 4, sampler=[*range(8), *range(12, 40)]):
    pass
"""
    ended = alone(tmp_path, program)
    assert ended.codes == [0], ended.err
    line, others = ended.handed
    assert (line.end, line.samples) == ("whole", 36)
    assert line.handed == others.handed


def test_random_numbers_are_those_of_the_program(tmp_path: Path) -> None:
    program = """
import random
torch.manual_seed(3); random.seed(3)
for batch in DataLoader(TensorDataset(torch.randn(64, 2)), 8, shuffle=True, num_workers=1):
    print(batch[0].sum().item())
print(torch.rand(1).item(), random.random())
"""
    observed, plain = alone(tmp_path, program), alone(tmp_path, program, TORCHTALLY_OBSERVE="never")
    assert observed.out == plain.out and len(observed.handed) == 1


@pytest.mark.parametrize(
    ("end", "code"), [("1 / 0", 1), ("raise SystemExit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9)]
)
def test_a_program_ends_as_without_and_has_the_lines_of_its_passes(tmp_path: Path, end: str, code: int) -> None:
    program = f"""
import os, signal
for batch in DataLoader(range(40), 4): pass
for number, batch in enumerate(DataLoader(range(80), 4)):
    if number == 9: {end}
"""
    ended = alone(tmp_path, program)
    assert ended.codes == [code]
    assert "TORCHTALLY" not in ended.out
    passes = [(line.loader.length, line.end, line.samples) for line in ended.handed]
    assert passes == [(40, "whole", 40), (80, "left", 40)][: 1 if code == -9 else 2]


def test_what_the_observer_cannot_do_is_said_once_and_the_program_goes_on(tmp_path: Path) -> None:
    program = """
from torchtally_observer import indices
def broken(*_): raise KeyError("secret")
indices.Indices.add = broken
for epoch in range(3):
    print(sum(1 for _ in DataLoader(range(40), 4)))
"""
    ended = alone(tmp_path, program)
    assert ended.out == "10\n10\n10\n" and ended.codes == [0]
    assert ended.err.count("TORCHTALLY-OBSERVED") == 1 and "secret" not in ended.err
    [note] = ended.notes
    assert "the observer has failed (KeyError in train.py:" in note and "the program continued" in note


def test_a_pytorch_without_the_private_parts_is_not_observed(tmp_path: Path) -> None:
    program = """
from torch.utils.data import dataloader
from torchtally_observer import patches, start
base, dataloader._BaseDataLoaderIter = dataloader._BaseDataLoaderIter, object()
start._observe(dataloader)
print("goes on")
"""
    ended = alone(tmp_path, program)
    assert ended.out == "goes on\n" and ended.codes == [0]
    assert ended.err.count("TORCHTALLY-OBSERVED") == 1 and "AttributeError in patches.py" in ended.err


def test_passes_beyond_a_limit_are_summed_up(tmp_path: Path) -> None:
    program = """
loader = DataLoader(range(40), 4)
for step in range(1000): next(iter(loader))
"""
    ended = alone(tmp_path, program)
    assert len(ended.handed) == 256
    [rest] = ended.lines.rest
    assert "744 more passes with 2976 samples" in rest.text
    assert ended.notes == ["train.py:7 (range): 744 more passes with 2976 samples are summed up"]


def test_a_line_is_short_and_holds_no_sample_and_no_path(tmp_path: Path) -> None:
    program = """
class Secret(Dataset):
    def __init__(self): self.root, self.words = "/home/secret", ["secret"] * 4000
    def __len__(self): return 4000
    def __getitem__(self, index): return self.words[index], torch.full((3,), index), torch.zeros(2), index
split, _ = random_split(Secret(), [2400, 1600])
class Twice:
    def __iter__(self): return iter([*range(2400), *range(2400)])
    def __len__(self): return 4800
for batch in DataLoader(split, 100, sampler=Twice()): pass
class Rows(IterableDataset):
    def __iter__(self): return iter(torch.randn(1000, 2))
for batch in DataLoader(Rows(), 100): pass
"""
    ended = alone(tmp_path, program)
    lines = [line for line in ended.err.splitlines() if line.startswith(observed_line.PREFIX)]
    assert len(lines) == 2 and all(len(line) < 2048 for line in lines), [len(line) for line in lines]
    assert "secret" not in ended.err and str(tmp_path) not in ended.err


def test_a_resumed_loader_goes_on_and_what_it_replays_does_not_count(tmp_path: Path) -> None:
    program = """
from torchdata.stateful_dataloader import StatefulDataLoader
class Rows(IterableDataset):
    def __iter__(self): return iter(torch.arange(400.0))
for dataset in (range(400), Rows()):
    for workers in (0, 1):
        loader = StatefulDataLoader(dataset, 20, num_workers=workers)
        for number, batch in enumerate(loader):
            if number == 9: break
        again = StatefulDataLoader(dataset, 20, num_workers=workers)
        again.load_state_dict(loader.state_dict())
        print(sum(1 for _ in again))
"""
    ended = alone(tmp_path, program)
    assert ended.out == "10\n" * 4, ended.err
    assert [line.samples for line in ended.handed] == [200] * 8
    assert sorted(line.resumed for line in ended.handed) == [0] * 4 + [10] * 4 and not ended.faults


@pytest.mark.cold
def test_a_folder_on_the_path_starts_it_and_runs_the_sitecustomize_that_it_hides(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the hidden one')\n")
    (tmp_path / "train.py").write_text(
        "from torch.utils.data import DataLoader\nprint(len([*DataLoader(range(9), 3)]))\n"
    )
    env = {**os.environ, "TORCHTALLY_OBSERVE": "auto"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "trainer/torchtally_observer"), str(tmp_path)])
    for name in ("RANK", "TORCHTALLY_OBSERVED"):
        env.pop(name, None)
    ended = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, env=env, cwd=tmp_path, timeout=300
    )
    assert ended.stdout == "the hidden one\n3\n", ended.stderr
    assert ended.stderr.count("TORCHTALLY-OBSERVED") == 1 and '"place":"train.py:2"' in ended.stderr


FORK = """
import os
batches = iter(DataLoader([float(number) for number in range(64)], 4))
next(batches)
child = os.fork()
rest = sum(1 for _ in batches)  # in both
list(DataLoader([0.0] * 8, 4))
if child: os.waitpid(child, 0)
print(rest)
"""


def test_a_fork_says_only_what_it_has_begun(tmp_path: Path) -> None:
    ended = alone(tmp_path, FORK)
    assert ended.codes == [0] and ended.out == "15\n15\n"
    found = ended.handed
    assert len({line.process.pid for line in found}) == 2
    assert sorted(line.samples for line in found) == [8, 8, 64]
