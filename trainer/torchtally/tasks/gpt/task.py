"""A GPT on text files. training.py has its loop; this module says so to the commands."""

from pathlib import Path
from typing import Any, NoReturn

import torch

from torchtally.errors import Refused
from torchtally.tasks.gpt.options import Options
from torchtally.training.task import Task


def fit(name: str, options: Any, output: Path) -> None:
    from torchtally.tasks.gpt import training  # imports FSDP

    assert isinstance(options, Options)
    training.fit(name, options, output)


def _refuse(*_: Any) -> NoReturn:
    raise Refused("gpt is evaluated while it trains: torchtally evaluate takes models that classify")


TASK = Task(
    load=_refuse,
    fingerprint="",
    model=_refuse,
    inputs=lambda tokens: tokens,
    optimizer=lambda parameters, options: torch.optim.AdamW(parameters, lr=options.lr),
    fit=fit,
)
