"""The weights with which a fine-tuning begins."""

import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torchtally.errors import Refused
from torchtally.training.weights import mismatch


def load(model: nn.Module, file: str, rows: int) -> list[str]:
    """Load `file` into the model, whose last layer has `rows` outputs; returns the parameters that begin anew.

    These are the last layer's if the file has them for another number of classes. Raises Refused for any other
    difference.
    """
    found, expected = _read(Path(file)), model.state_dict()
    anew = [
        name
        for name, value in expected.items()
        if name in found
        and value.shape[:1] == (rows,)
        and found[name].shape[:1] != (rows,)
        and found[name].shape[1:] == value.shape[1:]
    ]
    if difference := mismatch(found, expected | {name: found[name] for name in anew}):
        raise Refused(f"--weights {file} does not fit the model: {difference}")
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
