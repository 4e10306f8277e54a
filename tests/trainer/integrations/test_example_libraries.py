"""The examples of libraries that drive the loop: killed with signal 9 in an epoch, they go on with each sample once.

The oracle is independent of the tally: bench/peers/watched.py notes which samples are in each step, and the weights
before and after it.
"""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from accounts import tallied
from own_scripts import ROOT, started, verified

from bench.measure import lineage
from torchtally import events

KILLED = 137
EPOCHS = {"lightning_fit": 4, "hf_trainer": 2, "accelerate_loop": 4, "stateful_loader": 4}
# The loops of their libraries are killed by day, in test_integrations.py.
pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("example", EPOCHS)]


def run(example: str, folder: Path, dies_in: int = 0) -> CompletedProcess[str]:
    """Start an example on two ranks, of which the last kills itself in a step."""
    variables = {"TORCHTALLY_OUTPUT": folder, "WATCHED_NOTES": folder / "notes", "WATCHED_DIES_IN": dies_in}
    script = [str(ROOT / f"examples/{example}.py"), "--output", str(folder / "checkpoints")]
    named = {name: str(value) for name, value in variables.items()}
    return started(ROOT / "bench/peers/watched.py", *script, **named)


def goes_on(example: str, folder: Path, dies_in: int) -> list[events.Event]:
    """Kill an example and start it again: each sample counts once. Returns how the second start began."""
    killed = run(example, folder, dies_in)
    assert killed.returncode == KILLED, killed.stderr
    ended = run(example, folder)
    assert ended.returncode == 0, ended.stderr
    assert "✓ the proof holds" in verified(killed.stdout + ended.stdout)
    assert tallied(ended.stdout)[-1]["attempt"] == 1
    times = lineage.in_weights(folder / "notes")
    assert set(times.values()) == {EPOCHS[example]}
    assert times.total() == tallied(ended.stdout)[-1]["phases"]["train"]["consumed"]
    return [each.event for each in events.in_lines(ended.stdout.splitlines())]


def test_a_killed_example_goes_on_in_its_epoch(example: str, tmp_path: Path) -> None:
    first, *_ = goes_on(example, tmp_path, dies_in=50)
    assert isinstance(first, events.Resumed) and first.epoch > 1 and first.position > 0


def test_its_weights_are_those_of_an_undisturbed_run(example: str, tmp_path: Path) -> None:
    goes_on(example, tmp_path / "killed", dies_in=37)
    undisturbed = run(example, tmp_path / "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert lineage.weights(tmp_path / "killed/notes") == lineage.weights(tmp_path / "undisturbed/notes")


def test_an_example_that_is_killed_before_its_first_checkpoint_begins_anew(example: str, tmp_path: Path) -> None:
    first, *_ = goes_on(example, tmp_path, dies_in=4)
    assert isinstance(first, events.Begun)
