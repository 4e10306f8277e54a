"""Checks of PyTorch in this environment."""

import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from torchtally.checks.finding import Finding, bad, good, warning
from torchtally.errors import Refused
from torchtally.pod import before_launch, device


def findings() -> Iterator[Finding]:
    found = f"PyTorch {torch.__version__}"
    if not dist.is_available() or not dist.is_gloo_available():
        yield bad("pytorch", f"{found} is built without torch.distributed or gloo: install another build")
        return
    backends = ["gloo", *(["NCCL"] if dist.is_nccl_available() else [])]
    yield good("pytorch", f"{found} with {' and '.join(backends)}")
    yield _gpus()
    try:
        before_launch.check_environment(None, own=False, gpus=torch.cuda.is_available())
        yield good("environment", "no variable of PyTorch here ends ranks")
    except Refused as refused:
        yield bad("environment", refused.args[0])


def _gpus() -> Finding:
    try:
        if not (count := torch.cuda.device_count()):
            return warning("gpus", "no GPU: trainings run on CPUs here")
        for local_rank in range(count):
            device.choose("cuda" if os.environ.get("TORCHTALLY_DEVICE") == "cuda" else "auto", local_rank)
    except Refused as refused:
        return bad("gpus", refused.args[0])
    names = sorted({torch.cuda.get_device_name(each) for each in range(count)})
    return good("gpus", f"{count} × {', '.join(names)}, driver {device.driver() or 'unknown'}")
