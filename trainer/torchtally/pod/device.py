"""The device of a rank. If a GPU is requested and cannot be used, the run fails: it never falls back to the CPU."""

import re
from pathlib import Path

import torch

from torchtally.environment import Device, ProcessCount
from torchtally.errors import Refused


def count(processes: ProcessCount, device: Device, cpus: int) -> tuple[int, str]:
    """Return the number of processes of this pod, and the reason. Raises Refused for more processes than GPUs."""
    gpus = torch.cuda.device_count() if _usable(device) else 0
    if isinstance(processes, int):
        if gpus and processes > gpus:
            raise Refused(f"PET_NPROC_PER_NODE={processes} must be at most {gpus}, the GPUs that this pod sees")
        return processes, f"PET_NPROC_PER_NODE={processes}"
    if processes == "gpu" and not gpus:
        raise Refused(f"PET_NPROC_PER_NODE=gpu asks for one process per GPU: {_why_not()}")
    if processes == "cpu":
        return cpus, "PET_NPROC_PER_NODE=cpu: one per CPU that this pod may use"
    if gpus:
        return gpus, "one per visible GPU"
    # torchrun's own `auto` would start one process per core of the host, far beyond the pod's share of it.
    return 1, "no GPU, so one process, which may use all CPUs of the pod"


def choose(device: Device, local_rank: int) -> torch.device:
    """Return the device of this local rank after a test of it. Raises Refused if it is a GPU that cannot be used."""
    if not _usable(device):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise Refused(f"local rank {local_rank} has no GPU: this pod sees {torch.cuda.device_count()}")
    chosen = torch.device("cuda", local_rank)
    try:
        torch.cuda.set_device(chosen)
        torch.ones(1, device=chosen).add_(1).item()
    except RuntimeError as error:
        raise Refused(
            f"GPU {local_rank} ({_described(chosen)}) cannot be used: driver {driver() or 'unknown'}, PyTorch built "
            f"for CUDA {torch.version.cuda} and {' '.join(torch.cuda.get_arch_list())}: {str(error).splitlines()[0]}"
        ) from None
    return chosen


def driver() -> str | None:
    """Return the version of the NVIDIA kernel driver, or None without one."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[1] if found else None


def _usable(device: Device) -> bool:
    """Return whether to use GPUs. Raises Refused if one is requested, or present, and cannot be used."""
    if device == "cpu" or torch.cuda.is_available():
        return device != "cpu"
    if device == "cuda":
        raise Refused(f"a GPU is requested and cannot be used: {_why_not()}")
    if torch.cuda.device_count():  # counted without the runtime, so it includes GPUs with a driver that is too old
        raise Refused(f"this pod has a GPU that cannot be used (TORCHTALLY_DEVICE=cpu runs without it): {_why_not()}")
    return False


def _described(chosen: torch.device) -> str:
    try:
        major, minor = torch.cuda.get_device_capability(chosen)
        return f"{torch.cuda.get_device_name(chosen)}, compute capability {major}.{minor}"
    except RuntimeError:  # a busy or broken GPU may not report its name
        return "of unknown kind"


def _why_not() -> str:
    build = f"PyTorch {torch.__version__}"
    if torch.version.cuda is None and torch.version.hip is None:
        return f"{build} is built without CUDA: use the cuda image, or request no GPU"
    cuda = f"{build} is built for CUDA {torch.version.cuda} (compute {' '.join(torch.cuda.get_arch_list())})"
    if (version := driver()) is None:
        return f"this pod has no NVIDIA driver, and {cuda}: is the GPU requested, and its runtime installed?"
    return f"driver {version} offers it no usable GPU, and {cuda}: a newer driver or another build may be needed"
