"""The training of a built-in task on one rank, which torchrun's agent starts (see pod/launch.py)."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtally import compat, tasks
from torchtally.accounting.account import Account
from torchtally.commands.load import load_task
from torchtally.distributed import process_group, shared_memory
from torchtally.environment import Places
from torchtally.options import Training
from torchtally.pod.failure import exit_rank
from torchtally.training import artifacts
from torchtally.training.loop import Loop
from torchtally.training.setup import set_up
from torchtally.training.task import Task
from torchtally_observer import signs

compat.import_optimizers()  # before the fork of the ranks, which share it


def main() -> int:
    """Train with the options in sys.argv, and return the exit code."""
    arguments = tasks.parser("run").parse_args()
    return process_group.run(lambda: _run(arguments.task, tasks.options_of(arguments)))


def _run(name: str, options: Training) -> None:
    output = options.output or Places.from_env(os.environ).output
    # The account reads these, whoever has chosen them.
    chosen = {"OUTPUT": output, "MLFLOW": options.mlflow, "TENSORBOARD": options.tensorboard}
    os.environ |= {f"TORCHTALLY_{name}": str(value) for name, value in chosen.items() if value is not None}
    task = load_task(name, options)
    if task.fit:
        task.fit(name, options, output)
    else:
        _fit(task, name, options, output)
    dist.barrier()  # no rank ends before the model is written


def _fit(task: Task, name: str, options: Training, output: Path) -> None:
    """Train in the loop, from the newest checkpoint if there is one, and write the model and its proof."""
    context = set_up(task, options.data, options.common(), lambda: artifacts.prepare(output))
    device = context.device
    identity = artifacts.training(name, options, task.fingerprint)
    with Account(name, plan={"train": options.epochs, "test": options.epochs}, seed=options.seed) as account:
        memory = shared_memory.connect(context.process.local_world) if device.type == "cpu" else None
        loop = Loop(account, task, options, context.train.to(device), context.test.to(device), identity, memory)

        def trained() -> tuple[nn.Module, Tensor]:
            found = task.model(options)
            found.load_state_dict(torch.load(output / artifacts.MODEL, map_location="cpu", weights_only=True))
            return found, task.inputs(context.test.inputs[:2])

        account.describe(options.training_options(), trained)
        checkpoints = loop.checkpoints(output)
        loop.fit(checkpoints)
        signs.over()
        if account.rank == 0:
            source, epochs = account.source, loop.results.epochs
            hashes = artifacts.write_model(loop.model, task, output, source)
            account.made = artifacts.sha256_text(hashes[artifacts.MODEL]), str(output)
            account.after_end(
                lambda last: artifacts.write_proof(
                    output, hashes, last, identity, epochs, source, lambda: checkpoints.saved
                )
            )


if __name__ == "__main__":
    exit_rank(main())
