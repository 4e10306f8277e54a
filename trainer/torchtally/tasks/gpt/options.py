"""The options of the task gpt."""

from dataclasses import dataclass
from typing import Literal

from torchtally.options import AllReduce, Training, not_offered, option, override_default, whole_number


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """A GPT on text files: FSDP2, bfloat16, gradient accumulation, sharded checkpoints."""

    layers: int = option(3, "blocks of the model", type=whole_number(1, 1 << 12), metavar="N")
    width: int = option(96, "width of the model, a multiple of --heads", type=whole_number(2, 1 << 16), metavar="N")
    heads: int = option(4, "heads of attention, each of an even width", type=whole_number(1, 1 << 12), metavar="N")
    length: int = option(64, "tokens of a sample", type=whole_number(2, 1 << 20), metavar="N")
    vocabulary: int = option(
        1024,
        "tokens of the byte-pair encoding, which is trained on the text",
        type=whole_number(257, 1 << 16),
        metavar="N",
    )
    accumulate: int = option(
        1, "batches of each rank in a step of the optimizer", type=whole_number(1, 1 << 20), metavar="N"
    )
    precision: Literal["bfloat16", "float32"] = option(
        "bfloat16",
        "type in which layers compute; weights are float32",
        choices=("bfloat16", "float32"),
    )
    epochs: int = override_default("epochs", 2)
    batch_size: int = option(8, "samples of each rank in a batch", type=whole_number(1, 1 << 31), metavar="N")
    lr: float = override_default("lr", 3e-3)
    global_batch_size: int | None = not_offered("global_batch_size")
    all_reduce: AllReduce = not_offered("all_reduce")
    mlflow: str | None = not_offered("mlflow")
    tensorboard: str | None = not_offered("tensorboard")
