"""Scripts of users' own under the entry point: unchanged, and with the lines that prove their training."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from accounts import tallied, tallies
from own_scripts import ORDINARY, OWN, ROOT, SCRIPTS, reported, started, verified
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtally import events

LOOP = ROOT / "examples/own_loop.py"


def test_the_ordinary_script_runs_and_with_an_account_is_proved() -> None:
    losses = []
    for script in (ORDINARY, OWN):
        ended = started(script)
        assert ended.returncode == 0, ended.stderr
        losses.append([float(loss) for loss in re.findall(r"epoch \d: loss (\d+\.\d+)", ended.stdout)])
    for first, *_, last in losses:
        assert last < first / 2
    assert "✓ the proof holds: run" in (judged := verified(ended.stdout))
    assert "2 ranks, train 3 epochs" in judged
    assert ended.stdout.count("✓ every sample exactly once") == 3
    last_line = tallied(ended.stdout)[-1]
    assert (last_line["phase"], last_line["task"], last_line["phases"]["train"]["consumed"]) == ("all", "rings", 6000)


def test_a_script_with_distributed_sampler_runs_as_it_is(mnist: Path) -> None:
    ended = started(SCRIPTS / "mnist_script.py", str(mnist))
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        (loss,) = re.findall(rf"rank {rank} of 2: 1000 samples, loss (\d+\.\d+)", ended.stdout)
        assert float(loss) < 1.5  # from 2.3
    assert not tallied(ended.stdout)


LIBRARIES = {"lightning": 200, "accelerate": 200, "trainer": 64}  # samples that each rank's script counts in two epochs


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["accelerate_loop", "hf_trainer", "lightning_fit"])
def test_a_librarys_script_runs_as_it_is(script: str, tmp_path: Path) -> None:
    ended = started(ROOT / f"examples/without/{script}.py", "--output", str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert not tallied(ended.stdout)


@pytest.mark.parametrize(("library", "seen"), LIBRARIES.items())
def test_a_librarys_loader_is_tallied_and_watched(library: str, seen: int, tmp_path: Path) -> None:
    ended = started(SCRIPTS / f"{library}_tallied.py", TORCHTALLY_TENSORBOARD=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert sorted(re.findall(r"rank \d of \d: \d+ samples", ended.stdout)) == [
        f"rank {rank} of 2: {seen} samples" for rank in range(2)
    ]
    assert "2 ranks, train 2 epochs" in verified(ended.stdout)
    *_, last = tallied(ended.stdout)
    assert last["phases"]["train"]["consumed"] == 2 * seen
    (folder,) = tmp_path.iterdir()
    recorded = EventAccumulator(str(folder)).Reload()
    assert [each.value for each in recorded.Scalars("train_samples_lost")] == [0, 0]
    assert len(recorded.Scalars("samples_per_second")) == 2
    assert ("train_loss" in recorded.Tags()["scalars"]) == (library != "accelerate")  # whose loop is the user's own


A_SCRIPTS_END = """
from pathlib import Path
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchtally import Account

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
DistributedDataParallel(nn.Linear(2, 2))
def gloos():
    return sum(path.read_text().startswith("pt_gloo") for path in Path("/proc/self/task").glob("*/comm"))
print(gloos())
dist.destroy_process_group()
print(gloos())
"""


@pytest.mark.cold
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="threads' names are read from /proc")
def test_no_thread_of_a_destroyed_group_lives_on_to_abort_pythons_end() -> None:
    ended = subprocess.run([sys.executable, "-c", A_SCRIPTS_END], capture_output=True, text=True)
    before, after = map(int, ended.stdout.split())
    assert (before > 0, after) == (True, 0), ended.stderr


# The example of a loop of one's own.


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_the_example_proves_its_shards(world: int) -> None:
    ended = started(LOOP, world=world)
    assert ended.returncode == 0, ended.stderr
    found, (last,) = tallies(ended.stdout)
    assert (last["model"], last["discarded"], last["worlds"]) == (None, 0, [[1, 0, world]])
    assert len(found) == 6 * (world + 1)
    assert {line["world"] for line in found} == {world}
    assert all(line["lost"] == line["duplicated"] == 0 for line in found)
    assert ended.stdout.count("✓ every sample exactly once") == 6
    correct = int(ended.stdout.partition("epoch 3: ")[2].split()[0])
    assert correct > 0.9 * 499
    first, ended_well = reported(ended.stderr)
    # Progress is reported after a second, which a busy machine needs.
    begun, step, *proved, complete = [e for e in reported(ended.stdout) if not isinstance(e, events.Progress)]
    assert isinstance(first, events.Started) and ended_well == events.Ended(code=0, kind=None, cause=None)
    assert (begun, step) == (events.Begun(task="rings", world=world), events.Step(epoch=1))
    phases = [(phase, epoch) for epoch in (1, 2, 3) for phase in ("train", "test")]
    assert proved == [events.Proved(phase=phase, epoch=epoch, holds=True) for phase, epoch in phases]
    assert complete == events.Complete(model=None, output=None)


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("break", 3, "train epoch 1 is not proved: of 1921 samples"),
        ("1 / 0", 1, "failed with exit code 1: ZeroDivisionError: division by zero"),
    ],
)
def test_how_a_loop_ends_is_the_pods_exit_code_and_last_word(
    body: str, code: int, sentence: str, tmp_path: Path
) -> None:
    """The example, broken at the end of a step."""
    example = LOOP.read_text()
    assert example.count("        optimizer.step()\n") == 1
    broken = tmp_path / "broken.py"
    broken.write_text(example.replace("        optimizer.step()\n", f"        optimizer.step()\n        {body}\n"))
    ended = started(broken)
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr
    assert not tallies(ended.stdout)[1]
    last = reported(ended.stderr)[-1]
    assert isinstance(last, events.Ended) and last.code == code and sentence in str(last.cause)
    proved = events.Proved(phase="train", epoch=1, holds=False)
    assert (proved in reported(ended.stdout)) == (code == 3)
    assert ("Traceback" in ended.stderr) == (code == 1)
