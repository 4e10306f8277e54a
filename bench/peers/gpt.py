"""What the loops of the task gpt have in common: text, model, optimizer, schedule, and loss of torchtally's own task.

The layers compute in bfloat16: in gpt and gpt-ddp by autocast, in gpt-fsdp2 by FSDP2's policy.
"""

import json
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from bench.peers.common import Clock, device
from torchtally.environment import Places
from torchtally.tasks.gpt import text
from torchtally.tasks.gpt.model import GPT
from torchtally.tasks.gpt.options import Options
from torchtally.tasks.gpt.training import rate

_OPTIONS = Options(**json.loads(os.environ.get("BENCH_GPT", "{}")))
BATCH, LENGTH = _OPTIONS.batch_size, _OPTIONS.length
CLIPPED = 1.0


def arguments() -> tuple[str, text.Windows, Clock]:
    """The task, its data and the clock, from the command line: TASK FOLDER STEPS."""
    task, _, steps = sys.argv[1:]
    places = Places.from_env(os.environ)
    found = text.load(places.data, places.cache, _OPTIONS.vocabulary)
    return task, text.split(found, LENGTH)[0], Clock(int(steps), batch=BATCH)


def model() -> nn.Module:
    torch.manual_seed(0)
    return GPT(vocabulary=_OPTIONS.vocabulary, width=_OPTIONS.width, layers=_OPTIONS.layers, heads=_OPTIONS.heads)


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
    """AdamW, with weight decay for matrices alone."""
    parameters = [*net.parameters()]
    groups = [
        {"params": [each for each in parameters if each.ndim == 2], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.ndim != 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=_OPTIONS.lr, betas=(0.9, 0.95))


def schedule(made: torch.optim.Optimizer, steps: int) -> LambdaLR:
    return LambdaLR(made, lambda step: rate(step / steps))


def loss(net: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(net(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
