"""The weights with which a fine-tuning begins."""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torchtally.errors import Refused


def load(model: nn.Module, file: str, rows: int) -> list[str]:
    """Load `file` into the model, whose last layer has `rows` outputs; returns the parameters that begin anew.

    These are the last layer's if the file has them for another number of classes. Raises Refused for any other
    difference.
    """
    found, expected = _read(Path(file)), model.state_dict()
    anew = []
    for name in expected.keys() | found.keys():
        if name not in found or name not in expected:
            where = f"it has no {name}" if name in expected else f"it has {name}, and the model does not"
            raise Refused(f"--weights {file} does not fit the model: {where}")
        if found[name].shape != (shape := expected[name].shape):
            if not len(shape) or shape[0] != rows or found[name].shape[1:] != shape[1:]:
                raise Refused(
                    f"--weights {file} does not fit the model: its {name} has the shape {tuple(found[name].shape)}, "
                    f"and the model's has {tuple(shape)}"
                )
            anew.append(name)
    model.load_state_dict({name: value for name, value in found.items() if name not in anew}, strict=False)
    return sorted(anew)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        loaded: Any
        if path.suffix == ".safetensors":
            loaded = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise Refused(f"--weights {path} cannot be read: {str(error).splitlines()[0]}") from None
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise Refused(f"--weights {path} must be a dictionary of tensors, as state_dict() returns it")
    return loaded
