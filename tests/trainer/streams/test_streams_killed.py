"""Datasets in shard files, on real ranks: after kill -9 in an epoch, other ranks go on, and each sample counts once."""

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from accounts import tallied
from own_scripts import SCRIPTS, started, verified
from shardfiles import WRITERS

N, EPOCHS, KILLED = 101, 2, 137


def run(folder: Path, kind: str, where: str, world: int, dies: int = 0, **options: Any) -> CompletedProcess[str]:
    arguments = [str(folder), kind, where, json.dumps(options)]
    return started(SCRIPTS / "streams_counted.py", *arguments, world=world, DIES_IN=str(dies))


def survives(folder: Path, kind: str, where: str, before: int, after: int, **options: Any) -> None:
    """Ranks die in the seventh batch of the second epoch, and others go on where the checkpoint before it stands."""
    steps, size = -(-N // (4 * before)), 4 * before
    saved = (steps + 6) // 4 * 4 - steps
    killed = run(folder, kind, where, before, dies=steps + 7, **options)
    assert killed.returncode == KILLED, killed.stderr
    ended = run(folder, kind, where, after, **options)
    assert ended.returncode == 0, ended.stderr
    assert tallied(ended.stdout)[-1]["worlds"] == [[1, 0, before], [2, saved * size, after]]
    assert "✓ the proof holds" in verified(killed.stdout + ended.stdout)
    for rank in range(after):
        assert json.loads((folder / f"times-{rank}.json").read_text()) == [EPOCHS] * N


@pytest.mark.parametrize(
    ("kind", "before", "after", "options"),
    [
        # What goes on is the account's, whatever the files: test_streams.py reads all kinds.
        ("parquet", 2, 3, {"window": 2, "open_shards": 2}),
        pytest.param("datasets", 1, 2, {}, marks=pytest.mark.nightly),
    ],
)
def test_other_ranks_go_on_and_each_sample_counts_once(
    kind: str, before: int, after: int, options: dict[str, Any], tmp_path: Path
) -> None:
    WRITERS["parquet" if kind == "datasets" else kind](tmp_path / "data", N)
    survives(tmp_path, kind, str(tmp_path / "data"), before, after, **options)
