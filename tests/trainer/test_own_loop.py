"""The example of a loop of one's own, as a reader starts it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accounts import tallies

ROOT = Path(__file__).parents[2]


def start(world: int, *command: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "MASTER_", "TORCH"))}
    environment = {**kept, "PET_NPROC_PER_NODE": str(world), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("world", [1, 3])
def test_the_example_proves_its_shards(world: int) -> None:
    ended = start(world, "examples/own_loop.py")
    assert ended.returncode == 0, ended.stderr
    found, (last,) = tallies(ended.stdout)
    assert (last["model"], last["discarded"], last["worlds"]) == (None, 0, [[1, 0, world]])
    assert len(found) == 6 * (world + 1)
    assert {line["world"] for line in found} == {world}
    assert all(line["lost"] == line["doubled"] == 0 for line in found)
    assert ended.stdout.count("✓ every sample exactly once") == 6
    correct = int(ended.stdout.partition("epoch 3: ")[2].split()[0])
    assert correct > 0.9 * 499


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("break", 3, "train epoch 1 is not proved: of 1921 samples"),
        ("1 / 0", 1, "failed with exit code 1: ZeroDivisionError: division by zero"),
    ],
)
def test_how_a_loop_ends_is_the_pods_exit_code_and_last_word(body: str, code: int, sentence: str) -> None:
    """The example, broken at the end of a step."""
    example = (ROOT / "examples/own_loop.py").read_text()
    assert example.count("        optimizer.step()\n") == 1
    ended = start(2, "-c", example.replace("        optimizer.step()\n", f"        optimizer.step()\n        {body}\n"))
    assert ended.returncode == code, ended.stderr
    assert sentence in ended.stderr
    assert not tallies(ended.stdout)[1]
    assert ("Traceback" in ended.stderr) == (code == 1)
