"""The training of a built-in task on one rank, which torchrun's agent starts (see pod/launch.py)."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchtally import compat, events, tasks
from torchtally.checkpoints import in_use
from torchtally.checkpoints.checkpoints import Checkpoints
from torchtally.checkpoints.rounds import Rounds
from torchtally.commands.setup import load_task, set_up
from torchtally.distributed import process_group, shared_memory
from torchtally.environment import Places
from torchtally.errors import Volume
from torchtally.log import log
from torchtally.monitoring.callback import Callback, Callbacks
from torchtally.monitoring.requested import Requested
from torchtally.options import Training
from torchtally.pod import stacks
from torchtally.pod.failure import exit_rank
from torchtally.training import artifacts, loop
from torchtally.training.checkpointer import FOLDER, Checkpointer
from torchtally.training.task import Task
from torchtally.training.train_state import TrainState

compat.import_optimizers()  # before the fork of the ranks, which share it

_WRITE_TIMEOUT = 240.0  # seconds of retries; less than handshake.COLLECTIVE_TIMEOUT, in which the other ranks wait
_WRITE_INTERVAL = 10  # seconds


def main() -> int:
    """Train with the options in sys.argv, and return the exit code."""
    arguments = tasks.parser("run").parse_args()
    return process_group.run(lambda: _run(arguments.task, tasks.options_of(arguments)))


def _run(name: str, options: Training) -> None:
    output = options.output or Places.from_env(os.environ).output
    task = load_task(name, options)
    if task.fit:
        train_state = task.fit(name, options, output)
        if train_state and dist.get_rank() == 0:
            _write(train_state, task, output, artifacts.training(name, options, task.fingerprint))
    else:
        _fit(task, name, options, output)
    dist.barrier()  # no rank ends before the model is written


def _fit(task: Task, name: str, options: Training, output: Path) -> None:
    """Train in the loop, from the newest checkpoint if there is one, and write the model and its proof."""
    compared = {name: value for name, value in vars(options).items() if name not in ("data", "output", "seed")}
    facts = {"seed": options.seed, "options": compared}
    requested: Requested | None = None  # on rank 0

    def prepare() -> None:
        nonlocal requested
        requested = Requested.of(options.mlflow, options.tensorboard)
        artifacts.prepare(output)
        if not options.checkpoints:
            in_use.hold(output / FOLDER)

    context = set_up(task, options.data, facts, prepare)
    process, device = context.process, context.device

    identity = artifacts.training(name, options, task.fingerprint)
    model, optimizer = loop.build(task, options, device)
    keep, seconds = options.keep, options.save_seconds
    with ExitStack() as stack:
        run = context.begin(name, {"train": options.epochs, "test": options.epochs}, options.seed)
        folder = options.checkpoints or str(output / FOLDER)
        train_state = TrainState(
            run,
            model,
            optimizer,
            facts=identity,
            place=(folder, "--checkpoints" if options.checkpoints else "--output"),
            grows=None if task.rate else artifacts.EPOCHS,  # a rate depends on the number of epochs from the first step
        )
        checkpointer: Rounds
        if options.checkpoints:
            objects = {"model": model, "optimizer": optimizer}
            checkpointer = shared = Checkpoints(train_state, folder, objects, every=seconds, keep=keep)
            stack.push(lambda kind, *_: shared.close(wait=kind is None))
        else:
            checkpointer = Checkpointer(train_state, output / FOLDER, every=seconds, keep=keep)
        checkpointer.resume()
        run = train_state.run
        callbacks: list[Callback] = []
        if context.exporter:
            stack.enter_context(context.exporter).open(run)
            if process.rank == 0:
                callbacks.append(context.exporter.of_run(run, checkpointer))
        if requested:
            example = task.inputs(context.test.inputs[:2])

            def trained() -> tuple[nn.Module, Tensor]:
                found = task.model(options)
                found.load_state_dict(torch.load(output / artifacts.MODEL, map_location="cpu", weights_only=True))
                return found, example

            watchers = requested.callbacks(run, options.training_options(), output, trained)
            callbacks += [stack.enter_context(each) for each in watchers]
        training = loop.Loop(
            task=task,
            options=options,
            train_state=train_state,
            train=context.train.to(device),
            test=context.test.to(device),
            device=device,
            checkpointer=checkpointer,
            callback=Callbacks(callbacks) if callbacks else None,
            pace=context.pace,
            exporter=context.exporter,
            memory=shared_memory.connect(process.local_world) if device.type == "cpu" else None,
        )
        training.fit()
        stacks.over()
        if process.rank == 0:
            _write(train_state, task, output, identity, checkpointer)


def _write(
    train_state: TrainState,
    task: Task,
    output: Path,
    identity: dict[str, Any],
    checkpointer: Rounds | None = None,
) -> None:
    """Write the model and its proof, with retries, because the training is complete. Raises Volume."""
    until = time.monotonic() + _WRITE_TIMEOUT
    while True:
        try:
            checkpoint = checkpointer.saved if checkpointer else None
            return artifacts.write(train_state, task, output, identity, checkpoint)
        except OSError as error:
            message = f"the model cannot be written to {output} (--output, TORCHTALLY_OUTPUT): {error}"
            events.emit(events.WriteFailed(output=str(output), cause=str(error)), train_state.run.source)
            if time.monotonic() > until:
                raise Volume(message) from None
        log.warning(f"{message}; retrying in {_WRITE_INTERVAL} s")
        time.sleep(_WRITE_INTERVAL)


if __name__ == "__main__":
    exit_rank(main())
