"""The options of every task: typed, checked once, free of torch so that --help is quick. Tasks add their own."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torchtally.proof.contract import CONTRACTS, Contract

AllReduce = Literal["float32", "bfloat16"]
_OF_NO_WEIGHT = ("save_seconds", "keep", "tally", "data", "output", "mlflow")


def whole(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        if not text.lstrip("+-").isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} to {high}")
        return int(text)

    return parse


def positive(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def option(default: Any, description: str, **argument: Any) -> Any:
    """An option's default, its help and what argparse takes.

    Of those with the same `instead` one may be given. `of_model`: the model depends on it, so `evaluate` takes it, too.
    """
    return field(default=default, metadata={"help": description, **argument})


@dataclass(frozen=True, kw_only=True)
class Training:
    """What every task has."""

    epochs: int = option(10, "passes over the training data", type=whole(1, 1 << 31), metavar="N")
    batch_size: int = option(32, "samples a rank and step", type=whole(1, 1 << 31), metavar="N", instead="batch")
    global_batch_size: int | None = option(
        None,
        "samples a step of all ranks together, which makes the same steps whatever their number",
        type=whole(1, 1 << 40),
        metavar="N",
        instead="batch",
    )
    lr: float = option(1e-3, "learning rate", type=positive, metavar="X")
    seed: int = option(0, "of the order of samples and of the first weights", type=whole(0), metavar="N")
    contract: Contract | None = option(
        None,
        "how samples divide over ranks in training (default: exact; drop_last for a model with BatchNorm)",
        choices=CONTRACTS,
    )
    all_reduce: AllReduce = option(
        "float32",
        "type in which gradients are summed over the ranks: bfloat16 halves what goes over the network and loses "
        "precision of the sum; ranks of one pod that sum in memory, on CPUs, do so in float32 in any case",
        choices=("float32", "bfloat16"),
    )
    tally: Literal["enforce", "report"] = option(
        "enforce", "what a failed proof does: end the run, or only say so", choices=("enforce", "report")
    )
    save_seconds: float = option(
        300.0, "between two checkpoints; the end of an epoch makes one, too", type=positive, metavar="X"
    )
    keep: int = option(2, "checkpoints to keep beside the best one", type=whole(1, 1 << 20), metavar="N")
    data: Path | None = option(
        None, "folder that holds the data (default: TORCHTALLY_DATA, else it is fetched)", type=Path, metavar="DIR"
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
        "record the run in this experiment of MLflow (MLFLOW_TRACKING_URI, else a database in the output folder)",
        metavar="NAME",
    )

    def of_training(self) -> dict[str, Any]:
        """The options that the weights depend on: with others, checkpoints belong to another training."""
        return {name: value for name, value in vars(self).items() if name not in _OF_NO_WEIGHT}

    def of_model(self) -> dict[str, Any]:
        """The options that make the model."""
        return {name: getattr(self, name) for name in self.names_of_model()}

    @classmethod
    def names_of_model(cls) -> list[str]:
        return [each.name for each in fields(cls) if each.metadata.get("of_model")]


def another_default(name: str, default: Any) -> Any:
    """An option of every task with a default of its own."""
    return field(default=default, metadata=Training.__dataclass_fields__[name].metadata)


def not_offered(name: str) -> Any:
    """An option that a task does not offer: it stays at its default."""
    return field(default=Training.__dataclass_fields__[name].default)
