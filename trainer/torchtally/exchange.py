"""Values that ranks tell each other, over gloo: as JSON, or with tensors as torch.save writes them.

torch.distributed's own calls for objects unpickle what a peer sends, and so run the code that is in it.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """How a value becomes bytes, and bytes a value."""

    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def saved(value: Any) -> bytes:
    """The bytes of torch.save, which on a full disk would leave half a file and raise RuntimeError."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _loaded(data: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise TypeError("ranks exchange tensors, numbers, strings, and lists, tuples, and dicts of these") from None


JSON = Form(lambda value: json.dumps(value).encode(), json.loads)  # makes a list of a tuple
TENSORS = Form(saved, _loaded)


def all_gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The value of each rank. A collective call."""
    data = _tensor(JSON.write(value))
    sizes = _sizes(data, group)
    parts = [data.new_empty(max(sizes)) for _ in sizes]
    dist.all_gather(parts, _padded(data, max(sizes)), group=group)
    return [JSON.read(_bytes(part[:size])) for part, size in zip(parts, sizes, strict=True)]


def gather(value: Any, group: dist.ProcessGroup | None = None, form: Form = JSON) -> list[Any] | None:
    """The value of each rank, on rank 0; None on the others. A collective call."""
    data = _tensor(form.write(value))
    sizes = _sizes(data, group)
    parts = [data.new_empty(max(sizes)) for _ in sizes] if dist.get_rank() == 0 else None
    dist.gather(_padded(data, max(sizes)), parts, dst=0, group=group)
    return parts and [form.read(_bytes(part[:size])) for part, size in zip(parts, sizes, strict=True)]


def broadcast(value: Any, src: int = 0, group: dist.ProcessGroup | None = None, form: Form = JSON) -> Any:
    """The value of rank `src`, on every rank. A collective call."""
    data = _tensor(form.write(value) if dist.get_rank() == src else b"")
    size = torch.tensor([len(data)])
    dist.broadcast(size, src, group=group)
    if dist.get_rank() != src:
        data = data.new_empty(int(size))
    dist.broadcast(data, src, group=group)
    return form.read(_bytes(data))


def _sizes(data: Tensor, group: dist.ProcessGroup | None) -> list[int]:
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([len(data)]), group=group)
    return [int(size) for size in sizes]


def _padded(data: Tensor, size: int) -> Tensor:
    """Parts of equal sizes, as gloo wants them."""
    return torch.cat([data, data.new_zeros(size - len(data))])


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()
