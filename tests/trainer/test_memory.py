"""The memory of a pod is that of its container, as the kernel counts it, and nothing where there is no container."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchtally.pod import memory
from torchtally.pod.memory import Memory

NEW = {"memory.current": "5000\n", "memory.max": "8000\n", "memory.stat": "anon 3000\ninactive_file 1500\n"}
OLD = {
    "memory/memory.usage_in_bytes": "5000\n",
    "memory/memory.limit_in_bytes": "8000\n",
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1500\n",
}


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("files", [NEW, OLD], ids=["version 2", "version 1"])
def test_a_container_with_a_limit(files: dict[str, str], tmp_path: Path) -> None:
    assert memory.now(cgroup(tmp_path, files)) == Memory(memory=3500, memory_limit=8000)


def test_a_container_without_a_limit(tmp_path: Path) -> None:
    assert memory.now(cgroup(tmp_path, NEW | {"memory.max": "max\n"})) == Memory(memory=3500)


@pytest.mark.parametrize(
    "files",
    [
        {},
        OLD | {"memory/memory.limit_in_bytes": "9223372036854771712\n"},
        {"memory.stat": "anon 1\n"},
        NEW | {"memory.current": "unreadable"},
    ],
    ids=["no cgroup", "a whole machine of version 1", "a whole machine of version 2", "an unknown format"],
)
def test_outside_of_a_container_nothing_is_known(files: dict[str, str], tmp_path: Path) -> None:
    assert memory.now(cgroup(tmp_path, files)) == Memory()


def test_the_gpus_that_pytorch_uses_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for three GPUs, of which one is not used."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", [0, 100, 20].__getitem__)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(total_memory=1000 + gpu))
    assert memory.now(tmp_path) == Memory(gpu_memory=120, gpu_memory_total=2003)
