"""The Python of the guides to loops, mixtures, and shard files runs as it is, and its samples are proved."""

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(*names: str) -> list[str]:
    """The Python of these guides, but for what needs a GPU."""
    pages = "".join((ROOT / f"docs/guides/{name}.md").read_text() for name in names)
    return [block for block in re.findall(r"```python\n(.*?)```", pages, re.DOTALL) if "cuda" not in block]


def printed(folder: Path, script: str, argument: str, ranks: int) -> str:
    """What a script prints that is run in this folder, by as many ranks."""
    (folder / "script.py").write_text(script)
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, str(folder / "script.py"), argument],
        env=os.environ | {"PET_NPROC_PER_NODE": str(ranks), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# What a block of the pages takes from its reader's script, and the loop that a block without one needs.
OF_A_LOOP = """
import sys

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torchtally import Account

dist.init_process_group("gloo")
N = 100
block = sys.argv[1]
model = DistributedDataParallel(nn.Linear(2, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
checkpoint, due, save = None, True, len
words = Tokenizer(models.WordLevel({"word": 0, "[PAD]": 1}, unk_token="[PAD]"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
pairs = [(index, torch.zeros(2)) for index in range(N)]
if "tokenizer" in block:
    dataset = [{"input_ids": [0] * (1 + index % 5)} for index in range(N)]
elif "torch.cat" in block:
    dataset = [torch.zeros(1 + index % 5) for index in range(N)]
else:
    dataset = [(torch.zeros(2), index % 3) for index in range(N)]
unseen = dataset
if "isnan" in block:
    for index in (3, 7):
        dataset[index][0].fill_(torch.nan)
web, code, lengths = range(5000), range(100), [1 + index % 300 for index in range(N)]
documents = [[index] * length for index, length in enumerate(lengths)]

if "with Account" in block:
    exec(block)
else:
    with Account(task="guide", plan={"train": 1}) as account:
        exec(block)
        for batch in account.epoch("train", 1, loader):
            account.commit()
dist.destroy_process_group()
"""
LOOPS = blocks("own-loop", "loop-cases", "mixtures")


@pytest.mark.parametrize("block", LOOPS, ids=range(len(LOOPS)))
def test_a_loop_runs_and_is_proved(block: str, tmp_path: Path) -> None:
    said = printed(tmp_path, OF_A_LOOP, block, ranks=2)
    proved = "2 dropped by the program, every other" if "dropped" in block else "every"
    assert f"✓ {proved} sample exactly once" in said
    if "Mixture" in block:
        assert "  code: 300 rows by its weight 3/10, each of its 100 samples 3 times\n" in said


OF_SHARD_FILES = f"""
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


def test_shard_files_are_read_and_proved(tmp_path: Path) -> None:
    # A folder in place of the bucket. The block with an account shows its order alone.
    found = [block for block in blocks("streams") if "with Account" not in block]
    found = [block.replace("s3://bucket/", "").replace("/cache/", f"{tmp_path}/cache/") for block in found]
    said = printed(tmp_path, OF_SHARD_FILES, json.dumps(found), ranks=1)
    assert said.count("✓ every sample exactly once") == len(found) == 6


def test_the_tutorial_and_the_readme_show_what_their_runs_print(tmp_path: Path) -> None:
    def said(script: Path) -> str:
        command = [sys.executable, "-m", "torchtally.cli", "run", str(script)]
        variables = {
            "PET_NPROC_PER_NODE": "2",
            "OMP_NUM_THREADS": "1",
            "TORCHTALLY_OUTPUT": str(tmp_path / script.stem),
        }
        ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=240)
        assert ended.returncode == 0, ended.stderr
        return " ".join((ended.stdout + ended.stderr).replace(platform.node(), "vm").split())

    broken = ROOT / "examples/broken/own_script.py"
    mended = tmp_path / "own_script.py"
    mended.write_text(broken.read_text().replace(", seed=dist.get_rank()", ""))
    printed = " ".join(map(said, (broken, mended, ROOT / "examples/own_script.py")))
    pages = "\n".join((ROOT / name).read_text() for name in ("README.md", "docs/tutorials/lost-sample.md"))
    rows = re.findall(r"^(?:train |phase |own_script\.py:|[✓✗] (?:observed|own_script)).*$", pages, re.MULTILINE)
    assert len(rows) > 15
    parts = [" ".join(part.split()) for row in rows for part in row.split("…")]
    assert [part for part in parts if part not in printed] == []
