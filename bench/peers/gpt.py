"""What the loops of a GPT have in common: text, model, optimizer, schedule, and loss of examples/gpt.py.

The layers compute in bfloat16: in gpt and gpt-ddp by autocast, in gpt-fsdp2 by FSDP2's policy.
"""

import json
import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from bench.peers.common import Clock, device
from examples.gpt import GPT, Characters
from torchtally.environment import Places

_SMALL = {"layers": 3, "width": 96, "heads": 4, "length": 64, "batch": 8}
_SIZES = _SMALL | json.loads(os.environ.get("BENCH_GPT", "{}"))
BATCH, LENGTH = _SIZES["batch"], _SIZES["length"]
CLIPPED = 1.0


def arguments() -> tuple[str, Characters, Clock]:
    """The task, its data and the clock, from the command line: TASK FOLDER STEPS."""
    task, _, steps = sys.argv[1:]
    return task, data(), Clock(int(steps), batch=BATCH)


@cache
def data() -> Characters:
    """The text of the data folder, by default that of the example."""
    folder = Places.from_env(os.environ).data
    texts = [path.read_text() for path in sorted(folder.rglob("*.py"))] if folder else topics.values()
    return Characters("\n".join(texts), LENGTH)


def model() -> nn.Module:
    torch.manual_seed(0)
    return GPT(len(data().vocabulary), LENGTH, _SIZES["width"], _SIZES["layers"], _SIZES["heads"])


def parallel(task: str, net: nn.Module) -> nn.Module:
    """The same model for the ranks of a task: in gpt-ddp in DDP, in gpt-fsdp2 sharded. That of gpt has one rank."""
    if task == "gpt":
        return net
    return DistributedDataParallel(net) if task == "gpt-ddp" else sharded(net)


def sharded(net: nn.Module, mesh: DeviceMesh | None = None) -> nn.Module:
    """The same model, sharded over all ranks as in PyTorch's tutorial of FSDP2."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    blocks: Any = net.blocks
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(net, mesh=mesh, mp_policy=policy)
    return net


def autocast(task: str) -> AbstractContextManager[Any]:
    return torch.autocast(device().type, torch.bfloat16) if task != "gpt-fsdp2" else nullcontext()


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=3e-3)


def schedule(made: torch.optim.Optimizer, steps: int) -> LambdaLR:
    return LambdaLR(made, lambda step: (1 + math.cos(math.pi * min(1, step / steps))) / 2)


def loss(net: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(net(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
