"""A GPT on text files. training.py has its loop; this module says so to the commands."""

import os
from pathlib import Path
from typing import Any, NoReturn

import torch

from torchtally.environment import Places
from torchtally.errors import Refused
from torchtally.options import Training
from torchtally.tasks.gpt import text
from torchtally.tasks.gpt.options import Options
from torchtally.training.task import Task


def fit(name: str, options: Any, output: Path) -> None:
    from torchtally.tasks.gpt import training  # imports FSDP

    assert isinstance(options, Options)
    training.fit(name, options, output)


def _refuse(*_: Any) -> NoReturn:
    raise Refused("gpt is evaluated while it trains: torchtally evaluate takes models that classify")


def task(options: Training) -> Task:
    """The task on the text that the options or the environment name. Raises Refused."""
    assert isinstance(options, Options)
    places = Places.from_env(os.environ)
    return Task(
        load=_refuse,
        fingerprint=text.load(options.data or places.data, places.cache, options.vocabulary).fingerprint,
        model=_refuse,
        inputs=lambda tokens: tokens,
        optimizer=lambda parameters, options: torch.optim.AdamW(parameters, lr=options.lr),
        fit=fit,
    )


TASK = task
