"""Scripts of users' own under the entry point: unchanged, and with four other lines that prove their training."""

import difflib
import re
from pathlib import Path

import pytest
from accounts import tallied, tallies
from own_scripts import ORDINARY, OWN, ROOT, SCRIPTS, reported, started, verified
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchtally import events

LOOP = ROOT / "examples/own_loop.py"


def test_four_lines_and_an_import_are_all_that_is_other() -> None:
    ordinary, own = (path.read_text().splitlines() for path in (ORDINARY, OWN))
    changed = [line for line in difflib.ndiff(ordinary, own) if line[0] in "+-" and line[2:].strip()]
    assert [line for line in changed if "import" not in line] == [
        "-     sampler = DistributedSampler(dataset)",
        "+     sampler = TalliedSampler(dataset, epochs=EPOCHS)",
        "-         for points, labels in loader:",
        "+         for points, labels in sampler.tally(loader):",
        "+             sampler.commit()",
        "+     sampler.done()",
    ]
    assert [line for line in changed if "import" in line] == [
        "- from torch.utils.data.distributed import DistributedSampler",
        "+ from torchtally import TalliedSampler",
    ]


def test_the_ordinary_script_runs_and_with_the_four_lines_is_proved() -> None:
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
    assert (last_line["phase"], last_line["task"], last_line["phases"]["train"]["consumed"]) == (
        "all",
        "own_script",
        6000,
    )


def test_a_script_with_distributed_sampler_runs_as_it_is(mnist: Path) -> None:
    ended = started(SCRIPTS / "mnist_script.py", str(mnist))
    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        (loss,) = re.findall(rf"rank {rank} of 2: 1000 samples, loss (\d+\.\d+)", ended.stdout)
        assert float(loss) < 1.5  # from 2.3
    assert not tallied(ended.stdout)


LIBRARIES = {"lightning": 200, "accelerate": 200, "trainer": 64}  # samples that each rank's script counts in two epochs


@pytest.mark.nightly
@pytest.mark.parametrize(("library", "seen"), LIBRARIES.items())
def test_a_librarys_script_runs_as_it_is(library: str, seen: int) -> None:
    ended = started(SCRIPTS / f"{library}_script.py")
    assert ended.returncode == 0, ended.stderr
    assert sorted(re.findall(r"rank \d of \d: \d+ samples", ended.stdout)) == [
        f"rank {rank} of 2: {seen} samples" for rank in range(2)
    ]
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


# The example of a loop of one's own.


@pytest.mark.parametrize("world", [1, 3])
def test_the_example_proves_its_shards(world: int) -> None:
    ended = started(LOOP, world=world)
    assert ended.returncode == 0, ended.stderr
    found, (last,) = tallies(ended.stdout)
    assert (last["model"], last["discarded"], last["worlds"]) == (None, 0, [[1, 0, world]])
    assert len(found) == 6 * (world + 1)
    assert {line["world"] for line in found} == {world}
    assert all(line["lost"] == line["doubled"] == 0 for line in found)
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
