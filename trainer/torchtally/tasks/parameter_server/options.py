"""The options of the task parameter-server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchtally.options import AllReduce, Training, not_offered, option, override_default, whole_number
from torchtally.proof.contract import Contract


@dataclass(frozen=True, kw_only=True)
class Options(Training):
    """An embedding table on a parameter server, used by RPC, and a layer under DDP."""

    epochs: int = override_default("epochs", 100)
    batch_size: int = option(5, "samples of each rank in a step", type=whole_number(1, 1 << 31), metavar="N")
    lr: float = override_default("lr", 0.05)
    global_batch_size: int | None = not_offered("global_batch_size")
    contract: Contract | None = not_offered("contract")
    all_reduce: AllReduce = not_offered("all_reduce")
    save_seconds: float = not_offered("save_seconds")
    keep: int = not_offered("keep")
    checkpoints: str | None = not_offered("checkpoints")
    data: Path | None = not_offered("data")
    form: Literal["rpc", "collective"] = option(
        "rpc",
        "access to the table: by RPC to rank 0, which holds it, or by collective calls, with its rows sharded over all "
        "ranks",
        choices=("rpc", "collective"),
    )
