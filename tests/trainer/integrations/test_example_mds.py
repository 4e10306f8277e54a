"""The example on a dataset of mosaicml-streaming."""

import re
from pathlib import Path

from own_scripts import ROOT, started, verified


def test_the_example_learns_and_proves_its_samples(tmp_path: Path) -> None:
    folders = "--local", str(tmp_path / "data"), "--output", str(tmp_path / "checkpoints")
    ended = started(ROOT / "examples/mds.py", *folders)
    assert ended.returncode == 0, ended.stderr
    first, *_, last = (float(loss) for loss in re.findall(r"epoch \d: loss (\d+\.\d+)", ended.stdout))
    assert last < 0.01 < first or last < first / 10
    assert ended.stdout.count("✓ every sample exactly once") == 3
    assert "2 ranks, train 3 epochs" in verified(ended.stdout)
