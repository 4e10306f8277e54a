"""The Python of the guide to shard files runs as it is, and its samples are proved."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/streams.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

SCRIPT = f"""
import json
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, {str(ROOT / "tests/helpers")!r})
from shardfiles import WRITERS

from torchtally import Account

dist.init_process_group("gloo")
for write in WRITERS.values():
    write(Path("data"), 101)
files = [str(file) for file in Path("data").glob("*.parquet")]
blocks = json.loads(sys.argv[1])
with Account(task="guide", plan={{f"block {{number}}": 1 for number in range(len(blocks))}}) as account:
    for number, block in enumerate(blocks):
        phase = f"block {{number}}"
        exec(block)
        for batch in account.epoch(phase, 1, account.loader(dataset, phase, batch_size=32, trains=False)):
            pass
"""


def test_the_guides_python_runs_and_is_proved(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # A folder in place of the bucket.
    blocks = [block.replace("s3://bucket/", "").replace("/cache/", f"{tmp_path}/cache/") for block in BLOCKS]
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, str(script), json.dumps(blocks)],
        env=os.environ | {"PET_NPROC_PER_NODE": "1", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("✓ every sample exactly once") == len(BLOCKS) == 6
