"""The options that tasks share: typed, validated once, free of torch so that --help is quick. Tasks add their own."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torchtally.proof.contract import CONTRACTS, Contract

AllReduce = Literal["float32", "bfloat16"]
_WITHOUT_EFFECT_ON_WEIGHTS = ("save_seconds", "keep", "checkpoints", "data", "output", "mlflow", "tensorboard")


def whole_number(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not text.lstrip("+-").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} to {high}")
        return int(text)

    return parse


def positive_number(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def option(default: Any, description: str, **argument: Any) -> Any:
    """A dataclass field for an option: its default, its help, and arguments of argparse's add_argument.

    Options with the same `excludes` exclude each other. `of_model`: the option defines the model, so `evaluate` has it.
    """
    return field(default=default, metadata={"help": description, **argument})


@dataclass(frozen=True, kw_only=True)
class Training:
    """The options that tasks share."""

    epochs: int = option(10, "passes over the training data", type=whole_number(1, 1 << 31), metavar="N")
    batch_size: int = option(
        32, "samples of each rank in a step", type=whole_number(1, 1 << 31), metavar="N", excludes="batch"
    )
    global_batch_size: int | None = option(
        None,
        "samples of all ranks together in a step; the steps are then the same for any number of ranks",
        type=whole_number(1, 1 << 40),
        metavar="N",
        excludes="batch",
    )
    lr: float = option(1e-3, "learning rate", type=positive_number, metavar="X")
    seed: int = option(0, "seed of the order of samples and of the first weights", type=whole_number(0), metavar="N")
    contract: Contract | None = option(
        None,
        "how samples divide over ranks in training (default: exact; drop_last for a model with BatchNorm)",
        choices=CONTRACTS,
    )
    all_reduce: AllReduce = option(
        "float32",
        "type in which gradients are summed over the ranks: bfloat16 halves the network traffic and reduces the "
        "precision of the sum; ranks of one pod that train on CPUs sum in float32 in any case",
        choices=("float32", "bfloat16"),
    )
    save_seconds: float = option(
        300.0, "seconds between two checkpoints; the end of an epoch saves one, too", type=positive_number, metavar="X"
    )
    keep: int = option(2, "checkpoints to keep besides the best one", type=whole_number(1, 1 << 20), metavar="N")
    checkpoints: str | None = option(
        None,
        "folder that all pods share, or URL of an object store such as s3://bucket/run: all ranks write checkpoints to "
        "it (default: rank 0 writes them to --output)",
        metavar="URL",
    )
    data: Path | None = option(
        None,
        "folder that holds the data (default: TORCHTALLY_DATA, else the task fetches its data)",
        type=Path,
        metavar="DIR",
    )
    output: Path | None = option(
        None,
        "folder for model.pt, proof.json and checkpoints, or evaluation.json (default: TORCHTALLY_OUTPUT, else "
        "./output)",
        type=Path,
        metavar="DIR",
    )
    mlflow: str | None = option(
        None,
        "record the run in this experiment of MLflow (default: TORCHTALLY_MLFLOW)",
        metavar="NAME",
    )
    tensorboard: str | None = option(
        None,
        "record the run for TensorBoard in this folder, or at this URL (default: TORCHTALLY_TENSORBOARD)",
        metavar="DIR",
    )

    def training_options(self) -> dict[str, Any]:
        """The options that the weights depend on: a checkpoint made with other ones belongs to another training."""
        return {name: value for name, value in vars(self).items() if name not in _WITHOUT_EFFECT_ON_WEIGHTS}

    def common(self) -> dict[str, Any]:
        """What all ranks must have in common, for the handshake."""
        shared = {name: value for name, value in vars(self).items() if name not in ("data", "output", "seed")}
        return {"seed": self.seed, "options": shared}

    def model_options(self) -> dict[str, Any]:
        """The options that define the model."""
        return {name: getattr(self, name) for name in self.names_of_model_options()}

    @classmethod
    def names_of_model_options(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.metadata.get("of_model")]


def override_default(name: str, default: Any) -> Any:
    """A shared option with a default of the task's own."""
    return field(default=default, metadata=Training.__dataclass_fields__[name].metadata)


def not_offered(name: str) -> Any:
    """A shared option that the task does not offer: it keeps its default."""
    return field(default=Training.__dataclass_fields__[name].default)
