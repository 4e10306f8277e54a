"""Any classification model of torchvision on a folder of images: bfloat16 autocast, channels last, exact evaluation."""

import difflib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms.v2 import functional

from torchtally.environment import Places
from torchtally.errors import Refused
from torchtally.log import log
from torchtally.options import Training
from torchtally.tasks.image_folder import folder, weights
from torchtally.tasks.image_folder.images import Images
from torchtally.tasks.image_folder.options import Options
from torchtally.training.task import Samples, Task

_MEAN, _DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet, as torchvision's weights expect
_WARM_UP = 0.05  # of the training


def task(options: Training) -> Task:
    """The task on the folder that the options or the environment name. Raises Refused."""
    assert isinstance(options, Options)
    places = Places.from_env(os.environ)
    data = folder.scan(options.data or places.data or folder.demo(places.cache))

    def load(_: Path | None, __: Path) -> tuple[Samples, Samples]:
        train = Images(data.train.files, options.size, augmented=True)
        test = Images(data.test.files, options.size, augmented=False)
        return (
            Samples(train, torch.tensor(data.train.labels)),
            Samples(test, torch.tensor(data.test.labels)),
        )

    def model(chosen: Training) -> nn.Module:
        assert isinstance(chosen, Options)
        return first_model(chosen, len(data.classes))

    return Task(
        load=load,
        fingerprint=data.fingerprint,
        model=model,
        inputs=inputs,
        optimizer=optimizer,
        rate=rate,
        files=lambda _: {"classes.json": (json.dumps(data.classes, indent=1) + "\n").encode()},
    )


def first_model(options: Options, classes: int) -> nn.Module:
    """The model with its first weights; it returns logits (batch, classes). Raises Refused."""
    name, size = options.model, options.size
    if name not in (known := models.list_models(module=models)):
        near = difflib.get_close_matches(name, known) or known
        raise Refused(f"--model {name} must be a classification model of torchvision, such as {', '.join(near[:3])}")
    settings: dict[str, Any] = {"num_classes": classes}
    if name in ("googlenet", "inception_v3"):
        settings |= {"aux_logits": False, "init_weights": True}
    elif name.startswith("vit_"):
        settings |= {"image_size": size}
    elif name.startswith("maxvit_"):
        settings |= {"input_size": (size, size)}
    try:
        with torch.device("meta"):
            models.get_model(name, **settings).eval()(torch.empty(1, 3, size, size))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise Refused(f"--model {name} does not take images of --size {size}: {str(error).splitlines()[0]}") from None
    model: nn.Module = models.get_model(name, **settings)
    if options.weights and (anew := weights.load(model, options.weights, classes)):
        log.info(f"{', '.join(anew)} begin anew: --weights has them for other classes")
    if options.precision == "bfloat16":
        _autocast(model)
    return model.to(memory_format=torch.channels_last)


def _autocast(model: nn.Module) -> None:
    """Let the model compute in bfloat16. A module around it would change the names of its parameters."""
    forward = model.forward

    def in_bfloat16(pixels: Tensor) -> Tensor:
        with torch.autocast(pixels.device.type, torch.bfloat16):
            logits: Tensor = forward(pixels)
        return logits.float()

    model.forward = in_bfloat16


def inputs(pixels: Tensor) -> Tensor:
    """Pixels (batch, 3, size, size) as floats with the mean and deviation of ImageNet, channels last."""
    scaled = functional.to_dtype(pixels, torch.float32, scale=True)
    normalized: Tensor = functional.normalize(scaled, _MEAN, _DEVIATION)
    return normalized.contiguous(memory_format=torch.channels_last)


def optimizer(parameters: Iterator[nn.Parameter], options: Training) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=options.lr, weight_decay=0.05, fused=True)


def rate(done: float) -> float:
    """A linear warm-up, and a cosine to 0."""
    return min(1.0, done / _WARM_UP + 0.01) * (1 + math.cos(math.pi * done)) / 2


TASK = task
