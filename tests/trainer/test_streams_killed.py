"""Datasets in shard files, on real ranks: killed with signal 9 in an epoch, others go on, and each sample counts once."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from shardfiles import WRITERS
from test_own_scripts import SCRIPTS, reported, started, verified

from torchtally import events

N, EPOCHS, KILLED = 101, 2, 137


def run(folder: Path, kind: str, where: str, world: int, dies: int = 0, **options: Any) -> CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIES_IN", str(dies))
        return started(SCRIPTS / "streams_counted.py", str(folder), kind, where, json.dumps(options), world=world)


def survives(folder: Path, kind: str, where: str, **options: Any) -> None:
    """Two ranks are killed in batch 7 of the second epoch, and three go on where the checkpoint before it stands."""
    killed = run(folder, kind, where, 2, dies=13 + 7, **options)
    assert killed.returncode == KILLED, killed.stderr
    ended = run(folder, kind, where, 3, **options)
    assert ended.returncode == 0, ended.stderr
    [begun] = [each for each in reported(ended.stdout) if isinstance(each, events.Begun)]
    assert begun.world == 3
    assert "✓ the proof holds" in verified(killed.stdout + ended.stdout)
    assert "✓ every sample exactly once" in ended.stdout
    for rank in range(3):
        assert json.loads((folder / f"times-{rank}.json").read_text()) == [EPOCHS] * N


@pytest.mark.parametrize("kind", [*WRITERS, "datasets"])
def test_other_ranks_go_on_and_each_sample_counts_once(kind: str, tmp_path: Path) -> None:
    WRITERS["parquet" if kind == "datasets" else kind](tmp_path / "data", N)
    survives(tmp_path, kind, str(tmp_path / "data"))
