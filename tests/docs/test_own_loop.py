"""The Python of the guides to loops of one's own and to mixtures runs as it is, and its samples are proved."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).parents[2] / "docs/guides"
PAGES = (GUIDES / "own-loop.md").read_text() + (GUIDES / "mixtures.md").read_text()
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", PAGES, re.DOTALL) if "cuda" not in block]

# What a block of the page takes from its reader's script, and the loop that a block without one needs.
SCRIPT = """
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
            if "Lines" in block:
                assert [int(line) for line in batch.data] == batch.indices.tolist()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_guides_python_runs_and_is_proved(block: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    (tmp_path / "lines.txt").write_text("".join(f"{index}\n" for index in range(100)))
    ended = subprocess.run(
        [sys.executable, "-m", "torchtally.cli", "run", "--", sys.executable, str(script), block],
        env=os.environ | {"PET_NPROC_PER_NODE": "2", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    proved = "2 dropped by the program, every other" if "dropped" in block else "every"
    assert f"✓ {proved} sample exactly once" in ended.stdout
    if "Mixture" in block:
        assert "  code: 300 rows by its weight 3/10, each of its 100 samples 3 times\n" in ended.stdout
