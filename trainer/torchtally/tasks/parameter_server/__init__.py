"""An embedding table on a parameter server, learnt together with a layer that DDP trains."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchtally.options import AllReduce, Training, another_default, not_offered, option, whole
from torchtally.proof.contract import Contract


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """An embedding table on a parameter server; DDP and RPC together."""

    epochs: int = another_default("epochs", 100)
    batch_size: int = option(5, "samples a trainer and step", type=whole(1, 1 << 31), metavar="N")
    lr: float = another_default("lr", 0.05)
    global_batch_size: int | None = not_offered("global_batch_size")
    contract: Contract | None = not_offered("contract")
    all_reduce: AllReduce = not_offered("all_reduce")
    save_seconds: float = not_offered("save_seconds")
    keep: int = not_offered("keep")
    data: Path | None = not_offered("data")
    mlflow: str | None = not_offered("mlflow")
    form: Literal["rpc", "collective"] = option(
        "rpc",
        "how trainers reach the table: by RPC to the server, or by collectives, its rows shared out over server and "
        "trainers",
        choices=("rpc", "collective"),
    )
