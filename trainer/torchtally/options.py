"""What a user may choose for each task: typed, checked once, free of torch so that --help is quick."""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from torchtally.shards import CONTRACTS, Contract


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


def _option(default: Any, description: str, **argument: Any) -> Any:
    """An option's default, its help and what argparse takes; of those with the same `instead` one may be given."""
    return field(default=default, metadata={"help": description, **argument})


@dataclass(frozen=True, kw_only=True)
class Training:
    """What every task has."""

    epochs: int = _option(10, "passes over the training data", type=whole(1, 1 << 31), metavar="N")
    batch_size: int = _option(32, "samples a rank and step", type=whole(1, 1 << 31), metavar="N", instead="batch")
    global_batch_size: int | None = _option(
        None,
        "samples a step of all ranks together, which makes the same steps whatever their number",
        type=whole(1, 1 << 40),
        metavar="N",
        instead="batch",
    )
    lr: float = _option(1e-3, "learning rate", type=positive, metavar="X")
    seed: int = _option(0, "of the order of samples and of the first weights", type=whole(0), metavar="N")
    contract: Contract | None = _option(
        None,
        "how samples divide over ranks in training (default: exact; drop_last for a model with BatchNorm)",
        choices=CONTRACTS,
    )
    tally: Literal["enforce", "report"] = _option(
        "enforce", "what a failed proof does: end the run, or only say so", choices=("enforce", "report")
    )
    save_seconds: float = _option(
        300.0, "between two checkpoints; the end of an epoch makes one, too", type=positive, metavar="X"
    )
    keep: int = _option(2, "checkpoints to keep beside the best one", type=whole(1, 1 << 20), metavar="N")
    data: Path | None = _option(
        None, "folder that holds the data (default: TORCHTALLY_DATA, else it is fetched)", type=Path, metavar="DIR"
    )
    output: Path | None = _option(
        None,
        "folder for model.pt, proof.json and checkpoints (default: TORCHTALLY_OUTPUT, else ./output)",
        type=Path,
        metavar="DIR",
    )


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Training):
    """A multilayer perceptron on Fashion-MNIST."""

    hidden: int = _option(512, "width of both hidden layers", type=whole(1, 1 << 20), metavar="N")


TASKS: dict[str, type[Training]] = {"fashion-mnist": FashionMnist}


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Give `parser` a command for each task."""
    commands = parser.add_subparsers(dest="task", metavar="TASK", required=True)
    for name, kind in TASKS.items():
        command = commands.add_parser(
            name,
            help=kind.__doc__,
            description=kind.__doc__,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        instead: dict[str, Any] = defaultdict(command.add_mutually_exclusive_group)
        for each in fields(kind):
            default = None if each.default is MISSING else each.default
            text = dict(each.metadata)
            if default is None:
                default = argparse.SUPPRESS  # its help says what happens then
            group = instead[text.pop("instead")] if "instead" in text else command
            group.add_argument(f"--{each.name.replace('_', '-')}", default=default, **text)


def chosen(arguments: argparse.Namespace) -> Training:
    """The options of `arguments.task`, as its dataclass."""
    kind = TASKS[arguments.task]
    return kind(**{each.name: getattr(arguments, each.name) for each in fields(kind) if hasattr(arguments, each.name)})
